//! Numbers from what a program serves at `/metrics`, in Prometheus' text format.

use anyhow::Context as _;

/// The sum of all series of a metric whose labels contain this text, 0 where there is none.
///
/// # Errors
/// When a value is no number.
pub fn sum(text: &str, name: &str, labels: &str) -> anyhow::Result<f64> {
    let of_metric = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let lines = text.lines().filter(of_metric).filter(|line| line.contains(labels));
    let values = lines.map(|line| {
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        value.with_context(|| format!("no metric: {line}"))
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE looks counter\nlooks{kind=\"a\"} 2\nlooks{kind=\"b\"} 3\nlooks_seconds 7\nsize 1.5e3\n";

    #[test]
    fn series_of_one_metric_are_summed_and_no_others() {
        for (name, labels, expected) in
            [("looks", "", 5.0), ("looks", "kind=\"b\"", 3.0), ("size", "", 1500.0), ("look", "", 0.0)]
        {
            let found = sum(TEXT, name, labels).unwrap();
            assert!((found - expected).abs() < f64::EPSILON, "{name} {labels}: {found}");
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_an_error() {
        assert!(sum("looks many", "looks", "").is_err());
    }
}
