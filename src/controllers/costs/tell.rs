//! What people are told of deletion costs: the order, and who is yielded to.

use belay_decide::action::{Event, Reference};
use belay_decide::cost::cluster::{Cluster, Scope, Stance};
use belay_decide::cost::{Group, Verdict};
use jiff::{SignedDuration, Timestamp};

use super::Loop;

/// A new order is told at most so often: in a cluster that scales all day, every minute is often enough to read.
const TOLD_EVERY: SignedDuration = SignedDuration::from_mins(1);

impl Loop {
    /// Tells of a new order, if there is one and the last was told long enough ago.
    pub(super) fn tell_order(&self, now: Timestamp) {
        let mut told = self.remembered.told.lock();
        if told.at.is_some_and(|at| now.duration_since(at) < TOLD_EVERY) {
            return;
        }
        let note = self.costs.read(|cluster| {
            let ranking = cluster.ranking();
            if ranking.order().eq(told.order.iter().map(|name| &**name)) {
                return None;
            }
            told.order = ranking.order().map(Into::into).collect();
            Some(describe(cluster))
        });
        let Some(note) = note else { return };
        told.at = Some(now);
        tracing::info!(order = %note, "nodes ranked");
        self.shared.applier.tell_news(&self.own_pod.event(false, "RankingCompleted", "Rank", note));
    }

    pub(super) fn tell_stance(&self, stance: &Stance) {
        let object = self.costs.read(|cluster| match &stance.scope {
            Scope::Node(node) => Some((String::new(), Reference::node(node))),
            Scope::Set(uid) => {
                let set = cluster.set(uid)?;
                Some((set.namespace.to_string(), Reference::replica_set(&set.name, &set.uid)))
            }
        });
        let Some((namespace, regarding)) = object else { return };
        let name = format!("{} {}", regarding.kind, regarding.name);
        let (reason, note) = match stance.until {
            Some(until) => {
                tracing::warn!(object = %name, %until, "another controller writes deletion costs here; standing down");
                let note = format!(
                    "Another controller rewrites deletion costs here: Belay writes none until it has been still for a \
                     while, at the earliest at {until:.0}"
                );
                ("DeletionCostStoodDown", note)
            }
            None => {
                tracing::info!(object = %name, "no other controller writes deletion costs here any more");
                ("DeletionCostResumed", "No other controller rewrites deletion costs here any more".to_owned())
            }
        };
        let warning = stance.until.is_some();
        let event = Event { namespace, regarding, related: None, warning, reason, action: "Yield", note };
        self.shared.applier.tell_news(&event);
    }
}

/// The groups of nodes that have a rank.
const RANKED: [Group; 3] = [Group::Draining, Group::Drifted, Group::Normal];

/// How many nodes are in each group.
pub(super) fn groups(cluster: &Cluster) -> [(&'static str, i64); 5] {
    let [draining, drifted, normal] = RANKED.map(|group| (group.as_str(), 0));
    let mut counts = [draining, drifted, normal, ("Waiting", 0), ("Protected", 0)];
    for (_, verdict) in cluster.ranking().verdicts() {
        let at = match verdict {
            Verdict::Ranked(ranked) => ranked.group as usize,
            Verdict::Waiting { .. } => 3,
            Verdict::Protected(_) => 4,
        };
        counts[at].1 += 1;
    }
    counts
}

/// How many nodes the note of an Event names.
const NAMED: usize = 5;

/// The order for people.
pub(super) fn describe(cluster: &Cluster) -> String {
    let ranking = cluster.ranking();
    let count = ranking.order().count();
    if count == 0 {
        return "No node is to empty: none may be ranked".to_owned();
    }
    let groups = groups(cluster).into_iter().take(RANKED.len()).filter(|(_, count)| *count > 0);
    let groups: Vec<_> = groups.map(|(group, count)| format!("{count} {}", group.to_lowercase())).collect();
    let first: Vec<_> = ranking.order().take(NAMED).collect();
    let more = if count > NAMED { ", …" } else { "" };
    format!("{count} nodes ranked ({}); first to empty: {}{more}", groups.join(", "), first.join(", "))
}
