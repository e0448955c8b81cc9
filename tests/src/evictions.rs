//! Who asked for evictions, how often, how long each waited, and what it did when it was refused: read from the API
//! server's audit log, so that it is what really was asked and not what a program says of itself.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::audit::Write;
use crate::world::Namespace;

/// What one evictor asked about one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The user, such as `system:serviceaccount:karpenter:karpenter`.
    pub user: String,
    /// What the client calls itself, such as `kubectl`.
    pub agent: String,
    /// The pod that was to go.
    pub pod: String,
    /// When it asked and with which HTTP status it was answered, oldest first.
    pub answers: Vec<(Timestamp, u16)>,
    /// When it deleted the pod without asking, where it did.
    pub deleted: Option<Timestamp>,
}

impl Asked {
    /// How often it was refused as a budget refuses.
    pub fn refused(&self) -> usize {
        self.answers.iter().filter(|(_, code)| *code == 429).count()
    }

    /// Whether it was answered that the pod goes.
    pub fn passed(&self) -> bool {
        self.answers.iter().any(|(_, code)| (200..300).contains(code))
    }

    /// From the first refusal to the first pass; zero where it was never refused or never passed.
    pub fn waited(&self) -> SignedDuration {
        let refused = self.answers.iter().find(|(_, code)| *code == 429);
        let passed = self.answers.iter().find(|(_, code)| (200..300).contains(code));
        refused.zip(passed).map_or(SignedDuration::ZERO, |((from, _), (to, _))| to.duration_since(*from))
    }

    /// The shortest and the longest time from a refusal to its next question.
    pub fn asked_again_after(&self) -> Option<(SignedDuration, SignedDuration)> {
        let pairs = self.answers.windows(2).filter(|pair| pair[0].1 == 429);
        let gaps: Vec<SignedDuration> = pairs.map(|pair| pair[1].0.duration_since(pair[0].0)).collect();
        Some((*gaps.iter().min()?, *gaps.iter().max()?))
    }

    /// In words.
    pub fn when_refused(&self) -> String {
        if self.refused() == 0 {
            return "was not refused".to_owned();
        }
        let mut said = match self.asked_again_after() {
            None => "did not ask again".to_owned(),
            Some((least, most)) => {
                format!("asked again after {:.1} to {:.1} s", least.as_secs_f64(), most.as_secs_f64())
            }
        };
        if self.deleted.is_some() {
            said.push_str(", deleted the pod unasked");
        }
        said
    }
}

/// What was asked about the pods of a namespace, by evictor and pod, in the order in which each was first asked about.
///
/// # Errors
/// When the audit log cannot be read.
pub fn asked(ns: &Namespace) -> anyhow::Result<Vec<Asked>> {
    let mut writes = ns.cluster().writes_by("")?;
    writes.retain(|write| write.namespace == ns.name() && !write.dry_run);
    Ok(collect(&writes))
}

fn collect(writes: &[Write]) -> Vec<Asked> {
    let mut all: Vec<Asked> = Vec::new();
    let evictions = writes.iter().filter(|write| write.resource == "pods/eviction" && write.verb == "create");
    for write in evictions {
        // The program's file name; after it come a version that only some programs tell, and the machine's kind.
        let agent = write.agent.split(['/', ' ']).next().unwrap_or_default();
        let known = all
            .iter_mut()
            .find(|asked| (&asked.user, asked.agent.as_str(), &asked.pod) == (&write.user, agent, &write.name));
        let answer = (write.at, write.code);
        match known {
            Some(asked) => asked.answers.push(answer),
            None => all.push(Asked {
                user: write.user.clone(),
                agent: agent.to_owned(),
                pod: write.name.clone(),
                answers: vec![answer],
                deleted: None,
            }),
        }
    }
    for asked in &mut all {
        let deletions = writes.iter().filter(|write| write.resource == "pods" && write.verb == "delete");
        let mut own = deletions.filter(|write| write.user == asked.user && write.name == asked.pod);
        asked.deleted = own.next().map(|write| write.at);
    }
    all
}

/// A table for a person.
#[derive(Debug)]
pub struct Table<'a>(pub &'a [Asked]);

/// What stands above its columns.
const TITLES: [&str; 7] = ["who", "pod", "asked", "refused", "waited", "passed", "when refused"];

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|asked| {
            [
                format!("{} ({})", short(&asked.user), asked.agent),
                asked.pod.clone(),
                asked.answers.len().to_string(),
                asked.refused().to_string(),
                format!("{:.1} s", asked.waited().as_secs_f64()),
                if asked.passed() { "yes" } else { "no" }.to_owned(),
                asked.when_refused(),
            ]
        });
        let rows: Vec<_> = std::iter::once(TITLES.map(str::to_owned)).chain(rows).collect();
        let widths = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
        let widths: [usize; 7] = std::array::from_fn(widths);
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// The name of an account without what all accounts begin with.
fn short(user: &str) -> &str {
    user.strip_prefix("system:serviceaccount:").unwrap_or(user)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn write(second: i64, user: &str, verb: &str, resource: &str, code: u16) -> Write {
        Write {
            at: Timestamp::from_second(second).unwrap(),
            user: user.into(),
            agent: "kubectl/v1 (linux)".into(),
            verb: verb.into(),
            resource: resource.into(),
            namespace: "ns".into(),
            name: "web".into(),
            code,
            message: String::new(),
            dry_run: false,
            failed_open: false,
            body: Value::Null,
        }
    }

    #[test]
    fn refusals_and_the_time_between_them_are_told_by_evictor() {
        let eviction = |second, user, code| write(second, user, "create", "pods/eviction", code);
        let asked = collect(&[
            eviction(0, "alice", 429),
            eviction(1, "bob", 429),
            eviction(5, "alice", 429),
            eviction(7, "alice", 201),
            eviction(9, "alice", 404),
            write(11, "bob", "delete", "pods", 200),
            write(12, "carol", "delete", "pods", 200),
        ]);
        let [alice, bob] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!((alice.answers.len(), alice.refused(), alice.passed()), (4, 2, true));
        assert_eq!(alice.agent, "kubectl");
        assert_eq!(alice.waited(), SignedDuration::from_secs(7));
        assert_eq!(alice.when_refused(), "asked again after 2.0 to 5.0 s");
        assert_eq!((bob.passed(), bob.waited()), (false, SignedDuration::ZERO));
        assert_eq!(bob.when_refused(), "did not ask again, deleted the pod unasked");
    }

    #[test]
    fn the_table_has_a_line_for_each() {
        let asked = collect(&[write(0, "system:serviceaccount:a:b", "create", "pods/eviction", 201)]);
        let table = Table(&asked).to_string();
        let expected = "who            pod  asked  refused  waited  passed  when refused\n\
                        a:b (kubectl)  web  1      0        0.0 s   yes     was not refused\n";
        assert_eq!(table, expected);
    }
}
