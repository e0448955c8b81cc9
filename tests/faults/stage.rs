//! The stage of the fault tests: one cluster, one Belay, one test at a time, and the tools that break things.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use belay_e2e::load::Load;
use belay_e2e::tools::Running;
use belay_e2e::world::{Belay, Cluster, Namespace, PodInfo, Workload, merge, test_on};
use serde_json::{Value, json};

use crate::busy_support;
use crate::support::{SOON, hold_in_phase, hold_of, policy, protected, restarts};

/// Where Belay runs.
pub(crate) const SYSTEM: &str = "belay-system";

/// The user that the controllers are at the API server.
pub(crate) const CONTROLLER: &str = "system:serviceaccount:belay-system:belay-controller";

/// For what waits for a lead to pass on, or for half a minute by the clock of Belay, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Seconds that pods serve on after they were asked to go, while endpoints catch up on a machine that is busy.
const PRE_STOP: i64 = 4;

/// One test at a time, and the Belay that they share once it is installed.
static STAGE: Mutex<Option<Belay>> = Mutex::new(None);

/// Leads pass on sooner than by default, and the probe is made more often, since many tests wait for it. The proportions
/// of the lead are the default's.
fn values() -> anyhow::Result<Value> {
    let election = json!({ "leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s" });
    let mut values = busy_support::values()?;
    merge(&mut values, &json!({ "controller": { "leaderElection": election }, "probe": { "interval": "5s" } }));
    Ok(values)
}

/// Runs a test alone, in a namespace of its own, with a Belay that is whole.
pub(crate) fn fault(name: &str, body: impl AsyncFnOnce(&Namespace, &Belay) -> anyhow::Result<()>) {
    // A test that failed has poisoned the lock, and has put right what it broke all the same.
    let mut installed = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::shared();
    test_on(&cluster, name, async |ns: &Namespace| {
        if installed.is_none() {
            for definitions in busy_support::SYSTEMS {
                cluster.crds(definitions).await?;
            }
            *installed = Some(cluster.install_belay(values()?).await?);
        }
        let belay = installed.as_ref().context("Belay was just installed")?;
        belay.whole(PATIENCE).await?;
        body(ns, belay).await
    });
}

/// Does `body`, then `undo` whatever came of it, so that the next test finds a whole Belay. The first error counts.
pub(crate) async fn finally<T>(
    body: impl Future<Output = anyhow::Result<T>>,
    undo: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<T> {
    let outcome = body.await;
    let undone = undo.await;
    outcome.and_then(|value| undone.map(|()| value))
}

/// Scales one of Belay's Deployments, and waits until it has just these pods.
pub(crate) async fn scale(ns: &Namespace, belay: &Belay, component: &str, replicas: usize) -> anyhow::Result<()> {
    belay.scale(ns, component, replicas, PATIENCE).await
}

/// A right that was taken from a component's ClusterRole.
pub(crate) struct Right<'a> {
    ns: &'a Namespace,
    component: &'a str,
    verb: &'a str,
    resource: &'a str,
    rules: Value,
}

impl<'a> Right<'a> {
    /// Takes the right to `verb` a `resource` (such as `deployments.apps` or `evictionholds.belay.dev/status`) from a
    /// component.
    pub(crate) async fn take(
        ns: &'a Namespace,
        component: &'a str,
        verb: &'a str,
        resource: &'a str,
    ) -> anyhow::Result<Self> {
        let role = ns.get("clusterrole", &format!("belay-{component}")).await?;
        let right = Self { ns, component, verb, resource, rules: role["rules"].clone() };
        let (whole, subresource) = parts(resource);
        let plural = whole.split('.').next().unwrap_or_default();
        let named = if subresource.is_empty() { plural.to_owned() } else { format!("{plural}/{subresource}") };
        let mut fewer = right.rules.clone();
        let rules = fewer.as_array_mut().context("a ClusterRole without rules")?;
        for rule in &mut *rules {
            let concerned = rule["resources"].as_array().is_some_and(|all| all.iter().any(|one| *one == *named));
            if let Some(verbs) = rule["verbs"].as_array_mut().filter(|_| concerned) {
                verbs.retain(|one| *one != *verb);
            }
        }
        rules.retain(|rule| rule["verbs"] != json!([]));
        right.write(&fewer, "no").await?;
        Ok(right)
    }

    /// Gives it back.
    pub(crate) async fn give_back(&self) -> anyhow::Result<()> {
        self.write(&self.rules, "yes").await
    }

