//! The planner: from what is seen, the one next step that keeps trust and signing right.
//!
//! A rotation has three acts, and what makes it safe is their order:
//!
//! 1. **Publish** the next authority (the active one is past two thirds of its life): it joins the
//!    bundle of the Secret and then of every live configuration, and signs nothing.
//! 2. **Activate** it once every live configuration was seen to hold the whole bundle for
//!    [`SETTLE`]: by then every API server trusts it. Replicas sign new leaves with it.
//! 3. **Retire** the old one when every live configuration has held both for a [leaf's lifetime](LEAF_LIFETIME) since:
//!    nothing it signed is valid any more. (Not just that long after the activation: where a configuration lacks the
//!    new authority, replicas go on with the old one, which may sign until that is repaired.)
//!
//! The planner compares and never remembers. Each call looks at the Secret and the live bundles as
//! they are, so it does not matter which process took the last step, whether it crashed after it,
//! or who edited what by hand: a bundle that differs is patched, a Secret that is gone is made
//! anew. The little that cannot be seen (since when something holds) is written into the Secret.
//!
//! What a caller owes (each is what keeps a stale leader harmless):
//! * plan on caches as often as anything changes and at least each minute; before any other step
//!   than [`Step::Wait`] is carried out, read the Secret and the configurations live and plan again;
//! * write the Secret with the `resourceVersion` that was read (`create` for [`Step::Create`]; on a
//!   409 read again), and patch a configuration with the one that was read;
//! * never plan before the configurations were listed: none at all means that there are none.

use jiff::{SignedDuration, Timestamp};

use crate::ca::{Ca, MakeError};
use crate::cert::{Certificate, later};
use crate::leaf::LEAF_LIFETIME;
use crate::secret::CaSecret;

/// How long every live configuration must have been seen to hold a new authority before it signs.
/// API servers apply a changed configuration in 2 to 95 ms (measured); two minutes cover one whose
/// watch broke and that is about to list again.
pub const SETTLE: SignedDuration = SignedDuration::from_mins(2);

/// How many trusted authorities a new Secret takes over from live bundles. Ours hold three at the
/// very most; a foreign bundle with a whole web PKI in it must not fill the Secret.
const MAX_KEPT: usize = 16;

/// The kinds of objects that hold a `caBundle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigKind {
    /// `ValidatingWebhookConfiguration`.
    Validating,
    /// `MutatingWebhookConfiguration`.
    Mutating,
}

impl std::fmt::Display for ConfigKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Validating => "ValidatingWebhookConfiguration",
            Self::Mutating => "MutatingWebhookConfiguration",
        })
    }
}

/// One webhook of one live configuration. Prints as `ValidatingWebhookConfiguration belay, webhook
/// eviction.belay.dev`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The configuration's kind.
    pub kind: ConfigKind,
    /// The configuration's `metadata.name`.
    pub config: String,
    /// The entry's `webhooks[].name`.
    pub webhook: String,
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}, webhook {}", self.kind, self.config, self.webhook)
    }
}

/// What one webhook entry trusts at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveCaBundle {
    /// Which entry.
    pub entry: Entry,
    /// Its `clientConfig.caBundle`, decoded; empty where it is absent.
    pub ca_bundle: Vec<u8>,
}

impl LiveCaBundle {
    /// Authorities that a caller accepts at `now`, in the order of the bundle.
    pub(crate) fn anchors(&self, now: Timestamp) -> impl Iterator<Item = Certificate> {
        let readable = Certificate::readable_from_pem(&self.ca_bundle).into_iter();
        readable.filter(move |certificate| certificate.anchors(now))
    }
}

