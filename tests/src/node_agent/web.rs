//! The image `belay.dev/web`: an HTTP server that answers 200 with the name of its pod.
//!
//! It listens on every port that the container declares, from the moment the pod becomes Ready, and cuts everything at
//! the moment it is asked to stop. Graceless on purpose: a request that reaches a pod which is going fails, so that a
//! test counts it.

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::ResourceExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::container::Playing;
use super::status::Ended;

/// What a container that declares no port listens on.
const DEFAULT_PORT: u16 = 8080;

pub(super) async fn run(playing: &Playing) -> Ended {
    playing.running();
    let mut end = std::pin::pin!(playing.end());
    tokio::select! {
        () = playing.time_to_be_ready() => {}
        ended = &mut end => return ended,
    }
    let mut servers = match listen(playing) {
        Ok(servers) => servers,
        Err(error) => return Ended::failed(format!("{error:#}")),
    };
    playing.ready(true);
    let ended = end.await;
    // Waiting for the tasks' end closes the sockets before anybody is told that the container has ended.
    servers.shutdown().await;
    ended
}

fn listen(playing: &Playing) -> anyhow::Result<JoinSet<()>> {
    let declared = playing.spec.ports.iter().flatten();
    let mut ports: Vec<u16> = declared.filter_map(|port| u16::try_from(port.container_port).ok()).collect();
    if ports.is_empty() {
        ports.push(DEFAULT_PORT);
    }
    let answer = Bytes::from(format!("{}\n", playing.pod.name_any()));
    let mut servers = JoinSet::new();
    for port in ports {
        let listener = playing.host.network.listen(playing.address, port)?;
        servers.spawn(serve(TcpListener::from_std(listener)?, answer.clone()));
    }
    Ok(servers)
}

async fn serve(listener: TcpListener, answer: Bytes) {
    // Owned by this task, so that its end closes the connections too.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let answer = answer.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let answer = answer.clone();
                        async move { respond(&request, answer) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

fn respond(_request: &Request<Incoming>, answer: Bytes) -> http::Result<Response<Full<Bytes>>> {
    Response::builder().header(header::CONTENT_TYPE, "text/plain").body(Full::new(answer))
}
