//! How a Go program is built and kept.
//!
//! A program is built under a temporary name and renamed when it is whole, and a lock file lets one builder in at a
//! time: a build that was interrupted is never taken for a finished one.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::{DESCHEDULER, KARPENTER, KUBERNETES, Own, Programs, SOURCES, Source};
use crate::process;

/// One clear line instead of the system's "no such file".
pub(super) const GO_MISSING: &str = "Go is missing: install Go 1.26 or newer (https://go.dev/dl), with which the programs of the \
                          test cluster are built";

/// How many lines of a failed build are shown: a compiler's first errors, or a module that could not be had.
const LAST_WORDS: usize = 15;

/// Where programs are built, from what, and with which Go.
pub(super) struct Workshop {
    module: PathBuf,
    /// The name of the file with the versions.
    modfile: &'static str,
    /// What stands in it.
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
    pub(super) fn new(
        module: PathBuf,
        modfile: &'static str,
        cache: PathBuf,
        go: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let go_mod = module.join(modfile);
        let go_mod = std::fs::read_to_string(&go_mod).with_context(|| format!("cannot read {}", go_mod.display()))?;
        Ok(Self { module, modfile, go_mod, cache, go })
    }

    /// The version of a module that the programs here are built with.
    pub(super) fn version_of(&self, module: &str) -> anyhow::Result<String> {
        version_of(&self.go_mod, module)
    }

