//! `cargo xtask test`: everything that has to pass, in the order in which a mistake is found soonest.
//!
//! One line a stage. What a stage writes goes to a log file and is shown when the stage fails, which ends the run. The
//! long stages on control planes run beside each other: they wait for time to pass more than they work.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use belay_e2e::programs::{self, Programs};

use crate::{image, tools, workspace};

/// Set for everything that a run starts, so that what it leaves behind can be found by it.
const RUN: &str = "BELAY_TEST_RUN";

/// The tests that ask Kubernetes' own code, without a cluster.
const ORACLES: &str = "oracles";

/// Stages that run one after the other beside all later ones: of the long ones those that work least. Each of their tests
/// waits for Belay to call something settled, for a new certificate to be trusted, or for Karpenter to look again. Before
/// them what only compiles.
const ASIDE: [&str; 4] = ["deny", "certificates", "cost", "karpenter"];

/// Stages that run beside all later ones at the lowest priority, in the time that those wait: they compile for minutes
/// when the target folder is empty, and nobody needs what they compile.
const BELOW: [&str; 1] = ["image"];

/// The width of the column of names.
const NAMES: usize = 52;

/// How long processes that were told to end may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// One step of the run.
struct Stage {
    /// What `cargo xtask test NAME` calls it.
    name: String,
    /// For people.
    title: String,
    work: Work,
    /// Where it fails, later ones would for its reasons: they begin when it is over.
    is_first: bool,
}

enum Work {
    /// A cargo command that has to succeed.
    Cargo(Vec<String>),
    /// The licences, crates and sources that deny.toml allows. Advisories are asked for at a release: they are news, which
    /// no change of ours brings.
    Deny,
    /// The image's last stage, and what is in it.
    Image,
    /// The programs of the test cluster, the oracles, Prometheus' parsers, the API types of each Kubernetes version, Karpenter
    /// and the descheduler, built once.
    Programs,
}

/// Runs all stages, or those that are named.
pub(crate) fn run(only: &[String]) -> anyhow::Result<()> {
    let all = stages()?;
    let unknown = only.iter().find(|name| all.iter().all(|stage| stage.name != **name));
    if let Some(unknown) = unknown {
        let names: Vec<&str> = all.iter().map(|stage| stage.name.as_str()).collect();
        bail!("there is no stage {unknown}; the stages are {}", names.join(", "));
    }
    let began = Instant::now();
    let run = Run {
        id: format!("{}", std::process::id()),
        logs: workspace::target_folder()?.join("xtask"),
        failed: AtomicBool::default(),
    };
    std::fs::create_dir_all(&run.logs).with_context(|| format!("cannot make {}", run.logs.display()))?;
    let wanted: Vec<&Stage> = all.iter().filter(|stage| only.is_empty() || only.contains(&stage.name)).collect();
    let (below, others): (Vec<&Stage>, Vec<&Stage>) =
        wanted.into_iter().partition(|stage| BELOW.contains(&stage.name.as_str()));
    let (aside, others): (Vec<&Stage>, Vec<&Stage>) =
        others.into_iter().partition(|stage| ASIDE.contains(&stage.name.as_str()));
    let (first, beside): (Vec<&Stage>, Vec<&Stage>) = others.into_iter().partition(|stage| stage.is_first);
    let outcome = run.lanes(&first, &beside, [&aside, &below]);
    let left = run.ensure_nothing_left();
    if let (Err(_), Err(error)) = (&outcome, &left) {
        println!("{error:#}");
    }
    outcome.and(left)?;
    println!("all passed in {}", seconds(began.elapsed()).trim());
    Ok(())
}

