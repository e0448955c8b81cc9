//! Waiting for a condition, and watching that one stays.

use std::time::Duration;

use anyhow::anyhow;
use tokio::time::Instant;

/// How often a condition is looked at. A test waits this much longer than it must; the API server is asked twenty
/// times a second.
const POLL: Duration = Duration::from_millis(50);

/// Waits until `condition` is Ok; the answer is its value. An error means "not yet, because".
///
/// # Errors
/// When it was not Ok `within` that time: what was awaited, and the last reason.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut condition: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + within;
    let mut last = anyhow!("the condition was never answered");
    loop {
        match tokio::time::timeout_at(deadline, condition()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(not_yet)) => last = not_yet,
            // The reason before this last, unanswered try tells more.
            Err(_) => {}
        }
        if Instant::now() + POLL > deadline {
            return Err(last.context(format!("not within {within:?}: {what}")));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Watches that `condition` stays Ok for that long.
///
/// # Errors
/// As soon as it is not: what should have stayed, after how long, and why it does not.
pub async fn throughout(
    what: &str,
    during: Duration,
    mut condition: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < during {
        if let Err(error) = condition().await {
            let after = began.elapsed().as_secs_f64();
            return Err(error.context(format!("no longer after {after:.1} s: {what}")));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(future)
    }

    #[test]
    fn waits_until_it_holds() {
        let mut asked = 0;
        let value = block_on(eventually("three", Duration::from_secs(1), async || {
            asked += 1;
            anyhow::ensure!(asked >= 3, "only {asked}");
            Ok(asked)
        }));
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn a_timeout_names_what_was_awaited_and_the_last_reason() {
        let never: anyhow::Result<()> =
            block_on(eventually("rain", Duration::from_secs(1), async || anyhow::bail!("the sky is blue")));
        assert_eq!(format!("{:#}", never.unwrap_err()), "not within 1s: rain: the sky is blue");
    }

    #[test]
    fn an_answer_that_never_comes_does_not_outlast_the_deadline() {
        let mut first = true;
        let never: anyhow::Result<()> = block_on(eventually("rain", Duration::from_secs(1), async || {
            if std::mem::take(&mut first) {
                anyhow::bail!("the sky is blue");
            }
            std::future::pending().await
        }));
        assert_eq!(format!("{:#}", never.unwrap_err()), "not within 1s: rain: the sky is blue");
    }

    #[test]
    fn what_should_stay_is_told_when_it_goes() {
        let mut left = 5;
        let gone = block_on(throughout("the light", Duration::from_secs(10), async || {
            left -= 1;
            anyhow::ensure!(left > 0, "the bulb broke");
            Ok(())
        }));
        assert_eq!(format!("{:#}", gone.unwrap_err()), "no longer after 0.2 s: the light: the bulb broke");
        block_on(throughout("the sun", Duration::from_secs(10), async || Ok(()))).unwrap();
    }
}
