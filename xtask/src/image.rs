//! The stage `image`: the image's last stage, built without a network from the release program, and looked into.
//!
//! The program and its surroundings are made by the scripts that the Dockerfile's first stage calls; of the Dockerfile
//! itself everything from its last `FROM` on is used as it stands. So what is checked is what is shipped, but for the base
//! image of the first stage.
//!
//! The program is compiled as for a release, whole: nothing less tells how large it is, or that it can be linked
//! statically. It is kept in the target folder, so that is done once, and after that only what changed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use belay_e2e::programs::which;
use serde_json::{Value, json};

use crate::workspace;

/// Largest size of the image, uncompressed, in bytes: what a node has to unpack before a webhook replica starts.
const MOST_BYTES: u64 = 30 << 20;

/// Every file that is in it, and its permissions.
const FILES: [(&str, u32); 2] = [("etc/ssl/certs/ca-certificates.crt", 0o644), ("usr/local/bin/belay", 0o755)];

/// Builds and checks; says what came of it.
pub(crate) fn run(log: &Path) -> anyhow::Result<String> {
    let target = workspace::target_folder()?;
    let folder = target.join("xtask/image");
    // What an earlier run left: containers are kept in it, and it is made anew in a moment.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let context = folder.join("context");
    let layout = context.join("rootfs");
    fs::create_dir_all(&layout).with_context(|| format!("cannot make {}", layout.display()))?;
    let script = |name: &str| {
        // Minutes of compiling, beside tests that wait for each other: it takes what they leave.
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(workspace::folder().join("image").join(name));
        command
    };
    let program = said(script("build.sh").env("CARGO_TARGET_DIR", &target), log)?;
    said(script("rootfs.sh").arg(&program).arg(&layout), log)?;
    // Without root there is neither chroot nor an image whose files belong to root.
    let Some(builder) = is_root(log)?.then(|| buildah(log)).flatten() else {
        let size = mebibytes(check_files(&layout)?);
        let version = check_version(&said(Command::new(&program).arg("--version"), log)?)?;
        return Ok(format!(
            "{version}, {size}; only its files: an image takes root, and buildah or apt-get to install it"
        ));
    };
    fs::write(context.join("Dockerfile"), last_stage(&dockerfile()?)?)?;
    let builder = Builder { program: builder, folder: &folder, log };
    // No namespaces: that works without any right that a container lacks.
    builder.run(&["build", "--isolation", "chroot", "--timestamp", "0", "--tag", "belay", "context"])?;
    check_config(&serde_json::from_str(&builder.run(&["inspect", "--type", "image", "belay"])?)?)?;
    let container = builder.run(&["from", "belay"])?;
    let root = PathBuf::from(builder.run(&["mount", &container])?);
    let size = mebibytes(check_files(&root)?);
    let version = check_program(&root, log)?;
    Ok(format!("{version}, {size}"))
}

fn is_root(log: &Path) -> anyhow::Result<bool> {
    Ok(said(Command::new("id").arg("--user"), log)? == "0")
}

/// The image builder, installed where that can be done; absent where it cannot, and the log says why.
fn buildah(log: &Path) -> Option<PathBuf> {
    if let Some(found) = which("buildah") {
        return Some(found);
    }
    let apt = which("apt-get")?;
    said(Command::new(&apt).arg("update"), log).ok()?;
    let install = ["install", "--yes", "--no-install-recommends", "buildah"];
    said(Command::new(&apt).args(install).env("DEBIAN_FRONTEND", "noninteractive"), log).ok()?;
    which("buildah")
}

fn dockerfile() -> anyhow::Result<String> {
    fs::read_to_string(workspace::folder().join("Dockerfile")).context("cannot read the Dockerfile")
}

