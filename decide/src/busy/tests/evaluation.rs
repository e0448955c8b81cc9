//! What comes of an expression: an answer, or a reason why there is none.

use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::busy::expression::{EvaluationError, Expression, Inputs};
use crate::busy::testing::preset_rules;
use crate::testing::{START, runner};

fn compile(text: &str) -> Expression {
    Expression::compile(text, &["pod", "owner", "linked", "now"]).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn evaluate(text: &str, pod: &Json, linked: &[Json]) -> Result<bool, EvaluationError> {
    let linked: Vec<_> = linked.iter().collect();
    compile(text).evaluate(&Inputs { pod, owner: None, linked: &linked, now: START })
}

/// An object with a value of every kind.
fn object() -> Json {
    json!({
        "text": "x", "empty": "", "yes": true, "no": false, "nothing": null,
        "one": 1, "most": u64::MAX, "least": i64::MIN, "half": 0.5,
        "list": [1, 2, 3], "map": {"a": 1, "b": {"c": 2}}, "none": [], "date": "2026-11-30T13:59:00Z",
        "things": [{"x": 1}, {"y": 2}],
    })
}

#[test]
fn answers_true_and_false() {
    for text in [
        "pod.text == 'x'",
        "has(pod.text) && has(pod.nothing) && !has(pod.absent)",
        "pod.absent || true",
        "!(pod.absent && false)",
        "pod.yes ? pod.yes : pod.absent",
        "pod.nothing == null",
        "pod['map']['b']['c'] == 2 && pod.list[2] == 3",
        "'a' in pod.map && 2 in pod.list && !('z' in pod.map)",
        "pod.things.exists(one, has(one.y) && one.y == 2)",
        "pod.map.exists(key, key == 'b') && pod.map.all(key, key != 'c')",
        "pod.things.exists_one(one, has(one.x))",
        "pod.list.filter(one, one > 1) == [2, 3] && pod.list.map(one, one * 2) == [2, 4, 6]",
        "pod.list.map(one, one > 1, one + 1) == [3, 4]",
        "pod.text.matches('^x$') && pod.date.startsWith('2026') && size(pod.empty) == 0",
        "type(pod.text) == string && type(pod.one) == int && type(pod.list) == list",
        "linked.size() == 0",
        "pod == pod && pod.map == {'a': 1, 'b': {'c': 2}} && {'a': 1, 'b': {'c': 2}} == pod.map",
    ] {
        assert_eq!(evaluate(text, &object(), &[]), Ok(true), "{text}");
        assert_eq!(evaluate(&format!("!({text})"), &object(), &[]), Ok(false), "not: {text}");
    }
}

#[test]
fn numbers_are_those_of_the_object() {
    for text in [
        "pod.one > 0 && pod.one == 1 && pod.one == 1u && pod.one == 1.0",
        "pod.most > pod.one && pod.most == 18446744073709551615u && pod.most > 9223372036854775807",
        "pod.least < 0 && pod.least == -9223372036854775808",
        "pod.half > 0.0 && pod.half < 1",
        "int(pod.half) == 0 && double(pod.one) == 1.0 && int('7') == 7",
    ] {
        assert_eq!(evaluate(text, &object(), &[]), Ok(true), "{text}");
    }
}

#[test]
fn now_is_a_time() {
    for text in [
        "now == timestamp('2026-11-30T14:00:00Z')",
        "now - timestamp(pod.date) == duration('60s')",
        "now > timestamp(pod.date) + duration('59s') && now < timestamp(pod.date) + duration('1m1s')",
        "now.getFullYear() == 2026 && now.getMonth() == 10 && now.getDate() == 30 && now.getHours() == 14",
        "timestamp('2026-11-30T15:00:00+01:00') == now",
    ] {
        assert_eq!(evaluate(text, &object(), &[]), Ok(true), "{text}");
    }
}

#[test]
fn says_in_few_words_why_there_is_no_answer() {
    for (text, expected) in [
        ("pod.absent", "there is no absent"),
        ("pod.absent.below == 1", "there is no absent"),
        ("has(pod.absent.below)", "there is no absent"),
        ("pod.things.exists(one, one.y == 2)", "there is no y"),
        ("pod.map[0] == 1", "there is no 0"),
        ("pod.list[3] == 1", "there is no such entry in the list"),
        ("pod.list[-1] == 1", "there is no such entry in the list"),
        ("pod.list['x'] == 1", "a value of another type than int|uint"),
        ("pod.text.below == 1", "values of these types cannot be used so"),
        ("pod.text.exists(one, true)", "values of these types cannot be used so"),
        ("pod.one && pod.yes", "values of these types cannot be used so"),
        ("pod.text < pod.one", "values of these types cannot be used so"),
        ("pod.one ? true : false", "values of these types cannot be used so"),
        ("pod.text + 1 == ''", "add does not take string and int"),
        ("pod.map + pod.map == {}", "add does not take map and map"),
        ("pod.one.size() == 1", "size does not take values of these types"),
        ("pod.text.contains(1)", "contains does not take values of these types"),
        ("pod.one / 0 == 1", "division by zero"),
        ("pod.one % 0 == 1", "division by zero"),
        ("pod.least - 1 < 0", "overflow in sub"),
        ("pod.most + 1u > 0u", "overflow in add"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s') > now", "overflow in add"),
        ("timestamp(pod.text) == now", "timestamp: premature end of input"),
        ("int(pod.text) == 1", "int: string parse error: invalid digit found in string"),
        (
            "pod.text.matches('[')",
            "matches: '[' not a valid regex: regex parse error: [ ^ error: unclosed character class",
        ),
        ("pod.one", "it gave int instead of true or false"),
        ("pod.list", "it gave list instead of true or false"),
        ("pod.map.a", "it gave int instead of true or false"),
        ("pod.nothing", "it gave null instead of true or false"),
        ("now", "it gave timestamp instead of true or false"),
        ("owner.x", "owner does not take values of these types"),
    ] {
        let problem = evaluate(text, &object(), &[]).expect_err(text).to_string();
        assert_eq!(problem, expected, "{text}");
    }
}

#[test]
fn an_error_shows_no_value_of_the_object() {
    let secret = "hunter2".repeat(1000);
    let pod = json!({"secret": secret, "map": {"token": secret}, "list": [secret], "x": {&secret: 1}});
    for text in [
        "pod.map + 1 == 2",
        "pod.secret + 1 == 'x'",
        "pod.list - pod.map == []",
        "pod.secret.getHours() == 1",
        "pod.map.contains('x')",
        "pod.x < 1",
        "pod.map[pod.list] == 1",
        "{pod.list: 1} == {}",
        "size(pod.secret, 1) == 1",
    ] {
        let problem = evaluate(text, &pod, &[]).expect_err(text).to_string();
        assert!(!problem.contains("hunter2"), "{text}: {problem}");
    }
    // A key may be told, as far as it is short.
    let long = evaluate("pod[pod.secret] == 1", &pod, &[]).expect_err("there is no such key").to_string();
    assert!(long.chars().count() <= 201, "{} characters", long.chars().count());
}

#[test]
fn what_it_reads_is_bounded() {
    let list = |length: usize| json!({"a": {"b": vec![0; length]}});
    let map = |length: usize| {
        let entries: serde_json::Map<_, _> = (0..length).map(|one| (one.to_string(), json!(one))).collect();
        json!({"a": [entries]})
    };
    let wide = |length: usize| json!({"a": (0..length).map(|_| vec![0; 255]).collect::<Vec<_>>()});
    for (pod, fits) in [
        (list(256), true),
        (list(257), false),
        (map(256), true),
        (map(257), false),
        // Values in all.
        (wide(63), true),
        (wide(64), false),
    ] {
        let answer = evaluate("has(pod.a)", &pod, &[]);
        assert_eq!(answer, if fits { Ok(true) } else { Err(EvaluationError::TooLarge) });
    }
    for (linked, expected) in [(256, Ok(true)), (257, Err(EvaluationError::TooLarge))] {
        let linked = vec![json!({"name": "x"}); linked];
        assert_eq!(evaluate("linked.all(one, one.name == 'x')", &json!({}), &linked), expected);
    }
    let pods = vec![json!({"list": vec![0; 255]}); 64];
    assert_eq!(evaluate("linked.size() > 0", &json!({}), &pods), Err(EvaluationError::TooLarge));
    let owner = list(257);
    let inputs = Inputs { pod: &json!({}), owner: Some(&owner), linked: &[], now: START };
    assert_eq!(compile("has(owner.a)").evaluate(&inputs), Err(EvaluationError::TooLarge));
}

/// The interpreter's maps have no order of their own, and one that differs each time.
#[test]
fn a_loop_over_a_map_gives_the_same_answer_each_time() {
    let entries: serde_json::Map<_, _> = (0..20).map(|one| (format!("k{one:02}"), json!(one))).collect();
    let mut pod = json!({"map": entries});
    pod["map"]["k10"] = json!("no number");
    for (text, expected) in [
        ("pod.map.exists(key, pod.map[key] > 8)", Ok(true)),
        ("pod.map.exists(key, pod.map[key] > 9)", Err("values of these types cannot be used so")),
        ("pod.map.all(key, pod.map[key] < 5)", Ok(false)),
        ("pod.map.map(key, key)[3] == 'k03'", Ok(true)),
        ("pod.map.filter(key, key > 'k17') == ['k18', 'k19']", Ok(true)),
        ("{'b': 1, 'a': 2}.map(key, key) == ['a', 'b']", Ok(true)),
    ] {
        for _ in 0..20 {
            let answer = evaluate(text, &pod, &[]).map_err(|error| error.to_string());
            assert_eq!(answer, expected.map_err(str::to_owned), "{text}");
        }
    }
}

/// Deepest of every kind, on an eighth of the stack that a thread has.
#[test]
fn the_deepest_expression_needs_little_stack() {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    };
    let deepest = |open: &str, inner: &str, close: &str| {
        let fits = |depth: &usize| Expression::compile(&nested(open, inner, close, *depth), &["pod"]).is_ok();
        nested(open, inner, close, (1..64).take_while(fits).last().expect("one level fits"))
    };
    let texts = [
        deepest("", "pod", ".a"),
        deepest("", "pod", "['a']"),
        deepest("pod.b?pod.b:(", "pod.b", ")"),
        deepest("[", "pod", "][0]"),
        deepest("{'a':", "pod", "}['a']"),
        deepest("", "pod.one", "+1"),
        deepest("string(", "pod.one", ")"),
        deepest("[true].all(x,", "x", ")"),
        deepest("[1].map(x,", "x", ")"),
    ];
    let mut pod = json!({});
    for _ in 0..100 {
        pod = json!({"a": pod, "b": true, "one": 1});
    }
    let evaluate = move || {
        for text in texts {
            let expression = Expression::compile(&text, &["pod"]).expect("it was accepted before");
            let _ = expression.evaluate(&Inputs { pod: &pod, owner: None, linked: &[], now: START });
        }
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(evaluate).expect("a thread");
    thread.join().expect("no evaluation fails so that it cannot be caught");
}

/// The bits that expressions are made of, and what breaks them.
fn bits() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "pod",
        "owner",
        "linked",
        "now",
        ".status",
        ".phase",
        ".a",
        "['a']",
        "[0]",
        "[-1]",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        " && ",
        " || ",
        "!",
        "-",
        " ? ",
        " : ",
        " == ",
        " != ",
        " < ",
        " >= ",
        " + ",
        " - ",
        " * ",
        " / ",
        " % ",
        " in ",
        "has(",
        "size(",
        ".size()",
        ".exists(x, ",
        ".all(x, ",
        ".map(x, ",
        ".filter(x, ",
        "x",
        "x.a",
        ", ",
        "'a'",
        "\"b\"",
        "1",
        "0",
        "1u",
        "0.0",
        "-9223372036854775808",
        "9223372036854775807",
        "18446744073709551615u",
        "1e308",
        "null",
        "true",
        "false",
        "string(",
        "int(",
        "uint(",
        "double(",
        "bytes(",
        "b'\\xff'",
        "timestamp(",
        "duration(",
        "'2026-11-30T14:00:00Z'",
        "'-9223372036854775808s'",
        ".matches('(')",
        ".contains(",
        "type(",
        ".getHours()",
        "\n",
        "//",
        "\\",
        "'",
        "\"\"\"",
        "r'",
        "\u{0}",
        "\u{7f}",
        "\u{e4}",
        "\u{2028}",
        "\u{1f600}",
        "@",
        "`",
        "$",
        "{'a': ",
    ]);
    prop::collection::vec(words, 0..24).prop_map(|bits| bits.concat())
}