/// The next step. Carry it out, then plan again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// There is no Secret: make one with a new authority, which goes on trusting `keep`.
    Create {
        /// Valid authorities that live configurations trust already, so that replicas which serve
        /// a leaf of a Secret that was deleted are trusted until they have moved over.
        keep: Vec<Certificate>,
    },
    /// Nobody trusts what this Secret signs, and everybody trusts something else, by which replicas are served at this
    /// moment: the Secret was restored from a backup, or certificates came from elsewhere until now. Go on trusting that.
    Adopt {
        /// Valid authorities that live configurations trust and the Secret does not know.
        keep: Vec<Certificate>,
    },
    /// Make the next authority and put it into the Secret's bundle.
    Publish,
    /// Write a fact with its time into the Secret.
    Record(Fact),
    /// Let the next authority sign, and keep the old one trusted.
    Activate,
    /// Drop the authorities that nothing valid was signed by from the Secret's bundle.
    Retire,
    /// Write the Secret's bundle into the configurations where it differs.
    PatchBundles {
        /// What each of them is to hold.
        ca_bundle: Vec<u8>,
        /// Where it differs, in the order given.
        targets: Vec<Entry>,
    },
    /// Nothing to do before `until`, unless something changes.
    Wait {
        /// Always later than `now`.
        until: Timestamp,
        /// What is due then.
        reason: Awaited,
    },
}

/// What [`Step::Record`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// From now on every live configuration holds the whole bundle.
    AllHold,
    /// Not every live configuration does any more; what waits for it starts over.
    NotAllHold,
}

/// What a [`Step::Wait`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// The active authority reaches two thirds of its life.
    Renewal,
    /// Every API server has had time to see the next authority.
    Settled,
    /// The last leaf that a retiring authority can have signed has expired.
    Retirement,
}

/// Why a step could not be applied to a Secret.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The Secret is not the one that was planned for.
    #[error("the step {step} does not fit the Secret as it is now; plan again from a fresh read")]
    Outdated {
        /// The step's name.
        step: &'static str,
    },
    /// A new authority could not be made.
    #[error(transparent)]
    Make(#[from] MakeError),
}

/// The next step, from the Secret and from what every entry of our live configurations trusts, as
/// they are at `now`. Pure: the same input gives the same step.
///
/// Repairs come before progress, and trust before signing.
pub fn plan(secret: Option<&CaSecret>, live: &[LiveCaBundle], now: Timestamp) -> Step {
    let Some(secret) = secret else {
        let mut keep = trusted_now(live, now);
        keep.truncate(MAX_KEPT);
        return Step::Create { keep };
    };
    let keep = to_adopt(secret, live, now);
    if !keep.is_empty() {
        return Step::Adopt { keep };
    }
    let ca_bundle = secret.bundle_pem();
    let targets: Vec<Entry> =
        live.iter().filter(|live| live.ca_bundle != ca_bundle).map(|live| live.entry.clone()).collect();
    if !targets.is_empty() {
        // First the record: once the bundle is repaired, nothing shows any more that an API server
        // may have seen the gap, and the wait for it to settle would be cut short.
        return if secret.observed_at.is_some() {
            Step::Record(Fact::NotAllHold)
        } else {
            Step::PatchBundles { ca_bundle, targets }
        };
    }
    let rotation = rotation(secret, now);
    match (retirement(secret, now), &rotation) {
        (Some(Step::Wait { until, reason }), Step::Wait { until: other, .. }) if until < *other => {
            Step::Wait { until, reason }
        }
        (None | Some(Step::Wait { .. }), _) => rotation,
        (Some(step), _) => step,
    }
}

/// Old authorities leave the bundle when the last leaf they can have signed is expired.
fn retirement(secret: &CaSecret, now: Timestamp) -> Option<Step> {
    secret.retiring().next()?;
    Some(once_held_for(LEAF_LIFETIME, Step::Retire, Awaited::Retirement, secret, now))
}

/// The way of the next authority, given that every live configuration holds the whole bundle.
fn rotation(secret: &CaSecret, now: Timestamp) -> Step {
    let active = secret.active().certificate().validity;
    let Some(next) = secret.next() else {
        let until = active.renew_at();
        return if active.contains(now) && now < until {
            Step::Wait { until, reason: Awaited::Renewal }
        } else {
            Step::Publish
        };
    };
    let next = next.certificate().validity;
    if !next.contains(now) || next.renew_at() <= now {
        // It waited for a configuration for longer than it is good for, or its clock was wrong.
        return Step::Publish;
    }
    if !active.contains(now) {
        // Nobody accepts what the active one signed: there is no call that a wait could save.
        return Step::Activate;
    }
    once_held_for(SETTLE, Step::Activate, Awaited::Settled, secret, now)
}

