//! Which tiers are sound, kept, fitted in and numbered anew.

use super::*;

fn member(domain: &'static str, place: Place, tier: Option<u32>) -> Member<'static> {
    Member { domains: vec![Some(domain)], place, low: place.rank(), young: false, tier, last: false }
}

fn young(member: Member<'static>) -> Member<'static> {
    Member { young: true, ..member }
}

fn tiers_of(members: &[Member<'_>]) -> Vec<u32> {
    tiers(members, &[1], 100).into_iter().flatten().collect()
}

use Place::{Ranked, Unranked};

#[test]
fn a_pod_that_goes_after_others_shares_their_tier_where_that_moves_nobody() {
    let members = [member("a", Ranked(-9), Some(1)), member("b", Ranked(-8), Some(1)), member("a", Ranked(-3), None)];
    assert_eq!(tiers_of(&members), [1, 1, 1]);
    let [one, other, coming] = members;
    assert_eq!(tiers_of(&[one, other, young(coming)]), [1, 1, 1], "rather than on top");
}

#[test]
fn a_pod_that_does_not_fit_raises_those_before_it_or_goes_on_top_while_it_is_young() {
    let members = [member("a", Ranked(-8), Some(1)), member("b", Ranked(-9), Some(1)), member("a", Ranked(-3), None)];
    assert_eq!(tiers_of(&members), [2, 1, 1]);
    let [one, other, coming] = members;
    assert_eq!(tiers_of(&[one, other, young(coming)]), [1, 1, 2]);
}

#[test]
fn nodes_without_a_rank_are_alike() {
    assert_eq!(tiers_of(&[member("a", Unranked, Some(1)), member("a", Unranked, None)]), [1, 2]);
    // The first is of a node that has just lost its rank, or the last of one that has just got it: the other two stay.
    let (a, b) = (|place, tier| member("a", place, Some(tier)), |tier| member("b", Unranked, Some(tier)));
    assert_eq!(tiers_of(&[a(Unranked, 3), a(Unranked, 2), a(Unranked, 1), b(3), b(2), b(1)]), [3, 2, 1, 3, 2, 1]);
    assert_eq!(tiers_of(&[a(Unranked, 3), a(Unranked, 2), a(Ranked(-9), 1), b(3), b(2), b(1)]), [1, 2, 3, 3, 2, 1]);
}

#[test]
fn pods_that_are_in_the_wrong_order_change_their_tiers_where_they_cannot_be_fitted_in() {
    // Between the first and the second is no tier that keeps level with the other domain.
    let members = [
        member("a", Ranked(-9), Some(2)),
        member("a", Ranked(-8), Some(3)),
        member("a", Unranked, Some(1)),
        member("b", Ranked(-20), Some(3)),
        member("b", Ranked(-10), Some(2)),
        member("b", Unranked, Some(1)),
    ];
    assert_eq!(tiers_of(&members), [3, 2, 1, 3, 2, 1]);
}

#[test]
fn a_young_pod_on_top_does_not_hold_the_others_to_its_tier() {
    let members =
        [young(member("a", Ranked(-3), Some(5))), member("a", Ranked(-2), Some(1)), member("a", Ranked(-9), None)];
    assert_eq!(tiers_of(&members), [5, 1, 3]);
}

#[test]
fn of_those_in_the_wrong_order_as_few_as_possible_are_moved() {
    let members = [
        member("a", Ranked(-9), Some(4)),
        member("a", Ranked(-2), Some(3)),
        member("a", Ranked(-8), Some(2)),
        member("a", Ranked(-7), Some(1)),
    ];
    assert_eq!(tiers_of(&members), [4, 1, 2, 1]);
}

#[test]
fn what_is_not_sound_is_numbered_anew() {
    let members = [member("a", Ranked(-9), Some(9)), member("a", Ranked(-9), Some(8)), member("b", Unranked, Some(7))];
    assert_eq!(tiers_of(&members), [9, 8, 7]);
    let members = [member("a", Ranked(-9), Some(7)), member("a", Ranked(-9), Some(8)), member("b", Unranked, Some(9))];
    assert_eq!(tiers_of(&members), [2, 1, 1]);
}

#[test]
fn where_heights_do_not_keep_all_constraints_the_order_itself_is_the_tiers() {
    // By heights a2 would go before b1, which leaves two on b1 and none on a2.
    let on = |node: &'static str, rank| Member {
        domains: vec![Some(&node[..1]), Some(node)],
        ..member("", Ranked(rank), None)
    };
    let members = [on("a1", -3), on("a2", -4), on("b1", -1), on("b1", -1)];
    let tiers: Vec<_> = tiers(&members, &[1, 1], 100).into_iter().flatten().collect();
    assert_eq!(tiers, [2, 3, 4, 1]);
}

#[test]
fn the_nearest_tiers_are_tried_wherever_the_height_lies() {
    assert_eq!(fit::nearest(3..=5, 4), [4, 3, 5]);
    assert_eq!(fit::nearest(3..=5, 90), [5, 4, 3]);
    assert_eq!(fit::nearest(40..=90, 1)[..2], [40, 41]);
    let (low, high) = (5, 3);
    assert_eq!(fit::nearest(low..=high, 4), [0; 0]);
}

/// Two domains by height, the pod that goes last first; a turn is a tier and what the value has of a rank.
#[test]
fn domains_are_level_where_each_pod_waits_for_those_above_it() {
    let tier = |tier, low| Turn::Tier(Reverse(tier), low);
    let table = [
        ("by turns", vec![tier(1, 0), tier(2, 0)], vec![tier(1, -9), tier(2, -9)], true),
        ("the fuller first", vec![tier(1, 0), tier(2, 0), tier(3, 0)], vec![tier(1, 0)], true),
        ("the emptier first", vec![tier(1, 0), tier(2, 0), tier(3, 0)], vec![tier(4, 0)], false),
        ("of one turn", vec![tier(1, 0), tier(1, 0)], vec![tier(1, 0)], false),
        ("of one tier, and the ranks decide", vec![tier(1, -1), tier(1, -2)], vec![tier(1, -1)], true),
        ("of one tier, and the ranks decide otherwise", vec![tier(1, -1), tier(1, -2)], vec![tier(1, -3)], false),
        ("one that stays", vec![Turn::Last, tier(2, 0)], vec![Turn::Last, tier(2, 0)], true),
        ("two that stay", vec![Turn::Last, Turn::Last], vec![tier(1, 0)], false),
    ];
    for (name, one, other, expected) in table {
        let mut columns = [one, other];
        columns.sort_by_key(|column| Reverse(column.len()));
        assert_eq!(is_level(&columns, 1), expected, "{name}");
        columns.swap(0, 1);
        if columns[0].len() == columns[1].len() {
            assert_eq!(is_level(&columns, 1), expected, "{name}");
        }
    }
}

#[test]
fn a_greater_skew_allows_more() {
    let tier = |tier| Turn::Tier(Reverse(tier), 0);
    let columns = [vec![tier(1), tier(2), tier(3)], vec![tier(5)]];
    assert_eq!([1, 2, 3].map(|max_skew| is_level(&columns, max_skew)), [false, false, true]);
}