/// The Dockerfile from its last `FROM` on, with what it takes from the stage before taken from a folder.
fn last_stage(dockerfile: &str) -> anyhow::Result<String> {
    const COPY: &str = "COPY --from=build /rootfs /";
    let at = dockerfile.rfind("\nFROM ").context("the Dockerfile has one stage")?;
    let stage = &dockerfile[at + 1..];
    ensure!(stage.matches("--from=").count() == 1 && stage.contains(COPY), "the last stage is not filled by {COPY}");
    ensure!(
        dockerfile[..at].contains(r#"image/rootfs.sh "$(image/build.sh)" /rootfs"#),
        "the build stage goes another way"
    );
    Ok(stage.replace(COPY, "COPY rootfs /"))
}

/// buildah, with its storage in a folder of its own.
struct Builder<'a> {
    program: PathBuf,
    folder: &'a Path,
    log: &'a Path,
}

impl Builder<'_> {
    fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        // Plain folders: nothing is mounted, and nothing has to be unmounted.
        command.current_dir(self.folder).args(["--storage-driver", "vfs", "--root"]).arg(self.folder.join("storage"));
        said(command.arg("--runroot").arg(self.folder.join("run")).args(args), self.log)
    }
}

fn check_config(image: &Value) -> anyhow::Result<()> {
    let config = &image["OCIv1"]["config"];
    let expected = json!({
        "User": "65532:65532", "Entrypoint": ["/usr/local/bin/belay"],
        "ExposedPorts": { "8080/tcp": {}, "8443/tcp": {} },
    });
    for (field, value) in expected.as_object().into_iter().flatten() {
        ensure!(config[field] == *value, "the image's {field} is {} and not {value}", config[field]);
    }
    for field in ["Cmd", "Volumes"] {
        ensure!(config[field].is_null(), "the image has {field}: {}", config[field]);
    }
    let sets = |one: &str| config["Env"].as_array().is_some_and(|all| all.iter().any(|set| set == one));
    ensure!(sets("MIMALLOC_PURGE_DELAY=0"), "the image's environment: {}", config["Env"]);
    ensure!(config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0", "its labels: {}", config["Labels"]);
    Ok(())
}

/// It holds these files, with these permissions, and nothing else; the answer is their size.
fn check_files(root: &Path) -> anyhow::Result<u64> {
    let mut files = Vec::new();
    let mut size = 0;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            let metadata = path.symlink_metadata()?;
            if metadata.is_dir() {
                folders.push(path);
            } else {
                size += metadata.len();
                let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
                files.push((name, metadata.permissions().mode() & 0o7777));
            }
        }
    }
    files.sort();
    let is_expected = files.iter().map(|(name, mode)| (name.as_str(), *mode)).eq(FILES);
    ensure!(is_expected, "the image holds {}, and not {}", listed(&files), listed(&FILES));
    ensure!(size <= MOST_BYTES, "the image has {size} bytes; at most {MOST_BYTES} are allowed");
    Ok(size)
}

/// As `ls` would: permissions as octal numbers, and names.
fn listed(files: &[(impl AsRef<str>, u32)]) -> String {
    let files: Vec<String> = files.iter().map(|(name, mode)| format!("{mode:o} {}", name.as_ref())).collect();
    files.join(", ")
}

/// The program runs where nothing else is, as the user that the image names.
fn check_program(root: &Path, log: &Path) -> anyhow::Result<String> {
    // By its path: it is not looked for where the environment is empty.
    let chroot = which("chroot").context("no chroot is in $PATH")?;
    let chroot = |args: &[&str]| {
        let mut command = Command::new(&chroot);
        command.arg("--userspec=65532:65532").arg(root).args(args).env_clear();
        command
    };
    let version = check_version(&said(&mut chroot(&["/usr/local/bin/belay", "--version"]), log)?)?;
    let shell = chroot(&["/bin/sh", "-c", "true"]).stderr(Stdio::null()).status();
    ensure!(!shell.context("cannot run chroot")?.success(), "the image has a shell");
    Ok(version)
}

