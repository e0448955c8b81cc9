use std::path::Path;

use super::super::Config;
use super::*;

fn parse(keys: &str) -> Result<DeletionCost, String> {
    let text = format!(
        "certs: {{secretName: belay-ca, dnsNames: [belay-webhook.belay-system.svc]}}
webhookConfigurations: {{validating: belay, mutating: belay}}
{keys}"
    );
    let parsed = Config::parse(Path::new("config.yaml"), &text);
    parsed.map(|config| config.deletion_cost).map_err(|error| error.to_string())
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let documented = parse(
        "deletionCost:
  enabled: false
  maxNodes: 50
  nodePools: []
  spreadZones: false
  settlePeriod: 5m
  standDownPeriod: 10m
  writesPerSecond: 10",
    )
    .unwrap();
    for keys in ["", "deletionCost: {}", "deletionCost: {enabled: false}"] {
        assert_eq!(parse(keys).unwrap(), documented, "{keys:?}");
    }
    assert_eq!(documented.options(), Options::default(), "as decisions have it");
    assert_eq!(documented.stand_down(), SignedDuration::from_mins(10));
}

#[test]
fn every_key_reaches_what_decides() {
    let costs = parse(
        "deletionCost:
  enabled: true
  maxNodes: 7
  nodePools: [spot, default]
  spreadZones: true
  settlePeriod: 90s
  standDownPeriod: 1h30m
  writesPerSecond: 3",
    )
    .unwrap();
    assert!(costs.enabled);
    assert_eq!(costs.writes_per_second, 3);
    assert_eq!(costs.stand_down(), SignedDuration::from_mins(90));
    let pools = ["default", "spot"].into_iter().map(Into::into).collect();
    let expected =
        Options { max_nodes: 7, pools: Some(pools), span_zones: true, settle: SignedDuration::from_secs(90) };
    assert_eq!(costs.options(), expected);
}

#[test]
fn a_value_is_taken_up_to_its_bounds_and_refused_beyond_them_by_its_key() {
    let table: [(&str, &[&str], &[&str]); 4] = [
        ("maxNodes", &["1", "500"], &["0", "501", "-1", "many"]),
        ("settlePeriod", &["1s", "60m"], &["0s", "1h1s", "-5m", "300", "soon"]),
        ("standDownPeriod", &["1s", "24h"], &["0s", "24h1s", "600"]),
        ("writesPerSecond", &["1", "100"], &["0", "101", "-1"]),
    ];
    for (key, good, bad) in table {
        for value in good {
            parse(&format!("deletionCost: {{{key}: {value}}}"))
                .unwrap_or_else(|error| panic!("{key}: {value}: {error}"));
        }
        for value in bad {
            for enabled in [true, false] {
                let error = parse(&format!("deletionCost: {{enabled: {enabled}, {key}: {value}}}"));
                let error = error.expect_err(&format!("{key}: {value}"));
                assert!(error.contains(key) || error.contains("duration"), "{key}: {value}: {error}");
            }
        }
    }
    let unknown = parse("deletionCost: {maxNode: 7}").unwrap_err();
    assert!(unknown.contains("maxNode") && unknown.contains("maxNodes"), "{unknown}");
}
