//! Whole histories of surges, without a cluster.
//!
//! As in [`crate::model`], but for a Deployment of several replicas and one revision: drains, people and tools that change
//! the number, an autoscaler, a clock that runs into deadlines, two controllers on caches that lag behind each other,
//! writes that fail or whose answer is lost, webhook replicas that forget. Kubernetes' part is played here ([`Cluster`]),
//! down to the order in which a ReplicaSet removes pods; Belay's part is [`belay`], what must hold is [`laws`], and
//! [`histories`] draws them.

mod belay;
mod histories;
mod laws;

use std::collections::BTreeSet;

use jiff::Timestamp;

use self::belay::{Leader, Replica};
use self::laws::Laws;
use crate::action::ObjectRef;
use crate::cost::{CostPod, Readiness, Standing, VICTIM, removal};
use crate::handover::ClosePod;
use crate::hold::HoldView;
use crate::ownership::{Key, Record};
use crate::testing::{after, deployment, pod, replica_set};
use crate::view::{AutoscalerView, DeploymentView, Governor, Mark, PodPhase, PodView};

const SET: &str = "7d9f";
const NODES: [&str; 5] = ["node-0", "node-1", "node-2", "node-3", "node-4"];
/// How many replicas there are to begin with.
const REPLICAS: i32 = 3;

/// What stays the same during one history.
#[derive(Clone, Debug)]
struct Config {
    /// `surgeReplicas`.
    most: i32,
    min_ready: i32,
    /// `readinessDeadlineSeconds`.
    limit: u32,
    /// The most replicas that the autoscaler allows; absent where there is none.
    maximum: Option<i32>,
    /// Handovers begin by themselves on cordoned nodes (`trigger: OnDoom`).
    on_doom: bool,
}

/// A pod as the API server has it, and what the kubelet makes of it.
#[derive(Clone, Debug)]
struct Pod {
    view: PodView,
    value: Option<Box<str>>,
    record: Record,
    version: u64,
    created: Timestamp,
    /// When it gets ready; absent for one that never does.
    ready_at: Option<i64>,
    gone_at: Option<i64>,
}

/// The objects.
#[derive(Clone, Debug)]
struct Cluster {
    deployment: DeploymentView,
    autoscaler: Option<AutoscalerView>,
    /// How many replicas the load asks the autoscaler for.
    load: i32,
    /// `spec.replicas` of the ReplicaSet.
    desired: i32,
    pods: Vec<Pod>,
    holds: Vec<HoldView>,
    cordoned: BTreeSet<&'static str>,
    serial: u64,
}

/// The whole world.
struct World {
    config: Config,
    /// In seconds since [`crate::testing::START`].
    time: i64,
    /// Protection is switched off.
    unprotected: bool,
    /// How long a pod that is created now takes to be ready; absent for one that never is.
    startup: Option<i64>,
    cluster: Cluster,
    /// What a cache may show.
    history: Vec<Cluster>,
    replicas: [Replica; 2],
    leaders: [Leader; 2],
    laws: Laws,
}

