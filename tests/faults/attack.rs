//! Somebody in the cluster sends the webhook what no API server sends, while a drain is held.
//!
//! Callers of a webhook are not told apart, so what protects it is what it bears: below the number of connections that it
//! takes at once, the API server is served as if nobody else were there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use belay_e2e::world::{Belay, Caller, Namespace, PodInfo, eviction_head};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::stage::{PATIENCE, Scene, fault};
use crate::support::SOON;
use crate::webhook::failed_open;

/// Attackers of each kind at each replica. All of them together stay below the connections that a replica takes.
const EACH: usize = 20;

/// How long an attacker rests between two connections: what is tested is what they do to the webhook, not that they
/// leave the machine without a processor.
const REST: Duration = Duration::from_millis(500);

#[derive(Clone, Copy)]
enum Kind {
    /// Speaks no TLS.
    Noise,
    /// A request's head, a byte now and then.
    SlowHead,
    /// A body that is never all there.
    HalfBody,
    /// Large, and no review.
    LargeBody,
    /// A review of nothing, after it many more on the same connection, whose answers it does not read.
    DeafAsker,
}

const KINDS: [Kind; 5] = [Kind::Noise, Kind::SlowHead, Kind::HalfBody, Kind::LargeBody, Kind::DeafAsker];

#[test]
fn a_drain_is_held_and_ends_as_if_nobody_attacked_the_webhook() {
    fault("attack", async |ns: &Namespace, belay: &Belay| {
        let scene = Scene::set(ns, Duration::from_secs(8), "").await?;
        let unheld = failed_open(ns).await?;
        let before = belay.webhook_pods().await?;
        let caller = Caller::trusting(ns).await?;
        let done = Arc::new(AtomicUsize::new(0));
        let mut attackers = JoinSet::new();
        for address in belay.replicas(ns).await? {
            for kind in KINDS.repeat(EACH) {
                attackers.spawn(attack(kind, address, caller.clone(), Arc::clone(&done)));
            }
        }
        ns.eventually("the attack is under way", SOON, async || {
            let count = done.load(Ordering::Relaxed);
            ensure!(count > 10 * EACH, "{count} connections so far");
            Ok(())
        })
        .await?;
        let drain = scene.drain(ns).await?;
        drain.line("belay: holding", SOON).await?;
        let exit = drain.exit(PATIENCE).await?;
        ensure!(exit.success(), "{exit}");
        drop(attackers);
        let unheld = failed_open(ns).await? - unheld;
        ensure!(unheld == 0.0, "{unheld} evictions passed because the webhook did not answer in time");
        let restarted = |pods: &[PodInfo]| pods.iter().map(|pod| (pod.uid.clone(), pod.restarts())).collect::<Vec<_>>();
        let after = belay.webhook_pods().await?;
        ensure!(restarted(&before) == restarted(&after), "a replica died of it: {:?}", restarted(&after));
        eprintln!("{} hostile connections meanwhile", done.load(Ordering::Relaxed));
        scene.handed_over(ns).await
    });
}

/// One connection after the other, until the task is dropped.
async fn attack(kind: Kind, address: SocketAddr, caller: Caller, done: Arc<AtomicUsize>) {
    loop {
        // Whatever the webhook does to it, it comes again.
        let _ = once(kind, address, &caller, &done).await;
        tokio::time::sleep(REST).await;
    }
}

/// One connection; counted once the webhook has taken it.
async fn once(kind: Kind, address: SocketAddr, caller: &Caller, done: &AtomicUsize) -> anyhow::Result<()> {
    let head = |more: &str| format!("{}{more}\r\n", eviction_head());
    let mut stream = TcpStream::connect(address).await?;
    if matches!(kind, Kind::Noise) {
        stream.write_all(&[0xa5; 4096]).await?;
        stream.read_to_end(&mut Vec::new()).await?;
        return Ok(());
    }
    let mut stream = caller.shake_hands(stream).await?;
    done.fetch_add(1, Ordering::Relaxed);
    match kind {
        Kind::Noise => {}
        Kind::SlowHead => {
            stream.write_all(b"POST /validate/eviction HTTP/1.1\r\nx: ").await?;
            while stream.write_all(b"x").await.is_ok() && stream.flush().await.is_ok() {
                tokio::time::sleep(REST).await;
            }
        }
        Kind::HalfBody => {
            stream.write_all(head("content-length: 3000000\r\n").as_bytes()).await?;
            stream.write_all(&vec![b' '; 1_500_000]).await?;
            stream.flush().await?;
            stream.read_to_end(&mut Vec::new()).await?;
        }
        Kind::LargeBody => {
            stream.write_all(head("content-length: 200000\r\nconnection: close\r\n").as_bytes()).await?;
            stream.write_all(&vec![b'['; 200_000]).await?;
            stream.flush().await?;
            stream.read_to_end(&mut Vec::new()).await?;
        }
        Kind::DeafAsker => {
            let body = r#"{"request":{"uid":"u","name":"x","namespace":"default"}}"#;
            let asked = head(&format!("content-length: {}\r\n", body.len())) + body;
            while stream.write_all(asked.repeat(100).as_bytes()).await.is_ok() {
                tokio::time::sleep(REST).await;
            }
        }
    }
    Ok(())
}
