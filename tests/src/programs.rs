//! The programs that a test cluster runs, built from source once and kept in a cache outside the work tree.
//!
//! `tests/control-plane/go.mod` names them as tool dependencies, so the Go module proxy is the only place they come
//! from and `go.sum` pins every byte. The programs of `tests/oracles` are built in the same way from source of our own, so
//! what tells one build of them from another is that source. A program is built under a temporary name and renamed when it is whole, and a
//! lock file lets one builder in at a time: a build that was interrupted is never taken for a finished one.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use crate::process;

/// Names a folder whose programs are used where present, as the Kubernetes test tooling does.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Where everything that is built once is kept, when set.
const CACHE: &str = "BELAY_CACHE";

/// One clear line instead of the system's "no such file".
const GO_MISSING: &str = "Go is missing: install Go 1.26 or newer (https://go.dev/dl), with which the programs of the \
                          test cluster are built";

/// How many lines of a failed build are shown: a compiler's first errors, or a module that could not be had.
const LAST_WORDS: usize = 15;

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

/// See [`removal_order`].
static REMOVAL_ORDER: Source = Source { program: "removal-order", package: "./removal-order", module: KUBERNETES };

/// The files that `REMOVAL_ORDER` is built from, besides the modules that these pin.
const REMOVAL_ORDER_FILES: [&str; 3] = ["go.mod", "go.sum", "removal-order/main.go"];

/// The path of the program that answers in which order Kubernetes removes pods, built where it is missing. Blocks, as
/// [`Programs::ensure`] does.
///
/// # Errors
/// When Go is missing, the build fails (with the compiler's last words) or the cache cannot be written.
pub fn removal_order() -> anyhow::Result<PathBuf> {
    Workshop::new(folder("oracles"), cache_folder()?.join("programs"), which("go"))?.removal_order()
}

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
        let workshop = Workshop::new(folder("control-plane"), cache_folder()?.join("programs"), which("go"))?;
        let assets = std::env::var_os(ASSETS).map(PathBuf::from);
        workshop.ensure(assets.as_deref())
    }
}

/// Where programs are built, from what, and with which Go.
struct Workshop {
    module: PathBuf,
    go_mod: String,
    cache: PathBuf,
    go: Option<PathBuf>,
}

/// A program that is to be had, and where.
struct Wanted {
    source: &'static Source,
    path: PathBuf,
    /// `None` for a program that somebody else provides.
    version: Option<String>,
}

impl Workshop {
    fn new(module: PathBuf, cache: PathBuf, go: Option<PathBuf>) -> anyhow::Result<Self> {
        let go_mod = module.join("go.mod");
        let go_mod = std::fs::read_to_string(&go_mod).with_context(|| format!("cannot read {}", go_mod.display()))?;
        Ok(Self { module, go_mod, cache, go })
    }

    fn ensure(&self, assets: Option<&Path>) -> anyhow::Result<Programs> {
        let wanted = self.wanted(assets)?;
        self.build_missing(&wanted)?;
        let path_of = |name: &str| -> anyhow::Result<PathBuf> {
            let found = wanted.iter().find(|program| program.source.program == name);
            let path = found.map(|program| program.path.clone());
            path.with_context(|| format!("{name} is not among the programs of a test cluster"))
        };
        Ok(Programs {
            etcd: path_of("etcd")?,
            kube_apiserver: path_of("kube-apiserver")?,
            kube_controller_manager: path_of("kube-controller-manager")?,
            kube_scheduler: path_of("kube-scheduler")?,
            kubectl: path_of("kubectl")?,
            helm: path_of("helm")?,
        })
    }

    fn removal_order(&self) -> anyhow::Result<PathBuf> {
        let mut source = DefaultHasher::new();
        for file in REMOVAL_ORDER_FILES {
            let path = self.module.join(file);
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?.hash(&mut source);
        }
        let version = format!("{}-{:016x}", version_of(&self.go_mod, KUBERNETES)?, source.finish());
        let path = self.cache.join(format!("{}-{version}", REMOVAL_ORDER.program));
        let wanted = Wanted { source: &REMOVAL_ORDER, path: path.clone(), version: Some(version) };
        self.build_missing(&[wanted])?;
        Ok(path)
    }

