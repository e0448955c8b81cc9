//! The simulated world of `rotation.rs`: an API with histories, and those who read them late.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use webhook_certs::plan::{ConfigKind, Entry, LiveCaBundle, Step, plan};
use webhook_certs::replica::Tick;
use webhook_certs::verify::verify;
use webhook_certs::{Ca, CaSecret, Jitter, LeafRequest, Replica};

/// Webhook entries in live configurations.
pub(crate) const ENTRIES: usize = 2;
/// Webhook replicas, and as many API servers.
pub(crate) const REPLICAS: usize = 2;
/// Seconds by which an API server may see a configuration late. Together with the clocks' worst
/// disagreement it stays below the settle time, which is what that time is for.
pub(crate) const MAX_API_LAG: i64 = 60;
/// The clocks of the leaders and of the replicas, against the API servers', in seconds.
const SKEWS: [i64; 2] = [-20, 25];
const NAME: &str = "belay-webhook.belay-system.svc";
/// Steps in a row without a wait, at one moment: more means that the planner goes in circles.
const MAX_STEPS: usize = 12;

/// What happens next.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Seconds pass; replicas tick.
    Pass(i64),
    /// Days pass with a leader that works.
    RunDays(i64),
    /// Days pass with a leader that works, until just when its next step is due.
    RunUntilDue,
    /// Days pass with no leader.
    LeaderlessDays(i64),
    /// The leader does one step, and if that is a patch, dies after this many entries.
    LeaderStep(usize),
    /// The leader reads and plans, then stops for a while.
    LeaderPauses,
    /// The one that stopped carries its old plan out.
    PausedLeaderGoesOn,
    /// Another process leads, whose clock differs.
    LeaderChanges,
    /// This replica sees everything this many seconds late from now on.
    ReplicaLag(usize, i64),
    /// So does this API server.
    ApiServerLag(usize, i64),
    /// Somebody writes this entry's bundle.
    Edit(usize, Tamper),
    /// Somebody deletes the CA Secret.
    DeleteSecret,
}

/// What somebody writes into a bundle.
#[derive(Debug, Clone)]
pub(crate) enum Tamper {
    Empty,
    Garbage,
    Foreign,
    /// The bundle as it was this many versions ago.
    Earlier(usize),
}

/// Every version of one object with the moment it was written.
struct History<T>(Vec<(Timestamp, T)>);

impl<T> History<T> {
    fn write(&mut self, now: Timestamp, value: T) {
        self.0.push((now, value));
    }
    fn version(&self) -> usize {
        self.0.len() - 1
    }
    fn latest(&self) -> &T {
        &self.0[self.version()].1
    }
    /// The newest version written at or before `at`.
    fn version_at(&self, at: Timestamp) -> usize {
        self.0.iter().rposition(|(written, _)| *written <= at).unwrap_or(0)
    }
}

struct Bundle {
    pem: Vec<u8>,
    /// Written by somebody else such that calls fail, or never written.
    excused: bool,
}

/// A reader that is behind, and never goes back.
#[derive(Clone, PartialEq)]
struct Observer {
    lag: SignedDuration,
    secret: usize,
    bundles: [usize; ENTRIES],
}

struct ReplicaProcess {
    replica: Replica,
    view: Observer,
    skew: SignedDuration,
    /// Counted as serving: ready once, and from then on.
    serves: bool,
    /// Starts afresh at every look, so that a start is tried at every moment there is.
    newborn: bool,
}

/// A plan, and the versions it was made from.
struct Planned {
    step: Step,
    secret_version: usize,
    bundle_versions: [usize; ENTRIES],
}

pub(crate) struct World {
    now: Timestamp,
    secret: History<Option<CaSecret>>,
    bundles: [History<Bundle>; ENTRIES],
    replicas: Vec<ReplicaProcess>,
    api_servers: Vec<Observer>,
    leader_view: Observer,
    leader_skew: usize,
    paused: Option<Planned>,
    leader_worked: Timestamp,
    /// Which signer's leaves verified against which version of which entry. Of a leaf that is
    /// valid, that is all that verification depends on, as no leaf outlives its authority.
    verified: BTreeSet<(String, usize, usize)>,
    pub(crate) writes: usize,
    pub(crate) rotations: usize,
    pub(crate) leaves: usize,
}

