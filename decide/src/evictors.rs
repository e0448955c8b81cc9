//! Who asks for evictions, and for how long each goes on asking.
//!
//! A hold helps only as long as the drainer waits. A job may need hours where Cluster Autoscaler gives a pod two
//! minutes, and then it is better to say so at the drainer and in an Event than to let somebody find out. So what is
//! known of each evictor stands in one table, with where it is known from.
//!
//! An AdmissionReview carries the user's name and nothing else that would tell the program: the `User-Agent` it comes
//! with is the API server's own. Service accounts are recognised by name; their namespace is the operator's choice, and
//! a Helm release may put its own name before. An evictor that acts as an ordinary user (kubectl, Cluster API), or
//! whose user no public source names (the upgraders of AKS and GKE), is in the table for what it does, but is never
//! recognised: a guess would put wrong limits into messages.

mod table;

use std::time::Duration;

pub use table::{
    AKS_UPGRADE, AWS_NODE_TERMINATION_HANDLER, CAST_AI, CLUSTER_API, CLUSTER_AUTOSCALER, DESCHEDULER, EKS_NODE_GROUP,
    GKE_UPGRADE, KARPENTER, KUBECTL, KURED,
};

/// A program that evicts pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evictor {
    /// What people call it.
    pub name: &'static str,
    /// Under which users it comes; empty where that cannot be told from a name.
    pub users: &'static [User],
    /// It restarts or resizes pods, wherever they are; it does not empty nodes.
    pub restarts: bool,
    /// How long it goes on asking for one pod.
    pub limit: Limit,
    /// What it does when it is refused with 429, as a sentence without its end.
    pub when_refused: &'static str,
    /// Where this is known from: repository and file, or document.
    pub source: &'static str,
}

/// How an evictor's user is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The whole user name.
    Exact(&'static str),
    /// A service account of that name in any namespace; a Helm release may put its own name and a hyphen before.
    ServiceAccount(&'static str),
    /// The service account of that name in that namespace only, where the name alone is no proof.
    ServiceAccountIn {
        /// Its namespace.
        namespace: &'static str,
        /// Its name.
        name: &'static str,
    },
}

/// How long an evictor goes on asking for one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// That long, unless its operator set something else.
    Fixed {
        /// The default.
        limit: Duration,
        /// The setting that changes it, where there is one.
        setting: Option<&'static str>,
    },
    /// It asks once and does not wait; a later pass of its own may ask again.
    Once,
    /// As long as it takes.
    Unlimited,
    /// As long as it takes, or as a setting says that the cluster does not show with the request.
    Told(&'static str),
    /// Nobody says.
    Unknown,
}

impl Limit {
    /// The longest wait that can be counted on not to be exceeded; absent where there is none or none is known.
    pub fn at_most(&self) -> Option<Duration> {
        match self {
            Self::Fixed { limit, .. } => Some(*limit),
            Self::Once => Some(Duration::ZERO),
            Self::Unlimited | Self::Told(_) | Self::Unknown => None,
        }
    }
}

impl Evictor {
    /// It is known to give up before `wait` has passed.
    pub fn gives_up_before(&self, wait: Duration) -> bool {
        self.limit.at_most().is_some_and(|limit| limit < wait)
    }

    /// How long it waits, for people: `waits up to 2 min (--max-pod-eviction-time)`.
    pub fn patience(&self) -> String {
        match self.limit {
            Limit::Fixed { limit, setting: Some(setting) } => format!("waits up to {} ({setting})", in_words(limit)),
            Limit::Fixed { limit, setting: None } => format!("waits up to {}", in_words(limit)),
            Limit::Once => "asks once a pass and does not wait".to_owned(),
            Limit::Unlimited => "waits for as long as it takes".to_owned(),
            Limit::Told(setting) => format!("waits for as long as it takes, or as told ({setting})"),
            Limit::Unknown => "waits for an unknown time".to_owned(),
        }
    }
}

/// The evictor that comes under this user (`userInfo.username` of the review), where that can be told.
pub fn recognise(username: &str) -> Option<&'static Evictor> {
    let account = username.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    known().iter().find(|evictor| {
        evictor.users.iter().any(|user| match *user {
            User::Exact(name) => username == name,
            User::ServiceAccount(name) => account.is_some_and(|(_, account)| is_or_ends_with(account, name)),
            User::ServiceAccountIn { namespace, name } => account == Some((namespace, name)),
        })
    })
}

/// Everything that is known, in a fixed order.
pub fn known() -> &'static [Evictor] {
    table::KNOWN
}

/// `account` is `name`, or a Helm release's name, a hyphen and `name`.
fn is_or_ends_with(account: &str, name: &str) -> bool {
    account
        .strip_suffix(name)
        .is_some_and(|release| release.is_empty() || (release.len() > 1 && release.ends_with('-')))
}

