//! What an eviction is answered, and the words for it.
//!
//! The reason of an answer is a metric label and an Event reason, so it is a stable word. The message is for the
//! person at the drainer: it says what is awaited, and until when at the latest.

use jiff::{SignedDuration, Timestamp};

use crate::handover::scale::Awaited;
use crate::handover::situation::Replacement;
use crate::handover::{Situation, Workload};
use crate::policy::Unsupported;
use crate::view::{DeploymentView, PodView, Strategy};

/// The answer to an eviction request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The eviction may go on (a PodDisruptionBudget may still refuse it).
    Allow(Allowed),
    /// It is refused for now; the drainer asks again.
    Hold(Held),
}

impl Answer {
    /// The hold, if it is one.
    pub fn held(&self) -> Option<&Held> {
        match self {
            Self::Hold(held) => Some(held),
            Self::Allow(_) => None,
        }
    }

    /// The reason, as a metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Allow(allowed) => allowed.reason(),
            Self::Hold(held) => held.reason,
        }
    }
}

/// Why an eviction is let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Nothing will be evicted; what a real request would meet.
    DryRun {
        /// The hold that a real eviction would meet; absent where it would pass.
        would_hold: Option<Box<Held>>,
        /// Why a real eviction of an opted-in pod would pass unheld.
        unsupported: Option<Unsupported>,
    },
    /// The namespace is excluded: Belay's own, `kube-system`, or by configuration.
    ExcludedNamespace,
    /// The caches are not filled yet: fail open.
    NotSynced,
    /// No such pod is known.
    UnknownPod,
    /// The client meant another pod of that name.
    UidMismatch,
    /// The pod is being deleted already.
    Terminating,
    /// The pod has ended.
    Finished,
    /// The pod has not started.
    Pending,
    /// The pod is not ready: it serves nobody.
    NotReady,
    /// No Deployment of Belay's concern stands behind the pod.
    NotProtected,
    /// Who asks is ignored by configuration or policy.
    IgnoredEvictor,
    /// The Deployment cannot be handed over by a restart now.
    Unsupported(Unsupported),
    /// The hold was released before.
    Released,
    /// The deadline has passed.
    DeadlinePassed,
    /// The hold could not be recorded; without a record it has no bound that survives restarts.
    NotRecorded,
    /// The replacement serves.
    ReplacementAvailable {
        /// Its name.
        replacement: String,
    },
    /// Somebody put the template back: no replacement is coming.
    Reverted,
    /// It is governed by a busy rule, and idle.
    Idle,
}

