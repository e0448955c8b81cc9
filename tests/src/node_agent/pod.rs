//! One pod on a simulated node, from its binding to the deletion of its object.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::Host;
use super::container::{self, Exits, Orders};
use super::status::{self, ContainerState, Place, Transitions};
use crate::clock;

/// After a write that the API server did not answer; it is usually being restarted by a test then.
const RETRY: Duration = Duration::from_millis(200);

/// Plays one pod; dropping it kills the pod's containers at once.
#[derive(Debug)]
pub(super) struct Worker {
    latest: watch::Sender<Arc<Pod>>,
    crash: Arc<Notify>,
    exits: Arc<Exits>,
    _task: AbortOnDropHandle<()>,
}

impl Worker {
    pub(super) fn start(host: Arc<Host>, pod: Arc<Pod>, node: Ipv4Addr) -> Self {
        let (latest, updates) = watch::channel(pod);
        let (crash, exits) = (Arc::new(Notify::new()), Arc::new(Exits::default()));
        let task = tokio::spawn(play(host, updates, node, crash.clone(), exits.clone()));
        Self { latest, crash, exits, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn update(&self, pod: Arc<Pod>) {
        self.latest.send_replace(pod);
    }

    /// Kills the containers that run now.
    pub(super) fn crash(&self) {
        self.crash.notify_waiters();
    }

    /// Lets a played container, or all of them, end by themselves.
    pub(super) fn finish(&self, container: Option<&str>, exit_code: i32) {
        let pod = self.latest.borrow().clone();
        let all = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| container.name.clone());
        self.exits.ask(all.filter(|name| container.is_none_or(|only| only == name)), exit_code);
    }
}

/// The states of a pod's containers, written by their tasks and read by the pod's.
#[derive(Debug)]
pub(super) struct States {
    list: Mutex<Vec<ContainerState>>,
    changed: Notify,
}

impl States {
    fn new(count: usize) -> Self {
        Self { list: Mutex::new(vec![ContainerState::default(); count]), changed: Notify::new() }
    }

    pub(super) fn update(&self, index: usize, change: impl FnOnce(&mut ContainerState)) {
        if let Some(state) = self.list.lock().get_mut(index) {
            change(state);
        }
        self.changed.notify_one();
    }

    fn snapshot(&self) -> Vec<ContainerState> {
        self.list.lock().clone()
    }
}

async fn play(
    host: Arc<Host>,
    mut updates: watch::Receiver<Arc<Pod>>,
    node: Ipv4Addr,
    crash: Arc<Notify>,
    exits: Arc<Exits>,
) {
    let pod = updates.borrow_and_update().clone();
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &pod.namespace().unwrap_or_default());
    if is_over(&pod) || deadline_of(&pod).is_some() {
        // Ended, or asked to go before anything of it was started.
        wait_for_deletion(&mut updates).await;
        delete(&pods, &pod).await;
        return;
    }
    let address = match host.network.allocate() {
        Ok(address) => Lease { host: host.clone(), address },
        Err(error) => {
            tracing::error!(pod = pod.name_any(), "cannot play a pod: {error:#}");
            return;
        }
    };
    let place = Place { pod: address.address, node };
    let count = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let states = Arc::new(States::new(count));
    let (stop, orders) = watch::channel(None);
    let containers = container::start_all(&host, &pod, place.pod, &states, &Orders { stop: orders, crash, exits });
    let mut containers = std::pin::pin!(containers);

    let writer = StatusWriter::start(pods.clone(), pod.name_any());
    let (started, mut transitions, mut over) = (clock::time(), Transitions::default(), false);
    loop {
        let current = updates.borrow_and_update().clone();
        let deadline = deadline_of(&current);
        stop.send_if_modified(|known: &mut Option<Instant>| shorten(known, deadline));
        let (states_now, now) = (states.snapshot(), clock::time());
        writer.want(status::patch(&current, place, &states_now, over, &started, &mut transitions, &now));
        if status::is_contradicted(&current, &states_now) {
            writer.repeat();
        }
        if over {
            writer.flush().await;
            wait_for_deletion(&mut updates).await;
            delete(&pods, &pod).await;
            return;
        }
        tokio::select! {
            () = &mut containers => over = true,
            () = states.changed.notified() => {}
            changed = updates.changed() => if changed.is_err() { return },
        }
    }
}