    /// Writes the rules, and waits until the API server goes by them.
    async fn write(&self, rules: &Value, expected: &str) -> anyhow::Result<()> {
        let role = format!("belay-{}", self.component);
        let patch = json!({ "rules": rules }).to_string();
        self.ns.kubectl(["patch", "clusterrole", &role, "--type=merge", "--patch", &patch]).ok().await?;
        let (verb, (resource, subresource)) = (self.verb, parts(self.resource));
        let subresource = format!("--subresource={subresource}");
        let user = format!("--as=system:serviceaccount:{SYSTEM}:{role}");
        self.ns
            .eventually(&format!("may {role} {verb} {}: {expected}", self.resource), SOON, async || {
                // Exits with 1 where the answer is no.
                let answer = self.ns.kubectl(["auth", "can-i", verb, resource, &subresource, &user]).output().await?;
                ensure!(answer.stdout().trim() == expected, "{answer}");
                Ok(())
            })
            .await
    }
}

/// A resource with its group, and its subresource, empty where there is none.
fn parts(resource: &str) -> (&str, &str) {
    resource.split_once('/').unwrap_or((resource, ""))
}

/// A workload under load whose node is about to be drained.
pub(crate) struct Scene {
    pub(crate) web: Workload,
    pub(crate) victim: PodInfo,
    pub(crate) load: Load,
}

impl Scene {
    /// A protected single pod, whose replacement takes this long to serve. It serves on while it terminates, for as
    /// long as endpoints may take to tell.
    pub(crate) async fn set(ns: &Namespace, ready_after: Duration, policy_spec: &str) -> anyhow::Result<Self> {
        ns.nodes(2).await?;
        let web = ns.web("web").ready_after(ready_after).pre_stop(PRE_STOP).create().await?;
        ns.apply(&policy("web", policy_spec)).await?;
        web.available(SOON).await?;
        protected(ns, "web").await?;
        let victim = web.only_pod().await?;
        let load = ns.load("web", 50).await?;
        load.ok(20, SOON).await?;
        Ok(Self { web, victim, load })
    }

    /// `kubectl drain` of the victim's node.
    pub(crate) async fn drain(&self, ns: &Namespace) -> anyhow::Result<Running> {
        ns.drain(&self.victim.node, &["--timeout=240s"]).await
    }

    /// Waits until the hold of the victim is in the API.
    pub(crate) async fn recorded(&self, ns: &Namespace) -> anyhow::Result<Value> {
        let what = format!("the hold of {} is recorded", self.victim.name);
        ns.eventually(&what, SOON, async || hold_of(ns, &self.victim).await).await
    }

    /// Waits until the restart for the victim was written.
    pub(crate) async fn restarted(&self, ns: &Namespace) -> anyhow::Result<()> {
        ns.eventually("the Deployment is restarted", PATIENCE, async || {
            let count = restarts(ns, "web").await?;
            ensure!(count == 1, "{count} restarts");
            Ok(())
        })
        .await
    }

    /// The drain has ended: its victim was handed over by one restart, and no request failed.
    pub(crate) async fn handed_over(self, ns: &Namespace) -> anyhow::Result<()> {
        let hold = hold_in_phase(ns, &self.victim, "Completed").await?;
        ensure!(hold["status"]["outcome"] == "HandedOver", "{hold}");
        ensure!(self.web.only_pod().await?.node != self.victim.node, "the replacement is on the drained node");
        self.restarted_once(ns).await?;
        let served = self.load.stop().await;
        ensure!(served.failed() == 0 && served.ok > 0, "{served}");
        Ok(())
    }

    /// By Belay's own records, by the Deployment's history, and by what the API server was asked.
    async fn restarted_once(&self, ns: &Namespace) -> anyhow::Result<()> {
        let recorded = restarts(ns, "web").await?;
        let sets = self.web.replica_sets().await?.len();
        let patches = ns.cluster().writes_by(CONTROLLER)?;
        let patches: Vec<_> = patches
            .iter()
            .filter(|write| write.resource == "deployments" && write.namespace == ns.name() && write.code < 300)
            .collect();
        ensure!(
            recorded == 1 && sets == 2 && patches.len() == 1,
            "{recorded} restarts recorded, {sets} ReplicaSets, and the controllers wrote {patches:?}"
        );
        Ok(())
    }
}

/// The value of a metric of one of Belay's pods; 0 where it was never counted. `series` is its name with its labels,
/// as it is written.
pub(crate) async fn metric(belay: &Belay, pod: &PodInfo, series: &str) -> anyhow::Result<f64> {
    let text = belay.metrics(pod).await?;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(Ok(0.0), |value| value.parse().with_context(|| format!("{series} is {value:?}")))
}

/// The sum of all series of a metric of a pod whose labels contain this.
pub(crate) async fn metric_sum(belay: &Belay, pod: &PodInfo, name: &str, labels: &str) -> anyhow::Result<f64> {
    let text = belay.metrics(pod).await?;
    let series = text.lines().filter(|line| line.starts_with(name) && line.contains(labels));
    series
        .map(|line| {
            let (_, value) = line.rsplit_once(' ').with_context(|| format!("no metric: {line}"))?;
            value.parse::<f64>().with_context(|| format!("no number: {line}"))
        })
        .sum()
}
