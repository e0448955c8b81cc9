//! What answers mean, as tables.

use super::*;

const NONCE: &str = "0123456789abcdef";

fn reply(code: u16, warnings: &[&str]) -> Reply {
    let missing = if code == 404 { "pods".to_owned() } else { String::new() };
    let warnings = warnings.iter().map(|&text| text.to_owned()).collect();
    Reply { code, warnings, message: "words".into(), missing }
}

fn entries() -> Entries {
    let entry = |path: &str| {
        Some(EntryView { server: "belay-system/belay-webhook:443".into(), path: path.into(), ca_bundle: vec![1] })
    };
    Entries { eviction: entry(EVICTION_PATH), canary: entry(CANARY_PATH) }
}

fn reached() -> Verdict {
    Verdict::Reached { replica: "belay-webhook-1".into() }
}

#[test]
fn what_a_replica_says_is_understood_whatever_else_was_answered() {
    let echo = echo(NONCE, "belay-webhook-1").unwrap();
    for code in [200, 201, 403, 404, 429, 500] {
        let reply = reply(code, &["another webhook has a word", &echo]);
        assert_eq!(Verdict::of_reply(&reply, NONCE), reached(), "{code}");
    }
}

#[test]
fn an_answer_without_the_word_is_no_answer_of_the_webhook() {
    let refused = |code| Verdict::Refused { message: format!("HTTP {code}: words") };
    let unreachable = |code| Verdict::Unreachable { message: format!("HTTP {code}: words") };
    let silent = || Verdict::NotReached(Miss::Silent);
    let other = echo("fedcba9876543210", "belay-webhook-1").unwrap();
    let longer = echo("0123456789abcdef0", "belay-webhook-1").unwrap();
    let unserved = "belay: too many requests at once; request let through unlooked at";
    let table = [
        ("no such pod, and nobody was asked", reply(404, &[]), silent()),
        ("somebody has made the pod", reply(201, &[]), silent()),
        ("somebody else warns", reply(404, &["deprecated"]), silent()),
        (
            "the word of another probe",
            reply(404, &[&other]),
            Verdict::NotReached(Miss::Unserved { warning: other.clone() }),
        ),
        (
            "a word that only begins like it",
            reply(404, &[&longer]),
            Verdict::NotReached(Miss::Unserved { warning: longer.clone() }),
        ),
        (
            "a replica that had no time for it",
            reply(404, &[unserved]),
            Verdict::NotReached(Miss::Unserved { warning: unserved.into() }),
        ),
        ("the namespace is gone", Reply { missing: "namespaces".into(), ..reply(404, &[]) }, refused(404)),
        ("a missing right", reply(403, &[]), refused(403)),
        ("no credentials", reply(401, &[]), refused(401)),
        ("asked for patience", reply(429, &[]), unreachable(429)),
        ("a defect", reply(500, &[]), unreachable(500)),
        ("a proxy without its server", reply(503, &[]), unreachable(503)),
    ];
    for (name, reply, expected) in table {
        assert_eq!(Verdict::of_reply(&reply, NONCE), expected, "{name}");
    }
}

#[test]
fn only_a_word_that_a_probe_makes_up_is_repeated() {
    let longest = "a".repeat(LONGEST_NONCE);
    let too_long = "a".repeat(LONGEST_NONCE + 1);
    for nonce in [NONCE, "A", &longest] {
        assert!(echo(nonce, "r").is_some(), "{nonce:?}");
    }
    for nonce in ["", "two words", "quoted\"", "line\nline", "naïve", "a-b", &too_long] {
        assert_eq!(echo(nonce, "r"), None, "{nonce:?}");
    }
    // With the longest name that a pod can have it is longer than what is never cut, but a Deployment's pods have
    // names of at most 63 characters.
    assert!(echo(&longest, &"p".repeat(63)).unwrap().len() < 256);
}