/// A pod's address, given back when the pod is gone.
struct Lease {
    host: Arc<Host>,
    address: Ipv4Addr,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.host.network.release(self.address);
    }
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// When a pod that was asked to go has to be gone, counted from now: the grace period is what it was granted when it
/// was deleted, and the agent hears of that within milliseconds.
fn deadline_of(pod: &Pod) -> Option<Instant> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    Some(Instant::now() + Duration::from_secs(grace.max(0) as u64))
}

/// A later deletion may shorten a grace period, and no update may lengthen it.
fn shorten(known: &mut Option<Instant>, deadline: Option<Instant>) -> bool {
    let shorter = match (*known, deadline) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(known), Some(deadline)) => deadline < known,
    };
    if shorter {
        *known = deadline;
    }
    shorter
}

/// Returns when the pod's object is to be deleted. A pod that ended by itself keeps its object until somebody asks.
async fn wait_for_deletion(updates: &mut watch::Receiver<Arc<Pod>>) {
    let asked = updates.wait_for(|pod| pod.metadata.deletion_timestamp.is_some()).await.is_ok();
    if !asked {
        // The worker is being dropped: so is this task.
        std::future::pending::<()>().await;
    }
}

/// Deletes the object as a kubelet does once the containers have ended: without grace, and only this very pod.
async fn delete(pods: &Api<Pod>, pod: &Pod) {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    let name = pod.name_any();
    loop {
        match pods.delete(&name, &params).await {
            Ok(_) => return,
            // Gone, or another pod has its name by now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
            Err(error) => tracing::debug!(pod = name, %error, "cannot delete a pod that has ended"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Writes a pod's status in the order wanted, skipping what is outdated, until the API server has it.
#[derive(Debug)]
struct StatusWriter {
    wanted: watch::Sender<Value>,
    /// The last one that was written, or refused for good.
    settled: watch::Receiver<Value>,
    _task: AbortOnDropHandle<()>,
}

impl StatusWriter {
    fn start(pods: Api<Pod>, name: String) -> Self {
        let (wanted, inbox) = watch::channel(Value::Null);
        let (announce, settled) = watch::channel(Value::Null);
        Self {
            wanted,
            settled,
            _task: AbortOnDropHandle::new(tokio::spawn(write_statuses(pods, name, inbox, announce))),
        }
    }

    fn want(&self, patch: Value) {
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != patch;
            if changed {
                *wanted = patch;
            }
            changed
        });
    }

    /// Writes once more what is written already: somebody else has changed it, such as the node-lifecycle-controller
    /// while the node's heartbeat was missed.
    fn repeat(&self) {
        if *self.settled.borrow() == *self.wanted.borrow() {
            self.wanted.send_modify(|_| {});
        }
    }

    /// Waits until the last wanted status is written, or can never be because the pod is gone.
    async fn flush(&self) {
        let wanted = self.wanted.borrow().clone();
        let mut settled = self.settled.clone();
        // An error means that the writer has ended: the pod is gone.
        let _ = settled.wait_for(|value| *value == wanted).await;
    }
}

async fn write_statuses(
    pods: Api<Pod>,
    name: String,
    mut inbox: watch::Receiver<Value>,
    announce: watch::Sender<Value>,
) {
    while inbox.changed().await.is_ok() {
        loop {
            let patch = inbox.borrow_and_update().clone();
            match pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&patch)).await {
                Ok(_) => {
                    announce.send_replace(patch);
                    break;
                }
                // Gone, or another pod has its name by now: the patch carries the UID.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
                // Never right by being repeated.
                Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                    tracing::error!(pod = name, "the API server refuses a pod's status: {}", status.message);
                    announce.send_replace(patch);
                    break;
                }
                Err(error) => tracing::debug!(pod = name, %error, "cannot write a pod's status"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_can_only_be_shortened() {
        let now = Instant::now();
        let in_seconds = |seconds| Some(now + Duration::from_secs(seconds));
        for (why, known, deadline, expected) in [
            ("not asked to go", None, None, None),
            ("asked to go", None, in_seconds(30), in_seconds(30)),
            ("asked again, sooner", in_seconds(30), in_seconds(5), in_seconds(5)),
            ("an update later on", in_seconds(5), in_seconds(6), in_seconds(5)),
            ("an older state", in_seconds(5), None, in_seconds(5)),
        ] {
            let mut value = known;
            let changed = shorten(&mut value, deadline);
            assert_eq!(value, expected, "{why}");
            assert_eq!(changed, known != expected, "{why}");
        }
    }
}