impl Cluster {
    fn new(config: &Config) -> Self {
        let object = ObjectRef {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "scaler-uid".into(),
            resource_version: "1".into(),
        };
        let autoscaler = config.maximum.map(|maximum| AutoscalerView {
            governor: Governor::HorizontalPodAutoscaler,
            object,
            target: "web".into(),
            minimum: Some(REPLICAS),
            maximum,
            paused: false,
            surge: None,
        });
        Self {
            deployment: DeploymentView {
                replicas: REPLICAS,
                min_ready_seconds: config.min_ready,
                ..deployment("shop", "web")
            },
            autoscaler,
            load: 1,
            desired: REPLICAS,
            pods: Vec::new(),
            holds: Vec::new(),
            cordoned: BTreeSet::new(),
            serial: 1000,
        }
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn deployment_written(&mut self) {
        self.deployment.resource_version = self.next().to_string();
    }

    /// The number that people know of: what they set, and what is to be there in the end.
    fn number(&self) -> Option<i32> {
        self.autoscaler.as_ref().map_or(Some(self.deployment.replicas), |autoscaler| autoscaler.minimum)
    }

    fn set_number(&mut self, number: Option<i32>) {
        let version = self.next().to_string();
        match &mut self.autoscaler {
            Some(autoscaler) => {
                autoscaler.minimum = number;
                autoscaler.object.resource_version = version;
            }
            None => {
                self.deployment.replicas = number.unwrap_or(1);
                self.deployment.generation += 1;
                self.deployment.resource_version = version;
            }
        }
    }

    fn active(&self) -> Vec<usize> {
        (0..self.pods.len()).filter(|&at| self.is_active(at)).collect()
    }

    fn is_active(&self, at: usize) -> bool {
        let view = &self.pods[at].view;
        !view.terminating && !view.is_finished()
    }

    fn available(&self, now: Timestamp) -> i32 {
        let min_ready = self.deployment.min_ready_seconds;
        self.active().into_iter().filter(|&at| self.pods[at].view.is_available(min_ready, now)).count() as i32
    }

    fn find(&self, uid: &str) -> Option<usize> {
        self.pods.iter().position(|pod| &*pod.view.uid == uid)
    }

    /// A deletion is accepted.
    fn delete(&mut self, at: usize, time: i64) {
        let version = self.next();
        let pod = &mut self.pods[at];
        pod.view.terminating = true;
        pod.version = version;
        pod.gone_at.get_or_insert(time + 2);
    }

    fn pod_written(&mut self, at: usize) {
        let version = self.next();
        let pod = &mut self.pods[at];
        pod.version = version;
        pod.view.mark = Mark::read(pod.value.as_deref(), &pod.record);
    }
}

impl Pod {
    fn close(&self) -> ClosePod {
        ClosePod {
            pod: CostPod {
                namespace: self.view.namespace.clone(),
                name: self.view.name.clone(),
                uid: self.view.uid.clone(),
                set: self.view.replica_set.clone(),
                node: self.view.node.clone(),
                phase: self.view.phase,
                terminating: self.view.terminating,
                readiness: self.view.ready_since.map_or(Readiness::NotReady(None), |at| Readiness::Ready(Some(at))),
                restarts: 0,
                sidecar_restarts: 0,
                created: self.created,
                priority: 0,
                standing: Standing::read(self.value.as_deref(), &self.record),
                movable: true,
                hold: None,
                blocked_since: None,
            },
            value: self.value.clone(),
            record: self.record.clone(),
            resource_version: self.version.to_string().into(),
        }
    }

    fn is_marked(&self) -> bool {
        self.record.written(&Key::annotation(crate::cost::COST_ANNOTATION)) == Some(&VICTIM.to_string())
    }
}

impl World {
    /// Three replicas at rest.
    fn new(config: Config, startup: Option<i64>) -> Self {
        let mut world = Self {
            cluster: Cluster::new(&config),
            config,
            time: 0,
            unprotected: false,
            startup: Some(0),
            history: Vec::new(),
            replicas: Default::default(),
            leaders: Default::default(),
            laws: Laws::default(),
        };
        world.see();
        for _ in 0..20 {
            world.round();
        }
        world.startup = startup;
        world
    }

    fn now(&self) -> Timestamp {
        after(self.time)
    }

    /// Keeps what there is for the caches, after a step.
    fn see(&mut self) {
        self.check();
        self.history.push(self.cluster.clone());
    }

    /// One second in which every controller of Kubernetes comes to its turn.
    fn round(&mut self) {
        self.autoscale();
        self.roll_out();
        self.replicate();
        self.run_pods();
        self.roll_out();
        self.time += 1;
    }

    /// The HorizontalPodAutoscaler's controller: up at once, down only by [`World::settle`].
    fn autoscale(&mut self) {
        let wanted = self.autoscaled();
        if wanted.is_some_and(|wanted| wanted > self.cluster.deployment.replicas) {
            self.scale_to(wanted);
        }
    }

