//! Which autoscaler governs a workload, and which workloads are looked after for a surge.

use std::collections::BTreeSet;

use Governor::{HorizontalPodAutoscaler, ScaledObject};

use super::*;

fn key(name: &str) -> WorkloadKey {
    WorkloadKey::new("n", name)
}

/// The workload is in nobody's hands.
const AT_REST: &str = "";

/// The workload is being handed over, and its Deployment governs itself.
const ITSELF: &str = "itself";

/// Name of the autoscaler that governs a workload; else one of the above.
fn governing(index: &Index, name: &str) -> String {
    let asked = index.workload(&key(name), &DefaultPolicy::default(), |workload, _, holds| {
        assert!(holds.is_empty());
        let autoscaler = workload.and_then(|workload| workload.autoscaler);
        autoscaler.map_or(ITSELF, |autoscaler| &autoscaler.object.name).to_owned()
    });
    asked.unwrap_or_else(|| AT_REST.to_owned())
}

fn sink(index: &Index, governor: Governor) -> AutoscalerSink {
    AutoscalerSink { index: index.clone(), governor }
}

#[test]
fn one_of_several_governs_whatever_order_they_come_in() {
    // In the order in which they govern.
    let all = [
        autoscaler(HorizontalPodAutoscaler, "y", Some("web"), true),
        autoscaler(ScaledObject, "y", Some("web"), false),
        autoscaler(ScaledObject, "z", Some("web"), false),
        autoscaler(HorizontalPodAutoscaler, "a", Some("web"), false),
        autoscaler(HorizontalPodAutoscaler, "b", Some("web"), false),
    ];
    for turned in 0..all.len() {
        let index = Index::default();
        // Its own surge keeps the workload in view, whatever governs it.
        put(&index, Object::Deployment(deployment("web", 0, true)));
        let mut coming = all.to_vec();
        coming.rotate_left(turned);
        for one in coming {
            put(&index, Object::Autoscaler(one));
        }
        for one in &all {
            assert_eq!(governing(&index, "web"), one.name.to_string(), "{turned}");
            take(&index, Object::Autoscaler(one.clone()));
        }
        assert_eq!(governing(&index, "web"), ITSELF, "{turned}");
    }
}

#[test]
fn a_surge_that_outlived_its_deployment_is_looked_at() {
    let (index, dirty) = Index::following(Vec::new());
    put(&index, Object::Deployment(deployment("web", 0, false)));
    for (name, target) in [("h", "web"), ("elsewhere", "")] {
        put(&index, Object::Autoscaler(autoscaler(HorizontalPodAutoscaler, name, Some(target), true)));
    }
    put(&index, Object::Autoscaler(autoscaler(HorizontalPodAutoscaler, "i", Some("never"), false)));
    let left = |name: &str| index.leftover(&key(name)).map(|autoscaler| autoscaler.object.name);
    assert_eq!((left("web"), left(""), left("never")), (None, Some("elsewhere".into()), None));
    dirty.take_workloads();
    take(&index, Object::Deployment(deployment("web", 0, false)));
    assert_eq!(dirty.take_workloads(), BTreeSet::from([key("web")]));
    assert_eq!(left("web"), Some("h".into()));
    assert_eq!(governing(&index, "web"), ITSELF, "it is asked about");
}

#[test]
fn a_workload_with_a_surge_and_no_hold_is_looked_at_until_it_is_put_back() {
    let (index, dirty) = Index::following(Vec::new());
    for name in ["web", "shop", "idle"] {
        put(&index, Object::Deployment(deployment(name, 0, name == "web")));
    }
    put(&index, Object::Autoscaler(autoscaler(HorizontalPodAutoscaler, "h", Some("shop"), true)));
    put(&index, Object::Autoscaler(autoscaler(HorizontalPodAutoscaler, "i", Some("idle"), false)));
    dirty.take_workloads();
    index.touch_workloads_with_holds();
    assert_eq!(dirty.take_workloads(), BTreeSet::from([key("web"), key("shop")]));
    assert_eq!(governing(&index, "shop"), "h");
    assert_eq!(governing(&index, "idle"), AT_REST, "nobody hands it over");

    put(&index, Object::Deployment(deployment("web", 0, false)));
    put(&index, Object::Autoscaler(autoscaler(HorizontalPodAutoscaler, "h", Some("shop"), false)));
    assert_eq!(dirty.take_workloads(), BTreeSet::from([key("web"), key("shop")]), "what changed is looked at");
    assert_eq!((governing(&index, "web"), governing(&index, "shop")), (AT_REST.into(), AT_REST.into()));
    index.touch_workloads_with_holds();
    assert_eq!(dirty.take_workloads(), BTreeSet::new());
}

