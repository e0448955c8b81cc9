//! What must be true of every render, whatever the values: nothing that Helm and the program would fight over, nothing
//! that lets Belay hold itself, pods that the strictest namespaces admit.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::chart::{CANARY, NAMESPACE, Objects, name};
use crate::matrix;

/// Runs a check on the objects of each case.
fn for_every_case(check: impl Fn(&str, &Objects)) {
    for case in matrix::cases() {
        check(case.name, &Objects::render(&case.values));
    }
}

/// Whether a key occurs anywhere in a value.
fn has_key(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, value)| name == key || has_key(value, key)),
        Value::Array(items) => items.iter().any(|item| has_key(item, key)),
        _ => false,
    }
}

/// What a namespaceSelector says of a namespace with these labels (as the API server evaluates it).
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    wanted.into_iter().all(|(key, value)| labels[key] == *value)
        && expressions.into_iter().all(|expression| {
            let label = &labels[expression["key"].as_str().expect("an expression has a key")];
            let listed = expression["values"].as_array().is_some_and(|values| values.contains(label));
            match expression["operator"].as_str() {
                Some("In") => listed,
                Some("NotIn") => !listed,
                Some("Exists") => !label.is_null(),
                Some("DoesNotExist") => label.is_null(),
                other => panic!("no such operator: {other:?}"),
            }
        })
}

#[test]
fn nothing_is_rendered_that_the_program_changes_by_itself() {
    for_every_case(|case, objects| {
        assert_eq!(objects.of_kind("Secret").count(), 0, "{case}");
        for object in objects.iter() {
            assert!(!has_key(object, "caBundle"), "{case}: {}", name(object));
            assert!(object.get("status").is_none(), "{case}: {}", name(object));
        }
    });
}

#[test]
fn pods_meet_the_restricted_standard() {
    for_every_case(|case, objects| {
        for (_, template) in objects.pods() {
            let pod = &template["spec"];
            let context = &pod["securityContext"];
            assert_eq!(context["runAsNonRoot"], true, "{case}");
            assert_eq!(context["seccompProfile"], json!({ "type": "RuntimeDefault" }), "{case}");
            assert_ne!(context["runAsUser"], 0, "{case}");
            let containers = pod["containers"].as_array().expect("a pod has containers");
            assert!(pod.get("initContainers").is_none() && containers.len() == 1, "{case}");
            let context = &containers[0]["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{case}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{case}");
            assert_eq!(context["capabilities"], json!({ "drop": ["ALL"] }), "{case}");
            let mut volumes = pod["volumes"].as_array().into_iter().flatten();
            assert!(volumes.all(|one| one.get("configMap").or(one.get("secret")).is_some()), "{case}: {pod}");
        }
    });
}

#[test]
fn belay_is_never_asked_about_itself_or_kube_system_but_by_a_probe() {
    for_every_case(|case, objects| {
        let hooks = objects.webhooks_of_others();
        let expected = match case {
            "nothing enabled" => 0,
            "deletion costs alone" => 1,
            "busy hints alone" => 3,
            "everything" | "a service monitor" => 7,
            _ => 2,
        };
        assert_eq!(hooks.len(), expected, "{case}");
        for hook in hooks {
            let selector = &hook["namespaceSelector"];
            let labels = |namespace: &str| {
                let mut labels = json!({ "example.com/belay": "on", "example.com/env": "prod" });
                labels["kubernetes.io/metadata.name"] = json!(namespace);
                labels
            };
            // All rules of the cases but the plain one are for that namespace alone.
            let rule = hook["name"].as_str().and_then(|name| name.strip_suffix(".busy.belay.dev"));
            assert_eq!(selects(selector, &labels("shop")), rule.is_none_or(|rule| rule == "plain"), "{case}");
            assert!(selects(selector, &labels("ci")), "{case}");
            assert!(!selects(selector, &labels(NAMESPACE)), "{case}");
            assert!(!selects(selector, &labels("kube-system")), "{case}");
            let of_pods = hook["rules"][0]["resources"] == json!(["pods"]);
            let selected = hook.get("objectSelector").is_some();
            assert!(of_pods || !selected, "{case}: it would look at the own labels of an Eviction or Binding");
        }
    });
}