    pub(super) fn ensure(&self, assets: Option<&Path>) -> anyhow::Result<Programs> {
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

    /// A program with a module of its own, called by the version of what it is built around and by its files.
    pub(super) fn own(&self, own: &'static Own) -> anyhow::Result<PathBuf> {
        let mut source = DefaultHasher::new();
        for file in own.files {
            let path = self.module.join(file);
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?.hash(&mut source);
        }
        let version = format!("{}-{:016x}", self.version_of(own.source.module)?, source.finish());
        let path = self.cache.join(format!("{}-{version}", own.source.program));
        self.build_missing(&[Wanted { source: &own.source, path: path.clone(), version: Some(version) }])?;
        Ok(path)
    }

    fn wanted(&self, assets: Option<&Path>) -> anyhow::Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        for source in &SOURCES {
            let provided = assets.map(|assets| assets.join(source.program));
            wanted.push(match provided.filter(|path| path.is_file()) {
                Some(path) => Wanted { source, path, version: None },
                None => {
                    let version = self.version_of(source.module)?;
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
        let flags = linker_flags(&self.go_mod)?;
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
        let mut command = process::guarded(go);
        if let Some(toolchain) = directive(&self.go_mod, "toolchain") {
            // Said outright: where Go is told to use no other version than its own, a newer one is still needed.
            command.env("GOTOOLCHAIN", toolchain);
        }
        let output = command
            .current_dir(&self.module)
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-ldflags", flags, "-o"])
            .arg(&unfinished)
            .arg(format!("-modfile={}", self.modfile))
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
pub(super) fn last_words(stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("go: downloading")).collect();
    said[said.len().saturating_sub(LAST_WORDS)..].join("\n")
}

/// The version of `module` that a go.mod requires.
pub(super) fn version_of(go_mod: &str, module: &str) -> anyhow::Result<String> {
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

/// The value of a directive of one word, such as `toolchain`.
fn directive<'a>(go_mod: &'a str, name: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::trim)
}

/// The linker flags of the programs of a module: without them those of Kubernetes report
/// `v0.0.0-master+$Format:%H$` as their version, Karpenter `unspecified` and the descheduler nothing.
fn linker_flags(go_mod: &str) -> anyhow::Result<String> {
    if let Ok(karpenter) = version_of(go_mod, KARPENTER) {
        return Ok(format!("-s -w -X {KARPENTER}/pkg/operator.Version={}", karpenter.trim_start_matches('v')));
    }
    if let Ok(descheduler) = version_of(go_mod, DESCHEDULER) {
        return Ok(format!("-s -w -X {DESCHEDULER}/pkg/version.version={descheduler}"));
    }
    let Ok(kubernetes) = version_of(go_mod, KUBERNETES) else {
        // A program of our own, which reports no version.
        return Ok("-s -w".to_owned());
    };
    let mut numbers = kubernetes.trim_start_matches('v').split('.');
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        bail!("{kubernetes} is not a Kubernetes version");
    };
    let package = "k8s.io/component-base/version";
    Ok(format!(
        "-s -w -X {package}.gitVersion={kubernetes} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::GO_MOD as FILE;
    use super::super::{ALL_SCHEMAS, KARPENTER_KWOK, PROMQL, REMOVAL_ORDER, THE_DESCHEDULER, folder};
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

        /// `$6` is the path that Go is told to write to, and `$8` the package.
        fn workshop(&self, script: &str) -> Workshop {
            let go = self.folder.join("go");
            std::fs::write(&go, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&go, std::fs::Permissions::from_mode(0o755)).unwrap();
            Workshop::new(self.folder.clone(), FILE, self.folder.join("cache"), Some(go)).unwrap()
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
        let workshop = fake.workshop("echo \"$8\" > \"$6\"; echo built >> built");
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
            Workshop::new(fake.folder.clone(), FILE, fake.folder.join("cache"), go).unwrap().ensure(None).unwrap();
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
        let workshop = fake.workshop("echo \"$8\" > \"$6\"; echo built >> built");
        let build = |source: &str| {
            std::fs::write(fake.folder.join("removal-order/main.go"), source).unwrap();
            workshop.own(&REMOVAL_ORDER).unwrap()
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
        let workshop = Workshop::new(fake.folder.clone(), FILE, fake.folder.join("cache"), None).unwrap();
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
    fn every_program_has_a_version_in_the_go_mods_of_this_repository() {
        let of_clusters = SOURCES.iter().map(|source| ("control-plane", FILE, source));
        let of_our_own = [&REMOVAL_ORDER, &KARPENTER_KWOK, &THE_DESCHEDULER, &PROMQL].into_iter().chain(&ALL_SCHEMAS);
        let of_our_own = of_our_own.map(|own| (own.folder, own.go_mod, &own.source));
        for (module, go_mod, source) in of_clusters.chain(of_our_own) {
            let go_mod = std::fs::read_to_string(folder(module).join(go_mod)).unwrap();
            assert!(version_of(&go_mod, source.module).unwrap().starts_with('v'), "{}", source.program);
        }
    }

    #[test]
    fn the_newest_schemas_are_those_of_the_control_plane_and_none_is_left_out() {
        let version = |own: &Own| own.version().unwrap();
        let control_plane = std::fs::read_to_string(folder("control-plane").join(FILE)).unwrap();
        let kubernetes = version_of(&control_plane, KUBERNETES).unwrap();
        let newest = version(&ALL_SCHEMAS[ALL_SCHEMAS.len() - 1]);
        assert_eq!(newest.strip_prefix("v0."), kubernetes.strip_prefix("v1."));
        let minor = |own: &Own| version(own).split('.').nth(1).unwrap().parse::<u32>().unwrap();
        let minors: Vec<u32> = ALL_SCHEMAS.iter().map(minor).collect();
        assert_eq!(minors, (33..=37).collect::<Vec<u32>>());
    }

    #[test]
    fn the_linker_flags_carry_the_version() {
        let flags = linker_flags(GO_MOD).unwrap();
        assert!(flags.contains("gitVersion=v1.37.2 "), "{flags}");
        assert!(flags.ends_with("gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"), "{flags}");
        assert!(linker_flags("require k8s.io/kubernetes main").is_err());
        assert_eq!(linker_flags("require k8s.io/api v0.33.13").unwrap(), "-s -w");
        let flags = linker_flags("require sigs.k8s.io/karpenter v1.15.0").unwrap();
        assert_eq!(flags, "-s -w -X sigs.k8s.io/karpenter/pkg/operator.Version=1.15.0");
        let flags = linker_flags("require sigs.k8s.io/descheduler v0.36.0").unwrap();
        assert_eq!(flags, "-s -w -X sigs.k8s.io/descheduler/pkg/version.version=v0.36.0");
    }

    #[test]
    fn a_module_is_built_with_the_go_that_it_asks_for() {
        let fake = Fake::new("toolchain");
        let built_with = |go_mod: &str| {
            std::fs::write(fake.folder.join("go.mod"), go_mod).unwrap();
            let _ = std::fs::remove_dir_all(fake.folder.join("cache"));
            let programs = fake.workshop("echo \"$GOTOOLCHAIN\" > \"$6\"").ensure(None).unwrap();
            std::fs::read_to_string(programs.etcd).unwrap()
        };
        assert_eq!(built_with(&format!("{GO_MOD}toolchain go9.8.7\n")), "go9.8.7\n");
        assert_ne!(built_with(GO_MOD), "go9.8.7\n");
    }
}
