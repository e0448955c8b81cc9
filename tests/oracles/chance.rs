//! Numbers that look random and are the same every time (SplitMix64).

/// Where numbers come from.
pub(crate) struct Chance(u64);

impl Chance {
    /// The numbers of `BELAY_ORACLE_SEED`, or of 1.
    pub(crate) fn new() -> Self {
        let seed = std::env::var("BELAY_ORACLE_SEED").map_or(1, |seed| seed.parse().expect("the seed is a number"));
        println!("BELAY_ORACLE_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A UID.
    pub(crate) fn uid(&mut self) -> String {
        format!("{:016x}", self.next())
    }
}
