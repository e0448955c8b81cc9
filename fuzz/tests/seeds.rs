//! The fuzz targets over everything that they begin with, without a fuzzer: so that they go on compiling and holding.

#[path = "../src/lib.rs"]
pub mod fuzz;

use std::collections::BTreeSet;
use std::path::Path;

use fuzz::{TARGETS, seeds};

/// The repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The function of a target.
fn of(target: &str) -> Option<fn(&[u8])> {
    match target {
        "review" => Some(fuzz::review),
        "answer" => Some(fuzz::answer),
        "config" => Some(fuzz::config),
        "expression" => Some(fuzz::expression),
        _ => None,
    }
}

#[test]
fn every_target_holds_on_its_seeds_and_on_parts_of_them() {
    for target in TARGETS {
        let (seeds, run) = (seeds(repository(), target).unwrap(), of(target).expect(target));
        assert!(seeds.len() > 2, "{target} has {} seeds", seeds.len());
        for (_, seed) in &seeds {
            run(seed);
            for eighth in 0..8 {
                run(&seed[..seed.len() * eighth / 8]);
                let mut bent = seed.clone();
                for byte in [seed[seed.len() * eighth / 8] ^ 0x15, 0xff] {
                    bent[seed.len() * eighth / 8] = byte;
                    run(&bent);
                }
            }
        }
    }
}

#[test]
fn seeds_are_what_they_are_meant_to_be() {
    for (name, seed) in seeds(repository(), "config").unwrap() {
        let text = String::from_utf8(seed).unwrap();
        let config = belay::config::Config::parse(name.as_ref(), &text).unwrap();
        assert_eq!(config.busy_hints.enabled, name != "default.yaml", "{name}");
    }
    for (name, seed) in seeds(repository(), "expression").unwrap() {
        let text = String::from_utf8(seed).unwrap();
        let known = ["pod", "owner", "linked", "now"];
        let compiled = belay_decide::busy::expression::Expression::compile(&text, &known);
        assert!(compiled.is_ok(), "{name}: {text}: {compiled:?}");
    }
}

#[test]
fn seeds_of_answers_get_every_kind_of_answer() {
    let mut kinds = BTreeSet::new();
    for (_, seed) in seeds(repository(), "answer").unwrap() {
        kinds.extend(fuzz::kinds_of_answers(&seed));
    }
    let expected = ["/mutate/bindings patched", "/mutate/busy patched", "/validate/eviction refused"];
    for kind in expected {
        assert!(kinds.contains(kind), "{kind} is not among {kinds:?}");
    }
}

#[test]
fn the_targets_are_those_that_cargo_fuzz_finds() {
    let manifest = std::fs::read_to_string(repository().join("fuzz/Cargo.toml")).unwrap();
    let found: BTreeSet<&str> = manifest
        .split("[[bin]]")
        .skip(1)
        .map(|bin| bin.split_once("name = \"").unwrap().1.split_once('"').unwrap().0)
        .collect();
    assert_eq!(found, BTreeSet::from(TARGETS));
    for target in TARGETS {
        let program = std::fs::read_to_string(repository().join(format!("fuzz/fuzz_targets/{target}.rs"))).unwrap();
        assert!(program.contains(&format!("belay_fuzz::{target}(data)")), "{program}");
    }
}
