//! Which object is meant: by kubectl's spellings, and by those of the EvictionHold and the log.

use clap::builder::{PossibleValue, TypedValueParser, ValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

use crate::cli::UsageError;

/// What can be explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    Node,
    Workload,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Pod, Self::Node, Self::Workload];

    /// Our word first, then what kubectl knows it by.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Pod => &["pod", "pods", "po"],
            Self::Node => &["node", "nodes", "no"],
            Self::Workload => &["workload", "workloads", "deployment", "deployments", "deploy"],
        }
    }

    /// kubectl takes any case, and the group behind a resource of one (`deployments.apps`, `deployments.v1.apps`).
    fn by(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix(".apps").map_or(&*name, |name| name.strip_suffix(".v1").unwrap_or(name));
        Self::ALL.into_iter().find(|kind| kind.names().contains(&name))
    }
}

/// The first argument: TYPE, or TYPE/NAME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) kind: Kind,
    name: Option<String>,
}

/// An object by its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object<'a> {
    /// Where somebody said so.
    pub(super) namespace: Option<&'a str>,
    pub(super) name: &'a str,
}

impl Subject {
    fn parse(text: &str) -> Option<Self> {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (text, None),
        };
        Some(Self { kind: Kind::by(kind)?, name })
    }

    /// The object, whose name stands behind the type or in an argument of its own, with its namespace or without.
    pub(super) fn named<'a>(
        &'a self,
        name: Option<&'a str>,
        namespace: Option<&'a str>,
    ) -> Result<Object<'a>, UsageError> {
        let word = self.kind.names().first().copied().unwrap_or_default();
        let object = match (self.name.as_deref(), name) {
            (Some(_), Some(_)) => Err(format!("{word} has two names: write TYPE NAME or TYPE/NAME")),
            (None, None) => Err(format!("which {word}? write {word} NAME or {word}/NAME")),
            (Some(name), None) | (None, Some(name)) => Ok(name),
        };
        let object = object.map_err(UsageError)?;
        let (of_name, name) = match object.split_once('/') {
            Some((namespace, name)) if self.kind != Kind::Node => (Some(namespace), name),
            _ => (None, object),
        };
        if name.is_empty() || name.contains('/') || of_name.is_some_and(str::is_empty) {
            return Err(UsageError(format!(
                "{object:?} names no {word}: write NAME or, of what has a namespace, NAMESPACE/NAME"
            )));
        }
        match (of_name, namespace) {
            (Some(one), Some(other)) if one != other => {
                Err(UsageError(format!("{object:?} is not in the namespace {other:?} that --namespace names")))
            }
            _ => Ok(Object { namespace: of_name.or(namespace), name }),
        }
    }
}

/// Reads [`Subject`]s; completions are told the types.
pub(super) fn parser() -> ValueParser {
    ValueParser::new(SubjectParser)
}

#[derive(Clone)]
struct SubjectParser;

impl TypedValueParser for SubjectParser {
    type Value = Subject;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &std::ffi::OsStr) -> Result<Subject, Error> {
        let text = value.to_string_lossy();
        Subject::parse(&text).ok_or_else(|| {
            let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
            let arg = arg.map_or_else(|| "TYPE".to_owned(), ToString::to_string);
            error.insert(ContextKind::InvalidArg, ContextValue::String(arg));
            error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
            let names = Kind::ALL.iter().flat_map(|kind| kind.names()).map(|&name| name.to_owned());
            error.insert(ContextKind::ValidValue, ContextValue::Strings(names.collect()));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value =
            |kind: Kind| kind.names().split_first().map(|(name, aliases)| PossibleValue::new(*name).aliases(aliases));
        Some(Box::new(Kind::ALL.into_iter().filter_map(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_kubectls_names_the_type() {
        let table: [(&[&str], Kind); 3] = [
            (&["pod", "pods", "po", "Pod", "PODS"], Kind::Pod),
            (&["node", "nodes", "no", "Node"], Kind::Node),
            (
                &[
                    "workload",
                    "deployment",
                    "deployments",
                    "deploy",
                    "Deployment",
                    "deployments.apps",
                    "deployments.v1.apps",
                ],
                Kind::Workload,
            ),
        ];
        for (names, kind) in table {
            for name in names {
                assert_eq!(Subject::parse(name), Some(Subject { kind, name: None }), "{name}");
                let with_name = Subject { kind, name: Some("x".to_owned()) };
                assert_eq!(Subject::parse(&format!("{name}/x")), Some(with_name), "{name}");
            }
        }
        for name in ["", "statefulset", "pods.v1", "p", "/x"] {
            assert_eq!(Subject::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_name_may_stand_behind_the_type_or_after_it_with_its_namespace_or_without() {
        let table = [
            ("pod", Some("w"), None, Ok((None, "w"))),
            ("pod/w", None, None, Ok((None, "w"))),
            ("pod", Some("w"), Some("ci"), Ok((Some("ci"), "w"))),
            ("pod", Some("ci/w"), None, Ok((Some("ci"), "w"))),
            ("pod/ci/w", None, Some("ci"), Ok((Some("ci"), "w"))),
            ("node", Some("n"), Some("ci"), Ok((Some("ci"), "n"))),
            ("pod", Some("ci/w"), Some("other"), Err("not in the namespace \"other\"")),
            ("pod", None, None, Err("which pod?")),
            ("pod/w", Some("w"), None, Err("two names")),
            ("pod/", None, None, Err("names no pod")),
            ("pod", Some("/w"), None, Err("names no pod")),
            ("deploy", Some("a/b/c"), None, Err("names no workload")),
            ("node", Some("ci/n"), None, Err("names no node")),
        ];
        for (subject, name, namespace, expected) in table {
            let parsed = Subject::parse(subject).unwrap();
            match (parsed.named(name, namespace), expected) {
                (Ok(object), Ok((namespace, name))) => {
                    assert_eq!(object, Object { namespace, name }, "{subject} {name}");
                }
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
                (found, _) => panic!("{subject} {name:?}: {found:?}"),
            }
        }
    }
}