impl Allowed {
    /// The reason, as a metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DryRun { .. } => "DryRun",
            Self::ExcludedNamespace => "ExcludedNamespace",
            Self::NotSynced => "NotSynced",
            Self::UnknownPod => "UnknownPod",
            Self::UidMismatch => "UidMismatch",
            Self::Terminating => "Terminating",
            Self::Finished => "Finished",
            Self::Pending => "Pending",
            Self::NotReady => "NotReady",
            Self::NotProtected => "NotProtected",
            Self::IgnoredEvictor => "IgnoredEvictor",
            Self::Unsupported(unsupported) => unsupported.reason(),
            Self::Released => "Released",
            Self::DeadlinePassed => "DeadlinePassed",
            Self::NotRecorded => "NotRecorded",
            Self::ReplacementAvailable { .. } => "ReplacementAvailable",
            Self::Reverted => "Reverted",
            Self::Idle => "Idle",
        }
    }

    /// A warning that the client prints with the answer, where the person should know something.
    ///
    /// A terminating or finished pod, or one of no concern, needs no word.
    pub fn warning(&self) -> Option<String> {
        match self {
            Self::DryRun { would_hold: Some(held), .. } => {
                Some(format!("belay: dry run: the eviction of {} would be held: {}", held.victim, held.awaited))
            }
            Self::DryRun { unsupported: Some(unsupported), .. } => Some(format!(
                "belay: dry run: this eviction would pass unheld ({}): {}",
                unsupported.reason(),
                unsupported.advice()
            )),
            Self::NotSynced => Some("belay: not ready yet, eviction let through unprotected".to_owned()),
            Self::Unsupported(unsupported) => {
                Some(format!("belay: not protected ({}): {}", unsupported.reason(), unsupported.advice()))
            }
            Self::DeadlinePassed => {
                Some("belay: released after its deadline; what it was held for has not come".to_owned())
            }
            Self::NotRecorded => Some(
                "belay: the hold could not be recorded, eviction let through; see the webhook's log for the missing \
                 right or the failing API server"
                    .to_owned(),
            ),
            Self::Reverted => Some(
                "belay: somebody put the pod template back while the replacement was coming; eviction let through"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// A hold, as told to the drainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Name of the victim.
    pub victim: String,
    /// A stable word for what is awaited.
    pub reason: &'static str,
    /// What is awaited, in words.
    pub awaited: String,
    /// The whole message.
    pub message: String,
    /// The victim is released then, at the latest.
    pub deadline: Timestamp,
    /// `details.retryAfterSeconds`. Clients that see it sleep and ask again inside one call, up to ten times,
    /// without telling the person anything (client-go `rest/with_retry.go`). So it is set only when the release
    /// is so near that the drainer's own five seconds would be the longer wait.
    pub retry_after_seconds: Option<i32>,
}

/// A replacement that is available within this time is waited for inside the client's call: three silent
/// one-second retries are still shorter than kubectl's five-second pause.
const RELEASE_IS_NEAR: SignedDuration = SignedDuration::from_secs(3);

/// A moment for people: the time of day, with the date where that is not within a day from now.
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    let near = at.duration_since(now).abs() < SignedDuration::from_hours(24);
    at.strftime(if near { "%H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%SZ" }).to_string()
}

impl Held {
    /// Words a hold; `situation` is anything but served.
    pub fn new(
        deployment: &DeploymentView,
        victim: &PodView,
        situation: &Situation<'_>,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Self {
        let name = &deployment.name;
        let (reason, awaited) = match situation {
            Situation::Served { by } => ("ReplacementAvailable", format!("replacement {} is available", by.name)),
            Situation::Unobserved => {
                ("RolloutNotObserved", format!("the newest spec of Deployment {name} is not yet rolled out"))
            }
            Situation::Rolling(replacement) => {
                (replacement.reason(), replacement.describe(deployment.min_ready_seconds))
            }
            Situation::Settling => {
                ("ReleaseUnderWay", format!("a rollout of Deployment {name} is under way and must complete first"))
            }
            Situation::Steady => match deployment.strategy {
                Strategy::Recreate => (
                    "AwaitingRestart",
                    format!("Deployment {name} is about to be restarted (strategy Recreate), which terminates it"),
                ),
                Strategy::RollingUpdate { .. } => {
                    ("AwaitingRestart", format!("Deployment {name} is about to be restarted to replace it"))
                }
            },
        };
        let comes_at = match situation {
            Situation::Rolling(Replacement::AvailableAt(_, at)) => Some(*at),
            _ => None,
        };
        Self::told(victim, reason, awaited, comes_at, deadline, now)
    }

    /// Words a hold of a victim that waits for a stand-in (Scale).
    pub fn beside(
        workload: &Workload<'_>,
        victim: &PodView,
        awaited: &Awaited<'_>,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Self {
        Self::told(victim, awaited.reason(), awaited.describe(workload), awaited.comes_at(), deadline, now)
    }

    /// Words a hold of a pod that the cache has not seen as it is.
    pub fn unseen(victim: &PodView, deadline: Timestamp, now: Timestamp) -> Self {
        let awaited = "it has just been made or become ready, and this replica is about to see it".to_owned();
        Self::told(victim, "NotSeenYet", awaited, None, deadline, now)
    }

    fn told(
        victim: &PodView,
        reason: &'static str,
        awaited: String,
        comes_at: Option<Timestamp>,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Self {
        let is_near = comes_at.is_some_and(|at| at.duration_since(now) <= RELEASE_IS_NEAR);
        let message =
            format!("belay: holding {}: {awaited}; released by {} at the latest", victim.name, moment(deadline, now));
        Self {
            victim: victim.name.to_string(),
            reason,
            awaited,
            message,
            deadline,
            retry_after_seconds: is_near.then_some(1),
        }
    }
}
