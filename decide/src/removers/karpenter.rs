//! Karpenter: `karpenter.sh/do-not-disrupt` and its own drain.
//!
//! Source: kubernetes-sigs/karpenter `pkg/utils/pod/scheduling.go` (`IsDisruptable`, `IsEvictable`,
//! `IsDoNotDisruptActive`, `parseDoNotDisrupt`), `pkg/controllers/state/statenode.go` (`ValidatePodsDisruptable`),
//! `pkg/controllers/node/termination/terminator/eviction.go`. Durations are read since 1.12; before, they say nothing.

use jiff::Timestamp;

use super::{Draft, Outlook, PodFacts, Stage, Verdict, go_duration};
use crate::busy::hints::DO_NOT_DISRUPT;
use crate::evictors::KARPENTER;

pub(super) fn outlook(pod: &PodFacts<'_>, now: Timestamp) -> Outlook {
    draft(pod, now).by(KARPENTER.name)
}

fn draft(pod: &PodFacts<'_>, now: Timestamp) -> Draft {
    match pod.stage {
        Stage::Terminating => return Draft::new(Verdict::Ignored, "it is being deleted already"),
        Stage::Finished => {
            return Draft::new(Verdict::Ignored, "it has finished, and is neither evicted nor waited for");
        }
        Stage::Active => {}
    }
    let hint = hint(pod, now);
    if let Hint::Active(why) = hint {
        // Of static and DaemonSet pods, too: the annotation is looked at before anything else.
        return Draft::new(Verdict::Stays, why).and(
            "a drain that has begun waits for it, too; drift and expiry begin one all the same where the NodeClaim has \
             a terminationGracePeriod, after which it is deleted",
        );
    }
    let draft = match pod.out_of_reach() {
        Some(why) => Draft::new(Verdict::Ignored, why),
        None => Draft::eviction(pod, &KARPENTER),
    };
    match hint {
        Hint::Over(why) => draft.first(why),
        Hint::Absent | Hint::Active(_) => draft,
    }
}

/// What the annotation comes to.
enum Hint {
    Absent,
    Active(String),
    Over(String),
}

fn hint(pod: &PodFacts<'_>, now: Timestamp) -> Hint {
    let Some(value) = pod.annotation(DO_NOT_DISRUPT) else { return Hint::Absent };
    if value == "true" {
        return Hint::Active("do-not-disrupt is \"true\"".to_owned());
    }
    let Some(duration) = go_duration::parse(value).filter(jiff::SignedDuration::is_positive) else {
        return Hint::Over(format!(
            "do-not-disrupt is {value:?}, which is neither \"true\" nor a positive duration: it says nothing, and \
             Karpenter warns of it (InvalidDoNotDisruptAnnotation)"
        ));
    };
    let Some(started) = pod.started else {
        return Hint::Active(format!("do-not-disrupt is {value:?} from its start, which is not known yet"));
    };
    match started.checked_add(duration) {
        Ok(until) if until <= now => Hint::Over(format!("do-not-disrupt was {value:?} from its start and is over")),
        Ok(until) => Hint::Active(format!("do-not-disrupt is {value:?} from its start, until {}", in_seconds(until))),
        Err(_) => Hint::Active(format!("do-not-disrupt is {value:?} from its start, which is practically for ever")),
    }
}

fn in_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
