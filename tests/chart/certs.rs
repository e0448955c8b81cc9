//! Certificates that come from elsewhere: what is made for them, mounted, and not written.

use serde_json::{Value, json};

use crate::chart::{self, Objects};
use crate::matrix;

fn cert_manager(more: &Value) -> Value {
    json!({ "certs": { "mode": "certManager", "certManager": more } })
}

/// The volume of the certificates in a component's pods and the variable that names its folder, which agree.
fn mounted(objects: &Objects, component: &str) -> Value {
    let pod = &objects.get("Deployment", &format!("belay-{component}"))["spec"]["template"]["spec"];
    let named = |list: &Value, name: &str| -> Value {
        let mut found = list.as_array().into_iter().flatten().filter(|one| one["name"] == name);
        found.next().cloned().unwrap_or(Value::Null)
    };
    let container = &pod["containers"][0];
    let mount = named(&container["volumeMounts"], "certs");
    assert_eq!(named(&container["env"], "BELAY_CERTS")["value"], mount["mountPath"], "{component}");
    let volume = named(&pod["volumes"], "certs")["secret"].clone();
    assert_eq!(volume.is_null(), mount.is_null(), "{component}");
    assert!(volume.is_null() || mount["readOnly"] == true, "{component}");
    volume
}

fn annotation(objects: &Objects, kind: &str) -> Value {
    objects.get(kind, "belay")["metadata"]["annotations"]["cert-manager.io/inject-ca-from"].clone()
}

const CONFIGURATIONS: [&str; 2] = ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"];

#[test]
fn each_mode_mounts_what_it_needs_and_says_who_writes_what_is_trusted() {
    let only_ca =
        |name: &str| json!({ "secretName": name, "optional": true, "items": [{ "key": "ca.crt", "path": "ca.crt" }] });
    let tls = "belay-webhook-tls";
    let (injected, kept) = (json!({ "mode": "certManager", "caInjector": true }), json!({ "mode": "certManager" }));
    let cases = [
        (json!({}), Value::Null, Value::Null, json!({ "mode": "auto", "secretName": "belay-ca" })),
        (cert_manager(&json!({})), json!({ "secretName": tls }), Value::Null, injected),
        (cert_manager(&json!({ "caInjector": false })), json!({ "secretName": tls }), only_ca(tls), kept),
        (
            matrix::existing_secret(),
            json!({ "secretName": "webhook" }),
            only_ca("webhook"),
            json!({ "mode": "existingSecret" }),
        ),
    ];
    for (values, webhook, controller, mut certs) in cases {
        let objects = Objects::render(&values);
        assert_eq!(mounted(&objects, "webhook"), webhook, "{values}");
        assert_eq!(mounted(&objects, "controller"), controller, "{values}");
        certs["dnsNames"] = json!(["belay-webhook.belay-system.svc"]);
        assert_eq!(objects.config()["certs"], certs, "{values}");
        let expected = if certs["caInjector"] == true { json!("belay-system/belay-webhook") } else { Value::Null };
        for kind in CONFIGURATIONS {
            assert_eq!(annotation(&objects, kind), expected, "{values}: {kind}");
        }
    }
}

