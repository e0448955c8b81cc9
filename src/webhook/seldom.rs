//! For what anybody can make happen as often as they like, and a log should tell now and then.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often it is told. Who looks for a fault finds it in the last lines; more of the same would push those out.
const EVERY: Duration = Duration::from_mins(1);

/// When something was told last.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Nothing was told yet.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// It is to be told now: the last time is a minute ago.
    pub(super) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut told = self.0.lock();
        let is_due = told.is_none_or(|told| now.duration_since(told) >= EVERY);
        if is_due {
            *told = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn is_due_once_a_minute() {
        let seldom = Seldom::new();
        let mut due = Vec::new();
        for second in 0..130 {
            if seldom.is_due() {
                due.push(second);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(due, [0, 60, 120]);
    }
}
