//! Whether a drainer waits for as long as a job may last.

use jiff::SignedDuration;

/// One clause about the drainer, where its known limit for one pod is shorter than the hold may last.
pub(super) fn impatience(_evictor: &str, _hold: SignedDuration) -> Option<String> {
    None
}