#[test]
fn cert_manager_issues_from_an_authority_of_the_chart_or_from_the_issuer_that_is_named() {
    let objects = Objects::render(&cert_manager(&json!({})));
    let spec = |kind: &str, name: &str| objects.get(kind, name)["spec"].clone();
    assert_eq!(spec("Issuer", "belay-webhook-self-signed"), json!({ "selfSigned": {} }));
    let authority = spec("Certificate", "belay-webhook-ca");
    assert_eq!(authority["issuerRef"]["name"], "belay-webhook-self-signed");
    assert_eq!((&authority["isCA"], &authority["privateKey"]["rotationPolicy"]), (&json!(true), &json!("Never")));
    assert_eq!(spec("Issuer", "belay-webhook-ca")["ca"]["secretName"], authority["secretName"]);
    let leaf = spec("Certificate", "belay-webhook");
    assert_eq!(leaf["issuerRef"]["name"], "belay-webhook-ca");
    assert_eq!(leaf["dnsNames"], json!(["belay-webhook.belay-system.svc"]));
    assert_eq!(leaf["secretName"], "belay-webhook-tls");

    let issuer = json!({ "name": "platform", "kind": "ClusterIssuer" });
    let objects = Objects::render(&cert_manager(&json!({ "issuerRef": issuer, "duration": "24h" })));
    assert_eq!(objects.of_kind("Issuer").count(), 0);
    let certificates: Vec<&Value> = objects.of_kind("Certificate").collect();
    assert_eq!(certificates.len(), 1);
    assert_eq!((&certificates[0]["spec"]["issuerRef"], &certificates[0]["spec"]["duration"]), (&issuer, &json!("24h")));
}

#[test]
fn other_annotations_of_the_configurations_stay_beside_the_injectors() {
    let mut values = cert_manager(&json!({}));
    values["admission"]["annotations"] = json!({ "admissions.enforcer/disabled": "true" });
    let objects = Objects::render(&values);
    for kind in CONFIGURATIONS {
        let annotations = &objects.get(kind, "belay")["metadata"]["annotations"];
        assert_eq!(annotations["admissions.enforcer/disabled"], "true");
        assert_eq!(annotation(&objects, kind), "belay-system/belay-webhook");
    }
}

#[test]
fn without_any_capability_no_certificate_is_asked_for() {
    let mut values = cert_manager(&json!({}));
    values["evictionHold"] = json!({ "enabled": false });
    let names = Objects::render(&values).names();
    assert!(names.iter().all(|name| name.starts_with("CustomResourceDefinition/")), "{names:?}");
}

#[test]
fn modes_that_contradict_other_values_are_refused_with_the_way_out() {
    let mode = |certs: Value| json!({ "certs": certs });
    let inject = json!({ "annotations": { "cert-manager.io/inject-ca-from": "a/b" } });
    for (values, parts) in [
        (mode(json!({ "mode": "helm" })), &["/certs/mode", "'existingSecret'"][..]),
        (mode(json!({ "modes": "auto" })), &["/certs", "'modes' not allowed"]),
        (mode(json!({ "mode": "existingSecret" })), &["certs.existingSecret.name is empty", "name the Secret"]),
        (
            mode(json!({ "existingSecret": { "name": "mine" } })),
            &["certs.existingSecret.name is mine and certs.mode is auto", "set certs.mode to existingSecret"],
        ),
        (
            mode(json!({ "mode": "existingSecret", "existingSecret": { "name": "belay-ca" } })),
            &["belay-ca, the Secret of the authority", "another name"],
        ),
        (
            mode(json!({ "mode": "existingSecret", "existingSecret": { "name": "A_b" } })),
            &["/certs/existingSecret/name"],
        ),
        (
            mode(json!({ "certManager": { "issuerRef": { "name": "platform" } } })),
            &["certs.certManager.issuerRef is set and certs.mode is auto", "set certs.mode to certManager"],
        ),
        (
            cert_manager(&json!({ "issuerRef": { "kind": "ClusterIssuer" } })),
            &["certs.certManager.issuerRef has no name", "leave issuerRef empty"],
        ),
        (cert_manager(&json!({ "duration": "59m" })), &["certs.certManager.duration is 59m", "1h at least"]),
        (cert_manager(&json!({ "duration": "90d" })), &["/certs/certManager/duration"]),
        (cert_manager(&json!({ "caInjector": "no" })), &["/certs/certManager/caInjector", "want boolean"]),
        (json!({ "admission": inject }), &["admission.annotations sets cert-manager.io/inject-ca-from", "certs.mode"]),
    ] {
        let error = chart::template(&values, &[]).err().unwrap_or_else(|| panic!("{values} was accepted"));
        for part in parts {
            assert!(error.contains(part), "{values}: `{part}` is not in: {error}");
        }
    }
}
