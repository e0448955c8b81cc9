//! Which alerts fire on which series: Prometheus' engine evaluates all of them on each scene, so an alert that fires beside
//! the one that is meant shows as well.
//!
//! A scene is an hour and a little, with a sample every 30 s, as `tests/promql/main.go` reads it. What a scene does not
//! change is as on a day without trouble.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::alerts::{alerts, name, rules};
use super::prometheus;

/// Longer than every `for`, and than what the alerts look back.
const MINUTES: u32 = 65;

/// Seconds since 1970 at the end of a scene.
const END: u32 = MINUTES * 60;

/// The labels of the release's targets, of whichever pod.
const RELEASE: &str = r#"namespace="belay-system",job="belay-system/belay","#;

/// Those of an API server.
const API_SERVER: &str = r#"job="apiserver",instance="10.0.0.1:6443","#;

/// Those of another one, which is not there on a day without trouble.
const OTHER_API_SERVER: &str = r#"job="apiserver",instance="10.0.0.2:6443","#;

/// A series by its metric, its labels besides the release's or the API server's, and its values as promtool writes them.
fn series(metric: &str, labels: &str, values: &str) -> String {
    let target = if metric.starts_with("apiserver_") { API_SERVER } else { RELEASE };
    of(target, metric, labels, values)
}

/// The same of any target.
fn of(target: &str, metric: &str, labels: &str, values: &str) -> String {
    format!("{metric}{{{target}{labels}}} {values}")
}

