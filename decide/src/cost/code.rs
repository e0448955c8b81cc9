//! How a value is made of a tier and a rank, so that both can be read back from a pod.
//!
//! ```text
//! 0 ─── ranks ─── -2048 ─── tiers 1 to 447, with the ranks in each ─── -(2^20 - 2^17) ─── tiers of tall sets ─── -2^20, for victims
//! ```
//!
//! The rank stands in the low bits of every value but those of tall sets: ReplicaSets with more than 447 pods in one
//! domain need more tiers than there is room for, so theirs are next to each other, without ranks.

use super::BOUND;

/// Ranks lie between `-RANKS` and 0, both excluded.
pub(super) const RANKS: i32 = 2048;

/// From here down values belong to tall sets.
const TALL: i32 = BOUND - (1 << 17);

/// How many tiers a set that is not tall may have.
pub(super) const TIERS: u32 = (TALL / RANKS) as u32 - 1;

/// How the tiers of a set are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// With ranks.
    Ranked,
    /// Without.
    Tall,
}

impl Code {
    /// The code for tiers up to `highest`. A set that `was_tall` stays so until it has half as many, since going to and
    /// fro would rewrite all of it each time.
    pub(super) fn of(highest: u32, was_tall: bool) -> Self {
        if highest <= if was_tall { TIERS / 2 } else { TIERS } { Self::Ranked } else { Self::Tall }
    }

    /// The highest tier. No ReplicaSet has so many pods in one domain that a tall one would need more.
    pub(super) fn highest(self) -> u32 {
        match self {
            Self::Ranked => TIERS,
            // One less than there is room for: the lowest value is the victims' ([`super::VICTIM`]).
            Self::Tall => (BOUND - TALL) as u32 - 1,
        }
    }

    /// What a value has of its node's rank (0 for none).
    pub(super) fn low(self, rank: i32) -> i32 {
        match self {
            Self::Ranked => rank,
            Self::Tall => 0,
        }
    }

    /// The value of a pod in this tier, on a node of this rank (0 for none).
    pub(super) fn encode(self, tier: u32, rank: i32) -> i32 {
        let tier = tier.min(self.highest()) as i32;
        match self {
            Self::Ranked => rank - tier * RANKS,
            Self::Tall => -TALL - tier,
        }
    }

    /// The tier that a value of this code says; absent for one of another.
    pub(super) fn tier(self, value: i32) -> Option<u32> {
        let tier = match self {
            Self::Ranked if !is_tall(value) => -(value / RANKS),
            Self::Tall if is_tall(value) => -TALL - value,
            _ => 0,
        };
        u32::try_from(tier).ok().filter(|tier| (1..=self.highest()).contains(tier))
    }
}

/// The value is that of a tall set.
pub(super) fn is_tall(value: i32) -> bool {
    value < -TALL
}

/// The rank of the pod's node, as far as the value says.
pub(super) fn rank_of(value: i32) -> Option<i32> {
    let rank = value % RANKS;
    (rank < 0 && !is_tall(value)).then_some(rank)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::runner;

    proptest! {
        #![proptest_config(runner(2000))]

        #[test]
        fn a_value_says_its_tier_and_rank_and_keeps_the_bound(
            highest in 1_u32..5000,
            part in 0.0..1.0_f64,
            rank in -(RANKS - 1)..=0,
            was_tall: bool,
        ) {
            let code = Code::of(highest, was_tall);
            let tier = 1 + (f64::from(highest - 1) * part) as u32;
            let value = code.encode(tier, rank);
            prop_assert!((-BOUND..0).contains(&value), "{value}");
            prop_assert_eq!(code.tier(value), Some(tier));
            match code {
                Code::Ranked => prop_assert_eq!(rank_of(value), (rank < 0).then_some(rank)),
                Code::Tall => prop_assert_eq!(rank_of(value), None),
            }
            // A higher tier goes first whatever the ranks, and within a tier a lower rank never goes later.
            prop_assert!(code.encode(tier + 1, 0) < value || tier + 1 > highest);
            prop_assert!(code.encode(tier, -(RANKS - 1)) <= value);
        }
    }

    #[test]
    fn a_value_without_a_tier_is_a_rank() {
        assert_eq!(rank_of(-17), Some(-17));
        assert_eq!(Code::Ranked.tier(-17), None);
        assert_eq!(rank_of(0), None);
    }

    #[test]
    fn what_nobody_wrote_is_read_without_harm() {
        for value in [i32::MIN, -BOUND - 1, -BOUND, -TALL, -1, 0, 1, i32::MAX] {
            for code in [Code::Ranked, Code::Tall] {
                assert!(code.tier(value).is_none_or(|tier| tier <= code.highest()), "{value}");
            }
            assert!(rank_of(value).is_none_or(|rank| (1 - RANKS..0).contains(&rank)), "{value}");
        }
    }

    #[test]
    fn a_set_at_the_edge_does_not_go_to_and_fro() {
        assert_eq!(Code::of(TIERS, false), Code::Ranked);
        assert_eq!(Code::of(TIERS + 1, false), Code::Tall);
        assert_eq!(Code::of(TIERS, true), Code::Tall);
        assert_eq!(Code::of(TIERS / 2, true), Code::Ranked);
    }
}