/// `step`, once every live configuration has held the whole bundle for `time`.
fn once_held_for(time: SignedDuration, step: Step, reason: Awaited, secret: &CaSecret, now: Timestamp) -> Step {
    // A time that lies ahead was written by a clock that was wrong, and says nothing.
    let Some(since) = secret.observed_at.filter(|&at| at <= now) else {
        return Step::Record(Fact::AllHold);
    };
    let until = later(since, time);
    if until <= now { step } else { Step::Wait { until, reason } }
}

/// What live configurations trust instead of the active authority, where none of them trusts that one.
fn to_adopt(secret: &CaSecret, live: &[LiveCaBundle], now: Timestamp) -> Vec<Certificate> {
    let mut trusted = trusted_now(live, now);
    if trusted.contains(secret.active().certificate()) {
        return Vec::new();
    }
    trusted.retain(|certificate| !secret.bundle.contains(certificate));
    trusted.truncate(MAX_KEPT.saturating_sub(secret.retiring().count()));
    trusted
}

/// Authorities in live bundles that a caller accepts at `now`, each once.
fn trusted_now(live: &[LiveCaBundle], now: Timestamp) -> Vec<Certificate> {
    let mut found: Vec<Certificate> = Vec::new();
    for certificate in live.iter().flat_map(|live| live.anchors(now)) {
        if !found.contains(&certificate) {
            found.push(certificate);
        }
    }
    found
}

impl Step {
    /// A short name for logs, metrics and Events.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "Create",
            Self::Adopt { .. } => "Adopt",
            Self::Publish => "Publish",
            Self::Record(_) => "Record",
            Self::Activate => "Activate",
            Self::Retire => "Retire",
            Self::PatchBundles { .. } => "PatchBundles",
            Self::Wait { .. } => "Wait",
        }
    }

    /// The Secret to write for this step; `None` where the step writes none. `ca_name` becomes the
    /// start of a new authority's common name.
    ///
    /// # Errors
    /// The step does not fit `secret`, or a key could not be made.
    pub fn apply(
        &self,
        secret: Option<&CaSecret>,
        ca_name: &str,
        now: Timestamp,
    ) -> Result<Option<CaSecret>, ApplyError> {
        let outdated = || ApplyError::Outdated { step: self.name() };
        let known = || secret.cloned().ok_or_else(outdated);
        let written = match self {
            Self::PatchBundles { .. } | Self::Wait { .. } => return Ok(None),
            Self::Create { .. } if secret.is_some() => return Err(outdated()),
            Self::Create { keep } => CaSecret::first(Ca::generate(ca_name, now)?, keep.clone()),
            Self::Adopt { keep } => adopted(known()?, keep),
            Self::Publish => published(known()?, Ca::generate(ca_name, now)?),
            Self::Record(fact) => recorded(known()?, *fact, now),
            Self::Activate => activated(known()?, now).ok_or_else(outdated)?,
            Self::Retire => retired(known()?),
        };
        Ok(Some(written))
    }
}

fn adopted(mut secret: CaSecret, keep: &[Certificate]) -> CaSecret {
    let unknown = keep.iter().filter(|certificate| !secret.bundle.contains(certificate));
    let unknown: Vec<Certificate> = unknown.cloned().collect();
    secret.bundle.extend(unknown);
    secret.observed_at = None;
    secret
}

fn published(mut secret: CaSecret, next: Ca) -> CaSecret {
    if let Some(unused) = secret.next.take() {
        // It never signed anything.
        secret.bundle.retain(|certificate| certificate != unused.certificate());
    }
    secret.bundle.push(next.certificate().clone());
    secret.next = Some(next);
    secret.observed_at = None;
    secret
}

fn recorded(mut secret: CaSecret, fact: Fact, now: Timestamp) -> CaSecret {
    secret.observed_at = match fact {
        Fact::AllHold => Some(now),
        Fact::NotAllHold => None,
    };
    secret
}

fn activated(mut secret: CaSecret, now: Timestamp) -> Option<CaSecret> {
    secret.active = secret.next.take()?;
    // The bundle is the same, and was seen everywhere; what the old authority signed is from before now.
    secret.observed_at = Some(now);
    Some(secret)
}

fn retired(mut secret: CaSecret) -> CaSecret {
    let bundle = std::mem::take(&mut secret.bundle);
    secret.bundle = bundle.into_iter().filter(|certificate| secret.is_signer(certificate)).collect();
    secret.observed_at = None;
    secret
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