#[test]
fn a_change_concerns_the_workload_and_a_new_version_only_one_that_is_being_handed_over() {
    let (index, dirty) = Index::following(Vec::new());
    put(&index, Object::Deployment(deployment("web", 0, false)));
    let versioned = |version: &str, surged: bool| {
        let mut one = autoscaler(HorizontalPodAutoscaler, "h", Some("web"), surged);
        one.view.as_mut().unwrap().object.resource_version = version.into();
        one
    };
    let touched = |one: Autoscaler| {
        dirty.take_workloads();
        dirty.take_policies();
        put(&index, Object::Autoscaler(one));
        (dirty.take_workloads().len(), dirty.take_policies().len())
    };
    assert_eq!(touched(versioned("1", false)), (1, 1), "a policy may be supported or not by it");
    assert_eq!(touched(versioned("2", false)), (0, 0));
    assert_eq!(touched(versioned("3", true)), (1, 1));
    assert_eq!(touched(versioned("4", true)), (1, 0), "the next write needs its version");
    let mut other = versioned("5", true);
    other.view.as_mut().unwrap().target = "shop".into();
    assert_eq!(touched(other), (2, 1), "the one that it leaves, and the one that it scales now");
    assert_eq!(governing(&index, "web"), AT_REST);
    assert_eq!(governing(&index, "shop"), ITSELF, "a surge of what is not there is not lost sight of");
}

#[test]
fn a_new_list_of_one_kind_leaves_the_other_alone() {
    let index = Index::default();
    put(&index, Object::Deployment(deployment("web", 0, true)));
    let of = |governor: Governor, name: &str| autoscaler(governor, name, Some("web"), false);
    sink(&index, ScaledObject).replace(vec![of(ScaledObject, "s")]);
    sink(&index, HorizontalPodAutoscaler)
        .replace(vec![of(HorizontalPodAutoscaler, "a"), of(HorizontalPodAutoscaler, "b")]);
    assert_eq!(governing(&index, "web"), "s");
    // KEDA is taken out of the cluster.
    sink(&index, ScaledObject).replace(Vec::new());
    assert_eq!(governing(&index, "web"), "a");
    sink(&index, HorizontalPodAutoscaler).replace(vec![of(HorizontalPodAutoscaler, "b")]);
    assert_eq!(governing(&index, "web"), "b");
    // One that was listed before scales nothing of ours any more.
    sink(&index, HorizontalPodAutoscaler).replace(vec![autoscaler(HorizontalPodAutoscaler, "b", None, false)]);
    assert_eq!(governing(&index, "web"), ITSELF);
}

#[test]
fn a_new_list_of_deployments_keeps_the_surges_of_autoscalers_in_view() {
    let index = Index::default();
    put(&index, Object::Deployment(deployment("web", 0, true)));
    put(&index, Object::Autoscaler(autoscaler(ScaledObject, "s", Some("shop"), true)));
    IndexSink(index.clone()).replace(vec![deployment("shop", 0, false), deployment("web", 1, false)]);
    assert_eq!(governing(&index, "web"), AT_REST);
    assert_eq!(governing(&index, "shop"), "s");
}

#[test]
fn a_policy_is_told_which_autoscaler_governs_each_of_its_deployments() {
    let index = Index::default();
    put(&index, Object::Deployment(deployment("x", 0, false)));
    put(&index, Object::Policy(policy("x")));
    let governors = || {
        let of_policy = |state: &PolicyState<'_>| {
            let governor = |selected: &Selected<'_>| selected.autoscaler.map(|autoscaler| autoscaler.governor);
            state.deployments.iter().map(governor).collect::<Vec<_>>()
        };
        index.policies("n", &DefaultPolicy::default(), of_policy)
    };
    assert_eq!(governors(), [[None]]);
    for governor in GOVERNORS {
        put(&index, Object::Autoscaler(autoscaler(governor, "x", Some("x"), false)));
        assert_eq!(governors(), [[Some(governor)]]);
    }
}
