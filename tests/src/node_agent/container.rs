//! One container's life: runs, restarts, and the orders that end it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::pod::States;
use super::status::{Ended, Phase, Run};
use super::{Host, READY_AFTER, WEB_IMAGE, program, web};
use crate::clock;

/// The pause before a container's second restart; it doubles from then on. A kubelet starts with 10 s, which no test
/// would want to wait for.
const FIRST_RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause between restarts; a kubelet's is 5 min.
const LONGEST_RESTART_PAUSE: Duration = Duration::from_secs(10);

/// What a kubelet grants between SIGTERM and SIGKILL when preStop has used up the grace period.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// What a pod's task tells its containers.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    /// Set once the pod has to go: when the grace period ends.
    pub(super) stop: watch::Receiver<Option<Instant>>,
    /// SIGKILL for what runs now.
    pub(super) crash: Arc<Notify>,
    /// Ends of their own accord.
    pub(super) exits: Arc<Exits>,
}

/// Exit codes with which containers are to end, as a program does that has done its work. Each is used once: what is
/// restarted after it runs on.
#[derive(Debug, Default)]
pub(super) struct Exits {
    asked: Mutex<BTreeMap<String, i32>>,
    changed: Notify,
}

impl Exits {
    pub(super) fn ask(&self, containers: impl IntoIterator<Item = String>, exit_code: i32) {
        self.asked.lock().extend(containers.into_iter().map(|container| (container, exit_code)));
        self.changed.notify_waiters();
    }

    async fn of(&self, container: &str) -> i32 {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look: what is asked for after it must wake this up.
            changed.as_mut().enable();
            let asked = self.asked.lock().remove(container);
            match asked {
                Some(exit_code) => return exit_code,
                None => changed.await,
            }
        }
    }
}

/// One container of a running pod, as its player sees it.
pub(super) struct Playing {
    pub(super) host: Arc<Host>,
    pub(super) pod: Arc<Pod>,
    pub(super) spec: Container,
    pub(super) address: Ipv4Addr,
    index: usize,
    states: Arc<States>,
    orders: Orders,
}

/// Starts the containers of a pod. The future ends when all have ended for good; dropping it kills them.
pub(super) fn start_all(
    host: &Arc<Host>,
    pod: &Arc<Pod>,
    address: Ipv4Addr,
    states: &Arc<States>,
    orders: &Orders,
) -> impl Future<Output = ()> + Send + use<> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).cloned();
    let tasks: Vec<AbortOnDropHandle<()>> = containers
        .enumerate()
        .map(|(index, spec)| {
            let playing = Playing {
                host: host.clone(),
                pod: pod.clone(),
                spec,
                address,
                index,
                states: states.clone(),
                orders: orders.clone(),
            };
            AbortOnDropHandle::new(tokio::spawn(playing.live()))
        })
        .collect();
    async move {
        join_all(tasks).await;
    }
}

