//! An eviction that passes by the cache, and would not by what is: the pod is read once more where that may be.

use belay_decide::busy::OnBusy;
use belay_decide::hold::unseen::{self, Concern};
use belay_decide::hold::{self, Answer as Decided, Held};
use belay_decide::steer::TEMPLATE_HASH_LABEL;
use jiff::Timestamp;

use super::Handlers;
use super::busy::governing;
use super::live::LiveReader;
use super::memory::Unseen;
use crate::cluster::project;
use crate::cluster::subset::PodSubset;
use crate::settings::Settings;

/// The hold of a pod that has got further than the cache, by which it was to be let go. `is_judged`: its busy rule let it
/// go, which has had a look at the API server itself where one was due.
///
/// Where it cannot be read it goes, as the cache says: an API server that does not answer a read will hardly evict it.
pub(super) async fn held(
    handlers: &Handlers,
    settings: &Settings,
    asked: &hold::Request<'_>,
    is_judged: bool,
    by_cache: &Decided,
    live: Option<&LiveReader>,
) -> Option<Held> {
    // Most evictions that get here are held: the cache is not asked about those again.
    if matches!(by_cache, Decided::Hold(_)) {
        return None;
    }
    let now = handlers.clock.now();
    let (namespace, name) = (asked.namespace, asked.name);
    let may_be_behind = !settings.rules.excludes(namespace) && handlers.is_synced();
    if !may_be_behind || !is_doubtful(handlers, settings, asked, by_cache, now.wall) {
        return None;
    }
    let live = match live?.pod_itself(namespace, name).await {
        Ok(live) => live?,
        Err(problem) => {
            tracing::warn!(%namespace, pod = %name, %problem, "a pod that is new, or not known, could not be looked at");
            return None;
        }
    };
    let view = project::pod(&live, false);
    let mut memory = handlers.unseen.lock();
    let first = memory.get(&view.uid).map_or(now, |Unseen(first)| first);
    let concern = concern(handlers, settings, asked, is_judged, &live);
    let held = unseen::hold(asked, &settings.rules, &view, concern, first, now)?;
    if !asked.dry_run {
        memory.put(&view.uid, Unseen(first));
    }
    Some(held)
}

fn is_doubtful(
    handlers: &Handlers,
    settings: &Settings,
    asked: &hold::Request<'_>,
    by_cache: &Decided,
    now: Timestamp,
) -> bool {
    handlers.index.victim(asked.namespace, asked.name, &settings.default_policy, true, |facts| {
        // One that was held has been seen, and its deadline and its release are not to be doubted.
        let is_remembered = |uid: &str| handlers.victims.lock().get(uid).is_some();
        let was_held = || facts.hold.is_some() || facts.victim.is_some_and(|victim| is_remembered(&victim.uid));
        unseen::is_doubtful(by_cache, facts.victim, now) && !was_held()
    })
}

fn concern(
    handlers: &Handlers,
    settings: &Settings,
    asked: &hold::Request<'_>,
    is_judged: bool,
    live: &PodSubset,
) -> Concern {
    let meta = &live.metadata;
    let owners = meta.owner_references.iter().flatten();
    let mut sets = owners.filter(|owner| owner.controller == Some(true) && owner.kind == "ReplicaSet");
    let hash = meta.labels.as_ref().and_then(|labels| labels.get(TEMPLATE_HASH_LABEL));
    let of_set = sets.next().zip(hash);
    let policy = settings.hold_enabled
        && of_set.is_some_and(|(set, hash)| {
            let default = &settings.default_policy;
            handlers.index.holds_new_pod(asked.namespace, &set.name, hash, default, asked.evictor)
        });
    let rule = governing(handlers, meta).and_then(|number| handlers.index.rules().get(number));
    Concern { rule: !is_judged && rule.is_some_and(|rule| rule.spec.on_busy == OnBusy::Hold), policy }
}
