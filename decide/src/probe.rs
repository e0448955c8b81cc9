//! Does the API server reach the webhook now? What is asked, what the answer means, and when people are told.
//!
//! Under `failurePolicy: Ignore` an outage of the webhook looks like peace: evictions pass and nobody hears of it. So
//! Belay asks the API server for an eviction that only tells whether the webhook was asked about it: a dry run, in
//! Belay's own namespace, of a pod that does not exist, marked with a word made up for it. An entry of its own in the
//! webhook configuration, the canary, matches just that, and the replica that is asked answers with a warning that
//! repeats the word. It is the way of a real eviction but for the path: the same Service, network, certificate and
//! timeout.
//!
//! The pod does not exist because admission comes before the pod is looked up (kubernetes/kubernetes
//! pkg/registry/core/pod/storage/eviction.go, `EvictionREST.Create`): even if the dry run got lost on the way, there
//! is nothing to evict, no budget has a say, and the right to ask can be granted for that one name.

#[cfg(test)]
mod tests;

use std::fmt;

/// The webhook entry of evictions.
pub const EVICTION_ENTRY: &str = "eviction.hold.belay.dev";
/// Where it leads to at the webhook.
pub const EVICTION_PATH: &str = "/validate/eviction";
/// The webhook entry that is there to be asked by a probe alone.
pub const CANARY_ENTRY: &str = "canary.hold.belay.dev";
/// Where that leads to.
pub const CANARY_PATH: &str = "/validate/canary";
/// The annotation of the Eviction that carries the word of the probe.
pub const ANNOTATION: &str = "belay.dev/probe";
/// The pod whose eviction a probe asks for. No workload makes a pod of this name.
pub const POD: &str = "belay-canary";

/// Far more than a word of 64 random bits needs, and short enough that the warning is never cut: the API server cuts
/// those of more than 256 characters when there are many (k8s.io/apiserver/pkg/endpoints/filters/warning.go).
const LONGEST_NONCE: usize = 40;

/// Misses in a row before people are told: one is what a replica that has just gone costs, until its endpoint has left.
const MISSES_BEFORE_TOLD: u32 = 2;

/// What a replica says when a probe reaches it; absent where the word is none that a probe makes up.
pub fn echo(nonce: &str, replica: &str) -> Option<String> {
    let is_nonce = (1..=LONGEST_NONCE).contains(&nonce.len()) && nonce.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_nonce.then(|| format!("belay: probe {nonce} reached {replica}"))
}

/// The replica that answered the probe of this word, if this is its answer.
fn echoed<'a>(warning: &'a str, nonce: &str) -> Option<&'a str> {
    warning.strip_prefix("belay: probe ")?.strip_prefix(nonce)?.strip_prefix(" reached ")
}

/// Where the API server sends what an entry matches, and what it trusts there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryView {
    /// Namespace, name and port of the Service, or the URL.
    pub server: String,
    /// The path.
    pub path: String,
    /// The certificates that are trusted, as they stand there; empty where there are none.
    pub ca_bundle: Vec<u8>,
}

/// The two entries of the configuration that a probe is about; absent ones are not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// That of evictions.
    pub eviction: Option<EntryView>,
    /// The canary.
    pub canary: Option<EntryView>,
}

/// Why an eviction does not come to the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// There is no webhook configuration of Belay's.
    NoConfiguration,
    /// It has no entry of evictions.
    NoEvictionEntry,
    /// It has no canary.
    NoCanaryEntry,
    /// The entry of evictions leads somewhere else than the canary.
    LeadsElsewhere {
        /// Where it leads.
        to: String,
        /// Where it ought to.
        expected: String,
    },
    /// Nothing is trusted yet: the controller has not written the certificates.
    NoAuthority,
    /// The entry of evictions trusts other certificates than the canary.
    OtherAuthority,
    /// The API server asked nobody, or got no answer, and went on.
    Silent,
    /// A replica was asked and let it through unlooked at.
    Unserved {
        /// What it said.
        warning: String,
    },
}

impl Miss {
    /// In one word, for programs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoConfiguration => "NoConfiguration",
            Self::NoEvictionEntry => "NoEvictionEntry",
            Self::NoCanaryEntry => "NoCanaryEntry",
            Self::LeadsElsewhere { .. } => "LeadsElsewhere",
            Self::NoAuthority => "NoAuthority",
            Self::OtherAuthority => "OtherAuthority",
            Self::Silent => "Silent",
            Self::Unserved { .. } => "Unserved",
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConfiguration => write!(
                f,
                "there is no ValidatingWebhookConfiguration of Belay's, so evictions are not brought to it; install \
                 or upgrade the release with evictionHold or busyHints on"
            ),
            Self::NoEvictionEntry => write!(
                f,
                "the entry {EVICTION_ENTRY} is missing, so evictions are not brought to Belay; put it back by an \
                 upgrade of the release"
            ),
            Self::NoCanaryEntry => write!(
                f,
                "the entry {CANARY_ENTRY} is missing, so whether evictions come to Belay cannot be seen; put it back \
                 by an upgrade of the release"
            ),
            Self::LeadsElsewhere { to, expected } => write!(
                f,
                "the entry {EVICTION_ENTRY} leads to {to} instead of {expected}; put it right by an upgrade of the \
                 release"
            ),
            Self::NoAuthority => write!(
                f,
                "the entry {EVICTION_ENTRY} has no caBundle, so the API server trusts no replica; see the \
                 controller's log"
            ),
            Self::OtherAuthority => write!(
                f,
                "the caBundles of {EVICTION_ENTRY} and {CANARY_ENTRY} differ; the controller makes them equal, see \
                 its log"
            ),
            Self::Silent => write!(
                f,
                "no webhook replica answered the API server; see that replicas are Ready, that the network lets the \
                 API server in, and that it trusts their certificate"
            ),
            Self::Unserved { warning } => {
                write!(f, "a webhook replica let the probe through unlooked at: {warning}")
            }
        }
    }
}

