//! A process without file descriptors waits for them quietly.

use super::child::{self, Child};
use super::*;

const TEST: &str = "webhook::server::tests::descriptors::a_server_out_of_descriptors_does_not_spin_and_recovers";

/// User and system time that a process has used (proc(5), stat: fields 14 and 15, hundredths of a second).
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// The limit is a process's, so the server runs in one of its own, started by a shell that lowers it.
#[tokio::test]
async fn a_server_out_of_descriptors_does_not_spin_and_recovers() {
    if child::is_child() {
        return child::serve(start(sizes(), quick()).await).await;
    }
    let server = Child::start(TEST, "ulimit -n 40 &&").await;

    // More connections than it has descriptors; the last ones wait in its backlog.
    let mut connections = Vec::new();
    for _ in 0..60 {
        connections.push(TcpStream::connect(server.address).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = cpu_seconds(server.pid());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = cpu_seconds(server.pid()) - before;
    assert!(used < 0.3, "{used} s of a core in one second");

    // With descriptors again it serves.
    drop(connections);
    assert_eq!(server.client().await.post("/size", "x").await.unwrap().text, "1");
    server.end().await;
}
