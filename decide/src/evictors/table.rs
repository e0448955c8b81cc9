//! What is known of each evictor. Each limit is a default; a cluster's operator may have set another.

use std::time::Duration;

use super::{Evictor, Limit, User};

const fn minutes(minutes: u64, setting: Option<&'static str>) -> Limit {
    Limit::Fixed { limit: Duration::from_mins(minutes), setting }
}

/// Cluster Autoscaler. The user `cluster-autoscaler` is what it has on GCE, where it runs beside the API server.
pub const CLUSTER_AUTOSCALER: Evictor = Evictor {
    name: "Cluster Autoscaler",
    users: &[User::Exact("cluster-autoscaler"), User::ServiceAccount("cluster-autoscaler")],
    restarts: false,
    limit: minutes(2, Some("--max-pod-eviction-time")),
    when_refused: "asks again every 10 s, then gives the node up, uncordons it and tries again some minutes later",
    source: "kubernetes-sigs/cluster-autoscaler pkg/config/flags/flags.go, pkg/core/scaledown/actuation/drain.go; \
             users: cloudprovider/*/examples, charts/cluster-autoscaler, kubernetes/kubernetes \
             cluster/addons/rbac/cluster-autoscaler",
};

/// Karpenter, self-hosted. Where a cloud runs it (EKS Auto Mode, AKS node auto-provisioning), no source names its user.
pub const KARPENTER: Evictor = Evictor {
    name: "Karpenter",
    users: &[User::ServiceAccount("karpenter"), User::ServiceAccount("karpenter-sa")],
    restarts: false,
    limit: Limit::Told("terminationGracePeriod of the NodeClaim, none by default"),
    when_refused: "asks again at most every 10 s; once the NodeClaim's terminationGracePeriod is nearly over it \
                   deletes the pod instead, which no eviction webhook sees",
    source: "kubernetes-sigs/karpenter pkg/controllers/node/termination/terminator/eviction.go; users: \
             aws/karpenter-provider-aws charts/karpenter, Azure/karpenter-provider-azure README.md",
};

/// `kubectl drain` and programs that are it. It comes as whoever runs it.
pub const KUBECTL: Evictor = Evictor {
    name: "kubectl drain",
    users: &[],
    restarts: false,
    limit: Limit::Told("--timeout, none by default"),
    when_refused: "says so and asks again every 5 s",
    source: "kubernetes/kubectl pkg/cmd/drain/drain.go, pkg/drain/drain.go",
};

/// An update of an EKS managed node group.
pub const EKS_NODE_GROUP: Evictor = Evictor {
    name: "EKS managed node group",
    users: &[User::Exact("eks:node-manager")],
    restarts: false,
    limit: minutes(15, None),
    when_refused: "asks again, then fails the update with PodEvictionFailure; a forced update deletes the pods, and \
                   the deletion of a node group goes on after 5 min",
    source: "Amazon EKS user guide, managed-node-update-behavior and delete-managed-node-group; user: AWS knowledge \
             centre, eks-managed-node-group-update",
};

/// An upgrade of an AKS node pool. No source names the user that evicts.
pub const AKS_UPGRADE: Evictor = Evictor {
    name: "AKS node pool upgrade",
    users: &[],
    restarts: false,
    limit: minutes(30, Some("drainTimeoutInMinutes of the node pool")),
    when_refused: "asks again, then fails the upgrade and leaves the node as undrainableNodeBehavior says",
    source: "Azure REST API, AgentPoolUpgradeSettings.drainTimeoutInMinutes; Azure/AKS#4306",
};

/// An upgrade of a GKE node pool. No source names the user that evicts.
pub const GKE_UPGRADE: Evictor = Evictor {
    name: "GKE node upgrade",
    users: &[],
    restarts: false,
    limit: minutes(60, None),
    when_refused: "asks again, then removes the pod by force",
    source: "googleforgames/agones site, controlling-disruption; strimzi/drain-cleaner#58",
};

/// AWS Node Termination Handler.
pub const AWS_NODE_TERMINATION_HANDLER: Evictor = Evictor {
    name: "AWS Node Termination Handler",
    users: &[User::ServiceAccount("aws-node-termination-handler")],
    restarts: false,
    limit: minutes(2, Some("--node-termination-grace-period")),
    when_refused: "asks again every 5 s, then gives up; a spot instance ends two minutes after its notice in any case",
    source: "aws/aws-node-termination-handler pkg/config/config.go, pkg/node/node.go; user: \
             config/helm/aws-node-termination-handler",
};

/// The descheduler.
pub const DESCHEDULER: Evictor = Evictor {
    name: "descheduler",
    users: &[User::ServiceAccount("descheduler"), User::ServiceAccount("descheduler-sa")],
    restarts: false,
    limit: Limit::Once,
    when_refused: "counts the eviction as failed and looks at the pod again in its next cycle",
    source: "kubernetes-sigs/descheduler pkg/descheduler/evictions/evictions.go; users: kubernetes/base/rbac.yaml, \
             charts/descheduler",
};

