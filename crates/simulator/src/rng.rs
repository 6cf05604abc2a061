//! The only source of randomness: a seed gives the same run on every machine and with every version
//! of every dependency.

/// SplitMix64. Small, fast, and good enough to draw faults and delays.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `from` up to, but not including, `to`; `from` if the range is empty.
    pub(crate) fn range(&mut self, from: u64, to: u64) -> u64 {
        if to <= from { from } else { from + self.next() % (to - from) }
    }

    /// An index below `len`; 0 for an empty range.
    pub(crate) fn below(&mut self, len: usize) -> usize {
        self.range(0, len as u64) as usize
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.range(0, 100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A random permutation.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
