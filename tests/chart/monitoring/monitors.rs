//! The PodMonitor and the ServiceMonitor: that either finds the metrics of both components, and only those.

use serde_json::{Value, json};

use crate::chart::Objects;

/// Whether labels have everything that a selector asks for.
fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().expect("a selector").iter().all(|(key, value)| labels[key] == *value)
}

#[test]
fn the_service_monitor_finds_its_service_and_that_both_components() {
    let objects = Objects::render(&json!({ "serviceMonitor": { "enabled": true, "labels": { "release": "p" } } }));
    let monitor = objects.get("ServiceMonitor", "belay");
    assert_eq!(monitor["metadata"]["labels"]["release"], "p");
    let found: Vec<&Value> = objects
        .of_kind("Service")
        .filter(|service| selects(&monitor["spec"]["selector"]["matchLabels"], &service["metadata"]["labels"]))
        .collect();
    assert_eq!(found.len(), 1, "the webhook's own Service has no metrics");
    let service = &found[0]["spec"];
    assert_eq!(service["clusterIP"], "None");
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], service["ports"][0]["name"]);
    let mut scraped = 0;
    for (maker, template) in
        objects.pods().filter(|(_, template)| selects(&service["selector"], &template["metadata"]["labels"]))
    {
        let ports = template["spec"]["containers"][0]["ports"].as_array().into_iter().flatten();
        let has_port = ports.into_iter().any(|port| port["name"] == service["ports"][0]["targetPort"]);
        assert_eq!(has_port, maker.starts_with("Deployment/"), "{maker}");
        scraped += usize::from(has_port);
    }
    assert_eq!(scraped, 2);
}

#[test]
fn without_a_monitor_there_is_no_service_for_it() {
    for values in [json!({}), json!({ "podMonitor": { "enabled": true } })] {
        let objects = Objects::render(&values);
        let names: Vec<&Value> = objects.of_kind("Service").map(|service| &service["metadata"]["name"]).collect();
        assert_eq!(names, ["belay-webhook"]);
    }
}

#[test]
fn both_monitors_scrape_the_same_in_the_same_way() {
    let monitor = |name: &str, kind: &str| {
        let objects = Objects::render(&json!({ name: { "enabled": true, "interval": "1m", "scrapeTimeout": "20s" } }));
        objects.get(kind, "belay")["spec"].clone()
    };
    let (pods, services) = (monitor("podMonitor", "PodMonitor"), monitor("serviceMonitor", "ServiceMonitor"));
    assert_eq!(pods["podTargetLabels"], services["podTargetLabels"]);
    let without_port = |endpoints: &Value| {
        let mut endpoint = endpoints[0].clone();
        endpoint.as_object_mut().expect("an endpoint").remove("port").expect("it has a port");
        endpoint
    };
    assert_eq!(without_port(&pods["podMetricsEndpoints"]), without_port(&services["endpoints"]));
}
