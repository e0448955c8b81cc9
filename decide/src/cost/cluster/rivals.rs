//! Other controllers that write deletion costs, and where Belay leaves the field to them.
//!
//! A value that somebody changes is theirs, pod by pod; that is all that an edit by hand needs. A controller that
//! rewrites values as often as they are written (Karpenter's own, behind its gate `PodDeletionCostManagement`, writes
//! each minute) would turn that into a fight over every new pod. So where it is seen at work on several pods, and again,
//! Belay stands down for that node, or that ReplicaSet, for a while: it takes its other values away and writes none. It
//! comes back when the other has been still for the length of that while, which doubles with each time that it was
//! wrong.
//!
//! The clock may be set back. A time that is far ahead then says nothing, and no while lasts longer for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// On so many pods within one period is no edit by hand, if they are of several ReplicaSets or it was not all at once.
const PODS: usize = 3;

/// At so many moments. `kubectl annotate --selector` rewrites any number of pods, but once; Karpenter comes again the
/// next minute.
const MOMENTS: usize = 2;

/// What follows within that time is of the same moment: a command's writes come many a second, even where they are
/// throttled.
const PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// No moment is longer: by then a command has written hundreds of pods, and a controller may write without a pause.
const LONGEST_MOMENT: SignedDuration = SignedDuration::from_mins(1);

/// A while doubles at most so often: ten minutes become ten hours, and a controller that was switched off is noticed
/// within a day.
const MOST_DOUBLINGS: u32 = 6;

/// Where Belay stands down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A node, by name.
    Node(Arc<str>),
    /// A ReplicaSet, by UID.
    Set(Arc<str>),
}

/// Belay stands down somewhere, or is back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stance {
    /// Where.
    pub scope: Scope,
    /// Until when at least, where it stands down; absent where it is back.
    pub until: Option<Timestamp>,
}

/// What was seen of other controllers.
#[derive(Clone, Debug, Default)]
pub(super) struct Rivals {
    signs: BTreeMap<Scope, Signs>,
    scopes: BTreeMap<Scope, While>,
}

/// What was seen somewhere lately.
#[derive(Clone, Debug, Default)]
struct Signs {
    /// Pods on which a value of ours was replaced or taken away, of which ReplicaSet each is, and when.
    pods: BTreeMap<Box<str>, (Box<str>, Timestamp)>,
    moments: Vec<Moment>,
}

/// Signs that came one right after the other.
#[derive(Clone, Copy, Debug)]
struct Moment {
    from: Timestamp,
    to: Timestamp,
}

impl Signs {
    fn note(&mut self, sign: Sign<'_>, period: SignedDuration, now: Timestamp) {
        self.pods.retain(|_, (_, at)| is_within(*at, period, now));
        self.moments.retain(|moment| is_within(moment.to, period, now));
        if sign.against_us {
            self.pods.insert(sign.pod.into(), (sign.set.into(), now));
        }
        // Several moments have to fit into the shortest of periods.
        let (pause, longest) = (PAUSE.min(period / 4), LONGEST_MOMENT.min(period / 2));
        match self.moments.last_mut() {
            Some(last) if is_within(last.to, pause, now) && is_within(last.from, longest, now) => last.to = now,
            _ => self.moments.push(Moment { from: now, to: now }),
        }
    }

    fn are_a_controllers(&self, scope: &Scope) -> bool {
        let sets: BTreeSet<_> = self.pods.values().map(|(set, _)| set).collect();
        let is_no_edit = match scope {
            // What goes by nodes is about nodes: an edit by hand is about a workload.
            Scope::Node(_) => sets.len() > 1,
            Scope::Set(_) => self.moments.len() >= MOMENTS,
        };
        self.pods.len() >= PODS && is_no_edit
    }

    fn are_lately(&self, period: SignedDuration, now: Timestamp) -> bool {
        self.pods.values().any(|(_, at)| is_within(*at, period, now))
    }
}

