//! Each fault that a soak looks for is found, and what looks like one is not.

use serde_json::json;

use super::*;

const CONTROLLER: &str = "system:serviceaccount:belay-system:belay-controller";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_047_200 + second).unwrap()
}

/// A write by somebody, which succeeded.
fn write(second: i64, user: &str, verb: &str, resource: &str, name: &str) -> Write {
    Write {
        at: at(second),
        user: user.into(),
        agent: String::new(),
        verb: verb.into(),
        resource: resource.into(),
        namespace: "ns".into(),
        name: name.into(),
        code: 200,
        message: String::new(),
        dry_run: false,
        failed_open: false,
        body: Value::Null,
    }
}

fn eviction(second: i64, pod: &str, code: u16, message: &str) -> Write {
    let message = message.to_owned();
    Write { code, message, ..write(second, "admin", "create", "pods/eviction", pod) }
}

/// The annotations of a Deployment that was restarted for these victims; `!` before one: put back again.
fn annotations(victims: &[&str]) -> Value {
    let record =
        |victim: &&str| json!({ "victim": victim.trim_start_matches('!'), "rolledBack": victim.starts_with('!') });
    let records: Vec<Value> = victims.iter().map(record).collect();
    json!({ "belay.dev/handovers": serde_json::to_string(&records).unwrap() })
}

fn restart(second: i64, victims: &[&str]) -> Write {
    let template = json!({ "metadata": { "annotations": { "belay.dev/restart": "a" } } });
    let body = json!({ "metadata": { "annotations": annotations(victims) }, "spec": { "template": template } });
    Write { body, ..write(second, CONTROLLER, "patch", "deployments", "web") }
}

fn deployment(revision: &str, victims: &[&str]) -> Value {
    let mut annotations = annotations(victims);
    annotations["deployment.kubernetes.io/revision"] = revision.into();
    json!({ "metadata": { "name": "web", "annotations": annotations } })
}

fn laws(findings: &[Finding]) -> Vec<(Law, &str)> {
    findings.iter().map(|finding| (finding.law, finding.about.as_str())).collect()
}

#[test]
fn a_second_restart_for_one_victim_is_found_in_the_log_or_by_the_revision() {
    let double = vec![(Law::DoubleRestart, "v1")];
    let refused = Write { code: 409, ..restart(2, &["v1"]) };
    let dry = Write { dry_run: true, ..restart(2, &["v1"]) };
    let of_somebody = Write { user: "admin".into(), ..restart(2, &["v1"]) };
    for (name, writes, end, expected) in [
        ("one each", vec![restart(1, &["v1"]), restart(2, &["v1", "v2"])], deployment("3", &["v1", "v2"]), vec![]),
        ("two for one", vec![restart(1, &["v1"]), restart(2, &["v1"])], deployment("3", &["v1"]), double),
        ("the second was refused", vec![restart(1, &["v1"]), refused], deployment("2", &["v1"]), vec![]),
        ("the second was a dry run", vec![restart(1, &["v1"]), dry], deployment("2", &["v1"]), vec![]),
        ("somebody else's", vec![restart(1, &["v1"]), of_somebody], deployment("2", &["v1"]), vec![]),
        ("not in the log, and in the record", vec![], deployment("2", &["v1"]), vec![]),
        ("not in the log", vec![restart(1, &["v1"])], deployment("3", &["v1"]), vec![(Law::DoubleRestart, "web")]),
        ("put back", vec![restart(1, &["v1"]), restart(2, &["!v1"])], deployment("3", &["!v1"]), vec![]),
    ] {
        assert_eq!(laws(&double_restarts(&writes, &[end])), expected, "{name}");
    }
}

fn hold(deadline: i64, released: Option<i64>) -> Hold {
    Hold { victim: "web-1".into(), deadline: at(deadline), released: released.map(at), completed: true }
}

#[test]
fn a_hold_reads_the_earlier_of_its_deadlines() {
    let object = |status: Value| {
        let spec = json!({ "victim": { "name": "web-1" }, "deadline": at(60).to_string() });
        Hold::read(&json!({ "spec": spec, "status": status }))
    };
    let open = Hold { completed: false, ..hold(60, None) };
    assert_eq!(object(json!({})), Some(open.clone()));
    assert_eq!(object(json!({ "deadline": at(20).to_string() })), Some(Hold { deadline: at(20), ..open }));
    let status = json!({ "phase": "Completed", "releasedAt": at(9).to_string() });
    assert_eq!(object(status), Some(hold(60, Some(9))));
    assert_eq!(Hold::read(&json!({ "spec": { "victim": { "name": "web-1" } } })), None);
}

