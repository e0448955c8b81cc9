//! Certificates from a mounted Secret, read as files.
//!
//! A kubelet brings a changed Secret into the pod by swapping one symbolic link for another, so each file is old or new,
//! but files that are read one after the other may be of both. They are read until two reads in a row agree; comparing
//! contents also sees changes that file notifications miss.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use webhook_certs::Files;

/// How often files are read. The kubelet takes up to two minutes to bring a change into the pod, so reading more often
/// gains nothing.
pub const POLL: Duration = Duration::from_secs(10);

/// How many reads may differ from the one before: swaps are a minute apart, so more is no kubelet.
const READS: usize = 4;

/// Why files cannot be used.
#[derive(Debug, Error)]
pub enum ReadError {
    /// One cannot be read.
    #[error("cannot read {path}: {source}; mount the Secret with tls.crt, tls.key and ca.crt there")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// They change faster than they can be read.
    #[error("the files in {folder} change at every read; write each version of them once, all at the same time")]
    Changing {
        /// Where.
        folder: PathBuf,
    },
}

/// Reads `tls.crt`, `tls.key` and `ca.crt`, all of one moment. A `ca.crt` that is not there is read as an empty one: what
/// that means is for the pair's check to say.
pub fn files(folder: &Path) -> Result<Files, ReadError> {
    let once = || {
        let authorities = match read(folder, "ca.crt") {
            Err(ReadError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        Ok(Files { certificate: read(folder, "tls.crt")?, key: read(folder, "tls.key")?, authorities })
    };
    agreed(folder, once)
}

/// Reads `ca.crt`.
pub fn authorities(folder: &Path) -> Result<Vec<u8>, ReadError> {
    read(folder, "ca.crt")
}

/// What two reads in a row agree on.
fn agreed<T: PartialEq>(folder: &Path, mut once: impl FnMut() -> Result<T, ReadError>) -> Result<T, ReadError> {
    let mut last = once()?;
    for _ in 0..READS {
        let next = once()?;
        if next == last {
            return Ok(next);
        }
        last = next;
    }
    Err(ReadError::Changing { folder: folder.into() })
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, ReadError> {
    let path = folder.join(name);
    std::fs::read(&path).map_err(|source| ReadError::Unreadable { path, source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder as a kubelet keeps it (kubernetes, `pkg/volume/util/atomic_writer.go`).
    struct Volume(PathBuf);

    impl Volume {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("belay-mounted-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn swap(&self, version: &str, files: &[(&str, &str)]) {
            let data = format!("..{version}");
            std::fs::create_dir(self.0.join(&data)).unwrap();
            for (name, text) in files {
                std::fs::write(self.0.join(&data).join(name), text).unwrap();
                let _ = symlink(format!("..data/{name}"), self.0.join(name));
            }
            symlink(&data, self.0.join("..data_tmp")).unwrap();
            std::fs::rename(self.0.join("..data_tmp"), self.0.join("..data")).unwrap();
        }
    }

    impl Drop for Volume {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn pair(version: &str) -> [(&str, &str); 2] {
        [("tls.crt", version), ("tls.key", version)]
    }

    #[test]
    fn files_of_one_version_are_read_with_and_without_an_authority() {
        let volume = Volume::new("versions");
        volume.swap("1", &pair("one"));
        let read = files(&volume.0).unwrap();
        assert_eq!(read, Files { certificate: b"one".to_vec(), key: b"one".to_vec(), authorities: Vec::new() });
        let error = authorities(&volume.0).unwrap_err().to_string();
        assert!(error.contains("ca.crt"), "{error}");
        volume.swap("2", &[&pair("two")[..], &[("ca.crt", "trust")]].concat());
        assert_eq!(files(&volume.0).unwrap().authorities, b"trust");
        assert_eq!(authorities(&volume.0).unwrap(), b"trust");
    }

    #[test]
    fn a_swap_between_two_files_is_read_again_and_an_endless_one_given_up() {
        let volume = Volume::new("swap");
        volume.swap("1", &pair("one"));
        let mut swapped = false;
        let read = agreed(&volume.0, || {
            let certificate = read(&volume.0, "tls.crt")?;
            if !std::mem::replace(&mut swapped, true) {
                volume.swap("2", &pair("two"));
            }
            Ok((certificate, read(&volume.0, "tls.key")?))
        });
        assert_eq!(read.unwrap(), (b"two".to_vec(), b"two".to_vec()));

        let mut count = 0;
        let endless = agreed(&volume.0, || {
            count += 1;
            Ok(count)
        });
        assert!(matches!(endless, Err(ReadError::Changing { .. })));
    }

    #[test]
    fn a_missing_file_is_told_by_its_path() {
        let volume = Volume::new("missing");
        volume.swap("1", &[("tls.crt", "one")]);
        let error = files(&volume.0).unwrap_err().to_string();
        assert!(error.contains("tls.key") && error.contains("mount the Secret"), "{error}");
    }
}
