//! The certificate changes under load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Swaps, each with a new key and certificate.
const SWAPS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swapping_the_certificate_under_load_fails_no_request() {
    let server = start(sizes(), quick()).await;
    let (stop, handshakes, requests) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut workers = Vec::new();
    for worker in 0..8 {
        let protocol = if worker % 2 == 0 { "http/1.1" } else { "h2" };
        let (connector, address) = (server.authority.connector(protocol), server.address);
        let (stop, handshakes, requests) = (Arc::clone(&stop), Arc::clone(&handshakes), Arc::clone(&requests));
        workers.push(tokio::spawn(async move {
            let mut leaves = std::collections::BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                let stream = connect(address, &connector).await.unwrap();
                leaves.insert(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec());
                handshakes.fetch_add(1, Ordering::Relaxed);
                let mut client = client_over(stream, protocol).await;
                // Swaps happen between these, too.
                for _ in 0..5 {
                    assert_eq!(client.post("/size", vec![b'x'; 8192]).await.unwrap().text, "8192");
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            }
            leaves
        }));
    }
    for swap in 0..SWAPS {
        let before = requests.load(Ordering::Relaxed);
        server.authority.swap();
        eventually(&format!("requests after swap {swap}"), || requests.load(Ordering::Relaxed) > before).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut leaves = std::collections::BTreeSet::new();
    for worker in workers {
        leaves.extend(worker.await.expect("a request failed"));
    }
    let (handshakes, requests) = (handshakes.load(Ordering::Relaxed), requests.load(Ordering::Relaxed));
    println!("{SWAPS} swaps, {handshakes} handshakes with {} leaves, {requests} requests, 0 failed", leaves.len());
    assert!(leaves.len() > SWAPS / 10, "{} leaves were seen", leaves.len());
}