fn in_words(limit: Duration) -> String {
    let seconds = limit.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, 0, _) => format!("{hours} h"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_recognised_by_what_manifests_charts_and_clouds_call_it() {
        for (username, expected) in [
            ("cluster-autoscaler", "Cluster Autoscaler"),
            ("system:serviceaccount:kube-system:cluster-autoscaler", "Cluster Autoscaler"),
            ("system:serviceaccount:scaling:ca-aws-cluster-autoscaler", "Cluster Autoscaler"),
            ("system:serviceaccount:kube-system:karpenter", "Karpenter"),
            ("system:serviceaccount:karpenter:karpenter-sa", "Karpenter"),
            ("system:serviceaccount:kube-system:descheduler-sa", "descheduler"),
            ("system:serviceaccount:kube-system:descheduler", "descheduler"),
            ("system:serviceaccount:kube-system:kured", "kured"),
            ("eks:node-manager", "EKS managed node group"),
            ("system:serviceaccount:kube-system:aws-node-termination-handler", "AWS Node Termination Handler"),
            ("system:serviceaccount:castai-agent:castai-evictor", "CAST AI Evictor"),
            ("system:serviceaccount:kube-system:vpa-updater", "Vertical Pod Autoscaler updater"),
            ("system:serviceaccount:vpa:vpa-vertical-pod-autoscaler-updater", "Vertical Pod Autoscaler updater"),
            ("system:serviceaccount:argo-rollouts:argo-rollouts", "Argo Rollouts"),
            (
                "system:serviceaccount:openshift-machine-config-operator:machine-config-controller",
                "OpenShift Machine Config Operator",
            ),
            (
                "system:serviceaccount:nmo:node-maintenance-operator-controller-manager",
                "medik8s Node Maintenance Operator",
            ),
            ("system:serviceaccount:system-upgrade:system-upgrade", "Rancher System Upgrade Controller"),
            ("system:serviceaccount:kube-system:draino", "draino"),
        ] {
            assert_eq!(recognise(username).map(|evictor| evictor.name), Some(expected), "{username}");
        }
    }

    #[test]
    fn nobody_is_recognised_by_a_name_that_only_looks_alike() {
        for username in [
            "",
            "karpenter",
            "kubernetes-admin",
            "aksService",
            "alice@example.com",
            "system:serviceaccount:karpenter",
            "system:serviceaccount:karpenter:default",
            "system:serviceaccount:kube-system:mykarpenter",
            "system:serviceaccount:kube-system:-karpenter",
            "system:serviceaccount:kube-system:karpenter-webhook",
            "system:serviceaccount:kube-system:cluster-autoscaler:x",
            "system:serviceaccount:elsewhere:system-upgrade",
            "system:serviceaccount:elsewhere:machine-config-controller",
            "system:serviceaccount:elsewhere:controller-manager",
        ] {
            assert_eq!(recognise(username), None, "{username}");
        }
    }

    #[test]
    fn the_limits_are_those_of_the_sources() {
        for (evictor, minutes) in [
            (CLUSTER_AUTOSCALER, Some(2)),
            (AWS_NODE_TERMINATION_HANDLER, Some(2)),
            (EKS_NODE_GROUP, Some(15)),
            (AKS_UPGRADE, Some(30)),
            (GKE_UPGRADE, Some(60)),
            (DESCHEDULER, Some(0)),
            (KARPENTER, None),
            (KUBECTL, None),
            (CLUSTER_API, None),
            (KURED, None),
            (CAST_AI, None),
        ] {
            let limit = minutes.map(Duration::from_mins);
            assert_eq!(evictor.limit.at_most(), limit, "{}", evictor.name);
        }
    }

    #[test]
    fn an_evictor_gives_up_only_before_a_longer_wait_than_its_own() {
        let two_minutes = Duration::from_mins(2);
        assert!(CLUSTER_AUTOSCALER.gives_up_before(two_minutes + Duration::from_secs(1)));
        assert!(!CLUSTER_AUTOSCALER.gives_up_before(two_minutes));
        assert!(DESCHEDULER.gives_up_before(Duration::from_secs(1)));
        assert!(!KUBECTL.gives_up_before(Duration::from_hours(999)), "nothing is known of its --timeout");
    }

    #[test]
    fn patience_is_told_in_words() {
        assert_eq!(CLUSTER_AUTOSCALER.patience(), "waits up to 2 min (--max-pod-eviction-time)");
        assert_eq!(EKS_NODE_GROUP.patience(), "waits up to 15 min");
        assert_eq!(GKE_UPGRADE.patience(), "waits up to 1 h");
        assert_eq!(DESCHEDULER.patience(), "asks once a pass and does not wait");
        assert_eq!(KUBECTL.patience(), "waits for as long as it takes, or as told (--timeout, none by default)");
        assert_eq!(in_words(Duration::from_secs(510)), "8 min 30 s");
        assert_eq!(in_words(Duration::from_secs(45)), "45 s");
        assert_eq!(in_words(Duration::from_mins(90)), "1 h 30 min");
    }

    #[test]
    fn every_evictor_has_a_name_of_its_own_a_reaction_and_a_source_and_users_do_not_overlap() {
        for (at, evictor) in known().iter().enumerate() {
            assert!(!evictor.when_refused.is_empty() && !evictor.source.is_empty(), "{}", evictor.name);
            for other in &known()[at + 1..] {
                assert_ne!(evictor.name, other.name);
                assert!(evictor.users.iter().all(|user| !other.users.contains(user)), "{}", other.name);
            }
        }
    }
}