    fn wanted(&self, assets: Option<&Path>) -> anyhow::Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        for source in &SOURCES {
            let provided = assets.map(|assets| assets.join(source.program));
            wanted.push(match provided.filter(|path| path.is_file()) {
                Some(path) => Wanted { source, path, version: None },
                None => {
                    let version = version_of(&self.go_mod, source.module)?;
                    let path = self.cache.join(format!("{}-{version}", source.program));
                    Wanted { source, path, version: Some(version) }
                }
            });
        }
        Ok(wanted)
    }

    fn build_missing(&self, wanted: &[Wanted]) -> anyhow::Result<()> {
        if wanted.iter().all(|program| program.path.is_file()) {
            return Ok(());
        }
        let cache = &self.cache;
        std::fs::create_dir_all(cache).with_context(|| format!("cannot make the cache {}", cache.display()))?;
        let lock_path = cache.join(".lock");
        let lock = File::create(&lock_path).with_context(|| format!("cannot write {}", lock_path.display()))?;
        if lock.try_lock().is_err() {
            eprintln!("another process is building the programs of the test cluster, waiting for it");
            lock.lock().with_context(|| format!("cannot lock {}", lock_path.display()))?;
        }
        let flags = linker_flags(&version_of(&self.go_mod, KUBERNETES)?)?;
        for program in wanted {
            // Another builder may have made it while we waited for the lock.
            if let (Some(version), false) = (&program.version, program.path.is_file()) {
                self.build(program, version, &flags)?;
            }
        }
        Ok(())
    }

    fn build(&self, wanted: &Wanted, version: &str, flags: &str) -> anyhow::Result<()> {
        let Source { program, package, .. } = wanted.source;
        let go = self.go.as_ref().context(GO_MISSING)?;
        // Left by a builder that was killed: ours is the only one while the lock is held, and Go refuses to overwrite
        // what is not a whole program.
        let unfinished = self.cache.join(format!(".{program}.unfinished"));
        match std::fs::remove_file(&unfinished) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", unfinished.display()));
            }
            _ => {}
        }
        let started = Instant::now();
        eprint!("building {program} {version} (once, up to some minutes) ... ");
        let _ = std::io::stderr().flush();
        let output = process::guarded(go)
            .current_dir(&self.module)
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-ldflags", flags, "-o"])
            .arg(&unfinished)
            .arg(package)
            .stdin(Stdio::null())
            .output()
            .map_err(process::explain_spawn_error)?;
        if !output.status.success() {
            eprintln!("failed");
            bail!("go build of {package} failed:\n{}", last_words(&output.stderr));
        }
        ensure!(unfinished.is_file(), "go build of {package} wrote no program");
        std::fs::rename(&unfinished, &wanted.path)
            .with_context(|| format!("cannot move the program to {}", wanted.path.display()))?;
        eprintln!("{:.0} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}

/// The end of what Go said, without the modules that it downloaded.
fn last_words(stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("go: downloading")).collect();
    said[said.len().saturating_sub(LAST_WORDS)..].join("\n")
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

/// The folder of a Go module.
fn folder(module: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(module)
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

/// A program of `PATH`.
pub fn which(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const GO_MOD: &str = "module x\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.7.3 // indirect\n\tk8s.io/kubernetes v1.37.2 \
                          // indirect\n\thelm.sh/helm/v4 v4.3.1\n)\nreplace (\n\tk8s.io/kubernetes => ../fork v0.0.0\n)\n";

    /// A workshop in a folder of its own, whose Go is a script.
    struct Fake {
        folder: PathBuf,
    }

    impl Fake {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("belay-programs-{name}-{}", std::process::id()));
            std::fs::create_dir_all(folder.join("assets")).unwrap();
            std::fs::write(folder.join("go.mod"), GO_MOD).unwrap();
            Self { folder }
        }

        /// `$6` is the path that Go is told to write to, and `$7` the package.
        fn workshop(&self, script: &str) -> Workshop {
            let go = self.folder.join("go");
            std::fs::write(&go, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&go, std::fs::Permissions::from_mode(0o755)).unwrap();
            Workshop::new(self.folder.clone(), self.folder.join("cache"), Some(go)).unwrap()
        }

        fn cached(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.folder.join("cache")).unwrap().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    #[test]
    fn programs_are_built_once_and_called_by_their_version() {
        let fake = Fake::new("once");
        let workshop = fake.workshop("echo \"$7\" > \"$6\"; echo built >> built");
        let programs = workshop.ensure(None).unwrap();
        assert_eq!(programs.etcd, fake.folder.join("cache/etcd-v3.7.3"));
        assert_eq!(std::fs::read_to_string(&programs.helm).unwrap(), "helm.sh/helm/v4/cmd/helm\n");
        workshop.ensure(None).unwrap();
        let count = std::fs::read_to_string(fake.folder.join("built")).unwrap().lines().count();
        assert_eq!(count, SOURCES.len());
    }

    #[test]
    fn a_build_that_was_cut_short_is_not_taken_for_a_program() {
        let fake = Fake::new("cut");
        let error = fake.workshop("echo half > \"$6\"; echo no space left >&2; exit 1").ensure(None).unwrap_err();
        assert!(format!("{error:#}").contains("no space left"), "{error:#}");
        assert_eq!(fake.cached(), [".kube-apiserver.unfinished", ".lock"]);
        // As Go does with what is not a whole program.
        let whole = fake.workshop("test -e \"$6\" && exit 1; echo whole > \"$6\"");
        let programs = whole.ensure(None).unwrap();
        assert_eq!(std::fs::read_to_string(programs.kube_apiserver).unwrap(), "whole\n");
    }

    #[test]
    fn two_builders_do_not_build_the_same_twice() {
        let fake = Fake::new("two");
        fake.workshop("sleep 0.05; echo x > \"$6\"; echo built >> built");
        let build = || {
            let go = Some(fake.folder.join("go"));
            Workshop::new(fake.folder.clone(), fake.folder.join("cache"), go).unwrap().ensure(None).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(build);
            scope.spawn(build);
        });
        let count = std::fs::read_to_string(fake.folder.join("built")).unwrap().lines().count();
        assert_eq!(count, SOURCES.len());
    }

    #[test]
    fn programs_that_are_provided_are_used_and_only_the_others_built() {
        let fake = Fake::new("assets");
        let assets = fake.folder.join("assets");
        for provided in ["etcd", "kube-apiserver"] {
            std::fs::write(assets.join(provided), "provided").unwrap();
        }
        let programs = fake.workshop("echo x > \"$6\"").ensure(Some(&assets)).unwrap();
        assert_eq!(programs.etcd, assets.join("etcd"));
        assert_eq!(programs.kube_scheduler, fake.folder.join("cache/kube-scheduler-v1.37.2"));
        let expected =
            [".lock", "helm-v4.3.1", "kube-controller-manager-v1.37.2", "kube-scheduler-v1.37.2", "kubectl-v1.37.2"];
        assert_eq!(fake.cached(), expected);
    }

    #[test]
    fn a_program_of_our_own_is_built_again_when_its_source_changes() {
        let fake = Fake::new("own");
        std::fs::create_dir_all(fake.folder.join("removal-order")).unwrap();
        std::fs::write(fake.folder.join("go.sum"), "").unwrap();
        let workshop = fake.workshop("echo \"$7\" > \"$6\"; echo built >> built");
        let build = |source: &str| {
            std::fs::write(fake.folder.join("removal-order/main.go"), source).unwrap();
            workshop.removal_order().unwrap()
        };
        let (first, again, second) = (build("one"), build("one"), build("two"));
        assert_eq!(first, again);
        assert_ne!(first, second);
        assert!(first.file_name().unwrap().to_str().unwrap().starts_with("removal-order-v1.37.2-"), "{first:?}");
        assert_eq!(std::fs::read_to_string(&second).unwrap(), "./removal-order\n");
        assert_eq!(std::fs::read_to_string(fake.folder.join("built")).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_missing_go_is_one_line_that_says_what_to_install() {
        let fake = Fake::new("no-go");
        let workshop = Workshop::new(fake.folder.clone(), fake.folder.join("cache"), None).unwrap();
        let error = format!("{:#}", workshop.ensure(None).unwrap_err());
        assert!(error.starts_with("Go is missing: install Go 1.26") && !error.contains('\n'), "{error}");
    }

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
        let go_mod = std::fs::read_to_string(folder("control-plane").join("go.mod")).unwrap();
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
