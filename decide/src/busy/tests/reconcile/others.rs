//! What others strip, change, or had there before; and what is left when Belay goes.

use super::*;

#[test]
fn what_is_stripped_is_put_back() {
    for name in [SAFE_TO_EVICT, DO_NOT_DISRUPT, PREFER_NO_EVICTION, BUSY_SINCE] {
        let mut scene = Scene::busy_for(60).with(|scene| scene.somebody(&key(name), None));
        assert_eq!(in_words(&scene.plan()), [["w: patch"]], "{name}, without a word");
        scene.settle();
        assert_eq!(scene.marks(), busy("2026-11-30T13:59:00Z"), "{name}");
    }
    let mut scene = Scene::busy_for(60).with(|scene| scene.somebody(&Key::label(BUSY_LABEL), None));
    scene.settle();
    assert_eq!(scene.marks(), busy("2026-11-30T13:59:00Z"));
    // All at once, in one patch, and one removal of each.
    let mut scene = Scene::busy_for(60).with(|scene| {
        scene.pod.marks.clear();
        bump(&mut scene.pod);
    });
    assert_eq!(in_words(&scene.look()), [["w: patch"]]);
    assert_eq!(scene.marks(), busy("2026-11-30T13:59:00Z"));
}

#[test]
fn what_is_stripped_a_third_time_within_an_hour_is_given_up_with_a_word() {
    let mut scene = Scene::busy_for(60);
    for (second, expected) in
        [(0, vec!["w: patch"]), (10, vec!["w: patch"]), (20, vec!["w: patch", "warning: HintConflict"])]
    {
        scene = scene.at(second);
        scene.somebody(&key(DO_NOT_DISRUPT), None);
        let plan = scene.look();
        assert_eq!(in_words(&plan), [expected]);
        assert_eq!(plan.yielded, usize::from(second == 20));
        assert_quiet(&scene);
    }
    assert!(scene.record().is_given_up(&key(DO_NOT_DISRUPT)));
    // For good: whatever comes.
    for phase in ["Idle", "Busy", "Idle"] {
        scene.say(phase);
        scene.settle();
        scene.now += SignedDuration::from_secs(86_400);
        scene.memory = None;
        scene.settle();
        assert_eq!(scene.mark(&key(DO_NOT_DISRUPT)), None, "{phase}");
    }
}

/// Somebody writes the pod all the time, and our patches meet conflicts.
#[test]
fn a_removal_whose_mending_was_not_written_counts_once() {
    let mut scene = Scene::busy_for(60).with(|scene| scene.somebody(&key(DO_NOT_DISRUPT), None));
    for _ in 0..10 {
        let plan = scene.plan();
        assert_eq!(in_words(&plan), [["w: patch"]], "it is put back, and not given up");
        let before = scene.memory.take();
        scene.memory = plan.memory.and_then(|memory| memory.unwritten(before.as_ref()));
        assert_eq!(scene.memory, before);
        bump(&mut scene.pod);
    }
    // What else was seen meanwhile is not forgotten, and nothing of a former pod is remembered.
    scene.say("Idle");
    let memory = scene.plan().memory.expect("a debounce");
    assert_eq!(memory.clone().unwritten(None).and_then(|memory| memory.idle_since), Some(scene.now));
    let other = Scene::busy_for(60).with(|scene| {
        scene.pod.uid = "pod-0".into();
        scene.somebody(&key(DO_NOT_DISRUPT), None);
        scene.look();
    });
    assert_eq!(memory.clone().unwritten(other.memory.as_ref()), memory.unwritten(None));
}

#[test]
fn what_is_stripped_now_and_then_is_put_back_for_ever() {
    let mut scene = Scene::of("Busy").with(|scene| scene.rule.max_busy = SignedDuration::from_hours(100));
    scene.settle();
    for round in 0..50 {
        scene = scene.at(1801 * round);
        scene.somebody(&key(DO_NOT_DISRUPT), None);
        scene.settle();
        assert_eq!(scene.mark(&key(DO_NOT_DISRUPT)), Some("true"), "{round}");
    }
}

#[test]
fn what_somebody_changed_is_theirs_with_one_word() {
    let mut scene = Scene::busy_for(60).with(|scene| scene.somebody(&key(SAFE_TO_EVICT), Some("true")));
    let plan = scene.look();
    assert_eq!(in_words(&plan), [["w: patch", "warning: HintConflict"]]);
    assert_eq!(plan.yielded, 1);
    let Some(Action::Event(event)) = plan.sequences[0].last() else { panic!("{plan:?}") };
    assert_eq!(
        event.note,
        "Somebody else changed or keeps removing cluster-autoscaler.kubernetes.io/safe-to-evict; Belay leaves it to them"
    );
    assert_eq!(scene.mark(&key(SAFE_TO_EVICT)), Some("true"));
    assert_quiet(&scene);
    // Whatever the pod does from then on.
    scene.say("Idle");
    scene.look();
    let mut scene = scene.at(60);
    scene.settle();
    scene.somebody(&key(SAFE_TO_EVICT), Some("false"));
    assert_quiet(&scene);
    // Gone, it is free again.
    scene.somebody(&key(SAFE_TO_EVICT), None);
    scene.settle();
    assert_eq!(scene.marks(), FREE);
}

