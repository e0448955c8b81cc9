//! Figures beside their targets.

use std::fmt;
use std::time::{Duration, Instant};

/// One line.
struct Line {
    what: String,
    measured: String,
    target: String,
    kept: Option<bool>,
}

/// All lines, in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Table(Vec<Line>);

impl Table {
    /// A figure that may be at most so much, in this unit.
    pub(crate) fn at_most(&mut self, what: &str, measured: f64, most: f64, unit: &str) {
        let (measured_text, target) = (format!("{measured:.2} {unit}"), format!("at most {most} {unit}"));
        self.0.push(Line { what: what.to_owned(), measured: measured_text, target, kept: Some(measured <= most) });
    }

    /// A figure that must be at least so much, in this unit.
    pub(crate) fn at_least(&mut self, what: &str, measured: f64, least: f64, unit: &str) {
        let digits = if least < 10.0 { 2 } else { 0 };
        let (measured_text, target) = (format!("{measured:.digits$} {unit}"), format!("at least {least} {unit}"));
        self.0.push(Line { what: what.to_owned(), measured: measured_text, target, kept: Some(measured >= least) });
    }

    /// A figure whose subject does not exist yet.
    pub(crate) fn not_built(&mut self, what: &str, target: &str) {
        let (measured, target) = ("not built yet".to_owned(), target.to_owned());
        self.0.push(Line { what: what.to_owned(), measured, target, kept: None });
    }

    /// A figure without a target.
    pub(crate) fn note(&mut self, what: &str, measured: String) {
        self.0.push(Line { what: what.to_owned(), measured, target: String::new(), kept: None });
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| Figure | Measured | Target | |")?;
        writeln!(f, "|---|---|---|---|")?;
        for Line { what, measured, target, kept } in &self.0 {
            let kept = kept.map_or("", |kept| if kept { "kept" } else { "missed" });
            writeln!(f, "| {what} | {measured} | {target} | {kept} |")?;
        }
        Ok(())
    }
}

/// Milliseconds that something took, sorted.
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// Does something so often; only `measured` counts: neither `prepare`, nor freeing what `measured` gives back.
    pub(crate) fn of<T, R>(
        times: usize,
        mut prepare: impl FnMut(usize) -> T,
        mut measured: impl FnMut(T) -> R,
    ) -> Self {
        let one = |at| {
            let prepared = prepare(at);
            let started = Instant::now();
            let left = measured(prepared);
            let took = started.elapsed();
            drop(left);
            millis(took)
        };
        Self::from((0..times).map(one).collect::<Vec<f64>>())
    }

    /// So many of a hundred took no longer.
    pub(crate) fn percentile(&self, hundredth: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * hundredth / 100).copied().unwrap_or_default()
    }
}

impl From<Vec<f64>> for Times {
    fn from(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self(all)
    }
}

/// A duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
