//! What was counted, and the table of it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::judge::{Evictions, Finding, Law};
use super::plan::Target;
use crate::load::Served;

/// So many drains are not over before the first fault, which comes within seconds ([`super::plan`]); a few may be.
const STRUCK: usize = 20;

/// What a soak has counted so far.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub(super) seed: u64,
    pub(super) planned: usize,
    pub(super) parallel: usize,
    pub(super) took: Duration,
    pub(super) interrupted: bool,
    pub(super) scenes: usize,
    pub(super) drains: BTreeMap<Target, usize>,
    /// Drains that had to be started again, by why.
    pub(super) tries: BTreeMap<&'static str, usize>,
    /// Of the drains, the longest, from its first try to its success.
    pub(super) longest: Duration,
    pub(super) faults: BTreeMap<&'static str, usize>,
    pub(super) outcomes: BTreeMap<String, usize>,
    pub(super) requests: u64,
    /// Failed at endpoints that a dead control plane did not change.
    pub(super) of_endpoints: u64,
    pub(super) evictions: Evictions,
    pub(super) broken: BTreeMap<Law, u64>,
    /// Bytes in use, by component, at the start and at the end.
    pub(super) memory: Vec<(String, u64, u64)>,
}

impl Tally {
    /// How many drains have ended well.
    pub fn drained(&self) -> usize {
        self.drains.values().sum()
    }

    /// Whether everything that must be 0 is 0, every drain was done, and there was something to judge: a run in which
    /// nobody sent a request, nothing was held or nothing was broken shows nothing.
    pub fn is_clean(&self) -> bool {
        let is_judged = self.requests > 0 && self.evictions.held > 0;
        let is_struck = self.planned < STRUCK || self.faults.values().any(|count| *count > 0);
        self.broken.values().all(|count| *count == 0) && self.drained() == self.planned && is_judged && is_struck
    }

    pub(super) fn drained_one(&mut self, target: Target, took: Duration) {
        *self.drains.entry(target).or_default() += 1;
        self.longest = self.longest.max(took);
    }

    pub(super) fn served(&mut self, served: &Served) {
        self.requests += served.ok + served.failed();
    }

    pub(super) fn asked(&mut self, more: Evictions) {
        self.evictions.asked += more.asked;
        self.evictions.held += more.held;
        self.evictions.unanswered += more.unanswered;
        self.evictions.passed += more.passed;
    }

    pub(super) fn found(&mut self, finding: &Finding) {
        *self.broken.entry(finding.law).or_default() += finding.times;
    }

    /// One line about how far it is.
    pub(super) fn progress(&self) -> String {
        let faults: usize = self.faults.values().sum();
        let broken: Vec<String> =
            self.broken.iter().filter(|(_, count)| **count > 0).map(|(law, count)| format!("{count} {law}")).collect();
        let verdict = if broken.is_empty() { "nothing broken".to_owned() } else { broken.join(", ") };
        format!(
            "{:5.1} min  {} of {} drains, {faults} faults, {} requests judged; {verdict}",
            self.took.as_secs_f64() / 60.0,
            self.drained(),
            self.planned,
            self.requests,
        )
    }

    fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut row = |what: &str, value: String| rows.push((what.to_owned(), value));
        let interrupted = if self.interrupted { ", interrupted" } else { "" };
        row("drains", format!("{} of {}{interrupted}", self.drained(), self.planned));
        for target in Target::ALL {
            row(&format!("… {target}"), self.drains.get(&target).copied().unwrap_or_default().to_string());
        }
        row("sets of workloads", format!("{}, {} at a time, seed {}", self.scenes, self.parallel, self.seed));
        row(
            "time",
            format!("{:.1} min, longest drain {:.0} s", self.took.as_secs_f64() / 60.0, self.longest.as_secs_f64()),
        );
        row("drains begun again", self.tries.values().sum::<usize>().to_string());
        for (why, count) in &self.tries {
            row(&format!("… {why}"), count.to_string());
        }
        row("faults", self.faults.values().sum::<usize>().to_string());
        for (kind, count) in &self.faults {
            row(&format!("… {kind}"), count.to_string());
        }
        row("evictions asked for", self.evictions.asked.to_string());
        row("… held by Belay", self.evictions.held.to_string());
        row("… refused because no replica answered", self.evictions.unanswered.to_string());
        row("… passed", self.evictions.passed.to_string());
        for (outcome, count) in &self.outcomes {
            row(&format!("holds that ended as {outcome}"), count.to_string());
        }
        row("requests sent", self.requests.to_string());
        row("… lost to endpoints of a control plane that died", self.of_endpoints.to_string());
        for (component, start, end) in &self.memory {
            row(
                &format!("memory of {component}, start and end"),
                format!("{}, {}", mebibytes(*start), mebibytes(*end)),
            );
        }
        for law in Law::ALL {
            row(&format!("**{law}**"), format!("**{}**", self.broken.get(&law).copied().unwrap_or_default()));
        }
        rows
    }
}

/// A table in Markdown; what must be 0 is bold.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let length = |text: &String| text.chars().count();
        let wide = rows.iter().map(|(what, _)| length(what)).max().unwrap_or_default();
        let long = rows.iter().map(|(_, value)| length(value)).max().unwrap_or_default();
        writeln!(f, "| {:wide$} | {:long$} |", "What", "Count")?;
        writeln!(f, "|-{}-|-{}-|", "-".repeat(wide), "-".repeat(long))?;
        for (what, value) in rows {
            writeln!(f, "| {what:wide$} | {value:long$} |")?;
        }
        Ok(())
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Tally {
        Tally {
            planned: 2,
            drains: [(Target::Single, 1), (Target::Busy, 1)].into(),
            requests: 9,
            evictions: Evictions { held: 1, ..Evictions::default() },
            ..Tally::default()
        }
    }

    #[test]
    fn a_run_is_clean_when_all_was_done_and_nothing_broken() {
        assert!(whole().is_clean());
        assert!(!Tally { planned: 3, ..whole() }.is_clean(), "a drain is missing");
        assert!(!Tally { requests: 0, ..whole() }.is_clean(), "nobody would have noticed a lost request");
        assert!(!Tally { evictions: Evictions::default(), ..whole() }.is_clean(), "nothing was held");
        let many = Tally { planned: STRUCK, drains: [(Target::Single, STRUCK)].into(), ..whole() };
        assert!(!many.is_clean(), "nothing was broken");
        assert!(Tally { faults: [("leader", 1)].into(), ..many }.is_clean());
        for law in Law::ALL {
            let mut broken = whole();
            broken.found(&Finding::of(law, "web", String::new()));
            assert!(!broken.is_clean(), "{law}");
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_law_and_even_columns() {
        let mut tally = whole();
        tally.found(&Finding { times: 3, ..Finding::of(Law::LostRequest, "web", String::new()) });
        let table = tally.to_string();
        for law in Law::ALL {
            assert!(table.contains(&format!("| **{law}**")), "{table}");
        }
        assert!(table.lines().any(|line| line.starts_with("| **lost requests**") && line.contains("**3**")), "{table}");
        let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    }
}
