//! Certificates under load: whatever is renewed, rotated or restarted, no call of the API server fails.
//!
//! Every webhook has `failurePolicy: Fail` here, so that a call that does not get through is an error to the client and
//! can be counted (see [`hammer`]). Each test has a cluster of its own: what is rotated is the whole cluster's.

mod authorities;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/busy_support.rs"]
mod busy_support;
mod cert_manager;
mod existing_secret;
mod hammer;
mod modes;
mod rotation;
mod stage;
#[allow(dead_code, reason = "the words are shared with other test binaries, and not every word is needed here")]
#[path = "../e2e/support.rs"]
mod support;