impl Entries {
    /// What keeps evictions from the server that the canary leads to.
    fn miss(&self) -> Option<Miss> {
        let Some(canary) = &self.canary else { return Some(Miss::NoCanaryEntry) };
        let Some(eviction) = &self.eviction else { return Some(Miss::NoEvictionEntry) };
        let to = format!("{}{}", eviction.server, eviction.path);
        let expected = format!("{}{EVICTION_PATH}", canary.server);
        if to != expected {
            return Some(Miss::LeadsElsewhere { to, expected });
        }
        if eviction.ca_bundle.is_empty() {
            return Some(Miss::NoAuthority);
        }
        (eviction.ca_bundle != canary.ca_bundle).then_some(Miss::OtherAuthority)
    }
}

/// What the API server answered to the eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub code: u16,
    /// The texts of all warnings.
    pub warnings: Vec<String>,
    /// The words of the status; empty where there are none.
    pub message: String,
    /// The kind of object that was not found, in its plural; empty where the answer is another.
    pub missing: String,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The API server reaches the webhook.
    Reached {
        /// The replica that answered.
        replica: String,
    },
    /// It does not.
    NotReached(Miss),
    /// The API server did not do what was asked: a right is missing, or something else refuses the eviction.
    Refused {
        /// Its words.
        message: String,
    },
    /// The API server is not reached, or asks for patience.
    Unreachable {
        /// What was heard instead.
        message: String,
    },
}

impl Verdict {
    /// In one word, for programs and metrics.
    pub fn result(&self) -> &'static str {
        match self {
            Self::Reached { .. } => "Reached",
            Self::NotReached(_) => "NotReached",
            Self::Refused { .. } => "Refused",
            Self::Unreachable { .. } => "Unreachable",
        }
    }

    /// Whether evictions come to the webhook; absent where that is not known.
    pub fn is_reached(&self) -> Option<bool> {
        match self {
            Self::Reached { .. } => Some(true),
            Self::NotReached(_) => Some(false),
            Self::Refused { .. } | Self::Unreachable { .. } => None,
        }
    }

    /// What an answer means for the probe of this word.
    pub fn of_reply(reply: &Reply, nonce: &str) -> Self {
        if let Some(replica) = reply.warnings.iter().find_map(|warning| echoed(warning, nonce)) {
            return Self::Reached { replica: replica.to_owned() };
        }
        if let Some(warning) = reply.warnings.iter().find(|warning| warning.starts_with("belay: ")) {
            return Self::NotReached(Miss::Unserved { warning: warning.clone() });
        }
        let message = || format!("HTTP {}: {}", reply.code, reply.message);
        match reply.code {
            200..300 => Self::NotReached(Miss::Silent),
            // Admission was passed, and then no such pod found. What else is not found was looked for before.
            404 if reply.missing == "pods" => Self::NotReached(Miss::Silent),
            429 | 500.. => Self::Unreachable { message: message() },
            _ => Self::Refused { message: message() },
        }
    }

    /// The verdict where there is no need to ask: the API server has nobody to call for a probe.
    pub fn without_asking(entries: &Entries) -> Option<Self> {
        entries.canary.is_none().then_some(Self::NotReached(Miss::NoCanaryEntry))
    }

    /// What was found of the canary holds for evictions only where their entry leads to the same place.
    #[must_use]
    pub fn for_evictions(self, entries: &Entries) -> Self {
        match self {
            Self::Reached { .. } | Self::NotReached(Miss::Silent) => entries.miss().map_or(self, Self::NotReached),
            other => other,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached { replica } => write!(f, "the API server reaches the webhook: {replica} answered"),
            Self::NotReached(miss) => write!(f, "{miss}"),
            Self::Refused { message } => write!(f, "the API server refuses the probe: {message}"),
            Self::Unreachable { message } => write!(f, "the API server does not answer the probe: {message}"),
        }
    }
}

/// What is remembered between probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    misses: u32,
    unasked: u32,
    told: Told,
}

/// What people were told last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    /// Nothing, or that all is well again.
    #[default]
    Nothing,
    NotReached,
    /// That it is not known, having been well before.
    Unknown,
}

/// What people are to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The API server does not reach the webhook.
    Lost,
    /// It does again.
    Back,
    /// It cannot be asked.
    Unknown,
}

impl Memory {
    /// Takes note of a verdict. People are told when it has changed, and not of a single miss.
    pub fn follow(&mut self, verdict: &Verdict) -> Option<News> {
        (self.misses, self.unasked) = match verdict.is_reached() {
            Some(true) => (0, 0),
            Some(false) => (self.misses.saturating_add(1), 0),
            None => (self.misses, self.unasked.saturating_add(1)),
        };
        let (told, news) = if self.misses >= MISSES_BEFORE_TOLD {
            (Told::NotReached, News::Lost)
        } else if self.unasked >= MISSES_BEFORE_TOLD {
            (Told::Unknown, News::Unknown)
        } else if verdict.is_reached() == Some(true) {
            (Told::Nothing, News::Back)
        } else {
            return None;
        };
        (std::mem::replace(&mut self.told, told) != told).then_some(news)
    }
}
