//! A token bucket: many writes at once where few came before, a steady rate in the long run.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The bucket. Fair: who waits first is served first.
#[derive(Debug)]
pub struct TokenBucket {
    per_second: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    /// A full bucket of two seconds' worth.
    pub fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        Self { per_second, state: Mutex::new(State { tokens: per_second * 2.0, filled: Instant::now() }) }
    }

    /// Takes a token, waiting for it where there is none.
    pub async fn take(&self) {
        let mut state = self.state.lock().await;
        loop {
            let now = Instant::now();
            let gained = now.duration_since(state.filled).as_secs_f64() * self.per_second;
            state.tokens = (state.tokens + gained).min(self.per_second * 2.0);
            state.filled = now;
            if state.tokens >= 1.0 {
                state.tokens -= 1.0;
                return;
            }
            tokio::time::sleep(Duration::from_secs_f64((1.0 - state.tokens) / self.per_second)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let bucket = TokenBucket::new(10);
        let start = Instant::now();
        for _ in 0..20 {
            bucket.take().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            bucket.take().await;
        }
        let elapsed = start.elapsed();
        assert!((900..=1100).contains(&elapsed.as_millis()), "{elapsed:?}");
    }
}
