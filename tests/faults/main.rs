//! What happens when parts of Belay, or what it stands on, die, hang, or may not do their work.
//!
//! Each fault is a real one: SIGKILL, SIGSTOP, an API server that is away, a right that is taken from a role. It
//! would disturb every other test on its cluster, so these have a cluster of their own and run one after another
//! (see [`stage`]). What must hold in all of them: a drain ends, a workload is restarted at most once for a victim,
//! where Belay was there to hold the eviction, no request to the workload fails, and hints end true.

mod api_server;
mod attack;
mod busy;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/busy_support.rs"]
mod busy_support;
mod deadline;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../handover/scene.rs"]
mod handover_scene;
mod leader;
mod probe;
mod record;
mod stage;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/support.rs"]
mod support;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../handover/surge.rs"]
mod surge;
mod surges;
mod webhook;
