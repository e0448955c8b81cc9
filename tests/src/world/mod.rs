//! What a test says: a cluster, a namespace of its own, workloads, a drain, a load, and what is awaited.
//!
//! A control plane is started once a process and shared by all tests in it; each test has a namespace and simulated
//! nodes of its own. Tests are plain `#[test]` functions, whose body runs on the test's own thread while everything
//! else runs on the cluster's runtime:
//!
//! ```no_run
//! use std::time::Duration;
//! use belay_e2e::world::{self, Namespace};
//!
//! #[test]
//! fn serves_once_it_is_available() {
//!     world::test("serves", async |ns: &Namespace| {
//!         ns.nodes(2).await?;
//!         let web = ns.web("web").ready_after(Duration::from_secs(1)).create().await?;
//!         web.available(Duration::from_secs(30)).await?;
//!         let load = ns.load("web", 20).await?;
//!         load.ok(10, Duration::from_secs(5)).await?;
//!         anyhow::ensure!(load.stop().await.failed() == 0);
//!         Ok(())
//!     });
//! }
//! ```
//!
//! `#[tokio::test]` does not mix with the cluster's client: its connections would end with the first test's runtime.

mod belay;
mod cluster;
mod handover;
mod namespace;
mod objects;
mod processes;
mod replica;
mod report;
mod waiting;
mod workload;

use std::panic::AssertUnwindSafe;

pub use belay::{Belay, USERS};
pub use cluster::Cluster;
pub use handover::policy;
pub use namespace::Namespace;
pub use processes::{Paused, resident};
pub use replica::{Caller, eviction_head};
pub use waiting::{eventually, throughout};
pub use workload::{PodInfo, Web, Workload, merge};

pub use crate::control_plane::{Component, Options};

/// Runs a test in a namespace of its own on the process's shared cluster. `name` is the namespace's, with a number
/// behind it.
///
/// # Panics
/// When the body fails or panics, after a report of what the cluster looked like; or when no cluster can be started.
pub fn test(name: &str, body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>) {
    test_on(&Cluster::shared(), name, body);
}

/// As [`test`], with Belay installed by its chart's own defaults.
///
/// # Panics
/// As [`test`], and when Belay cannot be installed.
pub fn test_with_belay(name: &str, body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>) {
    let cluster = Cluster::shared();
    test_on(&cluster, name, async |namespace: &Namespace| {
        namespace.cluster().belay().await?;
        body(namespace).await
    });
}

/// As [`test`], on a given cluster.
///
/// # Panics
/// As [`test`].
pub fn test_on(cluster: &Cluster, name: &str, body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>) {
    run(cluster, name, body, true);
}

/// As [`test`], on a cluster of the test's own, which goes as a whole when the test ends: for so many objects that they
/// would take long to leave one by one.
///
/// # Panics
/// As [`test`].
#[expect(clippy::panic, reason = "how a test tells libtest that it failed")]
pub fn test_alone(name: &str, body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>) {
    match Cluster::start(Options::default()) {
        Ok(cluster) => run(&cluster, name, body, false),
        Err(error) => panic!("no test cluster: {error:#}"),
    }
}

#[expect(clippy::panic, reason = "how a test tells libtest that it failed")]
fn run(cluster: &Cluster, name: &str, body: impl AsyncFnOnce(&Namespace) -> anyhow::Result<()>, cleans_up: bool) {
    let namespace = match cluster.block_on(cluster.namespace(name)) {
        Ok(namespace) => namespace,
        Err(error) => panic!("no namespace for the test {name}: {error:#}"),
    };
    let run = || {
        cluster.block_on(async {
            tokio::select! {
                outcome = body(&namespace) => outcome,
                problem = cluster.control_plane().problems().any() => Err(anyhow::anyhow!(problem)),
            }
        })
    };
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(run));
    if !matches!(outcome, Ok(Ok(()))) {
        eprintln!("{}", cluster.block_on(cluster.report(namespace.name())));
    }
    if cleans_up {
        cluster.block_on(namespace.clean_up());
    }
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{name}: {error:#}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
