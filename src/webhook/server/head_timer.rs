//! Ends connections on which a request's head arrives too slowly.
//!
//! hyper has one timeout for reading a head, and it runs while a kept-alive connection is idle, too. Being idle has to
//! be allowed for minutes, a head only for seconds. So the time from a head's first byte is measured here, between
//! hyper and the socket, and hyper's own is left for idleness.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::SetOnce;
use tokio::time::{Instant, Sleep, sleep};

/// What goes on on one connection, as its requests tell.
#[derive(Debug)]
pub(super) struct Activity {
    heads: AtomicUsize,
    active: AtomicUsize,
    first: SetOnce<()>,
    /// When it was opened, or the last request ended.
    idle_since: Mutex<Instant>,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            heads: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            first: SetOnce::new(),
            idle_since: Mutex::new(Instant::now()),
        }
    }
}

/// One request in flight.
pub(super) struct Active<'a>(&'a Activity);

impl Activity {
    /// A head was read; its request is in flight until what is returned is dropped.
    pub(super) fn begin(&self) -> Active<'_> {
        self.active.fetch_add(1, Ordering::Relaxed);
        if self.heads.fetch_add(1, Ordering::Relaxed) == 0 {
            // Set by nobody else.
            let _ = self.first.set(());
        }
        Active(self)
    }

    /// Requests in flight.
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Since when there is no request in flight; absent while there is one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.active() == 0).then(|| *self.idle_since.lock())
    }

    /// Heads read so far.
    pub(super) fn heads(&self) -> usize {
        self.heads.load(Ordering::Relaxed)
    }

    /// Waits for the first request.
    pub(super) async fn first(&self) {
        self.first.wait().await;
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream of HTTP/1.1 whose reads fail when a head takes longer than `limit`; without one, only a stream.
pub(super) struct HeadTimer<S> {
    stream: S,
    limit: Option<Duration>,
    activity: Arc<Activity>,
    heads: usize,
    /// Runs from a head's first byte to its last.
    running: Option<Pin<Box<Sleep>>>,
}

impl<S> HeadTimer<S> {
    pub(super) fn new(stream: S, limit: Option<Duration>, activity: Arc<Activity>) -> Self {
        Self { stream, limit, activity, heads: 0, running: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadTimer<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(limit) = self.limit else { return read };
        let heads = self.activity.heads();
        if heads != self.heads {
            self.heads = heads;
            self.running = None;
        }
        if self.activity.active() > 0 {
            return read;
        }
        match read {
            Poll::Pending => {
                let Some(running) = &mut self.running else { return Poll::Pending };
                ready!(running.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request's head took too long")))
            }
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                self.running.get_or_insert_with(|| Box::pin(sleep(limit)));
                read
            }
            Poll::Ready(_) => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadTimer<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