fn stages() -> anyhow::Result<Vec<Stage>> {
    let cargo = |name: &str, title: &str, args: &[&str]| Stage {
        name: name.to_owned(),
        title: title.to_owned(),
        work: Work::Cargo(args.iter().map(|&arg| arg.to_owned()).collect()),
        is_first: true,
    };
    let lints = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    let mut stages = vec![
        cargo("format", "the format of the code", &["fmt", "--all", "--check"]),
        cargo("lint", "lints", &lints),
        cargo("unit", "unit, property and documentation tests", &["test", "--workspace", "--exclude", "belay-e2e"]),
        cargo("harness-unit", "unit tests of the harness", &["test", "--package", "belay-e2e", "--lib"]),
        Stage {
            name: "programs".into(),
            title: "the programs that tests run".into(),
            work: Work::Programs,
            is_first: true,
        },
    ];
    let aside = |name: &str, title: &str, work: Work| Stage {
        name: name.to_owned(),
        title: title.to_owned(),
        work,
        is_first: false,
    };
    stages.push(aside("deny", "licences, crates and their sources", Work::Deny));
    stages.push(aside("image", "the image", Work::Image));
    // What needs no control plane comes first, and then the harness: where it fails, the others would for its reasons.
    let mut targets = workspace::test_targets("belay-e2e")?;
    targets.sort_by_key(|target| (target != ORACLES, target != "harness", target != "chart", target.clone()));
    for target in targets {
        let title = if target == ORACLES {
            "predictions against Kubernetes' own code".to_owned()
        } else {
            format!("on a real control plane: {target}")
        };
        let mut args = vec!["test", "--package", "belay-e2e", "--test", &target];
        if matches!(&*target, "e2e" | "handover") {
            // Its tests mostly wait for others, each in a namespace of its own: more of them than cores is no load.
            args.extend(["--", "--test-threads=4"]);
        }
        let is_first = matches!(&*target, ORACLES | "harness" | "chart");
        stages.push(Stage { is_first, ..cargo(&target, &title, &args) });
    }
    Ok(stages)
}

struct Run {
    id: String,
    logs: PathBuf,
    /// A stage failed: no other one begins.
    failed: AtomicBool,
}

impl Run {
    /// The first stages, and then the others with those lanes beside them.
    fn lanes(&self, first: &[&Stage], others: &[&Stage], lanes: [&[&Stage]; 2]) -> anyhow::Result<()> {
        self.stages(first)?;
        if !lanes[0].is_empty() && !others.is_empty() {
            // Both sides would wait for each other's compiler otherwise.
            self.cargo("build", &["test", "--package", "belay-e2e", "--no-run"].map(str::to_owned))?;
        }
        std::thread::scope(|scope| {
            let lanes = lanes.map(|lane| scope.spawn(|| self.stages(lane)));
            self.stages(others)?;
            for lane in lanes {
                lane.join().map_err(|_| anyhow::anyhow!("the stages aside panicked"))??;
            }
            Ok(())
        })
    }

