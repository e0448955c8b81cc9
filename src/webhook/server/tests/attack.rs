//! A crowd of callers, and the memory that the server needs for it.

use super::child::{self, Child};
use super::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

/// Connections at once.
const CROWD: usize = 1000;

/// What a process that serves may come to need, in MiB: a tenth of what the bodies would take that are sent to it. By the
/// limits of [`Options`] it is 32 for large bodies, as much for small ones, and 30 for connections; the rest is what the
/// platform's allocator keeps of that, which differs by as much again from run to run.
const MOST: f64 = 300.0;

const TEST: &str = "webhook::server::tests::attack::a_thousand_connections_are_served_in_bounded_memory";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_are_served_in_bounded_memory() {
    if child::is_child() {
        return child::serve(start_webhook(quick()).await).await;
    }
    let server = Child::start(TEST, "").await;
    is_held(&mut server.client().await).await;
    let before = server.mebibytes("VmRSS:");

    // All are open at the same time, and each is served.
    let mut clients = JoinSet::new();
    for _ in 0..CROWD {
        let (address, connector) = (server.address, server.connector.clone());
        clients.spawn(async move { client_over(connect(address, &connector).await.unwrap(), "http/1.1").await });
    }
    let mut clients = clients.join_all().await;
    futures::future::join_all(clients.iter_mut().map(is_held)).await;
    let open = server.mebibytes("VmHWM:");

    // On each of them the largest body that is read, but for its last byte; then with its length not said.
    drop(clients);
    let size = Options::default().body_limit - 1;
    for (name, head) in [
        ("of a length", format!("content-length: {}\r\n\r\n", size + 1)),
        ("of no length", format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", size + 1)),
    ] {
        let head = format!("POST {} HTTP/1.1\r\nhost: w\r\n{head}", webhook::EVICTION_PATH);
        let mut crowd = JoinSet::new();
        for _ in 0..CROWD {
            let (address, connector, head) = (server.address, server.connector.clone(), head.clone());
            crowd.spawn(async move {
                let Ok(mut stream) = connect(address, &connector).await else { return };
                if stream.write_all(head.as_bytes()).await.is_ok() && stream.write_all(&vec![b' '; size]).await.is_ok()
                {
                    let _ = stream.flush().await;
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
            });
        }
        // Long enough for what it has room for to have arrived, and for the others to stand in line.
        tokio::time::sleep(Duration::from_secs(2)).await;
        crowd.shutdown().await;
        println!("bodies {name}: at most {:.0} MiB so far", server.mebibytes("VmHWM:"));
        is_held(&mut server.client().await).await;
    }
    let most = server.mebibytes("VmHWM:");
    println!("{before:.0} MiB before, at most {open:.0} MiB with {CROWD} connections, {most:.0} MiB with large bodies");
    assert!(most <= MOST, "{most} MiB");
    server.end().await;
}