fn check_version(said: &str) -> anyhow::Result<String> {
    let expected = format!("belay {}", env!("CARGO_PKG_VERSION"));
    ensure!(said == expected, "it says it is {said:?} and not {expected:?}");
    Ok(expected)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

/// What a program says; what it says beside that is added to the log.
fn said(command: &mut Command, log: &Path) -> anyhow::Result<String> {
    let file = fs::File::options().create(true).append(true).open(log);
    let output = command
        .stdin(Stdio::null())
        .stderr(file.with_context(|| format!("cannot write {}", log.display()))?)
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{command:?} failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_stage_is_the_dockerfiles_own() {
        let stage = last_stage(&dockerfile().unwrap()).unwrap();
        assert!(stage.starts_with("FROM scratch\n") && stage.contains("\nCOPY rootfs /\n"), "{stage}");
        assert!(stage.contains("\nUSER 65532:65532\n"), "{stage}");
    }

    #[test]
    fn a_dockerfile_that_goes_another_way_is_refused() {
        let own = dockerfile().unwrap();
        let copy = "COPY --from=build /rootfs /\n";
        let others = [
            own.replace("image/rootfs.sh", "cp"),
            own.replace("$(image/build.sh)", "target/release/belay"),
            own.replace(copy, "COPY --from=build /src /\n"),
            own.replace(copy, &format!("{copy}COPY --from=busybox /bin/sh /bin/sh\n")),
            format!("FROM scratch\n{copy}"),
        ];
        for other in others {
            assert!(last_stage(&other).is_err(), "{other}");
        }
    }

    /// What buildah says of an image as it has to be, but for one field of its configuration.
    fn image_but(field: &str, value: Value) -> Value {
        let mut image = json!({ "OCIv1": { "config": {
            "User": "65532:65532",
            "ExposedPorts": { "8080/tcp": {}, "8443/tcp": {} },
            "Entrypoint": ["/usr/local/bin/belay"],
            "Env": ["PATH=/usr/local/bin", "MIMALLOC_PURGE_DELAY=0"],
            "Labels": { "org.opencontainers.image.licenses": "Apache-2.0" },
        }}});
        image["OCIv1"]["config"][field] = value;
        image
    }

    #[test]
    fn an_image_is_refused_for_each_field_that_is_another() {
        check_config(&image_but("User", json!("65532:65532"))).unwrap();
        let others = [
            ("User", Value::Null),
            ("User", json!("0")),
            ("User", json!("belay")),
            ("Entrypoint", json!(["/bin/sh", "-c", "belay"])),
            ("ExposedPorts", json!({ "8443/tcp": {} })),
            ("Cmd", json!(["webhook"])),
            ("Volumes", json!({ "/tmp": {} })),
            ("Env", Value::Null),
            ("Labels", json!({})),
        ];
        for (field, value) in others {
            assert!(check_config(&image_but(field, value.clone())).is_err(), "{field}: {value}");
        }
    }

    /// A folder with the image's files, the program of this size, in bytes.
    struct Layout(PathBuf);

    impl Layout {
        fn new(name: &str, program: u64) -> Self {
            let layout = Self(std::env::temp_dir().join(format!("belay-image-{name}-{}", std::process::id())));
            for (file, mode) in FILES {
                layout.file(file, mode);
            }
            fs::File::options().write(true).open(layout.0.join(FILES[1].0)).unwrap().set_len(program).unwrap();
            layout
        }

        fn file(&self, name: &str, mode: u32) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Layout {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn the_files_are_these_and_no_others() {
        let layout = Layout::new("files", 7);
        assert_eq!(check_files(&layout.0).unwrap(), 7);
        layout.file("bin/sh", 0o755);
        let refused = check_files(&layout.0).unwrap_err().to_string();
        assert!(refused.contains("755 bin/sh"), "{refused}");
        fs::remove_file(layout.0.join("bin/sh")).unwrap();
        std::os::unix::fs::symlink("belay", layout.0.join("usr/local/bin/kubectl-belay")).unwrap();
        assert!(check_files(&layout.0).is_err());
        fs::remove_file(layout.0.join("usr/local/bin/kubectl-belay")).unwrap();
        layout.file(FILES[1].0, 0o4755);
        assert!(check_files(&layout.0).is_err());
        fs::remove_file(layout.0.join(FILES[0].0)).unwrap();
        assert!(check_files(&layout.0).is_err());
    }

    #[test]
    fn an_image_that_is_too_large_is_refused() {
        assert_eq!(check_files(&Layout::new("most", MOST_BYTES).0).unwrap(), MOST_BYTES);
        assert!(check_files(&Layout::new("more", MOST_BYTES + 1).0).is_err());
    }
}
