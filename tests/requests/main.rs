//! EvictionRequests (KEP-4563): on an API server that serves them, with the controller that no program of 1.37 contains
//! played by [`belay_e2e::eviction_requests`]; and on one that does not, where everything else goes on.

#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/busy_support.rs"]
mod busy_support;
mod handed_over;
mod left;
mod stage;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/support.rs"]
mod support;
mod unserved;
mod withdrawn;
