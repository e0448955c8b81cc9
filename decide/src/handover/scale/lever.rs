//! The number that a workload's replicas follow: on the Deployment, or the minimum of its autoscaler.

use crate::action::{Action, ObjectRef};
use crate::handover::Workload;
use crate::handover::surge::SurgeRecord;
use crate::view::{AutoscalerView, DeploymentView, Governor};

/// An object whose number says how many replicas a Deployment has, with the surge that stands on it.
#[derive(Clone, Debug)]
pub(super) struct Lever<'a> {
    pub(super) governor: Governor,
    pub(super) object: ObjectRef,
    /// As it stands; absent where the object leaves it out.
    pub(super) number: Option<i32>,
    /// It may not be raised beyond this.
    pub(super) maximum: i32,
    pub(super) record: Option<&'a SurgeRecord>,
}

/// The object, for a write.
pub(in crate::handover) fn object_of(deployment: &DeploymentView) -> ObjectRef {
    ObjectRef {
        namespace: deployment.namespace.clone(),
        name: deployment.name.clone(),
        uid: deployment.uid.clone(),
        resource_version: deployment.resource_version.clone(),
    }
}

impl<'a> Lever<'a> {
    fn of_deployment(deployment: &'a DeploymentView) -> Self {
        Self {
            governor: Governor::Deployment,
            object: object_of(deployment),
            number: Some(deployment.replicas),
            maximum: i32::MAX,
            record: deployment.surge.as_ref(),
        }
    }

    pub(super) fn of_autoscaler(autoscaler: &'a AutoscalerView) -> Self {
        Self {
            governor: autoscaler.governor,
            object: autoscaler.object.clone(),
            number: autoscaler.minimum,
            maximum: autoscaler.maximum,
            record: autoscaler.surge.as_ref(),
        }
    }

    /// What governs the workload's replicas. A record that speaks of another Deployment is not its surge.
    pub(super) fn of(workload: &Workload<'a>) -> Self {
        let lever = workload.autoscaler.map_or_else(|| Self::of_deployment(workload.deployment), Self::of_autoscaler);
        let record = lever.record.filter(|record| record.workload == workload.deployment.uid);
        Self { record, ..lever }
    }

    /// Every object of the workload with a record on it.
    pub(super) fn with_records(workload: &Workload<'a>) -> Vec<Self> {
        let all = [Some(Self::of_deployment(workload.deployment)), workload.autoscaler.map(Self::of_autoscaler)];
        all.into_iter().flatten().filter(|lever| lever.record.is_some()).collect()
    }

    /// Those of them whose record is no surge of what governs the replicas now: an autoscaler came or went in
    /// mid-surge, or was pointed to another Deployment.
    pub(super) fn astray(workload: &Workload<'a>) -> Vec<Self> {
        let governing = Self::of(workload);
        let is_surge = |lever: &Self| governing.record.is_some() && lever.object == governing.object;
        Self::with_records(workload).into_iter().filter(|lever| !is_surge(lever)).collect()
    }

    /// What the replicas are raised from, without a surge.
    pub(super) fn base(&self, replicas: i32) -> i32 {
        replicas.max(self.number.unwrap_or(0))
    }

    /// Somebody else changed the number since it was raised.
    pub(super) fn was_changed(&self) -> bool {
        self.record.is_some_and(|record| self.number != record.number())
    }

    /// How many more replicas the Deployment has than the autoscaler's minimum asks for with the surge: when the minimum
    /// comes down, the autoscaler takes minutes to follow. Where they are more than the victims that are to go with them,
    /// the load asks for them, and they stay.
    pub(super) fn lag(&self, deployment: &DeploymentView) -> i32 {
        let record = self.record.filter(|_| self.governor != Governor::Deployment);
        let surplus = |record: &SurgeRecord| deployment.replicas.saturating_sub(record.raised()).max(0);
        let is_ours =
            |record: &&SurgeRecord| usize::try_from(surplus(record)).is_ok_and(|all| all <= record.released.len());
        record.filter(is_ours).map_or(0, surplus)
    }

    /// The write of a number and a record, as whom says [`super::super::reconcile`].
    pub(super) fn write(&self, number: Option<i32>, record: Option<SurgeRecord>) -> Action {
        let (governor, object) = (self.governor, self.object.clone());
        if number == self.number {
            Action::NoteSurge { governor, object, record }
        } else {
            Action::Surge { governor, object, number, record, field_manager: None }
        }
    }

    /// The write that ends the surge: the number as it was, unless somebody else changed it.
    pub(super) fn put_back(&self) -> Action {
        let original = self.record.filter(|_| !self.was_changed()).map_or(self.number, |record| record.original);
        self.write(original, None)
    }

    /// What the number is called.
    pub(super) fn field(&self) -> &'static str {
        match self.governor {
            Governor::Deployment => "replicas",
            Governor::HorizontalPodAutoscaler => "minReplicas",
            Governor::ScaledObject => "minReplicaCount",
        }
    }

    /// The object, for people.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.governor.kind(), self.object.name)
    }
}
