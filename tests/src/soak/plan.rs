//! What a soak does, from its seed alone: the workloads of every scene, whom each drain is for, and the faults in between.
//!
//! The plan is the same for the same seed on any machine. When things happen in it is not: that is the machine's.

use std::fmt;
use std::time::Duration;

use crate::chance::Chance;

/// Drains on one set of workloads before they make room for new ones: enough that handovers follow each other on the
/// same Deployment, and few enough that many kinds of workloads are met.
pub(super) const DRAINS_A_SCENE: usize = 5;

/// Keeps the faults' numbers apart from the scenes', so that a longer plan has the same faults.
const OF_FAULTS: u64 = 0x000f_a017;

/// Seconds that pods serve on after they were asked to go. Endpoints follow pods within a second or two; more, on a
/// machine that is busy.
const PRE_STOP: [i64; 4] = [4, 5, 6, 7];

/// Milliseconds that pods take to become Ready.
const READY: [u64; 5] = [300, 1000, 2000, 3500, 6000];

/// Seconds of work that a busy pod has before it.
const JOBS: [u64; 4] = [2, 4, 7, 11];

/// Seconds that the API server is away.
const AWAY: [u64; 4] = [0, 2, 5, 9];

/// Seconds of a pause that outlasts the lease of the leader.
const PAUSES: [u64; 3] = [7, 9, 12];

/// Seconds from one fault's end to the next fault.
const BETWEEN: [u64; 5] = [1, 3, 5, 8, 12];

/// One namespace's workloads, and the drains that they go through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scene {
    /// Which one, from 1.
    pub(super) number: usize,
    /// The Deployment of one replica, handed over by a restart.
    pub(super) single: Pods,
    /// The Deployment of two or three, handed over by a replica more.
    pub(super) set: Pods,
    /// Whether there is one that never makes its deadline.
    pub(super) late: bool,
    pub(super) drains: Vec<Drain>,
}

/// What the pods of a Deployment are like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pods {
    pub(super) replicas: usize,
    pub(super) ready_after: Duration,
    pub(super) pre_stop: i64,
}

/// One drain: of a node with a pod of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Drain {
    pub(super) target: Target,
    /// Chooses among the target's pods.
    pub(super) pick: usize,
    /// How long a busy pod works on.
    pub(super) job: Duration,
}

/// Whom a drain is for. Whoever else is on the node goes too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Target {
    Single,
    Set,
    Busy,
    Late,
}

impl Target {
    pub(super) const ALL: [Self; 4] = [Self::Single, Self::Set, Self::Busy, Self::Late];
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "for a single pod",
            Self::Set => "for one of two or three",
            Self::Busy => "for a busy pod",
            Self::Late => "for one whose replacement comes too late",
        })
    }
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// From the end of the one before to this one.
    pub(super) after: Duration,
    pub(super) kind: Kind,
}

/// What is broken. "Killed" is by SIGKILL; the node agent starts a killed program again, as a kubelet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The leading controller is killed.
    Leader,
    /// It is killed, and so is the next one as soon as it leads.
    LeaderTwice,
    /// Its pod is gone with its machine: nothing is given up in order.
    LeaderLost,
    /// It is stopped for longer than its lease, and goes on.
    LeaderPaused(Duration),
    /// One webhook replica is killed.
    Replica,
    /// Both are killed at once.
    Replicas,
    /// All of Belay is killed at once.
    Everything,
    /// The API server is killed, with the controllers and the scheduler beside it, and comes back so much later.
    ApiServer(Duration),
    /// The same, and the leader is killed while it is away.
    ApiServerAndLeader(Duration),
}

impl Kind {
    /// What a table counts it as.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Leader => "leader killed",
            Self::LeaderTwice => "leader killed, and its successor",
            Self::LeaderLost => "leader's machine lost",
            Self::LeaderPaused(_) => "leader paused past its lease",
            Self::Replica => "webhook replica killed",
            Self::Replicas => "both webhook replicas killed",
            Self::Everything => "all of Belay killed",
            Self::ApiServer(_) => "API server killed",
            Self::ApiServerAndLeader(_) => "API server and leader killed",
        }
    }
}

