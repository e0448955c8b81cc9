//! Ends connections whose peer does not take what it is sent.
//!
//! Answers are small, and an API server reads each at once. hyper waits for ever for room in a socket's buffer, and in
//! that state neither its own timeouts nor its pings run: a client that sends requests and reads nothing would keep its
//! connection, and what is queued for it, as long as it likes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail when the peer takes nothing for longer than `limit`.
pub(super) struct StallTimer<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits for the peer.
    running: Option<Pin<Box<Sleep>>>,
}

impl<S> StallTimer<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, running: None }
    }

    /// What became of a write; an error where it has waited for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.running = None;
            return written;
        }
        let limit = self.limit;
        let running = self.running.get_or_insert_with(|| Box::pin(sleep(limit)));
        running
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer did not take what it was sent")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimer<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimer<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, shut)
    }
}
