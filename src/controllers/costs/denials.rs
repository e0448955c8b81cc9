//! What becomes of writes while the right to them is missing: none is tried but one now and then, whichever pod it is
//! about. Ten requests a second for ever would tell the API server, and who reads its audit log, nothing new.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cluster::apply::ApplyError;

/// The first pause, which doubles with each try.
const FIRST: Duration = Duration::from_secs(5);

/// The longest: who grants the right sees within a minute that it was that.
const LONGEST: Duration = Duration::from_mins(1);

/// How long a try may take before there is another: as long as any write.
const TRYING: Duration = Duration::from_secs(10);

/// How long no write is denied before the right counts as granted. It may be granted in some namespaces alone, and then
/// writes succeed and are denied by turns.
const FORGOTTEN: Duration = Duration::from_mins(2);

/// Whether a right is missing.
#[derive(Debug, Default)]
pub(super) struct Denials(Mutex<Option<Denial>>);

#[derive(Debug)]
struct Denial {
    /// What was said the first time; another pod's words differ and say the same.
    trouble: String,
    /// When a write was denied last.
    at: Instant,
    pause: Duration,
    /// Until when none is tried; absent since one succeeded.
    until: Option<Instant>,
    /// One is being tried.
    trying: bool,
}

impl Denials {
    /// How long a write has to wait; absent where it may be tried.
    pub(super) fn pause(&self) -> Option<Duration> {
        let mut denial = self.0.lock();
        let denial = denial.as_mut()?;
        let (until, now) = (denial.until?, Instant::now());
        if now < until {
            return Some(until.duration_since(now));
        }
        denial.trying = true;
        denial.until = Some(now + TRYING);
        None
    }

    /// A write failed for this; how long all writes have to wait, if it was for want of a right.
    pub(super) fn of(&self, error: &ApplyError) -> Option<Duration> {
        if !is_missing_right(error) {
            return None;
        }
        let (mut denial, now) = (self.0.lock(), Instant::now());
        let before = denial.take_if(|denial| denial.until.is_some() || now < denial.at + FORGOTTEN);
        let next = match before {
            // Of those that were under way together one counts.
            Some(before) if !before.trying && before.until.is_some_and(|until| now < until) => {
                Denial { at: now, ..before }
            }
            Some(before) => {
                let pause = (before.pause * 2).min(LONGEST);
                Denial { at: now, pause, until: Some(now + pause), trying: false, ..before }
            }
            None => {
                let (trouble, pause) = (error.to_string(), FIRST);
                Denial { trouble, at: now, pause, until: Some(now + pause), trying: false }
            }
        };
        let pause = next.until.map(|until| until.saturating_duration_since(now));
        *denial = Some(next);
        pause
    }

    /// A write succeeded.
    pub(super) fn granted(&self) {
        if let Some(denial) = self.0.lock().as_mut() {
            denial.until = None;
            denial.trying = false;
        }
    }

    /// What is missing, in the words of the write that met it first.
    pub(super) fn trouble(&self) -> Option<String> {
        let mut denial = self.0.lock();
        denial.take_if(|denial| denial.until.is_none() && denial.at.elapsed() >= FORGOTTEN);
        denial.as_ref().map(|denial| denial.trouble.clone())
    }

    /// Nothing is remembered.
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }
}

/// The API server does not let us write at all (`forbiddenMessage` in its `responsewriters/errors.go`, or 401), where
/// an admission policy denies one pod's write in words of its own.
fn is_missing_right(error: &ApplyError) -> bool {
    let ApplyError::Forbidden { message, .. } = error else { return false };
    message.contains(" cannot patch ") || message.contains("Unauthorized")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forbidden(message: &str) -> ApplyError {
        ApplyError::Forbidden { object: "Pod shop/web-1".into(), message: message.into() }
    }

    fn missing(pod: &str) -> ApplyError {
        forbidden(&format!("pods \"{pod}\" is forbidden: User \"belay\" cannot patch resource \"pods\""))
    }

    #[tokio::test(start_paused = true)]
    async fn one_write_is_tried_after_a_pause_that_grows_to_a_minute() {
        let denials = Denials::default();
        assert_eq!(denials.pause(), None);
        for pod in ["a", "b", "c"] {
            assert_eq!(denials.of(&missing(pod)), Some(FIRST), "{pod}: those under way count once");
        }
        for pause in [5, 10, 20, 40, 60, 60] {
            assert_eq!(denials.pause(), Some(Duration::from_secs(pause)));
            tokio::time::advance(Duration::from_secs(pause)).await;
            assert_eq!(denials.pause(), None, "one is tried");
            assert_eq!(denials.pause(), Some(TRYING), "and no other meanwhile");
            denials.of(&missing("d"));
        }
        let trouble = denials.trouble().expect("it is missing");
        assert!(trouble.contains("\"a\" is forbidden") && trouble.contains("cannot patch"), "{trouble}");
        // A try that came to nothing is followed by another.
        tokio::time::advance(LONGEST).await;
        assert_eq!(denials.pause(), None);
        tokio::time::advance(TRYING).await;
        assert_eq!(denials.pause(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_that_is_granted_in_some_namespaces_is_one_trouble_until_nothing_is_denied_any_more() {
        let denials = Denials::default();
        denials.of(&missing("a"));
        let trouble = denials.trouble();
        denials.granted();
        assert_eq!((denials.pause(), denials.trouble()), (None, trouble.clone()));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(denials.of(&missing("b")), Some(FIRST * 2));
        assert_eq!(denials.trouble(), trouble);
        denials.granted();
        tokio::time::advance(FORGOTTEN).await;
        assert_eq!(denials.trouble(), None);
        assert_eq!(denials.of(&missing("c")), Some(FIRST), "it begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_denied_to_one_pod_alone_holds_up_no_other() {
        let denials = Denials::default();
        let denied = forbidden("admission webhook \"policy.example\" denied the request: no such annotation");
        assert_eq!(denials.of(&denied), None);
        assert_eq!(denials.of(&ApplyError::Conflict { object: "Pod shop/web-1".into() }), None);
        assert_eq!((denials.pause(), denials.trouble()), (None, None));
        assert_eq!(denials.of(&forbidden("Unauthorized")), Some(FIRST));
    }
}
