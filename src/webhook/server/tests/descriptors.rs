//! A process without file descriptors waits for them quietly.

use std::process::Stdio;

use super::*;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// Set for the process that is short of descriptors.
const ROLE: &str = "BELAY_TEST_SHORT_OF_DESCRIPTORS";
const TEST: &str = "webhook::server::tests::descriptors::a_server_out_of_descriptors_does_not_spin_and_recovers";

/// User and system time that a process has used (proc(5), stat: fields 14 and 15, hundredths of a second).
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// The limit is a process's, so the server runs in one of its own: this test again, started by a shell that lowers it.
#[tokio::test]
async fn a_server_out_of_descriptors_does_not_spin_and_recovers() {
    if std::env::var_os(ROLE).is_some() {
        let server = start(sizes(), quick()).await;
        let bundle = String::from_utf8(server.authority.secret.bundle_pem()).unwrap().replace('\n', "\\n");
        println!("\nLISTENING {} {bundle}", server.address);
        server.task.await.unwrap();
        return;
    }
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -n 40 && exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .arg(TEST)
        .env(ROLE, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap().expect("the server did not start");
        if let Some((_, said)) = line.split_once("LISTENING ") {
            break said.split_once(' ').unwrap().0.parse::<SocketAddr>().unwrap();
        }
    };

    // More connections than it has descriptors; the last ones wait in its backlog.
    let mut connections = Vec::new();
    for _ in 0..60 {
        connections.push(TcpStream::connect(address).await.unwrap());
    }
    let pid = child.id().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = cpu_seconds(pid);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = cpu_seconds(pid) - before;
    assert!(used < 0.3, "{used} s of a core in one second");

    // With descriptors again it serves: its TLS greets whoever speaks TLS to it.
    drop(connections);
    let stranger = Authority::new().connector("http/1.1");
    let greeted = async {
        loop {
            match connect(address, &stranger).await {
                Err(error) if error.to_string().contains("UnknownIssuer") => return,
                other => drop(other),
            }
        }
    };
    tokio::time::timeout(PATIENCE, greeted).await.expect("it does not serve again");
    child.kill().await.unwrap();
}