#[test]
fn what_was_there_before_is_never_touched() {
    let mut scene = Scene::of("Busy");
    scene.rule.hints = all_hints();
    for (key, value) in [
        (key(SAFE_TO_EVICT), "true"),
        (key(DO_NOT_DISRUPT), "1h"),
        (key(DELETION_COST), "-5"),
        (Key::label(BUSY_LABEL), "maybe"),
    ] {
        scene.somebody(&key, Some(value));
    }
    let theirs = scene.pod.marks.clone();
    for phase in ["Busy", "Idle", "Done", "Busy"] {
        scene.say(phase);
        scene.settle();
        scene.now += SignedDuration::from_secs(100);
        scene.settle();
        for (key, value) in &theirs {
            assert_eq!(scene.mark(key), Some(&**value), "{phase} {key}");
        }
        assert!(scene.record().keys().all(|key| !theirs.contains_key(key)), "{phase}");
    }
}

/// Whoever takes the record away makes the values theirs, as they stand.
#[test]
fn values_without_a_record_are_somebody_elses() {
    for junk in [None, Some("junk"), Some("[]")] {
        let mut scene = Scene::busy_for(60).with(|scene| {
            scene.pod.managed = junk.map(Into::into);
            scene.say("Idle");
        });
        let before = scene.marks();
        scene.settle();
        let mut scene = scene.at(100);
        scene.settle();
        assert_eq!(scene.marks(), before, "{junk:?}");
        assert_eq!(scene.pod.managed.as_deref(), junk);
    }
}

#[test]
fn a_pod_that_no_rule_governs_any_more_is_left_as_others_made_it() {
    let mut scene = Scene::busy_for(60);
    scene.somebody(&key("example.com/theirs"), Some("x"));
    scene.somebody(&key(SAFE_TO_EVICT), Some("changed"));
    scene.somebody(&key(PREFER_NO_EVICTION), None);
    // Other parts of Belay record there too.
    let mut record = scene.record();
    record.insert(key("example.com/of-another-part"), "y".into());
    scene.pod.managed = record.render().map(Into::into);
    let object = ObjectRef {
        namespace: "ci".into(),
        name: "w".into(),
        uid: "pod-1".into(),
        resource_version: scene.pod.resource_version.to_string(),
    };
    let Some(Action::PatchPod { pod, changes }) =
        forget(&object, scene.pod.managed.as_deref(), &scene.pod.marks, false)
    else {
        panic!("there is something to take away");
    };
    assert_eq!(pod, object);
    let gone = [key(BUSY_SINCE), key(DO_NOT_DISRUPT), Key::label(BUSY_LABEL)];
    let mut expected: BTreeMap<_, _> = gone.into_iter().map(|key| (key, None)).collect();
    expected.insert(key(MANAGED_ANNOTATION), Some(r#"{"example.com/of-another-part":"y"}"#.to_owned()));
    assert_eq!(changes, expected);
    patch(&mut scene.pod, &changes);
    assert_eq!(forget(&object, scene.pod.managed.as_deref(), &scene.pod.marks, false), None, "once");
}

#[test]
fn where_nothing_is_left_the_record_goes_too() {
    let object = |scene: &Scene| ObjectRef {
        namespace: "ci".into(),
        name: "w".into(),
        uid: "pod-1".into(),
        resource_version: scene.pod.resource_version.to_string(),
    };
    // Given up, too: nobody writes it any more.
    let mut scene = Scene::busy_for(60);
    for second in 0..3 {
        scene = scene.at(second);
        scene.somebody(&key(DO_NOT_DISRUPT), None);
        scene.look();
    }
    let forgotten = |scene: &Scene| forget(&object(scene), scene.pod.managed.as_deref(), &scene.pod.marks, false);
    let Some(Action::PatchPod { changes, .. }) = forgotten(&scene) else { panic!("there is something to take away") };
    patch(&mut scene.pod, &changes);
    assert_eq!((scene.marks(), scene.pod.managed.clone()), (Vec::new(), None));
    assert_eq!(forgotten(&scene), None);
    // What is nobody's, and what is no record, stays.
    let foreign = Scene::of("Idle").with(|scene| {
        scene.somebody(&key(SAFE_TO_EVICT), Some("true"));
        scene.pod.managed = Some("junk".into());
    });
    assert_eq!(forgotten(&foreign), None);
}
