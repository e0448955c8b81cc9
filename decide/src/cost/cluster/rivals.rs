//! Other controllers that write deletion costs, and where Belay leaves the field to them.
//!
//! A value that somebody changes is theirs, pod by pod; that is all that an edit by hand needs. A controller that
//! rewrites values as often as they are written (Karpenter's own, behind its gate `PodDeletionCostManagement`, writes
//! each minute) would turn that into a fight over every new pod. So where it is seen at work on several pods, Belay
//! stands down for that node, or that ReplicaSet, for a while: it takes its other values away and writes none. It comes
//! back when the other has been still for the length of that while, which doubles with each time that it was wrong.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

/// On so many pods within one period is no edit by hand.
const PODS: usize = 3;

/// A while doubles at most so often: ten minutes become ten hours, and a controller that was switched off is noticed
/// within a day.
const MOST_DOUBLINGS: u32 = 6;

/// Where Belay stands down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A node, by name.
    Node(Box<str>),
    /// A ReplicaSet, by UID.
    Set(Box<str>),
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
    /// Pods on which a value of ours was replaced or taken away.
    signs: BTreeMap<Scope, BTreeMap<Box<str>, Seen>>,
    scopes: BTreeMap<Scope, While>,
}

/// Of which ReplicaSet a pod is, and when a sign was seen on it.
type Seen = (Box<str>, Timestamp);

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
            known.until = known.until.max(end(known.times, period, now));
            return None;
        }
        if !sign.against_us {
            return None;
        }
        let signs = self.signs.entry(scope.clone()).or_default();
        signs.retain(|_, (_, at)| now.duration_since(*at) < period);
        signs.insert(sign.pod.into(), (sign.set.into(), now));
        let sets: BTreeSet<_> = signs.values().map(|(set, _)| set).collect();
        let is_several = matches!(scope, Scope::Set(_)) || sets.len() > 1;
        if signs.len() < PODS || !is_several {
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
        self.scopes.retain(|_, known| !known.is_over || now < end(known.times + 1, period, known.until));
        self.signs.retain(|_, signs| signs.values().any(|(_, at)| now.duration_since(*at) < period));
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
            assert_eq!(note(&mut Rivals::default(), signs, 0), *expected, "{name}");
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
        assert_eq!(note(&mut rivals, &three, 0), std::slice::from_ref(&web));
        assert_eq!(rivals.count(), (0, 1));
        // Another value of theirs, no longer against ours.
        note(&mut rivals, &[Sign { against_us: false, ..sign("d", "web") }], 300);
        assert!(rivals.expire(PERIOD, after(600)).is_empty());
        assert_eq!(rivals.next(), Some(after(900)));
        assert_eq!(rivals.expire(PERIOD, after(900)), [Stance { scope: web.clone(), until: None }]);
        assert!(!rivals.has(&web) && rivals.expire(PERIOD, after(901)).is_empty(), "told once");
        // It was wrong: twice as long.
        assert_eq!(note(&mut rivals, &three, 1000), std::slice::from_ref(&web));
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
                rivals.note(sign(pod, "web"), PERIOD, now);
            }
            let until = rivals.next().expect("it stands down");
            assert!(until.duration_since(now) <= SignedDuration::from_hours(11));
            now = until;
            assert_eq!(rivals.expire(PERIOD, now).len(), 1);
        }
    }
}
