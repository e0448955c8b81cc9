//! What people and their tools do to a workload while Belay works on it.

use super::World;

/// Something that a person, a GitOps tool or an autoscaler does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// Releases a new image; a tool that owns the whole template strips what it does not know.
    Release {
        strips: bool,
    },
    /// `kubectl rollout undo`: the template of the revision before, and that ReplicaSet's annotations, in one write.
    Undo,
    /// Puts the template back as it was written by the user.
    StripSlot,
    /// Takes the record off the Deployment.
    StripRecord,
    /// `kubectl replace` with what the user once wrote: both at once, and the Deployment controller's revision with them.
    StripBoth,
    Pause(bool),
    Scale(i32),
    /// Deletes the hold of this number.
    DeleteHold(usize),
    Cordon(usize),
    Uncordon(usize),
    /// Deletes the pod of this number.
    DeletePod(usize),
    /// Pods created from now on take this long to be ready; absent for ever.
    Startup(Option<u8>),
}

impl World {
    pub(super) fn person(&mut self, deed: Deed) {
        match deed {
            Deed::Release { strips } => {
                self.api.release += 1;
                self.edit(|deployment| {
                    if strips {
                        deployment.slot = None;
                    }
                    true
                });
            }
            Deed::Undo => self.undo(),
            Deed::StripSlot => self.edit(|deployment| deployment.slot.take().is_some()),
            Deed::StripRecord => {
                self.api.deployment.records.clear();
                self.edit(|_| false);
            }
            Deed::StripBoth => {
                self.api.deployment.records.clear();
                self.api.deployment.revision = None;
                self.edit(|deployment| deployment.slot.take().is_some());
            }
            Deed::Pause(paused) => {
                self.edit(|deployment| std::mem::replace(&mut deployment.paused, paused) != paused);
            }
            Deed::Scale(replicas) => {
                self.edit(|deployment| std::mem::replace(&mut deployment.replicas, replicas) != replicas);
            }
            Deed::DeleteHold(index) => {
                if index < self.api.holds.len() {
                    self.api.holds.remove(index);
                    self.laws.durable = false;
                }
            }
            Deed::Cordon(node) => {
                self.api.cordoned.insert(super::cluster::NODES[node]);
            }
            Deed::Uncordon(node) => {
                self.api.cordoned.remove(super::cluster::NODES[node]);
            }
            Deed::DeletePod(pod) => {
                if pod < self.api.pods.len() {
                    self.terminate(pod);
                }
            }
            Deed::Startup(startup) => self.startup = startup.map(i64::from),
        }
        self.see();
    }

    /// Writes the Deployment; `change` says whether its spec is another now.
    fn edit(&mut self, change: impl FnOnce(&mut crate::view::DeploymentView) -> bool) {
        let target = &mut self.api.deployment;
        if change(target) {
            target.generation += 1;
        }
        self.api.deployment_written();
    }

    /// kubectl `polymorphichelpers/rollback.go`.
    fn undo(&mut self) {
        if self.api.deployment.paused {
            return;
        }
        let mut sets: Vec<_> = self.api.sets.iter().collect();
        sets.sort_by_key(|set| std::cmp::Reverse(set.view.revision));
        let Some(previous) = sets.get(1) else { return };
        let (release, slot, records) = (previous.release, previous.view.slot.clone(), previous.records.clone());
        self.api.release = release;
        self.api.deployment.slot = slot.map(Into::into);
        self.api.deployment.records = records;
        self.edit(|_| true);
    }
}
