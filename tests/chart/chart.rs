//! Renders the chart with the real Helm and gives the objects to the tests.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use belay_e2e::programs::Programs;
use serde_json::Value;

/// The namespace of every render; not the chart's name, so that a name that should be a namespace shows.
pub(crate) const NAMESPACE: &str = "belay-system";

/// The entry of the validating configuration that is there for probes alone.
pub(crate) const CANARY: &str = "canary.hold.belay.dev";

/// Set to rewrite what is generated instead of comparing it.
const UPDATE: &str = "UPDATE_GOLDEN";

static HELM: LazyLock<PathBuf> = LazyLock::new(|| Programs::ensure().expect("Helm can be found or built").helm);

/// The chart's folder.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/belay")
}

/// The text of one of the chart's files.
pub(crate) fn read(name: &str) -> String {
    let path = folder().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// One of the chart's YAML files.
pub(crate) fn read_yaml(name: &str) -> Value {
    parse(&read(name)).into_iter().next().unwrap_or_else(|| panic!("{name} is empty"))
}

/// Runs Helm with `values` on standard input, for a `-f -` among the arguments.
///
/// Helm gets an empty home and no cluster: a render must not depend on either, as under Argo CD.
pub(crate) fn helm(arguments: &[&str], values: &Value) -> Output {
    let mut child = Command::new(&*HELM)
        .args(arguments)
        .env_clear()
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Helm starts");
    let mut stdin = child.stdin.take().expect("the pipe was asked for");
    // A Helm that stops before it reads its values says so itself.
    let _ = stdin.write_all(values.to_string().as_bytes());
    drop(stdin);
    child.wait_with_output().expect("Helm ends")
}

/// The manifest of a release `belay` as text, or Helm's error.
pub(crate) fn template(values: &Value, more: &[&str]) -> Result<String, String> {
    template_of(&folder(), values, more)
}

/// The same of another chart.
pub(crate) fn template_of(chart: &Path, values: &Value, more: &[&str]) -> Result<String, String> {
    let chart = chart.to_str().expect("the path is UTF-8");
    let mut arguments = vec!["template", "belay", chart, "--namespace", NAMESPACE, "-f", "-"];
    arguments.extend(more);
    let output = helm(&arguments, values);
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).expect("a manifest is UTF-8"))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Every document of a YAML text; comments alone are none.
pub(crate) fn parse(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("not YAML: {error}\n{yaml}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// The objects of a rendered release.
pub(crate) struct Objects(Vec<Value>);

impl Objects {
    /// Renders the release `belay` with `values`.
    pub(crate) fn render(values: &Value) -> Self {
        Self::render_of(&folder(), values)
    }

    /// The same of another chart.
    pub(crate) fn render_of(chart: &Path, values: &Value) -> Self {
        Self(parse(&template_of(chart, values, &[]).unwrap_or_else(|error| panic!("{values}: {error}"))))
    }

    /// Those of a manifest that was rendered elsewhere.
    pub(crate) fn of(objects: Vec<Value>) -> Self {
        Self(objects)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.iter()
    }

    pub(crate) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.iter().filter(move |object| object["kind"] == kind)
    }

    /// `kind/name` of every object that is installed, sorted; not of hooks, which come and go.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.iter().filter(|object| hook(object).is_none()).map(name).collect();
        names.sort();
        names
    }

    /// The entries that the API server asks about other pods than Belay's: all but the one for probes.
    pub(crate) fn webhooks_of_others(&self) -> Vec<&Value> {
        let mut entries = self.webhooks();
        entries.retain(|entry| entry["name"] != CANARY);
        entries
    }

    /// When a hook runs and its `kind/name`, sorted.
    pub(crate) fn hooks(&self) -> Vec<(&str, String)> {
        let hooks = self.iter().filter_map(|object| Some((hook(object)?, name(object))));
        let mut hooks: Vec<(&str, String)> = hooks.collect();
        hooks.sort();
        hooks
    }

    /// The templates of every pod that the release makes, with the name of what makes them.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (String, &Value)> {
        self.iter().filter_map(|object| match object["kind"].as_str() {
            Some("Deployment" | "Job") => Some((name(object), &object["spec"]["template"])),
            Some("Pod") => Some((name(object), object)),
            _ => None,
        })
    }

    /// The entries of all webhook configurations.
    pub(crate) fn webhooks(&self) -> Vec<&Value> {
        ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"]
            .iter()
            .flat_map(|kind| self.of_kind(kind))
            .flat_map(|configuration| configuration["webhooks"].as_array().into_iter().flatten())
            .collect()
    }

    /// The object, which must be there.
    pub(crate) fn get(&self, kind: &str, name: &str) -> &Value {
        self.iter()
            .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
            .unwrap_or_else(|| panic!("no {kind} {name} among {:?}", self.names()))
    }

    /// The configuration file that the program will read.
    pub(crate) fn config(&self) -> Value {
        let text = self.get("ConfigMap", "belay-config")["data"]["config.yaml"].as_str().expect("the file is text");
        parse(text).remove(0)
    }
}

/// When Helm makes an object that is not part of the release itself.
fn hook(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"]["helm.sh/hook"].as_str()
}

/// `kind/name` of an object.
pub(crate) fn name(object: &Value) -> String {
    format!("{}/{}", object["kind"].as_str().unwrap_or("?"), object["metadata"]["name"].as_str().unwrap_or("?"))
}

/// Compares a generated text with the file that holds it, or rewrites the file where that is asked for.
pub(crate) fn assert_generated(path: &Path, expected: &str) {
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(path, expected).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        return;
    }
    let actual = std::fs::read_to_string(path).unwrap_or_default();
    let difference = expected.lines().zip(actual.lines()).position(|(expected, actual)| expected != actual);
    assert!(
        expected == actual,
        "{} is out of date, first at line {}: run the test again with {UPDATE}=1 and look at the difference",
        path.display(),
        difference.unwrap_or_else(|| expected.lines().count().min(actual.lines().count())) + 1
    );
}