/// What Prometheus scrapes while all is well.
fn healthy() -> Vec<String> {
    let leader = |pod: &str, leads: u8| series("belay_leader", &format!("pod=\"{pod}\""), &format!("{leads}x130"));
    let mut all = vec![leader("controller-1", 1), leader("controller-2", 0), leader("webhook-1", 0)];
    all.push(of(API_SERVER, "up", "", "1x130"));
    let week = 7 * 24 * 3600;
    for (metric, labels, values) in [
        ("up", r#"pod="controller-1""#, "1x130"),
        ("up", r#"pod="controller-2""#, "1x130"),
        ("up", r#"pod="webhook-1""#, "1x130"),
        ("belay_webhook_connections", r#"pod="webhook-1""#, "2x130"),
        ("belay_watch_failing", r#"pod="webhook-1",kind="Deployments""#, "0x130"),
        ("belay_hold_next_deadline_timestamp_seconds", r#"pod="controller-1""#, "0x130"),
        ("belay_probe_reached", r#"pod="controller-1""#, "1x130"),
        ("belay_probe_last_reached_timestamp_seconds", r#"pod="controller-1""#, "1+30x130"),
        ("belay_probe_last_reached_timestamp_seconds", r#"pod="webhook-1""#, "0x130"),
        ("belay_certificate_not_after_timestamp_seconds", r#"pod="webhook-1",role="Leaf""#, &format!("{week}x130")),
        ("belay_certificate_not_after_timestamp_seconds", r#"pod="controller-1",role="Leaf""#, "0x130"),
        ("belay_certificate_not_before_timestamp_seconds", r#"pod="webhook-1",role="Leaf""#, "0x130"),
        ("belay_certificate_not_before_timestamp_seconds", r#"pod="controller-1",role="Authority""#, "0x130"),
        (
            "belay_certificate_not_after_timestamp_seconds",
            r#"pod="controller-1",role="Authority""#,
            &format!("{}x130", 50 * week),
        ),
        ("belay_writes_total", r#"kind="Deployment",result="Ok""#, "0+1x130"),
        ("belay_hold_records_total", r#"result="Created""#, "0+1x130"),
        ("belay_eviction_reviews_total", r#"decision="Hold",reason="AwaitingRestart""#, "0+1x130"),
        ("belay_review_duration_seconds_bucket", r#"path="/validate/eviction",le="0.001""#, "0+1x130"),
        ("belay_review_duration_seconds_bucket", r#"path="/validate/eviction",le="+Inf""#, "0+1x130"),
        ("belay_deletion_cost_stood_down", r#"pod="controller-1",kind="Node""#, "0x130"),
    ] {
        all.push(series(metric, labels, values));
    }
    all
}

/// That day, but for the metrics that these series are of.
fn scene(changes: &[String]) -> Value {
    let metric = |series: &str| series.split('{').next().unwrap_or_default().to_owned();
    let told: BTreeSet<String> = changes.iter().map(|series| metric(series)).collect();
    let mut all = healthy();
    all.retain(|series| !told.contains(&metric(series)));
    all.extend_from_slice(changes);
    json!({ "series": all, "minutes": MINUTES })
}

/// A scene in which just this alert fires, once, with these words in its description.
struct Firing {
    alert: &'static str,
    series: Vec<String>,
    says: &'static [&'static str],
}

fn firing(alert: &'static str, says: &'static [&'static str], metric: &str, labels: &str, values: &str) -> Firing {
    Firing { alert, series: vec![series(metric, labels, values)], says }
}

/// A certificate that lives for so many hours, of which so many are left at the end of the scene.
fn certificate(role: &str, lives: i64, left: i64) -> [String; 2] {
    let labels = format!(r#"pod="some-pod",role="{role}""#);
    let end = i64::from(END) + left * 3600;
    [("after", end), ("before", end - lives * 3600)].map(|(which, at)| {
        series(&format!("belay_certificate_not_{which}_timestamp_seconds"), &labels, &format!("{at}x130"))
    })
}

fn counters() -> Vec<Firing> {
    // The first step of a counter of the API server, whose series begins with it.
    let first = "_x125 2x5";
    let open = "apiserver_admission_webhook_fail_open_count";
    let rejected = "apiserver_admission_webhook_rejection_count";
    let error = r#"name="eviction.hold.belay.dev",type="validating",error_type="calling_webhook_error""#;
    let unserved = "belay_webhook_requests_unserved_total";
    let reviews = "belay_eviction_reviews_total";
    let records = "belay_hold_records_total";
    let writes = "belay_writes_total";
    let step = "0x125 3x5";
    let here: &[&str] = &["in belay-system"];
    let evictions = r#"name="eviction.hold.belay.dev",type="validating""#;
    vec![
        firing("BelayFailedOpen", &["for 2 evictions"], open, evictions, first),
        firing("BelayFailedOpen", &["unprotected"], open, evictions, "7x125 9x5"),
        firing("BelayFailedClosed", &["eviction.hold.belay.dev", "refused 2 requests"], rejected, error, first),
        firing("BelayFailedClosed", &["Ignore"], rejected, error, "7x125 9x5"),
        firing(
            "BelayPodsMissed",
            &["no answer from arc-runner.busy.belay.dev"],
            open,
            r#"name="arc-runner.busy.belay.dev",type="admit""#,
            "0+1x130",
        ),
        firing(
            "BelayPodsMissed",
            &["no answer from binding.cost.belay.dev"],
            open,
            r#"name="binding.cost.belay.dev",type="admit""#,
            "_x100 1+1x30",
        ),
        Firing {
            alert: "BelayFailedOpen",
            series: vec![
                of(API_SERVER, "up", "", "1x130"),
                of(OTHER_API_SERVER, "up", "", "_x125 1x5"),
                of(OTHER_API_SERVER, open, evictions, first),
            ],
            says: &["for 2 evictions"],
        },
        firing("BelayUnsynced", here, reviews, r#"pod="webhook-1",reason="NotSynced""#, step),
        // A replica that has just begun, before its first scrape.
        firing("BelayUnsynced", here, reviews, r#"pod="webhook-2",reason="NotSynced""#, "_x125 3x5"),
        firing("BelayOverloaded", &["(TimedOut)"], unserved, r#"pod="webhook-1",reason="TimedOut""#, step),
        firing("BelayOverloaded", &["(Overloaded)", "Add replicas"], unserved, r#"reason="Overloaded""#, step),
        firing("BelayPanicked", &["Report the log line"], unserved, r#"reason="Panicked""#, step),
        firing(
            "BelayCannotAccept",
            &["belay-system/webhook-1"],
            "belay_webhook_accept_failures_total",
            r#"pod="webhook-1""#,
            step,
        ),
        firing("BelayNotTrusted", here, "belay_webhook_handshake_failures_total", r#"reason="PeerRefused""#, step),
        firing(
            "BelayWritesRefused",
            &["writes of Pod by", "(Forbidden)"],
            writes,
            r#"kind="Pod",result="Forbidden""#,
            step,
        ),
        firing(
            "BelayWritesRefused",
            &["EvictionHolds by the webhook", "(Refused)"],
            records,
            r#"result="Refused""#,
            step,
        ),
        firing("BelayQueueFull", &["EvictionHolds of Belay"], records, r#"result="QueueFull""#, step),
        firing("BelayQueueFull", &["Events of Belay"], writes, r#"kind="Event",result="QueueFull""#, step),
        firing("BelayHandoverFailed", &["ended as Expired"], "belay_handovers_total", r#"outcome="Expired""#, step),
        firing("BelayDeadlinePassed", here, reviews, r#"reason="DeadlinePassed""#, step),
        firing("BelayStateUnknown", here, reviews, r#"reason="PodStateUnknown""#, step),
        firing("BelayHintConflict", here, "belay_hint_conflicts_total", r#"pod="controller-1""#, "0x20 1x110"),
        firing("BelayCostConflict", here, "belay_deletion_cost_conflicts_total", r#"pod="controller-1""#, "0x20 1x110"),
    ]
}

fn gauges() -> Vec<Firing> {
    let deadline = "belay_hold_next_deadline_timestamp_seconds";
    let leads = |one: &str, other: &str| {
        let leader = |pod: &str, values: &str| series("belay_leader", &format!("pod=\"{pod}\""), values);
        vec![leader("controller-1", one), leader("controller-2", other)]
    };
    let nobody = |one: &str, other: &str, says| Firing { alert: "BelayNobodyLeads", series: leads(one, other), says };
    let elsewhere = r#"belay_webhook_connections{namespace="other",pod="webhook-1"} 2x130"#;
    let passed = format!("{}x130", END - 60);
    let stale = series("belay_hold_next_deadline_timestamp_seconds", r#"pod="controller-1""#, &passed);
    let slow = |le: &str, values: &str| {
        let labels = format!(r#"pod="webhook-1",path="/validate/eviction",le="{le}""#);
        series("belay_review_duration_seconds_bucket", &labels, values)
    };
    let expiring = |alert, says, role: &str, lives: i64, left: i64| Firing {
        alert,
        series: certificate(role, lives, left).to_vec(),
        says,
    };
    vec![
        firing(
            "BelayProbeFailed",
            &["belay-system", "belay probe"],
            "belay_probe_reached",
            r#"pod="controller-1""#,
            "1x110 0x20",
        ),
        firing(
            "BelayProbeStale",
            &["48m 20s ago"],
            "belay_probe_last_reached_timestamp_seconds",
            r#"pod="controller-1""#,
            "1000x130",
        ),
        firing(
            "BelayProbeUnknown",
            &["leads in belay-system", "belay probe"],
            "belay_probe_last_reached_timestamp_seconds",
            r#"pod="webhook-1""#,
            "0x130",
        ),
        Firing { alert: "BelayWebhookAbsent", series: vec![elsewhere.to_owned()], says: &["in belay-system"] },
        Firing {
            alert: "BelaySlow",
            series: vec![slow("0.16384", "0x130"), slow("0.32768", "0+1x130"), slow("+Inf", "0+1x130")],
            says: &["/validate/eviction", "326ms"],
        },
        expiring("BelayCertificateExpires", &["belay-system/some-pod is valid for 23h"], "Leaf", 7 * 24, 23),
        expiring("BelayCertificateExpires", &["valid for 4h"], "Leaf", 24, 4),
        expiring("BelayCertificateExpires", &["valid for 23h"], "Leaf", 90 * 24, 23),
        expiring("BelayAuthorityExpires", &["29d"], "Authority", 365 * 24, 29 * 24),
        expiring("BelayAuthorityExpires", &["5d"], "Authority", 30 * 24, 5 * 24),
        nobody("1x120 0x10", "0x130", &["0 controllers of Belay in belay-system"]),
        nobody("1x130", "0x120 1x10", &["2 controllers"]),
        firing(
            "BelayBlind",
            &["cannot watch EphemeralRunner.actions.github.com"],
            "belay_watch_failing",
            r#"pod="webhook-1",kind="EphemeralRunner.actions.github.com""#,
            "0x115 1x15",
        ),
        firing(
            "BelayHoldNearDeadline",
            &["ends in 1m 40s"],
            deadline,
            r#"pod="controller-1""#,
            &format!("{}x130", END + 100),
        ),
        Firing { alert: "BelayHoldNearDeadline", series: vec![stale], says: &["ends in -1m 0s"] },
        firing(
            "BelayStoodDown",
            &["of 2 objects", "ReplicaSet"],
            "belay_deletion_cost_stood_down",
            r#"pod="controller-1",kind="ReplicaSet""#,
            "0x5 2x125",
        ),
    ]
}

#[test]
fn each_alert_fires_when_it_is_meant_to_and_no_other_one_with_it() {
    let cases: Vec<Firing> = counters().into_iter().chain(gauges()).collect();
    let rules = rules(&json!({}));
    let scenes: Vec<Value> = cases.iter().map(|case| scene(&case.series)).collect();
    let answer = prometheus(&rules, &[], &scenes);
    assert_eq!(answer.wrong, [] as [String; 0]);
    for (case, fired) in cases.iter().zip(&answer.firing) {
        let names: Vec<&str> = fired.iter().map(|alert| alert.name.as_str()).collect();
        assert_eq!(names, [case.alert], "{:?}", case.series);
        let description = &fired[0].annotations["description"];
        for word in case.says {
            assert!(description.contains(word), "{}: `{word}` is not in: {description}", case.alert);
        }
        assert!(!description.contains("{{") && !description.contains("<no value>"), "{description}");
        assert!(fired[0].labels.contains_key("severity"), "{:?}", fired[0]);
    }
    let tried: BTreeSet<&str> = cases.iter().map(|case| case.alert).collect();
    let all = alerts(&rules);
    assert_eq!(tried, all.iter().map(name).collect(), "every alert is seen to fire");
}

/// The scenes of one cluster beside a quiet one, with a label that says which.
#[test]
fn clusters_under_one_prometheus_are_kept_apart() {
    let of_cluster = |cluster: &str, series: &[String]| -> Vec<String> {
        series.iter().map(|one| one.replacen('{', &format!("{{cluster=\"{cluster}\","), 1)).collect()
    };
    let quiet = of_cluster("quiet", &healthy());
    // Where another cluster has the metric, it is not absent.
    let cases = counters().into_iter().chain(gauges()).filter(|case| case.alert != "BelayWebhookAbsent");
    let cases: Vec<Firing> = cases.collect();
    let beside = |series: &[String]| {
        let mut all = of_cluster("troubled", series);
        all.extend_from_slice(&quiet);
        json!({ "series": all, "minutes": MINUTES })
    };
    let mut scenes = vec![beside(&healthy())];
    for case in &cases {
        let scene = scene(&case.series);
        let series = scene["series"].as_array().into_iter().flatten().filter_map(Value::as_str);
        scenes.push(beside(&series.map(str::to_owned).collect::<Vec<_>>()));
    }
    let answer = prometheus(&rules(&json!({ "groupBy": ["cluster"] })), &[], &scenes);
    assert_eq!(answer.wrong, [] as [String; 0]);
    let firing = |number: usize| -> Vec<(&str, &str)> {
        let fired = answer.firing[number].iter();
        fired.map(|alert| (alert.name.as_str(), alert.labels.get("cluster").map_or("", String::as_str))).collect()
    };
    assert_eq!(firing(0), [], "two clusters without trouble");
    for (number, case) in cases.iter().enumerate() {
        assert_eq!(firing(number + 1), [(case.alert, "troubled")], "{:?}", case.series);
    }
}

/// Counters that Prometheus did not see for a while, which did not move.
fn unseen() -> Vec<(&'static str, Vec<String>)> {
    let open = "apiserver_admission_webhook_fail_open_count";
    let rejected = "apiserver_admission_webhook_rejection_count";
    vec![
        (
            "calls that failed before Prometheus was away for a while",
            vec![
                of(API_SERVER, "up", "", "1x90 _x25 1x14"),
                series(open, r#"name="eviction.hold.belay.dev""#, "7x90 _x25 7x14"),
                series(
                    rejected,
                    r#"name="eviction.hold.belay.dev",error_type="calling_webhook_error""#,
                    "7x90 _x25 7x14",
                ),
            ],
        ),
        (
            "calls that failed before one of the API servers could not be scraped",
            vec![
                of(API_SERVER, "up", "", "1x130"),
                of(OTHER_API_SERVER, "up", "", "1x90 0x25 1x14"),
                of(OTHER_API_SERVER, open, r#"name="eviction.hold.belay.dev""#, "7x90 _x25 7x14"),
            ],
        ),
        (
            "what replicas let pass before Prometheus was away for a while",
            vec![
                of(RELEASE, "up", r#"pod="webhook-1""#, "1x90 _x25 1x14"),
                series("belay_eviction_reviews_total", r#"pod="webhook-1",reason="NotSynced""#, "3x90 _x25 3x14"),
            ],
        ),
    ]
}

#[test]
fn nothing_fires_on_what_is_no_trouble() {
    let one = |metric: &str, labels: &str, values: &str| vec![series(metric, labels, values)];
    let renewed = |leaf: (i64, i64), authority: (i64, i64)| {
        [certificate("Leaf", leaf.0, leaf.1), certificate("Authority", authority.0, authority.1)].concat()
    };
    let deadline = "belay_hold_next_deadline_timestamp_seconds";
    let leads = |pod: &str, values: &str| series("belay_leader", &format!("pod=\"{pod}\""), values);
    let mut quiet = vec![
        ("a day without trouble", vec![]),
        ("a hold with time left", one(deadline, r#"pod="controller-1""#, &format!("{}x130", END + 300))),
        (
            "what a former leader knew last",
            vec![
                series(deadline, r#"pod="controller-2""#, "10x130"),
                series("belay_probe_reached", r#"pod="controller-2""#, "0x130"),
                series("belay_deletion_cost_stood_down", r#"pod="controller-2",kind="Node""#, "5x130"),
            ],
        ),
        ("a lead that moves", vec![leads("controller-1", "1x60 0x70"), leads("controller-2", "0x59 1x70")]),
        ("a probe that fails once", one("belay_probe_reached", r#"pod="controller-1""#, "1x100 0x2 1x28")),
        (
            "a controller that has just begun to lead, and has not asked yet",
            vec![
                leads("controller-1", "_x110 1x20"),
                series("belay_probe_last_reached_timestamp_seconds", r#"pod="webhook-1""#, "0x130"),
            ],
        ),
        ("a watch that fails for a moment", one("belay_watch_failing", r#"kind="pods""#, "0x125 1x5")),
        (
            "holds, which are rejections that are meant",
            one(
                "apiserver_admission_webhook_rejection_count",
                r#"name="eviction.hold.belay.dev",error_type="no_error",rejection_code="429""#,
                "0+9x130",
            ),
        ),
        (
            "another webhook that fails open",
            one("apiserver_admission_webhook_fail_open_count", r#"name="other.example.com""#, "0+1x130"),
        ),
        (
            "calls that failed an hour ago",
            one("apiserver_admission_webhook_fail_open_count", r#"name="eviction.hold.belay.dev""#, "0x5 9x125"),
        ),
        (
            "a pod that was missed while replicas changed",
            one("apiserver_admission_webhook_fail_open_count", r#"name="binding.cost.belay.dev""#, "0x125 1x5"),
        ),
        ("conflicts of versions", one("belay_writes_total", r#"kind="Deployment",result="Conflict""#, "0+1x130")),
        ("a handover that succeeds", one("belay_handovers_total", r#"outcome="HandedOver""#, "0+1x130")),
        ("a failure of this morning", one("belay_handovers_total", r#"outcome="Failed""#, "4x130")),
        ("a body that is no review", one("belay_webhook_requests_unserved_total", r#"reason="TooLarge""#, "0+1x130")),
        ("a scanner's handshakes", one("belay_webhook_handshake_failures_total", r#"reason="Protocol""#, "0+1x130")),
        ("certificates that are renewed in time", renewed((7 * 24 + 1, 50), (365 * 24, 100 * 24))),
        ("a day's certificate and a month's authority, a third of whose life is left", renewed((24, 8), (720, 240))),
        ("an authority of ten years, of which two months are left", renewed((2160, 720), (87600, 60 * 24))),
        (
            "costs left to another controller for ten minutes",
            one("belay_deletion_cost_stood_down", r#"pod="controller-1",kind="Node""#, "0x110 3x20"),
        ),
    ];
    quiet.extend(unseen());
    let mut scenes: Vec<Value> = quiet.iter().map(|(_, series)| scene(series)).collect();
    // Another release has every trouble at once, which is its own alerts' business.
    let elsewhere = counters().into_iter().chain(gauges()).flat_map(|case| case.series);
    let elsewhere = elsewhere.filter(|series| series.contains("namespace="));
    let elsewhere: BTreeSet<String> = elsewhere
        .map(|series| series.replace("namespace=\"belay-system\"", "namespace=\"other\""))
        .filter_map(|series| Some((series.split_once("} ")?.0.to_owned(), series)))
        .collect::<std::collections::BTreeMap<_, _>>()
        .into_values()
        .collect();
    let mut both = healthy();
    both.extend(elsewhere);
    scenes.push(json!({ "series": both, "minutes": MINUTES }));

    let answer = prometheus(&rules(&json!({})), &[], &scenes);
    let names = quiet.iter().map(|(name, _)| *name).chain(["the trouble of another release"]);
    for (name, fired) in names.zip(&answer.firing) {
        let fired: Vec<&str> = fired.iter().map(|alert| alert.name.as_str()).collect();
        assert_eq!(fired, [] as [&str; 0], "{name}");
    }
    assert_eq!(answer.firing.len(), quiet.len() + 1);
}
