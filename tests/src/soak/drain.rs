//! One drain, from its first try to its success: begun again as a person or a tool does it where a try ended early.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use crate::world::Namespace;

/// What each try is given, as many tools give it (the AWS Node Termination Handler two minutes).
const TIMEOUT: &str = "--timeout=120s";

/// How long one try may be about it, its timeout and what comes after it included.
const TRY_WITHIN: Duration = Duration::from_mins(4);

/// When a drain that does not succeed is given up. Deadlines of ten minutes hold back longer; here nothing takes so long.
const DRAINED_WITHIN: Duration = Duration::from_mins(8);

/// A tool that was refused by an error does not try again at once.
const PAUSE: Duration = Duration::from_secs(2);

/// Why a try ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Early {
    /// The API server was away, or has just come.
    ApiServer,
    /// No webhook replica answered it.
    Replica,
    /// It took longer than it was given.
    TimedOut,
    /// Something else, which it says.
    Other,
}

impl Early {
    /// What a table counts it as.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::ApiServer => "since the API server was away",
            Self::Replica => "since no replica answered the API server",
            Self::TimedOut => "since two minutes had passed",
            Self::Other => "for other reasons",
        }
    }

    /// From what kubectl said.
    fn of(text: &str) -> Self {
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if says(&["failed calling webhook"]) {
            Self::Replica
        } else if says(&AWAY) {
            Self::ApiServer
        } else if says(&["global timeout reached", "timed out waiting"]) {
            Self::TimedOut
        } else {
            Self::Other
        }
    }
}

/// What kubectl says when the API server is away, about to end, or has just come and knows nothing yet.
const AWAY: [&str; 10] = [
    "connection refused",
    "was refused",
    "EOF",
    "reset by peer",
    "broken pipe",
    "not yet ready",
    "ServiceUnavailable",
    "unable to handle the request",
    "nable to connect",
    "is forbidden",
];

/// What became of a drain.
pub(super) struct Drained {
    pub(super) took: Duration,
    pub(super) early: Vec<Early>,
}

/// Drains a node.
///
/// # Errors
/// When it has not succeeded after eight minutes, with what kubectl said the last time.
pub(super) async fn drain(ns: &Namespace, node: &str, tell: &dyn Fn(&str)) -> anyhow::Result<Drained> {
    let began = Instant::now();
    let mut early = Vec::new();
    loop {
        // The busy pods of a soak belong to nobody.
        let exit = ns.drain(node, &[TIMEOUT, "--force"]).await?.exit(TRY_WITHIN).await?;
        if exit.success() {
            return Ok(Drained { took: began.elapsed(), early });
        }
        let why = Early::of(&exit.text());
        if why == Early::Other {
            tell(&format!("a drain ended early, not for a fault that is known here: {exit}"));
        }
        early.push(why);
        if began.elapsed() > DRAINED_WITHIN {
            bail!("the node {node} is not drained after {} tries: {exit}", early.len());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_try_ended_early_is_read_from_what_kubectl_says() {
        for (text, expected) in [
            ("The connection to the server 127.1.0.3:6443 was refused - did you specify", Early::ApiServer),
            ("dial tcp 127.1.0.3:6443: connect: connection refused", Early::ApiServer),
            ("error when evicting pods/\"web\": Post \"https://…\": unexpected EOF", Early::ApiServer),
            ("pods \"web\" is forbidden: not yet ready to handle request", Early::ApiServer),
            (
                "Internal error occurred: failed calling webhook \"eviction.hold.belay.dev\": dial: connection refused",
                Early::Replica,
            ),
            ("error when evicting pods/\"web\" -n \"x\": global timeout reached: 2m0s", Early::TimedOut),
            ("cannot delete Pods declare no controller", Early::Other),
        ] {
            assert_eq!(Early::of(text), expected, "{text}");
        }
    }
}
