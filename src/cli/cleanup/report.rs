//! What a cleanup tells: what was cleaned, or what would be.

use std::fmt;

use belay_decide::action::ObjectRef;
use serde::Serialize;

use crate::cli::page::{ForPeople, Page};

/// An object from which something was taken, or would be.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct Cleaned {
    kind: &'static str,
    namespace: String,
    name: String,
    /// Of the annotations and labels in question.
    keys: Vec<String>,
}

impl Cleaned {
    pub(super) fn of<'a>(kind: &'static str, object: &ObjectRef, keys: impl IntoIterator<Item = &'a str>) -> Self {
        let keys = keys.into_iter().map(str::to_owned).collect();
        Self { kind, namespace: object.namespace.clone(), name: object.name.clone(), keys }
    }
}

impl fmt::Display for Cleaned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// All of them.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Nothing was changed.
    dry_run: bool,
    /// How many pods; one that was met in two passes counts twice.
    pods: usize,
    /// How many objects with replicas for a while.
    surges: usize,
    objects: Vec<Cleaned>,
}

impl Report {
    pub(super) fn of(dry_run: bool, objects: Vec<Cleaned>) -> Self {
        let mut report = Self { dry_run, pods: 0, surges: 0, objects: Vec::new() };
        report.add(objects);
        report
    }

    pub(super) fn add(&mut self, objects: impl IntoIterator<Item = Cleaned>) {
        for object in objects {
            *(if object.kind == "Pod" { &mut self.pods } else { &mut self.surges }) += 1;
            self.objects.push(object);
        }
    }

    /// In one line.
    pub(super) fn summary(&self) -> String {
        let Self { pods, surges, .. } = self;
        if self.dry_run {
            format!("{pods} pods would be cleaned and {surges} surges put back; nothing was changed")
        } else {
            format!("{pods} pods cleaned, {surges} surges put back")
        }
    }
}

impl ForPeople for Report {
    fn write(&self, page: &mut Page) {
        // What is done already, nobody has to look through.
        for object in self.objects.iter().filter(|_| self.dry_run) {
            page.line(0, &format!("{object}: {}", object.keys.join(", ")));
        }
        page.line(0, &self.summary());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_what_would_be_cleaned_and_how_much_was() {
        let objects = || {
            let pod =
                ObjectRef { namespace: "ci".into(), name: "w".into(), uid: "u".into(), resource_version: "1".into() };
            vec![Cleaned::of("Pod", &pod, ["a", "b"]), Cleaned::of("Deployment", &pod, ["c"])]
        };
        let told = |report: &Report| {
            let mut page = Page::new(None, false);
            report.write(&mut page);
            page.text().to_owned()
        };
        assert_eq!(
            told(&Report::of(true, objects())),
            "Pod ci/w: a, b\nDeployment ci/w: c\n1 pods would be cleaned and 1 surges put back; nothing was changed\n"
        );
        let mut done = Report::of(false, objects());
        done.add(objects());
        assert_eq!(told(&done), "2 pods cleaned, 2 surges put back\n");
    }
}
