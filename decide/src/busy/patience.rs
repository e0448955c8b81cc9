//! Whether a drainer waits for as long as a job may last.

use std::time::Duration;

use jiff::SignedDuration;

use crate::evictors::recognise;

/// One clause about the drainer, where its known limit for one pod is shorter than the hold may last.
pub(super) fn impatience(evictor: &str, hold: SignedDuration) -> Option<String> {
    let hold = Duration::try_from(hold).ok()?;
    let known = recognise(evictor).filter(|known| known.gives_up_before(hold))?;
    Some(format!("{} {}", known.name, known.patience()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_limit_that_is_shorter_is_told() {
        let autoscaler = "system:serviceaccount:kube-system:cluster-autoscaler";
        let told = impatience(autoscaler, SignedDuration::from_hours(6)).expect("it gives up after two minutes");
        assert!(told.starts_with("Cluster Autoscaler waits up to 2 min"), "{told}");
        assert_eq!(impatience(autoscaler, SignedDuration::from_secs(30)), None);
        assert_eq!(impatience("kubernetes-admin", SignedDuration::from_hours(6)), None);
    }
}
