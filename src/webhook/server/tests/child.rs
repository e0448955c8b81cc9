//! A server in a process of its own: the running test once more, told by a variable to serve instead.
//!
//! What is limited or measured for a process (file descriptors, memory, time) is the server's alone then.

use std::process::Stdio;

use super::*;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child as Process, Command};

/// Set for the process that serves.
const ROLE: &str = "BELAY_TEST_SERVES";

/// The process that serves; it ends when this is dropped.
pub(super) struct Child {
    process: Process,
    pub(super) address: SocketAddr,
    pub(super) connector: TlsConnector,
}

/// This process is the one that serves.
pub(super) fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Tells the parent where this server is, and serves on.
pub(super) async fn serve(server: Running) {
    let bundle = String::from_utf8(server.authority.secret.bundle_pem()).unwrap().replace('\n', "\\n");
    println!("\nLISTENING {} {bundle}", server.address);
    server.task.await.unwrap();
}

impl Child {
    /// Runs the test of this full name in another process, after these commands of a shell.
    pub(super) async fn start(test: &str, after: &str) -> Self {
        let mut process = Command::new("sh")
            .args(["-c", &format!("{after} exec \"$0\" --exact \"$1\" --nocapture")])
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env(ROLE, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        loop {
            let line = lines.next_line().await.unwrap().expect("the server did not start");
            if let Some((_, said)) = line.split_once("LISTENING ") {
                let (address, bundle) = said.split_once(' ').unwrap();
                let connector = trusting(bundle.replace("\\n", "\n").as_bytes(), "http/1.1");
                return Self { process, address: address.parse().unwrap(), connector };
            }
        }
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    /// A figure of its `/proc/PID/status`, in MiB.
    pub(super) fn mebibytes(&self, field: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).expect(field);
        let kibibytes: f64 = line.split_whitespace().nth(1).expect(field).parse().unwrap();
        kibibytes / 1024.0
    }

    /// A client of HTTP/1.1.
    pub(super) async fn client(&self) -> Client {
        client_over(connect(self.address, &self.connector).await.unwrap(), "http/1.1").await
    }

    /// Ends it.
    pub(super) async fn end(mut self) {
        self.process.kill().await.unwrap();
    }
}
