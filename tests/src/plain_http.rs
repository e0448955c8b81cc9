//! One GET over a connection of its own: for probes, metrics and the load generator.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Connects, asks and reads the whole answer.
///
/// # Errors
/// When nobody listens, or the connection ends early.
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    exchange(TcpStream::connect(address).await?, address, path, &[]).await
}

/// Asks on a new connection and reads the whole answer.
///
/// # Errors
/// When the connection ends early or the answer is no HTTP.
pub async fn exchange(
    stream: TcpStream,
    address: SocketAddr,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::get(path).header(header::HOST, address.to_string()).header(header::CONNECTION, "close");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?;
        anyhow::Ok((status, body.to_bytes()))
    };
    // The connection ends with the answer: it was asked to close.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}
