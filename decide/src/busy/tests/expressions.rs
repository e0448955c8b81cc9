//! What is accepted as an expression, and what is said of the rest.

use crate::busy::expression::{CompileError, Expression, MAX_LENGTH};
use crate::busy::testing::preset_rules;

const ALL: [&str; 4] = ["pod", "owner", "linked", "now"];

fn compile(text: &str) -> Result<Expression, CompileError> {
    Expression::compile(text, &ALL)
}

fn problem(text: &str) -> String {
    compile(text).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

#[test]
fn a_mistake_is_told_with_its_place() {
    for (text, expected) in [
        ("", "line 1, column 1: mismatched input '<EOF>'"),
        ("  // a comment alone", "line 1, column 21: mismatched input '<EOF>'"),
        ("pod.x ==", "line 1, column 9: mismatched input '<EOF>'"),
        ("pod.x == 1 &&\n\n  ) pod.y", "line 3, column 3: extraneous input ')'"),
        ("pod.x = 1", "line 1, column 7: token recognition error at: '= '"),
        ("pod.x & pod.y", "line 1, column 7: token recognition error at: '& '"),
        ("pod.x == 'open", "line 1, column 10: token recognition error at: ''open'"),
        ("pod.\u{e4}", "line 1, column 5: token recognition error at: '\u{e4}'"),
        ("for == 1", "line 1, column 1: reserved identifier: for"),
        ("pod.x == 99999999999999999999", "line 1, column 10: invalid int literal"),
        ("has(pod)", "line 1, column 5: invalid argument to has() macro"),
        ("linked.exists(1, true)", "line 1, column 15: argument must be a simple name"),
        // What Kubernetes' own dialect has, and this one has not.
        ("pod.?x.orValue(true)", "line 1, column 4: unsupported syntax '.?'"),
        ("pod.`a.b`", "line 1, column 4: unsupported syntax: '`'"),
    ] {
        assert_eq!(problem(text), expected, "{text:?}");
    }
}

#[test]
fn an_unknown_name_is_told_where_it_stands_and_not_where_something_looks_like_it() {
    for (text, place) in [
        ("foo", "line 1, column 1"),
        ("pod.x && foo", "line 1, column 10"),
        ("pod.foo == foo", "line 1, column 12"),
        ("pod . foo == foo", "line 1, column 14"),
        ("'foo' == foo", "line 1, column 10"),
        ("\"a'foo\" == foo", "line 1, column 12"),
        (r"'\'foo' == foo", "line 1, column 12"),
        (r"r'\' == foo", "line 1, column 9"),
        ("'''foo'\nfoo''' == foo", "line 2, column 11"),
        ("// foo\npod.x == foo", "line 2, column 10"),
        ("foobar.x || foo", "line 1, column 1"),
        ("pod.x &&\n  foo", "line 2, column 3"),
        ("'\u{e4}\u{e4}' == foo", "line 1, column 9"),
        // The first of two.
        ("pod.x || zoo || foo", "line 1, column 10"),
    ] {
        let problem = problem(text);
        assert!(problem.starts_with(&format!("{place}: ")) && problem.contains(" is not known"), "{text:?}: {problem}");
    }
}

#[test]
fn an_expression_reads_only_what_its_rule_has() {
    for (known, text, expected) in [
        (&["pod", "now"][..], "owner.x", "line 1, column 1: owner is not known; an expression reads pod, now"),
        (
            &["pod", "now"],
            "pod.x || linked.size() > 0",
            "line 1, column 10: linked is not known; an expression reads pod, now",
        ),
        (&["pod", "owner", "now"], "pod.owner == owner.pod", "accepted"),
        // Names of loops are the expression's own, also where they are those of a variable.
        (&["pod", "now"], "pod.x.exists(owner, owner.y)", "accepted"),
        (
            &["pod", "now"],
            "pod.x.exists(one, one.y) && one.z",
            "line 1, column 14: one is not known; an expression reads pod, now",
        ),
        (
            &["pod", "now"],
            "Owner{name: 'a'} == pod",
            "line 1, column 1: Owner is not known; an expression reads pod, now",
        ),
        // What the parser calls the things that loops collect.
        (&["pod", "now"], "__result__", "line 1, column 1: __result__ is not known; an expression reads pod, now"),
        (&["pod", "now"], "pod.x.exists(one, @result)", "line 1, column 19: token recognition error at: '@'"),
        (&["pod", "now"], "@ordered(pod.x)", "line 1, column 1: token recognition error at: '@'"),
    ] {
        let problem =
            Expression::compile(text, known).map_or_else(|error| error.to_string(), |_| "accepted".to_owned());
        assert_eq!(problem, expected, "{text:?}");
    }
}

#[test]
fn a_function_that_does_not_exist_is_found_before_it_is_first_met() {
    for (text, expected) in [
        ("frob(pod)", "line 1, column 1: there is no function frob"),
        ("_frob(pod)", "line 1, column 1: there is no function _frob"),
        ("pod.frob == 1 && pod.x.frob()", "line 1, column 24: there is no function frob"),
        ("true || pod.x.lowerAscii() == 'a'", "line 1, column 15: there is no function lowerAscii"),
        // Not the macro: it takes a name and a condition.
        ("linked.exists(pod)", "line 1, column 8: there is no function exists"),
        ("has(pod.x, pod.y)", "line 1, column 1: there is no function has"),
    ] {
        assert_eq!(problem(text), expected, "{text:?}");
    }
}

#[test]
fn a_constant_is_no_condition_unless_it_says_that_all_is_one() {
    for text in ["1", "'true'", "null", "1.5", "[true]", "{'a': true}"] {
        assert_eq!(problem(text), "it is a constant and not a condition", "{text}");
    }
    for text in ["true", "false", "(true)", "!false", "1 == 1"] {
        assert_eq!(problem(text), "accepted", "{text}");
    }
}

#[test]
fn every_preset_is_far_within_the_bounds() {
    for rule in preset_rules() {
        for (state, text) in &rule.states {
            assert!(text.len() * 4 <= MAX_LENGTH, "{} {state:?} has {} bytes", rule.name, text.len());
            // With as much again in front of it a user's copy still fits.
            assert_eq!(problem(&format!("({text}) && ({text}) && ({text})")), "accepted", "{} {state:?}", rule.name);
        }
    }
}

#[test]
fn an_expression_is_bounded_in_length() {
    let of = |bytes: usize| format!("pod.x == '{}'", "x".repeat(bytes - 11));
    assert_eq!(problem(&of(MAX_LENGTH)), "accepted");
    assert_eq!(problem(&of(MAX_LENGTH + 1)), "it has 2049 bytes; at most 2048 are allowed");
    assert_eq!(problem(&"(".repeat(1 << 20)), "it has 1048576 bytes; at most 2048 are allowed");
    // Bytes, not characters.
    assert_eq!(
        problem(&format!("pod.x == '{}'", "\u{e4}".repeat(1024))),
        "it has 2059 bytes; at most 2048 are allowed"
    );
}

/// Every way to nest that the language has, as deep as the length allows.
#[test]
fn no_expression_exhausts_the_stack() {
    let nested = |open: &str, close: &str| {
        let depth = (MAX_LENGTH - 16) / (open.len() + close.len());
        format!("{}pod{}", open.repeat(depth), close.repeat(depth))
    };
    let too_deep = "it nests deeper than 32 levels";
    for (text, expected) in [
        (nested("(", ")"), too_deep),
        (nested("[", "]"), too_deep),
        (nested("{1:", "}"), too_deep),
        (nested("{1:[", "]}"), too_deep),
        (nested("size(", ")"), too_deep),
        (nested("linked.all(x,", ")"), too_deep),
        (nested("linked.map(x,", ")"), too_deep),
        (nested("pod[", "]"), too_deep),
        (nested("pod?pod:", ""), too_deep),
        (nested("pod?(", "):pod"), too_deep),
        (nested("!(", ")"), too_deep),
        (nested("-(", ")"), too_deep),
        (nested("", ".b"), too_deep),
        (nested("", "[0]"), too_deep),
        (nested("", "['b']"), too_deep),
        (nested("", ".size()"), too_deep),
        (nested("", ".map(x,x)"), too_deep),
        (nested("", "+1"), too_deep),
        (nested("", "-1"), too_deep),
        (nested("", "*pod"), too_deep),
        (nested("", "==pod"), too_deep),
        (nested("", " in pod"), too_deep),
        (nested("pod+(", ")"), too_deep),
        (nested("pod&&(", ")"), too_deep),
        (nested("(pod)||(", ")"), too_deep),
        // The parser makes nothing of pairs of these, and balances those.
        (nested("!", ""), "accepted"),
        (nested("-", ""), "accepted"),
        (nested("", "&&pod"), "accepted"),
        (nested("", "||pod"), "accepted"),
    ] {
        assert_eq!(problem(&text), expected, "{}…", &text[..32]);
    }
    // What does not even parse.
    for text in [
        "(",
        "[",
        "{",
        "!(",
        "pod[",
        "pod.",
        "pod?",
        "pod?pod:",
        "linked.all(",
        "has(",
        "'",
        "\"\"\"",
        "\\",
        "pod+",
        ")",
        "&",
    ] {
        let text = text.repeat(MAX_LENGTH / text.len());
        assert_ne!(problem(&text), "accepted", "{}…", &text[..16]);
    }
    assert_ne!(problem(&nested("has(", ".x)")), "accepted");
    assert_ne!(problem(&nested("pod?", ":pod")), "accepted");
}

#[test]
fn an_expression_is_bounded_in_work() {
    for text in [
        "linked.exists(a, linked.exists(b, a.metadata.name == b.metadata.name && a.status.phase != b.status.phase))",
        "linked.all(a, a.spec.containers.exists_one(b, has(b.name) && b.name == 'runner'))",
        "linked.map(a, a.metadata.name) == ['x']",
        "linked.filter(a, a.status.phase == 'Running').size() > 2",
        "linked.filter(a, has(a.status)).map(a, a.status.phase).exists(a, a == 'Running')",
        "linked.exists(a, a.metadata.name.matches('^x-[0-9]+$'))",
        "(linked + pod.list).exists(a, a == pod)",
        "[1, 2, 3].exists(a, [1, 2, 3].exists(b, [1, 2, 3].exists(c, a + b == c)))",
        "linked.exists(a, ['x', 'y'].exists(b, ['m', 'n'].exists(c, a.name == b + c)))",
    ] {
        assert_eq!(problem(text), "accepted", "{text}");
    }
    let doubled = |text: &str| format!("({text} + {text})");
    let sum = doubled(&doubled(&doubled("linked")));
    for text in [
        "linked.exists(a, linked.exists(b, linked.exists(c, a == b && b == c)))",
        // 45 s on two hundred and fifty-six pods.
        "linked.map(a, linked.map(b, b)).size() == 256",
        "linked.exists(a, linked.filter(b, b.x == a.x).size() > 1)",
        "linked.filter(a, linked.filter(b, b.x == a.x).size() > 1).size() > 1",
        "linked.map(a, [linked, linked, linked, linked]).size() == 256",
        "linked.exists(a, linked.exists(b, a.metadata.name.matches(b.metadata.name)))",
        &format!("{sum}.exists(a, {sum}.exists(b, a == b))"),
        "linked.map(a, linked).exists(a, a.exists(b, linked.exists(c, b == c)))",
    ] {
        assert_eq!(
            problem(text),
            "it is too much work on lists of 256 entries: put no map or filter into a loop, no matches into two, and \
             no more than one exists, exists_one or all into another",
            "{text}"
        );
    }
}