#[test]
fn evictions_reach_what_the_canary_reaches_only_by_the_same_way() {
    let with = |bend: fn(&mut Entries)| {
        let mut entries = entries();
        bend(&mut entries);
        entries
    };
    let elsewhere = |to: &str| Miss::LeadsElsewhere {
        to: to.into(),
        expected: "belay-system/belay-webhook:443/validate/eviction".into(),
    };
    let table = [
        ("as the chart makes them", entries(), None),
        ("no entry of evictions", with(|all| all.eviction = None), Some(Miss::NoEvictionEntry)),
        ("no canary", with(|all| all.canary = None), Some(Miss::NoCanaryEntry)),
        (
            "another Service",
            with(|all| all.eviction.as_mut().unwrap().server = "x/y:443".into()),
            Some(elsewhere("x/y:443/validate/eviction")),
        ),
        (
            "another path",
            with(|all| all.eviction.as_mut().unwrap().path = "/".into()),
            Some(elsewhere("belay-system/belay-webhook:443/")),
        ),
        (
            "no certificates yet",
            with(|all| {
                all.eviction.as_mut().unwrap().ca_bundle.clear();
                all.canary.as_mut().unwrap().ca_bundle.clear();
            }),
            Some(Miss::NoAuthority),
        ),
        (
            "other certificates",
            with(|all| all.eviction.as_mut().unwrap().ca_bundle.push(2)),
            Some(Miss::OtherAuthority),
        ),
    ];
    for (name, entries, miss) in table {
        let expected = miss.clone().map_or_else(reached, Verdict::NotReached);
        assert_eq!(reached().for_evictions(&entries), expected, "{name}");
        let silent = Verdict::NotReached(Miss::Silent).for_evictions(&entries);
        assert_eq!(silent, Verdict::NotReached(miss.unwrap_or(Miss::Silent)), "{name}: it says why nobody answered");
        let unknown = Verdict::Refused { message: "no".into() };
        assert_eq!(unknown.clone().for_evictions(&entries), unknown, "{name}");
    }
    assert_eq!(Verdict::without_asking(&entries()), None);
    let no_canary = with(|all| all.canary = None);
    assert_eq!(Verdict::without_asking(&no_canary), Some(Verdict::NotReached(Miss::NoCanaryEntry)));
}

/// Reached, missed, or not known.
fn verdict(letter: char) -> Verdict {
    match letter {
        '+' => reached(),
        '-' => Verdict::NotReached(Miss::Silent),
        _ => Verdict::Unreachable { message: "refused".into() },
    }
}

/// A name, what is found, and what is told at which of these.
type History = (&'static str, &'static str, &'static [(usize, News)]);

#[test]
fn people_are_told_of_changes_that_last_and_of_each_once() {
    let table: &[History] = &[
        ("all is well", "+++", &[]),
        ("a single miss", "+-+-+", &[]),
        ("an outage", "+---++", &[(2, News::Lost), (4, News::Back)]),
        ("from the start", "--+", &[(1, News::Lost), (2, News::Back)]),
        ("twice", "--+--", &[(1, News::Lost), (2, News::Back), (4, News::Lost)]),
        ("the API server is away for a moment", "+?+?", &[]),
        ("or for long", "+???+", &[(2, News::Unknown), (4, News::Back)]),
        ("it goes amid an outage", "--??+", &[(1, News::Lost), (4, News::Back)]),
        ("misses around it", "-?-", &[(2, News::Lost)]),
        ("what is not known becomes known", "??--", &[(1, News::Unknown), (3, News::Lost)]),
    ];
    for (name, found, told) in table {
        let mut memory = Memory::default();
        let news = found.chars().enumerate().filter_map(|(at, letter)| Some((at, memory.follow(&verdict(letter))?)));
        assert_eq!(news.collect::<Vec<_>>(), *told, "{name}");
    }
}

#[test]
fn every_miss_says_what_to_do_or_where_to_look() {
    let misses = [
        Miss::NoConfiguration,
        Miss::NoEvictionEntry,
        Miss::NoCanaryEntry,
        Miss::LeadsElsewhere { to: "x".into(), expected: "y".into() },
        Miss::NoAuthority,
        Miss::OtherAuthority,
        Miss::Silent,
    ];
    for miss in misses {
        let text = miss.to_string();
        assert!(["upgrade", "log", "see that"].iter().any(|word| text.contains(word)), "{text}");
    }
}