fn secs(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

fn entry(place: usize) -> Entry {
    let kind = if place == 0 { ConfigKind::Validating } else { ConfigKind::Mutating };
    Entry { kind, config: "belay".into(), webhook: format!("w{place}.belay.dev") }
}

fn replica(place: usize) -> Replica {
    let jitter = Jitter::of(&format!("belay-webhook-{place}"));
    Replica::new(LeafRequest { dns_names: vec![NAME.into()], ips: vec![], jitter })
}

impl World {
    /// A cluster into which everything was just installed and that has come to rest. With
    /// `newborns`, each replica has a twin that sees the same and starts afresh at every look.
    pub(crate) fn started(newborns: bool) -> Self {
        let now: Timestamp = "2026-03-01T10:00:00Z".parse().unwrap();
        let blank = || History(vec![(now, Bundle { pem: vec![], excused: true })]);
        let view = Observer { lag: secs(0), secret: 0, bundles: [0; ENTRIES] };
        let mut world = Self {
            now,
            secret: History(vec![(now, None)]),
            bundles: std::array::from_fn(|_| blank()),
            replicas: (0..if newborns { 2 * REPLICAS } else { REPLICAS })
                .map(|place| ReplicaProcess {
                    replica: replica(place),
                    view: view.clone(),
                    skew: secs(SKEWS[place % REPLICAS]),
                    serves: false,
                    newborn: place >= REPLICAS,
                })
                .collect(),
            api_servers: vec![view.clone(); REPLICAS],
            leader_view: view,
            leader_skew: 0,
            paused: None,
            leader_worked: now,
            verified: BTreeSet::new(),
            writes: 0,
            rotations: 0,
            leaves: 0,
        };
        world.comes_to_rest();
        world
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Pass(seconds) => self.pass(secs(*seconds)),
            Op::RunDays(days) => self.run(*days, false),
            Op::RunUntilDue => self.run(365, true),
            Op::LeaderlessDays(days) => {
                // The third of a life that is left for repairs is what bounds such a time.
                let limit = self.leader_worked + SignedDuration::from_hours(100 * 24);
                for _ in 0..*days {
                    if self.now < limit {
                        self.pass(SignedDuration::from_hours(24));
                    }
                }
            }
            Op::LeaderStep(dies_after) => {
                let planned = self.plan();
                self.carry_out(&planned, *dies_after);
            }
            Op::LeaderPauses => self.paused = Some(self.plan()),
            Op::PausedLeaderGoesOn => {
                if let Some(planned) = self.paused.take() {
                    self.carry_out(&planned, ENTRIES);
                }
            }
            Op::LeaderChanges => self.leader_skew = 1 - self.leader_skew,
            Op::ReplicaLag(place, lag) => {
                self.replicas.iter_mut().skip(*place).step_by(REPLICAS).for_each(|it| it.view.lag = secs(*lag));
            }
            Op::ApiServerLag(place, lag) => self.api_servers[*place].lag = secs(*lag),
            Op::Edit(place, tamper) => {
                let history = &mut self.bundles[*place];
                let pem = match tamper {
                    Tamper::Empty => vec![],
                    Tamper::Garbage => b"-----BEGIN CERTIFICATE-----\n!\n".to_vec(),
                    Tamper::Foreign => {
                        let ca = Ca::generate("other", self.now).unwrap();
                        ca.certificate().to_pem().into_bytes()
                    }
                    Tamper::Earlier(versions) => history.0[history.version().saturating_sub(*versions)].1.pem.clone(),
                };
                // An older bundle that trusts today's signer fails no call, and must not come to.
                // That a leader activates between this and its last look nobody can prevent.
                let signer = self.secret.latest().as_ref().map(|secret| secret.active().certificate().to_pem());
                let trusted = signer.is_some_and(|signer| String::from_utf8_lossy(&pem).contains(&signer));
                let unseen = self.paused.as_ref().is_some_and(|paused| paused.step == Step::Activate);
                history.write(self.now, Bundle { pem, excused: !trusted || unseen });
            }
            Op::DeleteSecret => self.secret.write(self.now, None),
        }
        self.look();
    }

    /// Lets everybody work until nothing is left to do, and insists that everything is right then.
    pub(crate) fn comes_to_rest(&mut self) {
        for _ in 0..10 {
            self.work();
            self.pass(secs(MAX_API_LAG + 1));
        }
        let planned = self.plan();
        assert!(matches!(planned.step, Step::Wait { .. }), "not at rest: {}", planned.step.name());
        let secret = self.secret.latest().as_ref().unwrap();
        for bundle in &self.bundles {
            assert_eq!(bundle.latest().pem, secret.bundle_pem());
        }
        for process in &self.replicas {
            let leaf = process.replica.served().expect("a replica without a leaf");
            assert_eq!(leaf.signer(), secret.active().certificate());
            process.replica.ready(&self.live(&process.view), self.now).unwrap();
        }
    }

    /// Every process is down for a while, and starts afresh.
    pub(crate) fn is_down_for(&mut self, time: SignedDuration) {
        self.now += time;
        for (place, process) in self.replicas.iter_mut().enumerate() {
            process.replica = replica(place);
            process.serves = false;
        }
    }

    fn pass(&mut self, time: SignedDuration) {
        self.now += time;
        self.look();
    }

    fn run(&mut self, days: i64, until_due: bool) {
        let until = self.now + SignedDuration::from_hours(24 * days);
        self.work();
        while self.now < until {
            // As long as the planner says, but replicas look at least twice a day.
            let wait = match self.plan().step {
                Step::Wait { until, .. } => until.duration_since(self.leader_now()),
                _ => secs(1),
            };
            self.pass(wait.clamp(secs(1), SignedDuration::from_hours(12)));
            if until_due && !matches!(self.plan().step, Step::Wait { .. }) {
                return;
            }
            self.work();
        }
    }

    /// The leader works until it has to wait.
    fn work(&mut self) {
        for _ in 0..MAX_STEPS {
            self.leader_view.lag = secs(0);
            let planned = self.plan();
            if matches!(planned.step, Step::Wait { .. }) {
                self.leader_worked = self.now;
                return;
            }
            self.carry_out(&planned, ENTRIES);
            self.look();
        }
        panic!("the planner goes in circles: {}", self.plan().step.name());
    }

    fn leader_now(&self) -> Timestamp {
        self.now + secs(SKEWS[self.leader_skew])
    }

    fn plan(&mut self) -> Planned {
        self.leader_view.catch_up(&self.secret, &self.bundles, self.now);
        let now = self.leader_now();
        let step = plan(self.secret.latest().as_ref(), &self.live(&self.leader_view), now);
        if let Step::Wait { until, .. } = &step {
            assert!(*until > now, "a wait that is over already");
        }
        Planned { step, secret_version: self.secret.version(), bundle_versions: self.leader_view.bundles }
    }

    /// Carries a plan out with the preconditions that the API enforces.
    fn carry_out(&mut self, planned: &Planned, dies_after: usize) {
        if let Step::PatchBundles { ca_bundle, targets } = &planned.step {
            for place in (0..ENTRIES).filter(|place| targets.contains(&entry(*place))).take(dies_after) {
                if planned.bundle_versions[place] == self.bundles[place].version() {
                    let bundle = Bundle { pem: ca_bundle.clone(), excused: false };
                    self.bundles[place].write(self.now, bundle);
                    self.writes += 1;
                }
            }
            return;
        }
        let unchanged = planned.secret_version == self.secret.version();
        if !unchanged || matches!(planned.step, Step::Wait { .. }) {
            return;
        }
        let secret = self.secret.latest().as_ref();
        let written = planned.step.apply(secret, "belay", self.leader_now()).unwrap();
        // Through the API and back.
        let read = CaSecret::parse(&written.unwrap().to_data()).unwrap();
        self.secret.write(self.now, Some(read));
        self.writes += 1;
        self.rotations += usize::from(planned.step == Step::Activate);
    }

    fn live(&self, view: &Observer) -> Vec<LiveCaBundle> {
        (0..ENTRIES)
            .map(|place| LiveCaBundle {
                entry: entry(place),
                ca_bundle: self.bundles[place].0[view.bundles[place]].1.pem.clone(),
            })
            .collect()
    }

    /// Everybody sees what has reached them, replicas tick, and the invariant is checked.
    fn look(&mut self) {
        let (secret, bundles, now) = (&self.secret, &self.bundles, self.now);
        self.api_servers.iter_mut().for_each(|view| view.catch_up(secret, bundles, now));
        for place in 0..self.replicas.len() {
            let before = self.replicas[place].view.clone();
            self.replicas[place].view.catch_up(&self.secret, &self.bundles, self.now);
            let live = self.live(&self.replicas[place].view);
            let process = &mut self.replicas[place];
            let now = self.now + process.skew;
            // Of what it saw already it would make the same again.
            if process.newborn && process.view != before {
                process.serves = false;
                process.replica = replica(place);
            }
            let secret = self.secret.0[process.view.secret].1.as_ref();
            // An authority that expired, or is from a clock ahead, signs nothing: that is
            // reported, and what was served stays.
            if let Ok(Tick::Switched(_)) = process.replica.tick(secret, &live, now) {
                self.leaves += usize::from(!process.newborn);
            }
            process.serves = process.serves || process.replica.ready(&live, now).is_ok();
        }
        self.check();
    }

    fn check(&mut self) {
        for (place, process) in self.replicas.iter().enumerate().filter(|(_, it)| it.serves) {
            let Some(leaf) = process.replica.served() else { continue };
            let views = std::iter::once(&process.view).chain(&self.api_servers);
            for (seen_by, view) in views.enumerate() {
                for (at, bundle) in self.bundles.iter().enumerate() {
                    let version = view.bundles[at];
                    let seen = &bundle.0[version].1;
                    let key = (leaf.signer().subject.clone(), at, version);
                    let known = self.verified.contains(&key) && leaf.validity().contains(self.now);
                    if seen.excused || known {
                        continue;
                    }
                    if let Err(error) = verify(leaf.chain(), &seen.pem, NAME, self.now) {
                        panic!(
                            "{}: replica {place} (newborn: {}) is not trusted by {} at entry {at}, version {version}: \
                             {error}",
                            self.now,
                            process.newborn,
                            if seen_by == 0 { "itself".into() } else { format!("API server {seen_by}") },
                        );
                    }
                    self.verified.insert(key);
                }
            }
        }
    }
}

impl Observer {
    fn catch_up(&mut self, secret: &History<Option<CaSecret>>, bundles: &[History<Bundle>; ENTRIES], now: Timestamp) {
        let seen = now - self.lag;
        self.secret = self.secret.max(secret.version_at(seen));
        for (version, history) in self.bundles.iter_mut().zip(bundles) {
            *version = (*version).max(history.version_at(seen));
        }
    }
}