#[test]
fn a_probe_goes_the_way_of_evictions_and_can_hold_nothing() {
    for_every_case(|case, objects| {
        let hooks = objects.webhooks();
        let named = |name: &str| hooks.iter().filter(|hook| hook["name"] == name).collect::<Vec<_>>();
        let (eviction, canary) = (named("eviction.hold.belay.dev"), named(CANARY));
        assert_eq!(canary.len(), eviction.len(), "{case}: where no eviction is held there is nothing to be asked");
        for (eviction, canary) in eviction.iter().zip(&canary) {
            // The same server, rule and time; another path, and nothing that fails.
            let mut expected = (**eviction).clone();
            expected["name"] = json!(CANARY);
            expected["clientConfig"]["service"]["path"] = json!("/validate/canary");
            expected["sideEffects"] = json!("None");
            expected["failurePolicy"] = json!("Ignore");
            expected["namespaceSelector"] = json!({ "matchExpressions": [
                { "key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE] },
            ] });
            // Dry runs alone, and of those only what says that it is a probe.
            expected["matchConditions"] = json!([
                { "name": "dry-run", "expression": "has(request.dryRun) && request.dryRun" },
                {
                    "name": "of-a-probe",
                    "expression": "has(object.metadata.annotations) && \"belay.dev/probe\" in object.metadata.annotations",
                },
            ]);
            assert_eq!(***canary, expected, "{case}");
        }
    });
}

#[test]
fn excluded_namespaces_reach_no_webhook_and_stand_in_the_configuration() {
    let values =
        json!({ "evictionHold": { "excludedNamespaces": ["istio-system"] }, "deletionCost": { "enabled": true } });
    let objects = Objects::render(&values);
    assert_eq!(objects.webhooks_of_others().len(), 3);
    for hook in objects.webhooks_of_others() {
        let expected = json!([{
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": [NAMESPACE, "kube-system", "istio-system"],
        }]);
        assert_eq!(hook["namespaceSelector"]["matchExpressions"], expected);
    }
    assert_eq!(objects.config()["evictionHold"]["excludedNamespaces"], json!(["istio-system"]));
}

#[test]
fn webhooks_fail_open_and_answer_soon_by_default() {
    let objects = Objects::render(&json!({ "deletionCost": { "enabled": true } }));
    let eviction = &objects.get("ValidatingWebhookConfiguration", "belay")["webhooks"][0];
    let mutating = &objects.get("MutatingWebhookConfiguration", "belay")["webhooks"];
    let (pods, bindings) = (&mutating[0], &mutating[1]);
    for (hook, resource, path, timeout, effects) in [
        (eviction, "pods/eviction", "/validate/eviction", 3, "NoneOnDryRun"),
        (pods, "pods", "/mutate/pods", 2, "None"),
        (bindings, "pods/binding", "/mutate/bindings", 2, "None"),
    ] {
        let service = json!({ "name": "belay-webhook", "namespace": NAMESPACE, "path": path, "port": 443 });
        assert_eq!(hook["clientConfig"], json!({ "service": service }));
        assert_eq!(hook["rules"][0]["resources"], json!([resource]));
        assert_eq!(hook["rules"][0]["operations"], json!(["CREATE"]));
        assert_eq!(hook["failurePolicy"], "Ignore");
        assert_eq!(hook["matchPolicy"], "Equivalent");
        assert_eq!(hook["timeoutSeconds"], timeout);
        assert_eq!(hook["sideEffects"], effects);
        assert_eq!(hook["admissionReviewVersions"], json!(["v1"]));
    }
    assert_eq!(pods["reinvocationPolicy"], "IfNeeded");
}

#[test]
fn every_object_says_whose_it_is() {
    for_every_case(|case, objects| {
        for object in objects.iter() {
            let labels = &object["metadata"]["labels"];
            let is_everything = matches!(case, "everything" | "a service monitor");
            let component_name = if is_everything { "rope" } else { "belay" };
            assert_eq!(labels["app.kubernetes.io/name"], component_name, "{case}: {}", name(object));
            assert_eq!(labels["app.kubernetes.io/instance"], "belay", "{case}: {}", name(object));
            assert_eq!(labels["app.kubernetes.io/part-of"], "belay", "{case}: {}", name(object));
            assert_eq!(labels["app.kubernetes.io/managed-by"], "Helm", "{case}: {}", name(object));
            let version = env!("CARGO_PKG_VERSION");
            assert_eq!(labels["app.kubernetes.io/version"], version, "{case}: {}", name(object));
            assert_eq!(labels["helm.sh/chart"], format!("belay-{version}"), "{case}: {}", name(object));
            if is_everything {
                assert_eq!(labels["example.com/team"], "platform", "{}", name(object));
            }
        }
    });
}

#[test]
fn selectors_find_just_the_pods_of_their_component() {
    for_every_case(|case, objects| {
        for deployment in objects.of_kind("Deployment") {
            let labels = &deployment["spec"]["template"]["metadata"]["labels"];
            let component = &labels["app.kubernetes.io/component"];
            let matches = |selector: &Value, component: &Value| {
                selector["app.kubernetes.io/component"] == *component
                    && selector.as_object().expect("a selector").iter().all(|(key, value)| labels[key] == *value)
            };
            assert!(matches(&deployment["spec"]["selector"]["matchLabels"], component), "{case}");
            for budget in objects.of_kind("PodDisruptionBudget") {
                let own = budget["metadata"]["name"] == deployment["metadata"]["name"];
                assert_eq!(matches(&budget["spec"]["selector"]["matchLabels"], component), own, "{case}");
                assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow", "{case}");
            }
            for service in objects.of_kind("Service").filter(|service| service["spec"]["clusterIP"] != "None") {
                let own = component == "webhook";
                assert_eq!(matches(&service["spec"]["selector"], component), own, "{case}");
            }
            for constraint in
                deployment["spec"]["template"]["spec"]["topologySpreadConstraints"].as_array().into_iter().flatten()
            {
                assert!(matches(&constraint["labelSelector"]["matchLabels"], component), "{case}");
            }
        }
    });
}

#[test]
fn probes_services_and_listeners_agree_on_the_ports() {
    for_every_case(|case, objects| {
        for deployment in objects.of_kind("Deployment") {
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            let port = |name: &str| {
                let ports = container["ports"].as_array().expect("a container has ports");
                ports.iter().find(|port| port["name"] == name).map(|port| port["containerPort"].to_string())
            };
            let listens = |variable: &str| {
                let variables = container["env"].as_array().expect("a container has variables");
                let value = variables.iter().find(|entry| entry["name"] == variable)?["value"].as_str()?;
                value.rsplit_once(':').map(|(_, port)| port.to_owned())
            };
            assert!(port("admin").is_some(), "{case}");
            assert_eq!(port("admin"), listens("BELAY_ADMIN_LISTEN"), "{case}");
            assert_eq!(port("https"), listens("BELAY_LISTEN"), "{case}");
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                assert_eq!(container[probe]["httpGet"]["port"], "admin", "{case}");
            }
            assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz", "{case}");
            assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez", "{case}");
        }
        for service in objects.of_kind("Service").filter(|service| service["spec"]["clusterIP"] != "None") {
            assert_eq!(service["spec"]["ports"][0]["targetPort"], "https", "{case}");
            assert_eq!(service["spec"]["ports"][0]["port"], 443, "{case}");
        }
    });
}

#[test]
fn only_pods_that_ask_the_api_server_get_a_token() {
    for_every_case(|case, objects| {
        for account in objects.of_kind("ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false, "{case}: {}", name(account));
        }
        for (maker, template) in objects.pods() {
            assert_eq!(template["spec"]["automountServiceAccountToken"], true, "{case}: {maker}");
            let volumes = template["spec"]["volumes"].as_array().into_iter().flatten();
            assert!(
                volumes.into_iter().all(|volume| volume.get("projected").is_none()),
                "{case}: {maker}: a second token"
            );
        }
    });
}

#[test]
fn environment_variables_are_set_once() {
    for_every_case(|case, objects| {
        for (maker, template) in objects.pods() {
            let entries = template["spec"]["containers"][0]["env"].as_array().expect("variables");
            let names: BTreeSet<&str> = entries.iter().filter_map(|entry| entry["name"].as_str()).collect();
            assert_eq!(names.len(), entries.len(), "{case}: {maker}: {entries:?}");
        }
    });
}