impl Playing {
    async fn live(self) {
        let mut pause = Duration::ZERO;
        loop {
            let began = clock::time();
            let ended = self.run().await;
            let run = Run { started: began, finished: clock::time(), ended };
            let again = self.orders.stop.borrow().is_none() && self.restarts_after(run.ended.exit_code);
            if !again {
                self.states.update(self.index, |state| {
                    state.ready = false;
                    state.phase = Phase::Terminated(run);
                });
                return;
            }
            self.states.update(self.index, |state| {
                state.ready = false;
                state.restarts += 1;
                state.last = Some(run);
                state.phase = Phase::Waiting {
                    reason: "CrashLoopBackOff",
                    message: format!("started again in {} s", pause.as_secs()),
                };
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stop_is_asked() => {}
            }
            pause = (pause * 2).clamp(FIRST_RESTART_PAUSE, LONGEST_RESTART_PAUSE);
        }
    }

    async fn run(&self) -> Ended {
        if self.orders.stop.borrow().is_some() {
            return Ended::with_code(0);
        }
        let image = self.spec.image.as_deref().unwrap_or_default();
        let program = self.host.programs.read().get(short_name(image)).cloned();
        if let Some(program) = program {
            program::run(self, &program).await
        } else if without_version(image) == WEB_IMAGE {
            web::run(self).await
        } else {
            self.idle().await
        }
    }

    /// A container that does nothing but become Ready.
    async fn idle(&self) -> Ended {
        self.running();
        let mut end = std::pin::pin!(self.end());
        tokio::select! {
            () = self.time_to_be_ready() => self.ready(true),
            ended = &mut end => return ended,
        }
        end.await
    }

    fn restarts_after(&self, exit_code: i32) -> bool {
        let policy = self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        match policy {
            Some("Never") => false,
            Some("OnFailure") => exit_code != 0,
            _ => true,
        }
    }

    /// Objects of the pod's namespace.
    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.host.client.clone(), &self.pod.namespace().unwrap_or_default())
    }

    /// Tells that the container runs, not yet Ready.
    pub(super) fn running(&self) {
        let started = clock::time();
        self.states.update(self.index, |state| {
            state.ready = false;
            state.phase = Phase::Running { started };
        });
    }

    /// Tells why the container does not run yet.
    pub(super) fn waiting(&self, reason: &'static str, message: String) {
        self.states.update(self.index, |state| {
            state.ready = false;
            state.phase = Phase::Waiting { reason, message };
        });
    }

    /// Tells whether the container is Ready.
    pub(super) fn ready(&self, ready: bool) {
        self.states.update(self.index, |state| state.ready = ready);
    }

    /// Returns when a played container is to become Ready, or never.
    pub(super) async fn time_to_be_ready(&self) {
        match self.pod.annotations().get(READY_AFTER).map(String::as_str) {
            None => {}
            Some(text) => match parse_duration(text) {
                Some(duration) => tokio::time::sleep(duration).await,
                None => std::future::pending().await,
            },
        }
    }

    /// Returns when a played container has to be gone: killed, at its own end, or asked to stop and done with preStop.
    pub(super) async fn end(&self) -> Ended {
        tokio::select! {
            _ = self.sigterm() => Ended::with_code(0),
            () = self.crash() => Ended::with_code(137),
            exit_code = self.orders.exits.of(&self.spec.name) => Ended::with_code(exit_code),
        }
    }

    /// Returns when SIGKILL is ordered.
    pub(super) async fn crash(&self) {
        self.orders.crash.notified().await;
    }

    /// Returns when SIGTERM is due, after preStop; the answer is when SIGKILL is.
    pub(super) async fn sigterm(&self) -> Deadline {
        let mut deadline = self.stop_is_asked().await;
        let lifecycle = self.spec.lifecycle.as_ref();
        let pre_stop = lifecycle
            .and_then(|lifecycle| lifecycle.pre_stop.as_ref())
            .and_then(|hook| hook.sleep.as_ref())
            .map_or(0, |sleep| sleep.seconds.max(0));
        if pre_stop > 0 {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(pre_stop as u64)) => {}
                () = deadline.passed() => {}
            }
            deadline.not_before = Some(Instant::now() + LEAST_GRACE);
        }
        deadline
    }

    async fn stop_is_asked(&self) -> Deadline {
        let mut stop = self.orders.stop.clone();
        if stop.wait_for(Option::is_some).await.is_err() {
            // The pod's task is ending, and this one with it.
            std::future::pending::<()>().await;
        }
        Deadline { stop, not_before: None }
    }
}

/// The end of a grace period, which may come nearer while one waits for it.
#[derive(Debug)]
pub(super) struct Deadline {
    stop: watch::Receiver<Option<Instant>>,
    not_before: Option<Instant>,
}

impl Deadline {
    /// Returns when it has passed.
    pub(super) async fn passed(&mut self) {
        loop {
            let asked = *self.stop.borrow_and_update();
            let at = asked.max(self.not_before).unwrap_or_else(Instant::now);
            tokio::select! {
                () = tokio::time::sleep_until(at) => return,
                changed = self.stop.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// An image without tag and digest.
fn without_version(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    match image.rsplit_once(':') {
        // A colon before the last slash belongs to a registry's port.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

/// The last path element of an image, without tag and digest.
fn short_name(image: &str) -> &str {
    let image = without_version(image);
    image.rsplit_once('/').map_or(image, |(_, name)| name)
}

/// `250ms`, `3s`, `1.5s` or `2m`; `None` for anything else, `never` among them.
fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let seconds_per_unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds_per_unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_name_whatever_its_registry_and_version() {
        for (image, without, short) in [
            ("belay", "belay", "belay"),
            ("belay:0.1.0", "belay", "belay"),
            ("registry.example/belay:0.1.0", "registry.example/belay", "belay"),
            ("localhost:5000/belay", "localhost:5000/belay", "belay"),
            ("localhost:5000/belay:1@sha256:00", "localhost:5000/belay", "belay"),
            ("belay.dev/web", "belay.dev/web", "web"),
        ] {
            assert_eq!(without_version(image), without, "{image}");
            assert_eq!(short_name(image), short, "{image}");
        }
    }

    #[test]
    fn durations_of_annotations_are_read() {
        for (text, expected) in [
            ("250ms", Some(250)),
            ("3s", Some(3000)),
            ("1.5s", Some(1500)),
            ("2m", Some(120_000)),
            ("never", None),
            ("-1s", None),
            ("3", None),
        ] {
            let expected = expected.map(Duration::from_millis);
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }
}