/// Not as long ago as that, nor as far ahead: one thread's time may be a moment ahead of another's.
fn is_within(at: Timestamp, period: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(at).abs() < period
}

/// How long Belay stands down somewhere.
#[derive(Clone, Copy, Debug)]
struct While {
    times: u32,
    until: Timestamp,
    is_over: bool,
}

/// A pod on which somebody else was seen at work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sign<'a> {
    pub(super) pod: &'a str,
    pub(super) node: Option<&'a str>,
    pub(super) set: &'a str,
    /// A value of ours was replaced or taken away, rather than another one of theirs written.
    pub(super) against_us: bool,
}

impl Rivals {
    /// Notes a sign; where Belay stands down for it from now on.
    pub(super) fn note(&mut self, sign: Sign<'_>, period: SignedDuration, now: Timestamp) -> Vec<Stance> {
        let node = sign.node.map(|node| Scope::Node(node.into()));
        let scopes = node.into_iter().chain([Scope::Set(sign.set.into())]);
        scopes.filter_map(|scope| self.note_at(scope, sign, period, now)).collect()
    }

    fn note_at(&mut self, scope: Scope, sign: Sign<'_>, period: SignedDuration, now: Timestamp) -> Option<Stance> {
        let known = self.scopes.get_mut(&scope);
        if let Some(known) = known.filter(|known| !known.is_over) {
            known.until = end(known.times, period, now);
            return None;
        }
        // Values that never were ours begin nothing, but say that whoever replaced ours is at it again.
        if !sign.against_us && !self.signs.contains_key(&scope) {
            return None;
        }
        let signs = self.signs.entry(scope.clone()).or_default();
        signs.note(sign, period, now);
        if !signs.are_a_controllers(&scope) {
            return None;
        }
        self.signs.remove(&scope);
        let times = self.scopes.get(&scope).map_or(1, |known| (known.times + 1).min(MOST_DOUBLINGS + 1));
        let until = end(times, period, now);
        self.scopes.insert(scope.clone(), While { times, until, is_over: false });
        Some(Stance { scope, until: Some(until) })
    }

    /// Where Belay is back from now on. What has been quiet for as long again is forgotten.
    pub(super) fn expire(&mut self, period: SignedDuration, now: Timestamp) -> Vec<Stance> {
        for known in self.scopes.values_mut() {
            let latest = if known.is_over { now } else { end(known.times, period, now) };
            known.until = known.until.min(latest);
        }
        self.scopes.retain(|_, known| !known.is_over || now < end(known.times + 1, period, known.until));
        self.signs.retain(|_, signs| signs.are_lately(period, now));
        let over = self.scopes.iter_mut().filter(|(_, known)| !known.is_over && known.until <= now);
        over.map(|(scope, known)| {
            known.is_over = true;
            Stance { scope: scope.clone(), until: None }
        })
        .collect()
    }

    /// Belay stands down there.
    pub(super) fn has(&self, scope: &Scope) -> bool {
        self.scopes.get(scope).is_some_and(|known| !known.is_over)
    }

    /// On how many nodes and for how many ReplicaSets Belay stands down.
    pub(super) fn count(&self) -> (usize, usize) {
        let down = self.scopes.iter().filter(|(_, known)| !known.is_over);
        let (nodes, sets): (Vec<_>, Vec<_>) = down.partition(|(scope, _)| matches!(scope, Scope::Node(_)));
        (nodes.len(), sets.len())
    }

    /// When something here changes by itself.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.scopes.values().filter(|known| !known.is_over).map(|known| known.until).min()
    }
}