/// kured, which drains before it reboots a node.
pub const KURED: Evictor = Evictor {
    name: "kured",
    users: &[User::ServiceAccount("kured")],
    restarts: false,
    limit: Limit::Told("--drain-timeout, none by default"),
    when_refused: "asks again every 5 s; after its timeout it reboots only with --force-reboot",
    source: "kubereboot/kured cmd/kured/main.go; user: kured-rbac.yaml",
};

/// Cluster API. It comes as `kubernetes-admin`, which people use as well.
pub const CLUSTER_API: Evictor = Evictor {
    name: "Cluster API",
    users: &[],
    restarts: false,
    limit: Limit::Told("nodeDrainTimeoutSeconds of the Machine, none by default"),
    when_refused: "records it in the Machine's conditions and asks again; after its timeout the machine is deleted \
                   with the pod",
    source: "kubernetes-sigs/cluster-api core/reconcilers/machine/drain; util/kubeconfig/kubeconfig.go",
};

/// The CAST AI Evictor.
pub const CAST_AI: Evictor = Evictor {
    name: "CAST AI Evictor",
    users: &[User::ServiceAccount("castai-evictor")],
    restarts: false,
    limit: Limit::Unknown,
    when_refused: "comes back to the node in a later cycle",
    source: "docs.cast.ai/docs/evictor; user: castai/helm-charts charts/castai-evictor",
};

/// All of them, in the order in which they are told to people.
pub(super) const KNOWN: &[Evictor] = &[
    CLUSTER_AUTOSCALER,
    KARPENTER,
    KUBECTL,
    EKS_NODE_GROUP,
    AKS_UPGRADE,
    GKE_UPGRADE,
    AWS_NODE_TERMINATION_HANDLER,
    DESCHEDULER,
    KURED,
    CLUSTER_API,
    CAST_AI,
    Evictor {
        name: "OpenShift Machine Config Operator",
        users: &[User::ServiceAccountIn {
            namespace: "openshift-machine-config-operator",
            name: "machine-config-controller",
        }],
        restarts: false,
        limit: Limit::Unlimited,
        when_refused: "asks again in tries of 90 s, reports a failed drain after an hour and goes on",
        source: "openshift/machine-config-operator pkg/controller/drain/drain_controller.go; user: \
                 manifests/machineconfigcontroller/sa.yaml",
    },
    Evictor {
        name: "medik8s Node Maintenance Operator",
        users: &[User::ServiceAccount("node-maintenance-operator-controller-manager")],
        restarts: false,
        limit: Limit::Unlimited,
        when_refused: "asks again in tries of 30 s",
        source: "medik8s/node-maintenance-operator internal/controller/nodemaintenance_controller.go; user: \
                 config/default, config/rbac/service_account.yaml",
    },
    Evictor {
        name: "Rancher System Upgrade Controller",
        users: &[User::ServiceAccountIn { namespace: "system-upgrade", name: "system-upgrade" }],
        restarts: false,
        limit: Limit::Told("drain.timeout of the Plan, and the deadline of its Jobs"),
        when_refused: "runs kubectl drain in a Job, which asks again every 5 s",
        source: "rancher/system-upgrade-controller pkg/upgrade/job/job.go; user: \
                 manifests/system-upgrade-controller.yaml",
    },
    Evictor {
        name: "Vertical Pod Autoscaler updater",
        users: &[User::ServiceAccount("vpa-updater"), User::ServiceAccount("vertical-pod-autoscaler-updater")],
        restarts: true,
        limit: Limit::Once,
        when_refused: "logs it and looks at the pod again in its next loop",
        source: "kubernetes/autoscaler vertical-pod-autoscaler/pkg/updater; users: deploy/vpa-rbac.yaml, \
                 charts/vertical-pod-autoscaler",
    },
    Evictor {
        name: "Argo Rollouts",
        users: &[User::ServiceAccount("argo-rollouts")],
        restarts: true,
        limit: Limit::Unlimited,
        when_refused: "tries again when it looks at the Rollout again",
        source: "argoproj/argo-rollouts rollout/restart.go; user: manifests/base/argo-rollouts-sa.yaml",
    },
    Evictor {
        name: "draino",
        users: &[User::ServiceAccount("draino")],
        restarts: false,
        limit: Limit::Fixed {
            limit: Duration::from_secs(8 * 60 + 30),
            setting: Some("--max-grace-period and --eviction-headroom"),
        },
        when_refused: "asks again every 5 s, then marks the drain as failed",
        source: "planetlabs/draino internal/kubernetes/drainer.go; user: manifest.yml",
    },
];
