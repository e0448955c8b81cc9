//! What the cache knows decides for all but idle pods; and what is asked besides.

use super::*;

#[tokio::test]
async fn a_busy_pod_is_held_from_the_cache_and_recorded_once() {
    let api = api(&[]).await;
    let mut webhook = ruled(Some(&api)).await;
    webhook.knows_idle(RUNNER);
    webhook.knows_owner(runner("r-1", &json!({"phase": "Online", "job": 7})));
    for _ in 0..3 {
        let (counted, response) = webhook.evict(EVICTION).await;
        assert_eq!(counted, "Hold PodBusy");
        assert_eq!(response["uid"], "371e4411-cf51-4018-ae12-4ddcc4b2a6c5");
        assert_eq!(
            (&response["status"]["code"], &response["status"]["reason"]),
            (&json!(429), &json!("TooManyRequests"))
        );
        let cause = &response["status"]["details"]["causes"][0];
        assert_eq!(
            (&cause["reason"], &cause["message"]),
            (&json!("PodBusy"), &json!("it is busy (rule runner, states[1])"))
        );
        assert!(message(&response).starts_with(&format!("belay: holding {NAME}: it is busy")), "{response}");
        assert!(response["status"]["details"].get("retryAfterSeconds").is_none(), "clients would retry by themselves");
    }
    assert_eq!(webhook.recorded(), [("Busy", "Runner.ci.example r r-1".into())]);
    assert_eq!(api.asked(), [], "nobody is asked about a pod that is busy anyway");
}

#[tokio::test]
async fn what_the_cache_knows_of_a_pod_that_stays_is_enough() {
    let told = |status: Value| runner("r-1", &status);
    let table = [
        ("a job", told(json!({"phase": "Online", "job": 7})), "Hold PodBusy"),
        ("a start", told(json!({"phase": "Starting"})), "Hold PodStarting"),
        ("words that the rule does not understand", told(json!({})), "Hold PodStateUnknown"),
        ("another runner of that name", runner("r-2", &json!({"phase": "Online"})), "Hold PodStateUnknown"),
        ("the end of its work", told(json!({"phase": "Done", "job": 7})), "Allow Idle"),
    ];
    for (name, owner, expected) in table {
        let api = api(&[]).await;
        let mut webhook = ruled(Some(&api)).await;
        webhook.knows_idle(RUNNER);
        webhook.knows_owner(owner);
        assert_eq!(webhook.evict(EVICTION).await.0, expected, "{name}");
        assert_eq!(webhook.recorded().len(), usize::from(expected.starts_with("Hold")), "{name}");
        assert_eq!(api.asked(), [], "{name}");
    }
}

#[tokio::test]
async fn a_pod_that_works_by_its_linked_pods_is_held() {
    let webhook = ruled(None).await;
    webhook.knows_idle(RUNNER);
    let mut sink = LinkedSink { index: webhook.handlers.index.clone(), label: "job-of".into() };
    let fields = sink.fields();
    sink.apply(project_busy::linked(&serde_json::from_value(job(1, "Running")).unwrap(), "job-of", &fields).unwrap());
    assert_eq!(webhook.evict(EVICTION).await.0, "Hold PodBusy");
}

#[tokio::test]
async fn a_dry_run_warns_and_leaves_nothing() {
    let api = api(&[(OWNER, Reply::Json(runner("r-1", &json!({"phase": "Online"})))), (LINKED, list(&[]))]).await;
    let in_body = DRY_RUN.replace("rec-6dbcd878fd-98q5c", NAME);
    let by_url = EVICTION.replacen("\"dryRun\": false", "\"dryRun\": true", 1).replacen(
        "\"dryRun\":false",
        "\"dryRun\":true",
        1,
    );
    assert_ne!(by_url, EVICTION);
    for (job, awaited) in
        [(json!({"phase": "Online", "job": 7}), "it is busy"), (json!({"phase": "Online"}), "its owner r")]
    {
        for review in [&in_body, &by_url] {
            let mut webhook = ruled(Some(&api)).await;
            webhook.knows_idle(RUNNER);
            webhook.knows_owner(runner("r-1", &job));
            let (counted, response) = webhook.evict(review).await;
            assert_eq!(counted, "Allow DryRun");
            let warning = response["warnings"][0].as_str().unwrap();
            assert!(warning.contains("would be held") && warning.contains(awaited), "{warning}");
            assert_eq!(webhook.recorded(), []);
            assert_eq!(webhook.handlers.busy_victims.lock().get("p"), None, "its time does not begin to run");
        }
    }
}

#[tokio::test]
async fn a_rule_may_let_busy_pods_go() {
    let mut webhook = ruled(None).await;
    webhook.knows_idle(EASY);
    webhook.knows_owner(runner("r-1", &json!({"job": 7})));
    assert_eq!(webhook.evict(EVICTION).await.0, "Allow NotProtected");
    assert_eq!(webhook.recorded(), []);
}