    fn autoscaled(&self) -> Option<i32> {
        let autoscaler = self.cluster.autoscaler.as_ref()?;
        Some(self.cluster.load.max(autoscaler.minimum.unwrap_or(1)).min(autoscaler.maximum))
    }

    fn scale_to(&mut self, wanted: Option<i32>) {
        let deployment = &mut self.cluster.deployment;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != deployment.replicas) {
            deployment.replicas = wanted;
            deployment.generation += 1;
            self.cluster.deployment_written();
            self.see();
        }
    }

    /// The autoscaler comes down, after its minutes of patience.
    fn settle(&mut self) {
        let wanted = self.autoscaled();
        self.scale_to(wanted);
    }

    /// One pass of the Deployment controller.
    fn roll_out(&mut self) {
        let now = self.now();
        let cluster = &mut self.cluster;
        cluster.desired = cluster.deployment.replicas;
        let (pods, available) = (cluster.active().len() as i32, cluster.available(now));
        let before = cluster.deployment.status;
        let status = &mut cluster.deployment.status;
        (status.replicas, status.updated, status.available) = (pods, pods, available);
        status.observed_generation = cluster.deployment.generation;
        if *status != before {
            cluster.deployment_written();
        }
        self.see();
    }

    /// One pass of the ReplicaSet controller.
    fn replicate(&mut self) {
        let now = self.now();
        let active = self.cluster.active();
        for _ in active.len() as i32..self.cluster.desired {
            self.create_pod();
        }
        let surplus = active.len().saturating_sub(self.cluster.desired as usize);
        if surplus > 0 {
            let close: Vec<CostPod> = active.iter().map(|&at| self.cluster.pods[at].close().pod).collect();
            let pods: Vec<&CostPod> = close.iter().collect();
            let order = removal::order(&pods, &[], |at| pods[at].standing.effective(), now).concat();
            let gone: Vec<usize> = order.into_iter().take(surplus).map(|place| active[place]).collect();
            self.watch_removal(&gone);
            for at in gone {
                self.cluster.delete(at, self.time);
            }
        }
        self.see();
    }

    fn create_pod(&mut self) {
        let number = self.cluster.next();
        let view = PodView {
            uid: format!("pod-{number}").into(),
            node: None,
            phase: PodPhase::Pending,
            ready_since: None,
            ..pod(&format!("web-{number}"), SET, "")
        };
        let (created, version) = (self.now(), number);
        let ready_at = self.startup.map(|startup| self.time + startup);
        let (value, record) = (None, Record::default());
        self.cluster.pods.push(Pod { view, value, record, version, created, ready_at, gone_at: None });
    }

    /// Scheduler and kubelets.
    fn run_pods(&mut self) {
        let (time, now) = (self.time, self.now());
        self.cluster.pods.retain(|pod| pod.gone_at.is_none_or(|at| at > time));
        for at in 0..self.cluster.pods.len() {
            let on = |node: &str| self.cluster.pods.iter().filter(|pod| pod.view.node.as_deref() == Some(node)).count();
            let free = NODES.into_iter().filter(|node| !self.cluster.cordoned.contains(node));
            let emptiest = free.min_by_key(|node| on(node));
            let pod = &mut self.cluster.pods[at];
            let before = pod.view.clone();
            if pod.view.node.is_none() && !pod.view.terminating {
                pod.view.node = emptiest.map(Into::into);
                pod.view.unschedulable = emptiest.is_none();
            } else if pod.view.node.is_some() {
                pod.view.phase = PodPhase::Running;
                let is_ready = pod.ready_at.is_some_and(|ready_at| ready_at <= time);
                if is_ready && !pod.view.terminating {
                    pod.view.ready_since = pod.view.ready_since.or(Some(now));
                }
            }
            if pod.view != before {
                self.cluster.pod_written(at);
            }
        }
        self.see();
    }
}

/// The ReplicaSet, which never changes.
fn set() -> crate::view::ReplicaSetView {
    replica_set(SET, 1, None)
}