    fn stages(&self, stages: &[&Stage]) -> anyhow::Result<()> {
        for stage in stages {
            if self.failed.load(Ordering::Relaxed) {
                break;
            }
            self.stage(stage).inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    fn stage(&self, stage: &Stage) -> anyhow::Result<()> {
        let began = Instant::now();
        // The programs' own lines would come in between, or those of a stage beside it.
        let terminal = std::io::stdout().is_terminal() && stage.is_first && !matches!(stage.work, Work::Programs);
        if terminal {
            print!("{:NAMES$}", stage.title);
            std::io::stdout().flush()?;
        }
        let outcome = match &stage.work {
            Work::Cargo(args) => self.cargo(&stage.name, args),
            Work::Deny => self.deny(),
            Work::Image => self.image(&stage.name),
            Work::Programs => programs(),
        };
        let verdict = match &outcome {
            Ok(note) if note.is_empty() => seconds(began.elapsed()),
            Ok(note) => format!("{}  {note}", seconds(began.elapsed())),
            Err(_) => format!("failed after {}", seconds(began.elapsed())),
        };
        if terminal {
            println!("{verdict}");
        } else {
            println!("{:NAMES$}{verdict}", stage.title);
        }
        outcome.map(drop).with_context(|| format!("stage {}", stage.name))
    }

    /// Runs cargo; the answer counts the tests, where there are any.
    fn cargo(&self, stage: &str, args: &[String]) -> anyhow::Result<String> {
        let path = self.logs.join(format!("{stage}.log"));
        let mut log = File::options().create(true).truncate(true).read(true).write(true).open(&path)?;
        let status = workspace::cargo()
            .args(args)
            .env(RUN, &self.id)
            // A failed test says what was wrong, after what the cluster looked like; where it did is no news.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .status()
            .context("cannot run cargo")?;
        let mut text = Vec::new();
        log.rewind()?;
        log.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        if !status.success() {
            println!("{text}");
            bail!("cargo {} failed; the log is {}", args.join(" "), path.display());
        }
        Ok(count_tests(&text))
    }

    fn image(&self, stage: &str) -> anyhow::Result<String> {
        let log = self.logs.join(format!("{stage}.log"));
        File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        image::run(&log).inspect_err(|_| println!("{}", std::fs::read_to_string(&log).unwrap_or_default()))
    }

    fn deny(&self) -> anyhow::Result<String> {
        let program = tools::DENY.ensure()?;
        let output = std::process::Command::new(&program)
            .current_dir(workspace::folder())
            .args(["--workspace", "check", "licenses", "bans", "sources"])
            .env(RUN, &self.id)
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(output.status.success(), "deny.toml forbids it:\n{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::new())
    }

    /// A run leaves nothing running: every process that it started, and theirs, carries its mark.
    fn ensure_nothing_left(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let left = marked_processes(&format!("{RUN}={}", self.id));
            if left.is_empty() {
                return Ok(());
            }
            ensure!(began.elapsed() < GONE_WITHIN, "these processes were left running: {}", left.join(", "));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// `12 tests`, from the summaries that libtest writes; empty where there are none.
fn count_tests(log: &str) -> String {
    let passed = log.lines().filter_map(|line| {
        let summary = line.strip_prefix("test result: ok. ")?;
        summary.split_once(" passed")?.0.parse::<u32>().ok()
    });
    match passed.sum::<u32>() {
        0 => String::new(),
        count => format!("{count} tests"),
    }
}

fn programs() -> anyhow::Result<String> {
    Programs::ensure()?;
    programs::removal_order()?;
    programs::promql()?;
    programs::schemas()?;
    programs::karpenter()?;
    programs::descheduler()?;
    programs::scaled_objects()?;
    programs::cert_manager()?;
    programs::prometheus_operator()?;
    Ok(String::new())
}

/// Processes with this variable in their environment, as `number name`.
fn marked_processes(variable: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .map(|entry| entry.path())
        .filter(|folder| is_marked(folder, variable))
        .filter_map(|folder| {
            let number = folder.file_name()?.to_string_lossy().into_owned();
            let name = std::fs::read_to_string(folder.join("comm")).ok()?;
            (number != own).then(|| format!("{number} {}", name.trim()))
        })
        .collect()
}

fn is_marked(process: &Path, variable: &str) -> bool {
    // Processes of others cannot be read, and are none of ours.
    let environment = std::fs::read(process.join("environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
}

fn seconds(elapsed: Duration) -> String {
    format!("{:6.1} s", elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tests_are_counted_over_all_summaries() {
        let log =
            "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\ntest result: ok. 40 passed; 0 failed";
        assert_eq!(count_tests(log), "42 tests");
        assert_eq!(count_tests("Checking belay"), "");
    }

    #[test]
    fn a_process_is_found_by_its_mark() {
        let mark = format!("{RUN}=test-of-{}", std::process::id());
        let (name, value) = mark.split_once('=').unwrap();
        assert_eq!(marked_processes(&mark), [] as [String; 0]);
        let mut child = Command::new("sleep").arg("60").env(name, value).spawn().unwrap();
        // A process has no environment to be read yet for a moment after its program was replaced.
        let began = Instant::now();
        let mut found = marked_processes(&mark);
        while found.is_empty() && began.elapsed() < GONE_WITHIN {
            std::thread::yield_now();
            found = marked_processes(&mark);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [format!("{} sleep", child.id())]);
    }
}