/// A preset's expression with a few of its characters changed.
fn mutated() -> impl Strategy<Value = String> {
    let texts: Vec<String> = preset_rules().into_iter().flat_map(|rule| rule.states).map(|(_, text)| text).collect();
    let change = (any::<prop::sample::Index>(), 0..4_u8, any::<char>(), any::<prop::sample::Index>());
    (prop::sample::select(texts), prop::collection::vec(change, 1..4)).prop_map(|(text, changes)| {
        let mut all: Vec<char> = text.chars().collect();
        for (at, kind, new, other) in changes {
            if all.is_empty() {
                break;
            }
            let (at, other) = (at.index(all.len()), other.index(all.len()));
            match kind {
                0 => all[at] = new,
                1 => drop(all.remove(at)),
                2 => all.swap(at, other),
                _ => all.insert(at, all[other]),
            }
        }
        all.into_iter().collect()
    })
}

pub(super) fn texts() -> impl Strategy<Value = String> {
    prop_oneof![4 => bits(), 3 => mutated(), 1 => "[ -~]{0,60}", 1 => "\\PC{0,40}"]
}

proptest! {
    #![proptest_config(runner(1500))]

    /// Whatever is written and whatever it reads: an answer or an error, with a place within the text, the same twice.
    #[test]
    fn no_text_and_no_object_breaks_out(text in texts(), pod in super::objects(), owner in super::objects()) {
        let compiled = Expression::compile(&text, &["pod", "owner", "linked", "now"]);
        let mut said = String::new();
        match compiled {
            Ok(expression) => {
                let linked = [&pod, &owner];
                let inputs = Inputs { pod: &pod, owner: Some(&owner), linked: &linked, now: START };
                let answer = expression.evaluate(&inputs);
                prop_assert_eq!(&expression.evaluate(&inputs), &answer, "the same input, the same answer");
                if let Err(error) = answer {
                    write!(said, "{error}").unwrap();
                }
            }
            Err(error) => write!(said, "{error}").unwrap(),
        }
        prop_assert!(said.chars().count() < 400, "{} characters: {said}", said.chars().count());
        prop_assert!(!said.contains('\n'), "{said:?}");
    }
}
