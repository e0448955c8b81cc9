//! Whole instances: side by side, killed, and gone without a trace.

use std::io::{BufRead as _, BufReader};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use belay_e2e::instance;
use belay_e2e::world::{self, Cluster, Component, Namespace, Options, eventually};
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::Api;

const SOON: Duration = Duration::from_secs(30);

/// What `owner_of_a_cluster` writes before the facts that its killer needs.
const FACTS: &str = "facts: ";

#[test]
fn two_clusters_run_side_by_side_and_leave_nothing() {
    let began = Instant::now();
    let clusters = [(); 2].map(|()| Cluster::start(Options::default()).unwrap());
    println!("two clusters started after {:.1} s", began.elapsed().as_secs_f64());
    let octets = clusters.each_ref().map(|cluster| cluster.control_plane().octet());
    assert_ne!(octets[0], octets[1]);
    for cluster in &clusters {
        world::test_on(cluster, "side-by-side", async |ns: &Namespace| {
            ns.nodes(1).await?;
            ns.web("web").create().await?.available(SOON).await?;
            let load = ns.load("web", 50).await?;
            load.ok(20, SOON).await?;
            let served = load.stop().await;
            ensure!(served.failed() == 0, "{served}");
            Ok(())
        });
    }
    let [first, second] = &clusters;
    first.block_on(async {
        let only_in_first = first.namespace("only-in-first").await.unwrap();
        let in_second: Api<NamespaceObject> = Api::all(second.client());
        assert!(in_second.get_opt(only_in_first.name()).await.unwrap().is_none());
    });

    let left = clusters.each_ref().map(remains_of);
    for cluster in clusters {
        let began = Instant::now();
        drop(cluster);
        println!("a cluster stopped after {:.1} s", began.elapsed().as_secs_f64());
    }
    for remains in left {
        remains.ensure_gone().unwrap();
    }
}

#[test]
fn nothing_outlives_an_owner_that_is_killed() {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "instances::owner_of_a_cluster", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(owner.stdout.take().unwrap());
    let facts = output
        .lines()
        .find_map(|line| line.ok()?.split_once(FACTS).map(|(_, facts)| facts.to_owned()))
        .expect("the owner told no facts");
    let remains = Remains::parse(&facts).expect(&facts);
    assert_eq!(remains.processes.len(), 5, "four components and a pod's program");
    for process in &remains.processes {
        assert!(Path::new(&format!("/proc/{process}")).exists(), "{process} does not run before its owner is killed");
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime
        .block_on(eventually("nothing to be left", Duration::from_secs(10), async || remains.ensure_gone()))
        .unwrap();
}

/// Not a test: the process that `nothing_outlives_an_owner_that_is_killed` kills.
#[test]
#[ignore = "run by another test, which kills it"]
fn owner_of_a_cluster() {
    let cluster = Cluster::start(Options::default()).unwrap();
    cluster.block_on(async {
        let ns = cluster.namespace("owner").await.unwrap();
        ns.nodes(1).await.unwrap();
        let log = super::programs::run_a_sleeper(&ns).await.unwrap();
        let mut remains = remains_of(&cluster);
        remains.processes.push(log.trim().parse().unwrap());
        println!("\n{FACTS}{}", remains.print());
    });
    std::thread::sleep(Duration::from_mins(5));
}

#[test]
fn a_component_that_dies_by_itself_is_reported_at_once() {
    let cluster = Cluster::start(Options::default()).unwrap();
    let scheduler = cluster.control_plane().process_id(Component::Scheduler).unwrap();
    let began = Instant::now();
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| {
        world::test_on(&cluster, "reported", async |ns: &Namespace| {
            let kill = Command::new("sh").args(["-c", &format!("kill -9 {scheduler}")]).status()?;
            ensure!(kill.success(), "cannot kill the scheduler");
            ns.nodes(1).await?;
            ns.web("web").create().await?.available(Duration::from_mins(1)).await?;
            Ok(())
        });
    }));
    let message = *panic.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("kube-scheduler ended by itself with signal 9"), "{message}");
    assert!(message.contains("its last lines:\n"), "{message}");
    assert!(began.elapsed() < SOON, "only after {:?}", began.elapsed());
}

#[test]
fn options_reach_every_program() {
    let cluster = Cluster::start(Options {
        feature_gates: vec!["EvictionRequestAPI=true".into()],
        runtime_config: vec!["lifecycle.k8s.io/v1alpha1=true".into()],
        ..Options::default()
    });
    let resources = ["api-resources", "--api-group=lifecycle.k8s.io", "--output=name"];
    let cluster = cluster.unwrap();
    let listed = cluster.block_on(cluster.kubectl(resources).ok()).unwrap();
    assert!(listed.contains("evictionrequests.lifecycle.k8s.io"), "{listed}");

    let older = Options { emulated_version: Some("1.35".into()), ..Options::default() };
    let older = Cluster::start(older).unwrap();
    let version = older.block_on(older.kubectl(["get", "--raw", "/version"]).ok()).unwrap();
    assert!(version.contains(r#""emulationMinor": "35""#), "{version}");
}

/// What there is of a cluster on this machine.
struct Remains {
    octet: u8,
    folder: PathBuf,
    processes: Vec<u32>,
}

fn remains_of(cluster: &Cluster) -> Remains {
    let control_plane = cluster.control_plane();
    let running = Component::ALL.into_iter().filter_map(|component| control_plane.process_id(component));
    Remains { octet: control_plane.octet(), folder: control_plane.folder().to_owned(), processes: running.collect() }
}

impl Remains {
    fn print(&self) -> String {
        let processes: Vec<String> = self.processes.iter().map(u32::to_string).collect();
        format!("{} {} {}", self.octet, self.folder.display(), processes.join(" "))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        Some(Self {
            octet: words.next()?.parse().ok()?,
            folder: words.next()?.into(),
            processes: words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
        })
    }

    fn ensure_gone(&self) -> anyhow::Result<()> {
        for process in &self.processes {
            // A killed process whose new parent has not collected it yet holds nothing any more.
            let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let state = state.rsplit_once(')').map(|(_, rest)| rest.trim_start().chars().next());
            ensure!(matches!(state, None | Some(Some('Z'))), "the process {process} still runs");
        }
        ensure!(!self.folder.exists(), "{} is still there", self.folder.display());
        ensure!(!instance::owned_octets().contains(&self.octet), "127.{}.0.1 is still owned", self.octet);
        Ok(())
    }
}

#[test]
fn a_component_is_stopped_and_started_again() {
    let cluster = Cluster::start(Options::default()).unwrap();
    println!("a control plane started after {:.1} s", cluster.control_plane().took().as_secs_f64());
    world::test_on(&cluster, "components", async |ns: &Namespace| {
        ns.nodes(1).await?;
        let web = ns.web("web").create().await?;
        web.available(SOON).await?;
        let control_plane = ns.cluster().control_plane();
        for component in Component::ALL {
            let began = Instant::now();
            control_plane.stop(component).await?;
            ensure!(control_plane.process_id(component).is_none());
            let (stopped, began) = (began.elapsed(), Instant::now());
            control_plane.start_component(component).await?;
            control_plane.process_id(component).context("it does not run")?;
            println!("{component}: stopped in {stopped:.1?}, ready {:.1?} later", began.elapsed());
            let twice = control_plane.start_component(component).await;
            ensure!(twice.is_err(), "{component} was started twice");
        }
        web.scale(2).await?;
        web.available(SOON).await?;
        Ok(())
    });
}
