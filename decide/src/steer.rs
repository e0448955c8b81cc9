//! Keeps a replacement off its victim's node.
//!
//! A drainer that does not cordon (the descheduler, an eviction by hand) leaves the victim's node open, and the
//! scheduler would happily put the replacement there. So while a handover runs, a new pod of the workload is
//! created with a required pod *anti-affinity* against the victim's revision on the same host.
//!
//! Why not a node affinity `NotIn [node]`: Karpenter does not provision for a pod whose required node affinity
//! has `matchFields` or names `kubernetes.io/hostname` (`provisioning/provisioner.go`,
//! `validateNodeSelectorTerm`; `apis/v1/labels.go`, `RestrictedLabels`), and such a term outlives the handover:
//! a pod that is pending when the victim is released could then never use that node. Anti-affinity against the
//! victim's pods is understood by every autoscaler. Where no node takes the replacement even then, the restart is
//! withdrawn when the handover is over (`handover::reconcile`), so it cannot block the Deployment's rollouts.
//!
//! A `Recreate` Deployment's new pod is created after the victim is gone, so it gets a *preferred* node affinity
//! instead, which can never keep it pending. So does the stand-in of a Scale handover: it is of its victim's own
//! revision, and set against that it could not be scheduled beside its like.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::hold::{HoldView, Phase};
use crate::policy::Mode;
use crate::view::Strategy;

/// Label that a Deployment's ReplicaSets put on their pods.
pub const TEMPLATE_HASH_LABEL: &str = "pod-template-hash";

const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

/// How many nodes a new pod is asked to avoid at most. Nodes that are cordoned or tainted take few new pods anyway, and
/// a list of all that are going in an upgrade of a large cluster would be most of the pod.
const MOST_NODES: usize = 50;

/// One JSON Patch operation `add`.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// JSON Pointer.
    pub path: String,
    /// What to add.
    pub value: Value,
}

/// Which nodes a new pod of the workload is to avoid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Avoid {
    /// Revisions (template hashes) of victims, other than the new pod's own.
    pub revisions: BTreeSet<String>,
    /// Labels that the workload's pods carry, without the hash.
    pub selector: BTreeMap<String, String>,
    /// Nodes of victims, where the new pod may not be set against the victims themselves, and others that are going.
    pub nodes: BTreeSet<String>,
}

/// The workload of a new pod, and its handovers.
#[derive(Clone, Copy, Debug)]
pub struct Replacing<'a> {
    /// How it is handed over.
    pub mode: Mode,
    /// `spec.strategy` of the Deployment.
    pub strategy: Strategy,
    /// `spec.selector.matchLabels` of the Deployment.
    pub selector: &'a BTreeMap<String, String>,
    /// Its holds for handovers.
    pub holds: &'a [&'a HoldView],
    /// Names of all nodes that are about to go; read for Scale only.
    pub going: &'a BTreeSet<&'a str>,
}

/// What a new pod of the workload with this template hash is to avoid.
pub fn avoid(workload: &Replacing<'_>, pod_hash: &str) -> Avoid {
    let mut avoid = Avoid { selector: workload.selector.clone(), ..Avoid::default() };
    for hold in workload.holds.iter().filter(|hold| hold.status.phase != Phase::Completed) {
        let (hash, node) = (&hold.spec.victim_hash, &hold.spec.victim_node);
        match (workload.mode, workload.strategy) {
            (Mode::Scale, _) | (Mode::Restart, Strategy::Recreate) => {
                avoid.nodes.extend((!node.is_empty()).then(|| node.clone()));
            }
            // Once the victim is released nobody waits for the replacement's place any more. And a pod of the victim's own
            // revision is not its replacement.
            (Mode::Restart, Strategy::RollingUpdate { .. }) => {
                let awaited = !hold.status.phase.is_released() && hash != pod_hash && !hash.is_empty();
                avoid.revisions.extend(awaited.then(|| hash.clone()));
            }
        }
    }
    if workload.mode == Mode::Scale && !avoid.nodes.is_empty() {
        let room = MOST_NODES.saturating_sub(avoid.nodes.len());
        let others: Vec<_> = workload.going.iter().filter(|node| !avoid.nodes.contains(**node)).take(room).collect();
        avoid.nodes.extend(others.into_iter().map(|node| (*node).to_owned()));
    }
    avoid
}