fn end(times: u32, period: SignedDuration, from: Timestamp) -> Timestamp {
    let length = period.saturating_mul(1 << times.saturating_sub(1).min(MOST_DOUBLINGS));
    from.saturating_add(length).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, after};

    const PERIOD: SignedDuration = SignedDuration::from_mins(10);

    fn sign<'a>(pod: &'a str, set: &'a str) -> Sign<'a> {
        Sign { pod, node: Some("n1"), set, against_us: true }
    }

    fn note(rivals: &mut Rivals, signs: &[Sign<'_>], seconds: i64) -> Vec<Scope> {
        let stood = signs.iter().flat_map(|sign| rivals.note(*sign, PERIOD, after(seconds)));
        stood.map(|standing| standing.scope).collect()
    }

    /// The last of the signs comes a while after the others.
    fn come(rivals: &mut Rivals, signs: &[Sign<'_>], seconds: i64) -> Vec<Scope> {
        let (last, first) = signs.split_last().expect("there are signs");
        assert_eq!(note(rivals, first, seconds - 20), []);
        note(rivals, std::slice::from_ref(last), seconds)
    }

    #[test]
    fn what_comes_in_one_go_is_an_edit_however_many_pods_it_concerns() {
        let names: Vec<String> = (0..300).map(|at| format!("pod-{at}")).collect();
        // Seconds between two signs; after how many of them a controller is seen at work.
        let minutes = SignedDuration::from_mins(10);
        let table = [
            (minutes, 0.0, None),
            (minutes, 0.2, None),
            (minutes, 1.0, Some(61)),
            (minutes, 9.0, Some(8)),
            (minutes, 10.0, Some(3)),
            (minutes, 60.0, Some(3)),
            (SignedDuration::from_secs(1), 0.25, Some(3)),
            (SignedDuration::from_secs(1), 0.001, None),
        ];
        for (period, pause, expected) in table {
            let mut rivals = Rivals::default();
            let stood = names.iter().enumerate().position(|(at, pod)| {
                let now = START + SignedDuration::from_secs_f64(at as f64 * pause);
                rivals.expire(period, now);
                !rivals.note(sign(pod, "web"), period, now).is_empty()
            });
            assert_eq!(stood.map(|at| at + 1), expected, "{period:?}, {pause}");
        }
    }

    #[test]
    fn what_concerns_several_workloads_of_a_node_is_no_edit_even_in_one_go() {
        let signs = [sign("a", "web"), sign("b", "web"), sign("c", "api")];
        assert_eq!(note(&mut Rivals::default(), &signs, 0), [Scope::Node("n1".into())]);
    }

    #[test]
    fn a_second_value_of_theirs_says_that_they_are_at_it_again() {
        let three = [sign("a", "web"), sign("b", "web"), sign("c", "web")];
        let again = |pod| Sign { against_us: false, ..sign(pod, "web") };
        let mut rivals = Rivals::default();
        assert_eq!(note(&mut rivals, &three, 0), []);
        assert_eq!(note(&mut rivals, &[again("a")], 9), [], "the same moment");
        assert_eq!(note(&mut rivals, &[again("a")], 60), [Scope::Set("web".into())]);
        // An edit that was long ago, and another.
        let mut rivals = Rivals::default();
        assert_eq!(note(&mut rivals, &three, 0), []);
        rivals.expire(PERIOD, after(600));
        assert_eq!(note(&mut rivals, &[again("a")], 600), []);
        assert!(rivals.signs.is_empty());
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nothing_last_longer() {
        let mut rivals = Rivals::default();
        let three = [sign("a", "web"), sign("b", "web"), sign("c", "web")];
        assert_eq!(come(&mut rivals, &three, 50_000).len(), 1);
        assert_eq!(rivals.expire(PERIOD, after(0)), []);
        assert_eq!(rivals.next(), Some(after(600)));
        assert_eq!(rivals.expire(PERIOD, after(600)).len(), 1);
        // What is over is forgotten no later either.
        rivals.expire(PERIOD, after(-50_000));
        rivals.expire(PERIOD, after(-50_000 + 1200));
        assert!(rivals.scopes.is_empty());
        // Nor do signs that are far ahead count, while those of another thread do.
        for (ahead, expected) in [(50_000, 0), (1, 1)] {
            let mut rivals = Rivals::default();
            assert_eq!(note(&mut rivals, &three[..2], ahead), []);
            assert_eq!(rivals.expire(PERIOD, after(0)), []);
            assert_eq!(note(&mut rivals, &three[2..], 0), []);
            assert_eq!(note(&mut rivals, &three[2..], 60).len(), expected, "{ahead}");
        }
    }

    #[test]
    fn three_pods_are_another_controller_and_two_are_an_edit() {
        let node = Scope::Node("n1".into());
        let table: &[(&str, &[Sign<'_>], Vec<Scope>)] = &[
            ("two pods", &[sign("a", "web"), sign("b", "api")], vec![]),
            ("one pod often", &[sign("a", "web"); 5], vec![]),
            (
                "three of one set are the set's matter",
                &[sign("a", "web"), sign("b", "web"), sign("c", "web")],
                vec![Scope::Set("web".into())],
            ),
            ("three of several sets", &[sign("a", "web"), sign("b", "web"), sign("c", "api")], vec![node.clone()]),
            (
                "values of theirs that never were ours",
                &[
                    Sign { against_us: false, ..sign("a", "web") },
                    Sign { against_us: false, ..sign("b", "web") },
                    Sign { against_us: false, ..sign("c", "api") },
                ],
                vec![],
            ),
        ];
        for (name, signs, expected) in table {
            assert_eq!(come(&mut Rivals::default(), signs, 0), *expected, "{name}");
        }
    }

    #[test]
    fn edits_far_apart_do_not_add_up() {
        let mut rivals = Rivals::default();
        for (at, pod) in ["a", "b", "c", "d"].into_iter().enumerate() {
            assert!(note(&mut rivals, &[sign(pod, "web")], at as i64 * 400).is_empty(), "{pod}");
        }
    }

    #[test]
    fn it_comes_back_a_while_after_the_last_sign_and_waits_longer_each_time() {
        let mut rivals = Rivals::default();
        let web = Scope::Set("web".into());
        let three = [sign("a", "web"), sign("b", "web"), sign("c", "web")];
        assert_eq!(come(&mut rivals, &three, 0), std::slice::from_ref(&web));
        assert_eq!(rivals.count(), (0, 1));
        // Another value of theirs, no longer against ours.
        note(&mut rivals, &[Sign { against_us: false, ..sign("d", "web") }], 300);
        assert!(rivals.expire(PERIOD, after(600)).is_empty());
        assert_eq!(rivals.next(), Some(after(900)));
        assert_eq!(rivals.expire(PERIOD, after(900)), [Stance { scope: web.clone(), until: None }]);
        assert!(!rivals.has(&web) && rivals.expire(PERIOD, after(901)).is_empty(), "told once");
        // It was wrong: twice as long.
        assert_eq!(come(&mut rivals, &three, 1000), std::slice::from_ref(&web));
        assert!(rivals.expire(PERIOD, after(2199)).is_empty());
        assert_eq!(rivals.expire(PERIOD, after(2200)).len(), 1);
        // Quiet for as long as the next would have been: as if it never was.
        rivals.expire(PERIOD, after(2200 + 2400));
        assert!(rivals.scopes.is_empty() && rivals.signs.is_empty());
    }

    #[test]
    fn a_while_never_grows_beyond_hours() {
        let mut rivals = Rivals::default();
        let mut now = START;
        for _ in 0..20 {
            for pod in ["a", "b", "c"] {
                now += PAUSE;
                rivals.note(sign(pod, "web"), PERIOD, now);
            }
            let until = rivals.next().expect("it stands down");
            assert!(until.duration_since(now) <= SignedDuration::from_hours(11));
            now = until;
            assert_eq!(rivals.expire(PERIOD, now).len(), 1);
        }
    }
}