/// The scenes of so many drains.
pub(super) fn scenes(seed: u64, drains: usize) -> Vec<Scene> {
    let mut chance = Chance::of_seed(seed);
    let count = drains.div_ceil(DRAINS_A_SCENE);
    let mut scenes: Vec<Scene> = (1..=count).map(|number| scene(number, &mut chance)).collect();
    if let Some(last) = scenes.last_mut() {
        last.drains.truncate(drains - (count - 1) * DRAINS_A_SCENE);
    }
    scenes
}

fn scene(number: usize, chance: &mut Chance) -> Scene {
    let single = pods(1, chance);
    let replicas = 2 + chance.below(2);
    let set = pods(replicas, chance);
    let late = chance.one_in(4);
    let drains = (0..DRAINS_A_SCENE).map(|turn| drain(turn, late, chance)).collect();
    Scene { number, single, set, late, drains }
}

fn pods(replicas: usize, chance: &mut Chance) -> Pods {
    Pods { replicas, ready_after: Duration::from_millis(chance.of(&READY)), pre_stop: chance.of(&PRE_STOP) }
}

fn drain(turn: usize, late: bool, chance: &mut Chance) -> Drain {
    let target = match chance.below(10) {
        0..4 => Target::Single,
        4..8 => Target::Set,
        _ => Target::Busy,
    };
    // Once in a scene, and early, so that what it leaves behind is met by the drains after it.
    let target = if late && turn == 1 { Target::Late } else { target };
    Drain { target, pick: chance.below(6), job: Duration::from_secs(chance.of(&JOBS)) }
}

/// The faults, without end.
#[derive(Debug)]
pub(super) struct Faults(Chance);

impl Faults {
    pub(super) fn of_seed(seed: u64) -> Self {
        Self(Chance::of_seed(seed ^ OF_FAULTS))
    }
}

impl Iterator for Faults {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let after = Duration::from_secs(self.0.of(&BETWEEN));
        let away = Duration::from_secs(self.0.of(&AWAY));
        let pause = Duration::from_secs(self.0.of(&PAUSES));
        let kind = match self.0.below(20) {
            0..4 => Kind::Leader,
            4 => Kind::LeaderTwice,
            5..7 => Kind::LeaderLost,
            7..9 => Kind::LeaderPaused(pause),
            9..14 => Kind::Replica,
            14..16 => Kind::Replicas,
            16 => Kind::Everything,
            17..19 => Kind::ApiServer(away),
            _ => Kind::ApiServerAndLeader(away),
        };
        Some(Fault { after, kind })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_is_the_same_plan_and_another_seed_is_another() {
        assert_eq!(scenes(7, 95), scenes(7, 95));
        assert_ne!(scenes(7, 95), scenes(8, 95));
        let faults = |seed| Faults::of_seed(seed).take(50).collect::<Vec<_>>();
        assert_eq!(faults(7), faults(7));
        assert_ne!(faults(7), faults(8));
    }

    #[test]
    fn there_are_as_many_drains_as_were_asked_for_and_a_longer_plan_begins_like_a_shorter_one() {
        for drains in [0, 1, 4, 5, 6, 1000] {
            let count: usize = scenes(1, drains).iter().map(|scene| scene.drains.len()).sum();
            assert_eq!(count, drains);
        }
        let (short, long) = (scenes(1, 20), scenes(1, 1000));
        assert_eq!(short, long[..4]);
    }

    #[test]
    fn a_long_plan_has_every_target_and_every_fault() {
        let scenes = scenes(1, 200);
        let targets: BTreeSet<_> = scenes.iter().flat_map(|scene| &scene.drains).map(|drain| drain.target).collect();
        assert_eq!(targets, Target::ALL.into());
        let late = |scene: &&Scene| scene.drains.iter().any(|drain| drain.target == Target::Late);
        assert!(scenes.iter().filter(late).all(|scene| scene.late), "a target that is not there");
        let faults: BTreeSet<_> = Faults::of_seed(1).take(200).map(|fault| fault.kind.word()).collect();
        assert_eq!(faults.len(), 9, "{faults:?}");
    }
}
