//! Evictions and holds that come and go.

use belay_decide::hold::{HoldReason, HoldSpec, HoldStatus, HoldTrigger, HoldView, WorkloadRef, hold_name};
use belay_decide::lifecycle::{EvictionView, Reported, State};

use super::*;

/// An Eviction of the pod of that name; Belay is a responder of it or not.
fn eviction(name: &str, pod: &str, generation: u8, ours: bool) -> EvictionView {
    EvictionView {
        object: ObjectRef {
            namespace: "n".into(),
            name: name.into(),
            uid: uid("eviction", name, 0),
            resource_version: "1".into(),
        },
        pod: pod.into(),
        pod_uid: uid("pod", pod, generation),
        requesters: String::new(),
        state: ours.then_some(State::Active),
        reported: Reported::default(),
        failed: false,
        evicted: false,
    }
}

pub(super) fn hold(victim: &str, generation: u8, reason: HoldReason, trigger: HoldTrigger) -> HoldView {
    let victim_uid = uid("pod", victim, generation);
    HoldView {
        namespace: "n".into(),
        name: hold_name(reason, victim, &victim_uid),
        uid: uid("hold", victim, generation),
        resource_version: "1".into(),
        spec: HoldSpec {
            victim_name: victim.into(),
            victim_uid,
            victim_node: String::new(),
            victim_hash: String::new(),
            reason,
            workload: WorkloadRef::deployment("d", "u"),
            evictor: String::new(),
            trigger,
            requested_at: Timestamp::UNIX_EPOCH,
            deadline: Timestamp::UNIX_EPOCH,
        },
        status: HoldStatus::default(),
    }
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a test has few of them")]
enum Change {
    Eviction(EvictionView),
    Hold(HoldView),
}

fn changes() -> impl Strategy<Value = Change> {
    let reasons = select(HoldReason::ALL.to_vec());
    let triggers = select(vec![HoldTrigger::Eviction, HoldTrigger::EvictionRequest]);
    prop_oneof![
        (names(), names(), 0..2_u8, any::<bool>())
            .prop_map(|(name, pod, generation, ours)| Change::Eviction(eviction(name, pod, generation, ours))),
        (names(), 0..2_u8, reasons, triggers)
            .prop_map(|(victim, generation, reason, trigger)| Change::Hold(hold(victim, generation, reason, trigger))),
    ]
}

fn change(index: &Index, comes: bool, change: Change) {
    let mut sink = IndexSink(index.clone());
    match (comes, change) {
        (true, Change::Eviction(one)) => sink.apply(one),
        (false, Change::Eviction(one)) => sink.delete(one),
        (true, Change::Hold(one)) => sink.apply(one),
        (false, Change::Hold(one)) => sink.delete(one),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn evictions_and_holds_leave_nothing(all in proptest::collection::vec((any::<bool>(), changes()), 1..60)) {
        let index = Index::default();
        for (comes, one) in &all {
            change(&index, *comes, one.clone());
        }
        for (_, one) in all {
            change(&index, false, one);
        }
        prop_assert!(index.is_empty(), "something is kept of what is gone");
    }
}

#[test]
fn an_eviction_finds_the_holds_of_its_pod_and_those_that_an_eviction_of_its_name_began() {
    let index = Index::default();
    let ours = hold("x", 0, HoldReason::Handover, HoldTrigger::Eviction);
    let busy = hold("x", 0, HoldReason::Busy, HoldTrigger::Eviction);
    let left = hold("x", 1, HoldReason::Handover, HoldTrigger::EvictionRequest);
    let others = [
        hold("x", 2, HoldReason::Handover, HoldTrigger::Eviction),
        hold("y", 0, HoldReason::Handover, HoldTrigger::EvictionRequest),
    ];
    for one in others.iter().chain([&ours, &busy, &left]) {
        change(&index, true, Change::Hold(one.clone()));
    }
    for (name, is_ours) in [("e", true), ("f", false)] {
        change(&index, true, Change::Eviction(eviction(name, "x", 0, is_ours)));
    }
    index.requested(&PodKey::new("n", "x"), |known| {
        let evictions: Vec<_> = known.evictions.iter().map(|one| one.object.name.as_str()).collect();
        assert_eq!(evictions, ["e"], "what is none of ours is not kept");
        let mut expected = [&ours, &busy, &left];
        expected.sort_by_key(|hold| &hold.name);
        assert_eq!(known.holds, expected);
    });
}

#[test]
fn the_evictions_of_a_pod_are_looked_at_when_one_of_them_or_a_hold_of_it_changes() {
    let (index, dirty) = Index::following(Vec::new());
    let looked_at = || dirty.take_requests().into_iter().map(|key| key.name.to_string()).collect::<Vec<_>>();
    let by_drain = Change::Hold(hold("y", 0, HoldReason::Handover, HoldTrigger::Eviction));
    change(&index, true, by_drain.clone());
    assert_eq!(looked_at(), Vec::<String>::new(), "nobody requests it");
    change(&index, true, Change::Eviction(eviction("e", "x", 0, false)));
    assert_eq!(looked_at(), Vec::<String>::new(), "Belay is no responder of it");
    change(&index, true, Change::Eviction(eviction("e", "y", 0, true)));
    assert_eq!(looked_at(), ["y"]);
    change(&index, true, by_drain);
    assert_eq!(looked_at(), ["y"]);
    let begun = Change::Hold(hold("x", 0, HoldReason::Handover, HoldTrigger::EvictionRequest));
    change(&index, true, begun.clone());
    assert_eq!(looked_at(), ["x"], "its Eviction may be gone");
    IndexSink(index.clone()).replace(Vec::<EvictionView>::new());
    assert_eq!(looked_at(), ["x", "y"], "the kind is not served any more");
    index.touch_requests();
    assert_eq!(looked_at(), ["x"]);
    change(&index, false, begun);
    assert_eq!(looked_at(), ["x"]);
    assert_eq!(dirty.take_requests().len(), 0);
}
