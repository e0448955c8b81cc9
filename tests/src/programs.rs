//! The programs that a test cluster runs, built from source once and kept in a cache outside the work tree.
//!
//! `tests/control-plane/go.mod` names them as tool dependencies, so the Go module proxy is the only place they come
//! from and `go.sum` pins every byte. A program is built under a temporary name and renamed when it is whole, and a
//! lock file lets one builder in at a time: a build that was interrupted is never taken for a finished one.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::process;

/// Names a folder whose programs are used where present, as the Kubernetes test tooling does.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Where everything that is built once is kept, when set.
const CACHE: &str = "BELAY_CACHE";

/// A program and where its source is.
struct Source {
    program: &'static str,
    package: &'static str,
    module: &'static str,
}

const KUBERNETES: &str = "k8s.io/kubernetes";

/// In this order the most costly build comes first and warms Go's build cache for the rest.
const SOURCES: [Source; 6] = [
    Source { program: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver", module: KUBERNETES },
    Source {
        program: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        module: KUBERNETES,
    },
    Source { program: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler", module: KUBERNETES },
    Source { program: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl", module: KUBERNETES },
    Source { program: "etcd", package: "go.etcd.io/etcd/server/v3", module: "go.etcd.io/etcd/server/v3" },
    Source { program: "helm", package: "helm.sh/helm/v4/cmd/helm", module: "helm.sh/helm/v4" },
];

/// The paths of programs that are there and executable.
#[derive(Debug, Clone)]
pub struct Programs {
    /// etcd.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// The controller-manager.
    pub kube_controller_manager: PathBuf,
    /// The scheduler.
    pub kube_scheduler: PathBuf,
    /// kubectl, of the API server's version.
    pub kubectl: PathBuf,
    /// Helm.
    pub helm: PathBuf,
}

impl Programs {
    /// Finds the programs in `KUBEBUILDER_ASSETS` or the cache and builds those that are missing, which takes minutes
    /// the first time. Blocks; writes one line per program built to standard error.
    ///
    /// # Errors
    /// When Go is missing, a build fails (with the compiler's last words) or the cache cannot be written.
    pub fn ensure() -> anyhow::Result<Self> {
        let folder = module_folder();
        let go_mod = folder.join("go.mod");
        let go_mod = std::fs::read_to_string(&go_mod).with_context(|| format!("cannot read {}", go_mod.display()))?;
        let cache = cache_folder()?.join("programs");
        let assets = std::env::var_os(ASSETS).map(PathBuf::from);

        let mut wanted = Vec::new();
        for source in &SOURCES {
            let provided = assets.as_ref().map(|assets| assets.join(source.program));
            let wanted_program = match provided.filter(|path| path.is_file()) {
                Some(path) => Wanted { source, path, version: None },
                None => {
                    let version = version_of(&go_mod, source.module)?;
                    Wanted { source, path: cache.join(format!("{}-{version}", source.program)), version: Some(version) }
                }
            };
            wanted.push(wanted_program);
        }
        if wanted.iter().any(|program| !program.path.is_file()) {
            build_missing(&folder, &cache, &wanted)?;
        }
        let path_of = |name: &str| -> anyhow::Result<PathBuf> {
            wanted
                .iter()
                .find(|program| program.source.program == name)
                .map(|program| program.path.clone())
                .with_context(|| format!("{name} is not among the programs of a test cluster"))
        };
        Ok(Self {
            etcd: path_of("etcd")?,
            kube_apiserver: path_of("kube-apiserver")?,
            kube_controller_manager: path_of("kube-controller-manager")?,
            kube_scheduler: path_of("kube-scheduler")?,
            kubectl: path_of("kubectl")?,
            helm: path_of("helm")?,
        })
    }
}

struct Wanted {
    source: &'static Source,
    path: PathBuf,
    /// `None` for a program that somebody else provides.
    version: Option<String>,
}

/// `$BELAY_CACHE`, `$XDG_CACHE_HOME/belay` or `~/.cache/belay`.
///
/// # Errors
/// When none of the three is known.
pub fn cache_folder() -> anyhow::Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from(CACHE)
        .or_else(|| from("XDG_CACHE_HOME").map(|folder| folder.join("belay")))
        .or_else(|| from("HOME").map(|folder| folder.join(".cache/belay")))
        .with_context(|| format!("no place for built programs: set {CACHE} to a folder"))
}

fn module_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane")
}

/// The version of `module` that a go.mod requires.
fn version_of(go_mod: &str, module: &str) -> anyhow::Result<String> {
    go_mod
        .lines()
        // A `replace` names modules too, with an arrow in it.
        .filter(|line| !line.contains("=>"))
        .find_map(|line| {
            let mut words = line.trim().trim_start_matches("require ").split_whitespace();
            (words.next() == Some(module)).then(|| words.next().map(str::to_owned))?
        })
        .with_context(|| format!("go.mod requires no version of {module}"))
}

/// The linker flags of a Kubernetes program: without them it reports `v0.0.0-master+$Format:%H$` as its version.
fn linker_flags(kubernetes: &str) -> anyhow::Result<String> {
    let mut numbers = kubernetes.trim_start_matches('v').split('.');
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        bail!("{kubernetes} is not a Kubernetes version");
    };
    let package = "k8s.io/component-base/version";
    Ok(format!(
        "-s -w -X {package}.gitVersion={kubernetes} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    ))
}

fn build_missing(module: &Path, cache: &Path, wanted: &[Wanted]) -> anyhow::Result<()> {
    std::fs::create_dir_all(cache).with_context(|| format!("cannot make the cache {}", cache.display()))?;
    let lock_path = cache.join(".lock");
    let lock = File::create(&lock_path).with_context(|| format!("cannot write {}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        say("another process is building the programs of the test cluster, waiting for it");
        lock.lock().with_context(|| format!("cannot lock {}", lock_path.display()))?;
    }
    let kubernetes = wanted
        .iter()
        .find(|program| program.source.module == KUBERNETES)
        .and_then(|program| program.version.as_deref());
    let go_mod = std::fs::read_to_string(module.join("go.mod"))?;
    let flags = match kubernetes {
        Some(version) => linker_flags(version)?,
        None => linker_flags(&version_of(&go_mod, KUBERNETES)?)?,
    };
    for program in wanted {
        if let (Some(version), false) = (&program.version, program.path.is_file()) {
            build(module, cache, program, version, &flags)?;
        }
    }
    Ok(())
}

fn build(module: &Path, cache: &Path, wanted: &Wanted, version: &str, flags: &str) -> anyhow::Result<()> {
    let program = wanted.source.program;
    let started = Instant::now();
    eprint!("building {program} {version} (once, up to some minutes) ... ");
    let _ = std::io::stderr().flush();
    // Left by a builder that was killed: ours is the only one while the lock is held, and Go refuses to overwrite what is
    // not a whole program.
    let unfinished = cache.join(format!(".{program}.unfinished"));
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", unfinished.display()));
        }
        _ => {}
    }
    let go = which("go").context(
        "Go is missing: install Go 1.26 or newer (https://go.dev/dl) so that the test cluster's programs can be built",
    )?;
    let output = process::guarded(&go)
        .current_dir(module)
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-ldflags", flags, "-o"])
        .arg(&unfinished)
        .arg(wanted.source.package)
        .stdin(Stdio::null())
        .output()
        .map_err(process::explain_spawn_error)?;
    if !output.status.success() {
        eprintln!("failed");
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("go: downloading")).collect();
        let tail = said.iter().skip(said.len().saturating_sub(15)).copied().collect::<Vec<_>>().join("\n");
        bail!("go build of {} failed:\n{tail}", wanted.source.package);
    }
    ensure!(unfinished.is_file(), "go build of {} wrote no program", wanted.source.package);
    std::fs::rename(&unfinished, &wanted.path)
        .with_context(|| format!("cannot move the program to {}", wanted.path.display()))?;
    eprintln!("{}", seconds(started.elapsed()));
    Ok(())
}