/// The patch that makes a pod avoid them, given the pod's `spec.affinity` as it stands in the request.
///
/// Only `add` of what is absent, or at the end of a list that is there: such a patch cannot be refused, which
/// matters because a refused patch blocks the pod's creation even under `failurePolicy: Ignore`. Where the
/// affinity has a shape that the API would refuse anyway, the pod is left alone.
pub fn patch(avoid: &Avoid, affinity: Option<&Value>) -> Vec<Add> {
    let mut root = affinity.cloned().unwrap_or(Value::Null);
    let mut adds = Vec::new();
    if !avoid.revisions.is_empty() {
        let term = json!({
            "labelSelector": {
                "matchLabels": avoid.selector,
                "matchExpressions": [
                    { "key": TEMPLATE_HASH_LABEL, "operator": "In", "values": avoid.revisions },
                ],
            },
            "topologyKey": HOSTNAME_LABEL,
        });
        let list = ["podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        adds.extend(append(&mut root, list, term));
    }
    if !avoid.nodes.is_empty() {
        let term = json!({
            "weight": 100,
            "preference": {
                "matchExpressions": [{ "key": HOSTNAME_LABEL, "operator": "NotIn", "values": avoid.nodes }],
            },
        });
        let list = ["nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution"];
        adds.extend(append(&mut root, list, term));
    }
    adds
}

/// Appends to a list two levels below the affinity, creating what is absent; keeps `root` as the patch leaves it.
fn append(root: &mut Value, list: [&str; 2], term: Value) -> Option<Add> {
    let mut path = "/spec/affinity".to_owned();
    let mut place = root;
    for (depth, key) in list.iter().enumerate() {
        if place.is_null() {
            let value = list
                .iter()
                .skip(depth)
                .rev()
                .fold(json!([term]), |inner, key| Value::Object(Map::from_iter([((*key).to_owned(), inner)])));
            *place = value.clone();
            return Some(Add { path, value });
        }
        path = format!("{path}/{key}");
        place = place.as_object_mut()?.entry((*key).to_owned()).or_insert(Value::Null);
    }
    if place.is_null() {
        let value = json!([term]);
        *place = value.clone();
        return Some(Add { path, value });
    }
    let terms = place.as_array_mut()?;
    if terms.contains(&term) {
        // The API server asks again when a later webhook changed the pod.
        return None;
    }
    terms.push(term.clone());
    Some(Add { path: format!("{path}/-"), value: term })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hold;
    use crate::view::IntOrPercent;

    const ROLLING: Strategy =
        Strategy::RollingUpdate { max_surge: IntOrPercent::Int(1), max_unavailable: IntOrPercent::Int(0) };

    fn selector() -> BTreeMap<String, String> {
        BTreeMap::from([("app".to_owned(), "web".to_owned())])
    }

    fn avoided(mode: Mode, strategy: Strategy, hash: &str, holds: &[&HoldView], going: &[&str]) -> Avoid {
        let going = going.iter().copied().collect();
        avoid(&Replacing { mode, strategy, selector: &selector(), holds, going: &going }, hash)
    }

    #[test]
    fn a_replacement_avoids_its_victims_revision_and_never_its_own() {
        let mut running = hold("web-old-1", "old");
        running.status.phase = Phase::Active;
        let mut over = hold("web-older-1", "older");
        over.status.phase = Phase::Completed;
        let of = |hash: &str, holds: &[&HoldView]| avoided(Mode::Restart, ROLLING, hash, holds, &["node-9"]);
        let found = of("new", &[&running, &over]);
        assert_eq!(found.revisions, BTreeSet::from(["old".to_owned()]));
        assert!(found.nodes.is_empty());
        assert_eq!(of("old", &[&running]).revisions, BTreeSet::new());
        assert_eq!(of("new", &[]), Avoid { selector: selector(), ..Avoid::default() });
        running.status.phase = Phase::Released;
        assert_eq!(of("new", &[&running]).revisions, BTreeSet::new(), "nobody waits for its place any more");
    }

    fn prefers_other_nodes_than(nodes: &[&str]) -> Value {
        json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": nodes}]},
        }]}})
    }

    #[test]
    fn a_recreated_pod_prefers_another_node_and_may_still_use_the_old_one() {
        let mut gone = hold("web-old-1", "old");
        gone.status.phase = Phase::Released;
        let avoided = avoided(Mode::Restart, Strategy::Recreate, "new", &[&gone], &["node-9"]);
        assert!(avoided.revisions.is_empty());
        let expected = prefers_other_nodes_than(&["node-1"]);
        assert_eq!(patch(&avoided, None), [Add { path: "/spec/affinity".into(), value: expected }]);
    }

    #[test]
    fn a_stand_in_prefers_nodes_that_stay_and_is_set_against_nobody() {
        let open = hold("web-same-1", "same");
        let of = |holds: &[&HoldView], going: &[&str]| avoided(Mode::Scale, ROLLING, "same", holds, going);
        let found = of(&[&open], &["node-1", "node-7"]);
        assert!(found.revisions.is_empty());
        let expected = prefers_other_nodes_than(&["node-1", "node-7"]);
        assert_eq!(patch(&found, None), [Add { path: "/spec/affinity".into(), value: expected }]);
        let mut over = open.clone();
        over.status.phase = Phase::Completed;
        assert!(of(&[&over], &["node-7"]).nodes.is_empty(), "no handover runs");

        let names: Vec<_> = (0..500).map(|number| format!("m-{number:03}")).collect();
        let many: Vec<_> = names.iter().map(String::as_str).collect();
        let found = of(&[&open], &many);
        assert_eq!((found.nodes.len(), found.nodes.contains("node-1")), (MOST_NODES, true));
    }

    #[test]
    fn the_patch_adds_only_what_is_absent() {
        let avoided = Avoid { revisions: BTreeSet::from(["old".into()]), selector: selector(), ..Avoid::default() };
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let table = [
            ("no affinity", None, vec!["/spec/affinity"]),
            ("null affinity", Some(Value::Null), vec!["/spec/affinity"]),
            ("another kind", Some(json!({"nodeAffinity": {}})), vec!["/spec/affinity/podAntiAffinity"]),
            (
                "an empty kind",
                Some(json!({"podAntiAffinity": {}})),
                vec!["/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution"],
            ),
            (
                "terms of the user's",
                Some(json!({"podAntiAffinity": {required: [{"topologyKey": "zone"}]}})),
                vec!["/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/-"],
            ),
            ("a shape that the API refuses", Some(json!({"podAntiAffinity": "x"})), vec![]),
            ("a shape that the API refuses, deeper", Some(json!({"podAntiAffinity": {required: {}}})), vec![]),
        ];
        for (name, affinity, expected) in table {
            let paths: Vec<_> = patch(&avoided, affinity.as_ref()).into_iter().map(|add| add.path).collect();
            assert_eq!(paths, expected, "{name}");
        }
        assert_eq!(patch(&Avoid::default(), None), [], "nothing to avoid, nothing to patch");
    }

    #[test]
    fn asked_again_the_patch_adds_nothing() {
        let avoided = Avoid {
            revisions: BTreeSet::from(["old".into()]),
            nodes: BTreeSet::from(["node-1".into()]),
            selector: selector(),
        };
        let mut affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}});
        let added = patch(&avoided, Some(&affinity));
        assert_eq!(added.len(), 2);
        for add in added {
            let kind = if add.path.contains("podAnti") { "podAntiAffinity" } else { "nodeAffinity" };
            if kind == "podAntiAffinity" {
                affinity[kind]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([add.value]);
            } else {
                affinity[kind] = add.value;
            }
        }
        assert_eq!(patch(&avoided, Some(&affinity)), [], "{affinity}");
    }
}