/// What is answered where the pod's Deployment is protected by a policy, too: recorded as that.
fn is_handed_over(recorded: &[(&'static str, String)]) -> bool {
    matches!(recorded, [("Handover", workload)] if workload.starts_with("Deployment."))
}

#[tokio::test]
async fn what_a_rule_has_nothing_against_may_still_be_handed_over() {
    let alive = [(POD, Reply::Json(pod("p", &of_runner(), &json!({}))))];
    let api = api(&alive).await;

    let mut webhook = ruled(Some(&api)).await;
    webhook.knows_idle(PLAIN);
    webhook.fill();
    let (counted, _) = webhook.evict(EVICTION).await;
    let recorded = webhook.recorded();
    assert!(counted.starts_with("Hold ") && is_handed_over(&recorded), "idle: {counted} {recorded:?}");

    let mut webhook = ruled(Some(&api)).await;
    webhook.knows_pod(PLAIN, pod("p", &of_runner(), &json!({"work": ""})));
    webhook.fill();
    assert_eq!(webhook.evict(EVICTION).await.0, "Hold PodBusy");
    assert_eq!(webhook.recorded(), [("Busy", "Runner.ci.example r r-1".into())], "one after the other");

    webhook.knows_hold(HoldReason::Busy, "Released");
    let (counted, _) = webhook.evict(EVICTION).await;
    let recorded = webhook.recorded();
    assert!(counted.starts_with("Hold ") && is_handed_over(&recorded), "released: {counted} {recorded:?}");
}

#[tokio::test]
async fn a_pod_that_its_rule_released_goes_where_no_policy_protects_it() {
    let mut webhook = ruled(None).await;
    webhook.knows_pod(PLAIN, pod("p", &of_runner(), &json!({"work": ""})));
    webhook.knows_hold(HoldReason::Busy, "Released");
    assert_eq!(webhook.evict(EVICTION).await.0, "Allow Released");
    assert_eq!(webhook.recorded(), []);
}

#[tokio::test]
async fn busy_pods_are_held_where_handovers_are_switched_off() {
    let api = api(&[]).await;
    let webhook = ruled_with("evictionHold: {enabled: false}", Some(&api), |_| {}).await;
    webhook.fill();
    assert_eq!(webhook.evict(EVICTION).await.0, "uncounted", "no rule governs it, and nobody else asks");
    webhook.knows_idle(PLAIN);
    assert_eq!(webhook.evict(EVICTION).await.0, "Allow Idle");
    webhook.knows_pod(PLAIN, pod("p", &of_runner(), &json!({"work": ""})));
    assert_eq!(webhook.evict(EVICTION).await.0, "Hold PodBusy");
}

#[tokio::test]
async fn who_and_where_is_excluded_is_not_asked_by_rules_either() {
    let busy = || pod("p", &of_runner(), &json!({"work": ""}));
    let webhook = ruled_with("evictionHold: {ignoreEvictors: ['drain*']}", None, |_| {}).await;
    webhook.knows_pod(PLAIN, busy());
    assert_eq!(webhook.evict(EVICTION).await.0, "Allow IgnoredEvictor");
    let webhook = ruled_with("evictionHold: {excludedNamespaces: [default]}", None, |_| {}).await;
    webhook.knows_pod(PLAIN, busy());
    assert_eq!(webhook.evict(EVICTION).await.0, "Allow ExcludedNamespace");
}

#[tokio::test]
async fn what_is_not_seen_yet_is_let_through_with_a_word_and_what_one_rule_cannot_see_is_held_alone() {
    let blind = || Health::new("pods", Gauge::default());
    let seeing = || {
        let health = blind();
        health.absent();
        health
    };
    // Which pods are governed is not known.
    let webhook = ruled_with("evictionHold: {enabled: false}", None, |handlers| {
        handlers.rule_health = RuleHealth { pods: vec![seeing(), blind()], asked: vec![] };
    })
    .await;
    webhook.knows_pod(PLAIN, pod("p", &of_runner(), &json!({"work": ""})));
    let (counted, response) = webhook.evict(EVICTION).await;
    assert_eq!(counted, "Allow NotSynced");
    assert!(response["warnings"][0].is_string(), "{response}");

    // One rule cannot see what it asks.
    let mut webhook = ruled_with("", None, |handlers| {
        let health = blind();
        health.note("missing right", true);
        handlers.rule_health = RuleHealth { pods: vec![seeing()], asked: vec![vec![seeing(), health], vec![], vec![]] };
    })
    .await;
    webhook.knows_idle(RUNNER);
    let (counted, response) = webhook.evict(EVICTION).await;
    assert_eq!(counted, "Hold PodStateUnknown");
    assert!(message(&response).contains("missing right"), "{response}");
    assert_eq!(webhook.recorded().len(), 1);
    BusyPodSink { index: webhook.handlers.index.clone(), rule: RUNNER }.replace(Vec::new());
    webhook.knows_pod(PLAIN, pod("p", &of_runner(), &json!({"work": ""})));
    assert_eq!(webhook.evict(EVICTION).await.0, "Hold PodBusy", "another rule sees all that it asks");
}

#[tokio::test]
async fn a_hold_ends_by_the_age_of_the_job_without_any_record() {
    let since = Clock::wall().checked_sub(SignedDuration::from_hours(7)).unwrap().to_string();
    let marks = json!({"work": "", "belay.dev/busy-since": since,
        "belay.dev/managed": format!("{{\"belay.dev/busy-since\":\"{since}\"}}")});
    let webhook = ruled(None).await;
    webhook.knows_pod(PLAIN, pod("p", &of_runner(), &marks));
    assert_eq!(webhook.evict(EVICTION).await.0, "Allow DeadlinePassed");
}