/// A program of `PATH`.
pub fn which(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.0} s", elapsed.as_secs_f64())
}

fn say(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO_MOD: &str = "module x\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.7.3 // indirect\n\tk8s.io/kubernetes v1.37.2 \
                          // indirect\n)\nreplace (\n\tk8s.io/kubernetes => ../fork v0.0.0\n)\n";

    #[test]
    fn reads_the_version_a_go_mod_requires() {
        for (module, expected) in [
            ("k8s.io/kubernetes", Some("v1.37.2")),
            ("go.etcd.io/etcd/server/v3", Some("v3.7.3")),
            ("k8s.io/kube", None),
        ] {
            assert_eq!(version_of(GO_MOD, module).ok().as_deref(), expected, "{module}");
        }
    }

    #[test]
    fn every_program_has_a_version_in_the_go_mod_of_this_repository() {
        let go_mod = std::fs::read_to_string(module_folder().join("go.mod")).unwrap();
        for source in &SOURCES {
            assert!(version_of(&go_mod, source.module).unwrap().starts_with('v'), "{}", source.program);
        }
    }

    #[test]
    fn the_linker_flags_carry_the_version() {
        let flags = linker_flags("v1.37.2").unwrap();
        assert!(flags.contains("gitVersion=v1.37.2 "), "{flags}");
        assert!(flags.ends_with("gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"), "{flags}");
        assert!(linker_flags("main").is_err());
    }
}
