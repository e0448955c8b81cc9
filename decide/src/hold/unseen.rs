//! Pods that the cache does not know as they are: just made, just started, just ready.
//!
//! A watch is a moment behind the API server, and seconds behind one that has just come back. In that moment a pod that
//! took up work, or a replacement that has just become the only one, is to a replica a pod that nobody needs, and its
//! eviction would pass. So where the cache has a reason to let a pod go that time takes away, the pod itself is read
//! once more, and where it has got further than the cache, the eviction is refused until the cache has caught up. That
//! is a matter of moments and nothing is recorded for it: the replica's own memory bounds it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Allowed, Answer, Held, Moment, Request, Rules, needs_no_protection};
use crate::policy;
use crate::view::{PodPhase, PodView};

/// How long a replica refuses the eviction of a pod that it does not see as it is. A watch that was cut off by an outage is
/// back within seconds; one that is not back by then is no reason to hold what nobody may have opted in.
pub const UNSEEN_GRACE: Duration = Duration::from_secs(30);

/// A pod that has been ready for so long has been seen by every watch that works, those of busy rules included, which are
/// apart from that of all pods.
const SEEN_BY_ALL: SignedDuration = SignedDuration::from_secs(30);

/// What has an interest in a pod, by what the API server says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concern {
    /// A busy rule selects it that holds busy pods.
    pub rule: bool,
    /// Its Deployment is protected.
    pub policy: bool,
}

/// Whether this answer may be owed to a cache that is behind; `victim` is the pod as it knows it.
pub fn is_doubtful(answer: &Answer, victim: Option<&PodView>, now: Timestamp) -> bool {
    let Answer::Allow(allowed) = answer else { return false };
    match allowed {
        Allowed::UnknownPod
        | Allowed::UidMismatch
        | Allowed::Terminating
        | Allowed::Finished
        | Allowed::Pending
        | Allowed::NotReady => true,
        // Nothing had begun that could be lost.
        Allowed::Idle => victim.is_some_and(|victim| victim.phase == PodPhase::Pending),
        Allowed::NotProtected => {
            let since = victim.and_then(|victim| victim.ready_since);
            since.is_none_or(|since| now.duration_since(since) < SEEN_BY_ALL)
        }
        _ => false,
    }
}

/// The hold of a pod that has got further than the cache; `None` where it has not, or where nobody is concerned. `first` is
/// when this replica was first asked while it did not see the pod as it is.
pub fn hold(
    request: &Request<'_>,
    rules: &Rules,
    live: &PodView,
    concern: Concern,
    first: Moment,
    now: Moment,
) -> Option<Held> {
    let serves = needs_no_protection(request, live);
    // One that works need not be ready for it.
    let works = matches!(serves, None | Some(Allowed::NotReady)) && concern.rule;
    let is_protected = serves.is_none() && concern.policy && !rules.ignores_restarter(request.evictor);
    let is_ignored = policy::evictor_matches(&rules.ignore_evictors, request.evictor);
    if !(works || is_protected) || is_ignored || now.uptime.saturating_sub(first.uptime) >= UNSEEN_GRACE {
        return None;
    }
    let left = SignedDuration::try_from(UNSEEN_GRACE).unwrap_or_default();
    Some(Held::unseen(live, first.wall + left, now.wall))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn at(seconds: u64) -> Moment {
        let wall = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + seconds as i64);
        Moment { wall, uptime: Duration::from_secs(seconds) }
    }

    /// A pod that serves.
    fn serving() -> PodView {
        PodView { ready_since: Some(at(0).wall), ..testing::pod("web-1", "hash", "node-1") }
    }

    fn request() -> Request<'static> {
        Request { namespace: "shop", name: "web-1", uid: None, dry_run: false, evictor: "drainer" }
    }

    #[test]
    fn an_answer_is_doubtful_where_time_would_change_it() {
        let (young, old) = (at(20).wall, at(40).wall);
        for (answer, now, expected) in [
            (Answer::Allow(Allowed::UnknownPod), old, true),
            (Answer::Allow(Allowed::Terminating), old, true),
            (Answer::Allow(Allowed::Pending), old, true),
            (Answer::Allow(Allowed::NotReady), old, true),
            (Answer::Allow(Allowed::NotProtected), young, true),
            (Answer::Allow(Allowed::NotProtected), old, false),
            (Answer::Allow(Allowed::Released), young, false),
            (Answer::Allow(Allowed::Idle), young, false),
            (Answer::Allow(Allowed::NotSynced), young, false),
            (Answer::Hold(Held::unseen(&serving(), old, young)), young, false),
        ] {
            assert_eq!(is_doubtful(&answer, Some(&serving()), now), expected, "{answer:?}");
        }
        let waiting = PodView { phase: PodPhase::Pending, ..serving() };
        assert!(is_doubtful(&Answer::Allow(Allowed::Idle), Some(&waiting), old), "it may have started");
        assert!(is_doubtful(&Answer::Allow(Allowed::NotProtected), None, old), "what is not known may be young");
    }

    #[test]
    fn a_pod_that_got_further_than_the_cache_is_held_for_half_a_minute_where_somebody_is_concerned() {
        let (rule, policy) = (Concern { rule: true, policy: false }, Concern { rule: false, policy: true });
        let nobody = Concern { rule: false, policy: false };
        let unready = PodView { ready_since: None, ..serving() };
        let waiting = PodView { phase: PodPhase::Pending, ..unready.clone() };
        let unbound = PodView { node: None, ..waiting.clone() };
        let going = PodView { terminating: true, ..serving() };
        let ended = PodView { phase: PodPhase::Succeeded, ..serving() };
        let rules = Rules { ignore_evictors: vec!["harmless".into()], ignore_restarters: true, ..Rules::default() };
        let drainer = request();
        let harmless = Request { evictor: "harmless", ..request() };
        let another = Request { uid: Some("other"), ..request() };
        let resizer = Request { evictor: "system:serviceaccount:kube-system:vpa-updater", ..request() };
        for (name, request, live, concern, seconds, expected) in [
            ("protected", drainer, serving(), policy, 0, true),
            ("governed", drainer, serving(), rule, 0, true),
            ("of nobody's concern", drainer, serving(), nobody, 0, false),
            ("governed and not ready", drainer, unready.clone(), rule, 0, true),
            ("protected and not ready", drainer, unready, policy, 0, false),
            ("not started", drainer, waiting, rule, 0, false),
            ("not bound", drainer, unbound, rule, 0, false),
            ("going", drainer, going, rule, 0, false),
            ("ended", drainer, ended, rule, 0, false),
            ("another pod is meant", another, serving(), rule, 0, false),
            ("the last moment", drainer, serving(), policy, 29, true),
            ("too long", drainer, serving(), policy, 30, false),
            ("an evictor that is ignored", harmless, serving(), rule, 0, false),
            ("one that restarts pods, of a protected one", resizer, serving(), policy, 0, false),
            ("one that restarts pods, of a busy one", resizer, serving(), rule, 0, true),
        ] {
            let held = hold(&request, &rules, &live, concern, at(0), at(seconds));
            assert_eq!(held.is_some(), expected, "{name}");
            assert!(held.is_none_or(|held| held.deadline == at(30).wall), "{name}");
        }
    }
}
