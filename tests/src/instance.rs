//! One running test cluster's own corner of the machine: an octet of `127.0.0.0/8` and a work folder.
//!
//! Linux answers on every address of `127.0.0.0/8`. An instance that owns the octet A has `127.A.0.0/16` for itself,
//! so its programs and pods listen on the usual ports and never meet those of another instance. The octet is owned by
//! holding a listener on `127.A.0.1:61000`: the kernel hands it to one process only and takes it back whatever way
//! that process ends.
//!
//! A small shell process, the janitor, waits for the owner's end on a pipe and removes the work folder then. It holds a
//! copy of the lock listener, so the next owner of A cannot come before the folder is gone.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};

/// Where the lock listener of an instance is: the first port above Linux's default ephemeral range (32768 to 60999), so
/// that no outgoing connection takes it.
const LOCK_PORT: u16 = 61000;

/// 251 is the second octet of the Service addresses (`10.251.0.0/16`), 254 and 255 are used by VPN software.
const LAST_OCTET: u8 = 250;

/// Set to keep the work folder (logs, audit log, certificates) of a run after its end.
pub const KEEP: &str = "BELAY_E2E_KEEP";

/// Waits for the end of standard input, then removes the folder `$0`. Programs that were killed with the owner may
/// still write for a moment, so it tries again while something remains.
const JANITOR: &str = r#"
trap '' INT TERM HUP
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do
  rm -rf -- "$0" 2>/dev/null && exit 0
  sleep 0.2
done
"#;

/// An octet of `127.0.0.0/8` and a folder that belong to this process.
#[derive(Debug)]
pub struct Instance {
    octet: u8,
    folder: PathBuf,
    janitor: Option<Child>,
    _lock: TcpListener,
}

impl Instance {
    /// Takes the lowest free octet and makes its folder, empty.
    ///
    /// # Errors
    /// When all octets are taken or the system's temporary folder cannot be written.
    pub fn claim() -> anyhow::Result<Self> {
        for octet in 1..=LAST_OCTET {
            let lock = match TcpListener::bind((Ipv4Addr::new(127, octet, 0, 1), LOCK_PORT)) {
                Ok(lock) => lock,
                Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!("cannot listen on 127.{octet}.0.1:{LOCK_PORT} (a Linux loopback is needed)")
                    });
                }
            };
            let folder = folder_of(octet);
            match make_empty(&folder) {
                Ok(()) => {}
                // Left behind by another user of this machine: not ours to remove.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => continue,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make the work folder {}", folder.display()));
                }
            }
            let janitor = if std::env::var_os(KEEP).is_some() { None } else { Some(start_janitor(&folder, &lock)?) };
            return Ok(Self { octet, folder, janitor, _lock: lock });
        }
        bail!("all of 127.1.0.1 to 127.{LAST_OCTET}.0.1 are taken on port {LOCK_PORT}: end some test runs first")
    }

    /// The octet A of `127.A.0.0/16`.
    pub fn octet(&self) -> u8 {
        self.octet
    }

    /// `127.A.0.host`, an address for a program of the control plane.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.octet, 0, host)
    }

    /// The work folder; removed with the instance.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(janitor) = &mut self.janitor {
            // Closing its input is the sign; waiting makes "stopped" mean "gone".
            drop(janitor.stdin.take());
            let _ = janitor.wait();
        }
    }
}

/// The work folder of the instance that owns `octet`, whether it runs or not.
pub fn folder_of(octet: u8) -> PathBuf {
    std::env::temp_dir().join(format!("belay-{octet}"))
}

/// The octets that are owned by some process now.
pub fn owned_octets() -> Vec<u8> {
    (1..=LAST_OCTET)
        .filter(|&octet| {
            TcpListener::bind((Ipv4Addr::new(127, octet, 0, 1), LOCK_PORT))
                .is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
        })
        .collect()
}

/// Removes the work folders that nobody owns: what a machine that lost power, or a kill of every process, left behind.
///
/// # Errors
/// When one cannot be removed.
pub fn remove_leftovers() -> anyhow::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for octet in 1..=LAST_OCTET {
        let folder = folder_of(octet);
        // While this listener is held, nobody can start to use the folder.
        let lock = TcpListener::bind((Ipv4Addr::new(127, octet, 0, 1), LOCK_PORT));
        if lock.is_err() || !folder.is_dir() {
            continue;
        }
        match std::fs::remove_dir_all(&folder) {
            Ok(()) => removed.push(folder),
            // Another user's.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", folder.display())),
        }
    }
    Ok(removed)
}

fn make_empty(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Private: it holds the keys of a cluster administrator.
    std::fs::DirBuilder::new().mode(0o700).create(folder)
}

fn start_janitor(folder: &Path, lock: &TcpListener) -> anyhow::Result<Child> {
    let lock = lock.try_clone().context("cannot copy the lock listener")?;
    Command::new("sh")
        .args(["-c", JANITOR])
        .arg(folder)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::from(OwnedFd::from(lock)))
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start sh, which removes the work folder when this process ends")
}