#[test]
fn refusals_after_the_deadline_are_found_and_a_late_release_only_where_nothing_was_broken() {
    let by_belay = "admission webhook denied the request: belay: holding web-1";
    let fault = |from, to| Window { from: at(from), to: at(to), api_server: false };
    let late = vec![(Law::PastDeadline, "web-1")];
    for (name, writes, hold, faults, expected) in [
        ("refused in time", vec![eviction(60, "web-1", 429, by_belay)], hold(60, Some(61)), vec![], vec![]),
        ("refused late", vec![eviction(63, "web-1", 429, by_belay)], hold(60, Some(61)), vec![], late.clone()),
        ("by a budget", vec![eviction(63, "web-1", 429, "a budget")], hold(60, Some(61)), vec![], vec![]),
        ("another pod", vec![eviction(63, "web-2", 429, by_belay)], hold(60, Some(61)), vec![], vec![]),
        ("released late", vec![], hold(60, Some(80)), vec![], late.clone()),
        ("released late after faults", vec![], hold(60, Some(80)), vec![fault(55, 62), fault(70, 74)], vec![]),
        ("faults before and after", vec![], hold(60, Some(80)), vec![fault(10, 60), fault(80, 99)], late.clone()),
        ("never released", vec![], hold(60, None), vec![], late),
        ("not due", vec![], hold(200, None), vec![], vec![]),
    ] {
        assert_eq!(laws(&past_deadline(&writes, &[hold], &faults, at(100))), expected, "{name}");
    }
}

#[test]
fn a_busy_pod_that_is_evicted_before_somebody_says_that_it_is_done_is_a_lost_job() {
    let done = |second| write(second, "admin", "patch", "pods", "worker");
    let by_belay = Write { user: CONTROLLER.into(), ..done(1) };
    for (name, writes, lost) in [
        ("after", vec![eviction(1, "worker", 429, "no"), done(5), eviction(6, "worker", 201, "")], false),
        ("before", vec![eviction(4, "worker", 201, ""), done(5)], true),
        ("never done", vec![eviction(4, "worker", 201, "")], true),
        ("a hint is not the end of a job", vec![by_belay, eviction(4, "worker", 201, "")], true),
        ("never evicted", vec![eviction(4, "worker", 429, "")], false),
    ] {
        assert_eq!(lost_jobs(&writes, &["worker".to_owned()]).len(), usize::from(lost), "{name}");
    }
}

#[test]
fn a_lost_request_is_of_endpoints_only_where_the_control_plane_died_before_it_told_of_a_pod_that_goes() {
    let goes = write(10, "replicaset-controller", "delete", "pods", "web-1");
    let told = |second| write(second, "endpointslice-controller", "update", "endpointslices", "web-x7");
    let dies = |second, api_server| Window { from: at(second), to: at(second + 9), api_server };
    for (name, writes, fault, expected) in [
        ("it died and told nobody", vec![goes.clone()], dies(11, true), true),
        ("evicted", vec![eviction(10, "web-1", 201, "")], dies(11, true), true),
        ("told before it died", vec![goes.clone(), told(11)], dies(12, true), false),
        ("told after it was back, too late", vec![goes.clone(), told(21)], dies(11, true), true),
        ("of another Service", vec![goes.clone(), Write { name: "web2-x".into(), ..told(11) }], dies(12, true), true),
        ("only Belay died", vec![goes.clone()], dies(11, false), false),
        ("it died before", vec![goes.clone()], dies(2, true), false),
        ("it died after", vec![goes], dies(18, true), false),
        ("the pod was not asked to go", vec![], dies(11, true), false),
    ] {
        assert_eq!(is_of_endpoints(&writes, &[fault], "web", "web-1", at(16)), expected, "{name}");
    }
}

#[test]
fn evictions_are_counted_by_their_answers_and_those_that_nobody_was_asked_about_are_found() {
    let open = Write { failed_open: true, ..eviction(4, "web-1", 201, "") };
    let unanswered = eviction(3, "web-1", 500, "Internal error occurred: failed calling webhook \"eviction.hold\"");
    let writes =
        [eviction(1, "web-1", 429, "belay: holding web-1"), unanswered, open, write(5, "x", "patch", "pods", "y")];
    assert_eq!(evictions(&writes), Evictions { asked: 3, held: 1, unanswered: 1, passed: 1 });
    assert_eq!(laws(&failed_open(&writes)), [(Law::FailedOpen, "web-1")]);
}
