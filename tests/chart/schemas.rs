//! What Kubernetes from 1.33 to 1.37 makes of every render: its strict decoder knows every field, and none stands twice.

use std::io::Write as _;
use std::process::Stdio;

use belay_e2e::{process, programs};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::chart;
use crate::matrix;

/// Kinds of other projects, which Kubernetes itself has not; `live.rs` has an API server look at them.
const OF_OTHERS: &[(&str, &str)] = &[
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
    ("cert-manager.io/v1", "Certificate"),
    ("cert-manager.io/v1", "Issuer"),
];

/// What one version says of one object, see `tests/schemas/main.go`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    api_version: String,
    kind: String,
    name: String,
    known: bool,
    error: String,
}

/// Every version's verdicts on each manifest, with the version.
fn judge(manifests: &[String]) -> Vec<(String, Vec<Vec<Verdict>>)> {
    let programs = programs::schemas().expect("the programs can be built");
    let judged = programs.into_iter().map(|(version, program)| {
        let mut child = process::guarded(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut input = child.stdin.take().expect("its input is ours");
        let output = std::thread::scope(|scope| {
            // From a thread of its own, or both would wait for the other to read.
            scope.spawn(move || {
                for manifest in manifests {
                    let line = json!(manifest).to_string() + "\n";
                    input.write_all(line.as_bytes()).expect("it reads every manifest");
                }
            });
            child.wait_with_output().expect("the program ends")
        });
        assert!(output.status.success(), "{version}: the program failed");
        let text = String::from_utf8(output.stdout).expect("answers are UTF-8");
        let verdicts: Vec<_> = text.lines().map(|line| serde_json::from_str(line).expect("an answer")).collect();
        assert_eq!(verdicts.len(), manifests.len(), "{version}");
        (version, verdicts)
    });
    judged.collect()
}

#[test]
fn every_kubernetes_version_knows_every_field_of_every_render() {
    let cases = matrix::cases();
    let render = |case: &matrix::Case| chart::template(&case.values, &[]).unwrap_or_else(|error| panic!("{error}"));
    let manifests: Vec<String> = cases.iter().map(render).collect();
    for (version, verdicts) in judge(&manifests) {
        for (case, verdicts) in cases.iter().zip(verdicts) {
            for verdict in verdicts {
                let Verdict { api_version, kind, name, known, error } = verdict;
                let of_others = OF_OTHERS.contains(&(api_version.as_str(), kind.as_str()));
                assert_eq!(known, !of_others, "{version}: {}: {api_version} {kind}", case.name);
                assert!(of_others || error.is_empty(), "{version}: {}: {kind}/{name}: {error}", case.name);
            }
        }
    }
}

#[test]
fn a_field_that_a_version_has_not_or_that_stands_twice_is_refused() {
    const HEAD: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: ClusterIP\n";
    let manifests = [format!("{HEAD}  clusterip: None\n"), format!("{HEAD}  type: ClusterIP\n"), HEAD.to_owned()];
    for (version, verdicts) in judge(&manifests) {
        let errors: Vec<&str> = verdicts.iter().map(|verdicts| verdicts[0].error.as_str()).collect();
        assert!(errors[0].contains("unknown field \"spec.clusterip\""), "{version}: {errors:?}");
        assert!(errors[1].contains("already set"), "{version}: {errors:?}");
        assert_eq!(errors[2], "", "{version}");
    }

    // The versions are what they say: a pod has the one field since 1.34, the other since 1.37.
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" }, "spec": { "containers": [] } });
    let with = |key: &str, value: Value| {
        let mut pod = pod.clone();
        pod["spec"][key] = value;
        pod.to_string()
    };
    let manifests = [with("hostnameOverride", json!("x")), with("evictionResponders", json!([]))];
    let knows: Vec<Vec<bool>> = judge(&manifests)
        .into_iter()
        .map(|(_, verdicts)| verdicts.iter().map(|verdicts| verdicts[0].error.is_empty()).collect())
        .collect();
    assert_eq!(knows, [[false, false], [true, false], [true, false], [true, false], [true, true]]);
}
