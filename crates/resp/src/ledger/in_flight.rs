//! In-flight markers: the requests in flight whose reply must be inspected, by their position among
//! all requests.
//!
//! Ordinary requests are only counted, so a pipeline of any depth needs no memory. All other
//! requests (MULTI, SUBSCRIBE, HELLO, ...) are marked here, in order: two marks in the ledger
//! itself, further ones in a queue that is allocated when needed and freed when empty.
//!
//! The queue is run-length encoded. In a run, two kinds of mark alternate at constant distances. A
//! pipeline of transactions with the same number of commands each is one run of any length, and so
//! is one of SUBSCRIBE or SELECT alone. Without repetition, a run has two marks. Each session may
//! have some runs; further ones are taken from a [budget] that all sessions
//! share.

use std::collections::VecDeque;

use crate::commands::class::Class;
use crate::ledger::budget::{self, Share};

const INLINE_MARKS: usize = 2;

/// Runs that a session may have without the shared budget: twelve kilobytes.
const FREE_RUNS: usize = 512;

/// Size of the first allocation, in runs.
const INITIAL_RUNS: usize = 4;

/// Maximum number of confirmations that a mark can expect.
pub(crate) const MAX_EXPECTED: u32 = (1 << 24) - 1;

/// The class of a marked request, and the confirmations that it expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct MarkKind {
    expected: [u8; 3],
    class: Class,
}

/// One request whose reply must be inspected, in eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    /// Its position among the requests that get a reply, counted from the start of the session,
    /// modulo 2^32.
    pub(crate) at: u32,
    kind: MarkKind,
}

impl Mark {
    /// A mark that expects `expected` confirmations, at most [`MAX_EXPECTED`].
    pub(crate) fn new(at: u32, class: Class, expected: u32) -> Self {
        let mut mark = Self { at, kind: MarkKind { expected: [0; 3], class } };
        mark.expect(expected);
        mark
    }

    pub(crate) fn class(&self) -> Class {
        self.kind.class
    }

    /// Number of outstanding confirmations; zero if it is not known yet.
    pub(crate) fn expected(&self) -> u32 {
        let [a, b, c] = self.kind.expected;
        u32::from_le_bytes([a, b, c, 0])
    }

    pub(crate) fn expect(&mut self, expected: u32) {
        let [a, b, c, _] = expected.min(MAX_EXPECTED).to_le_bytes();
        self.kind.expected = [a, b, c];
    }
}

/// A run of marks of two alternating kinds; at least one mark.
#[derive(Debug)]
struct MarkRun {
    /// The position of its first mark.
    at: u32,
    count: u32,
    /// The kind of the first, third, fifth mark, and the kind of the second, fourth, sixth.
    kinds: [MarkKind; 2],
    /// Distance from a mark of the first kind to the next mark, and from one of the second kind.
    gaps: [u32; 2],
}

impl MarkRun {
    fn new(mark: Mark) -> Self {
        Self { at: mark.at, count: 1, kinds: [mark.kind, MarkKind::default()], gaps: [0; 2] }
    }

    /// Appends a mark at a distance of `gap` from the last one. False if it does not continue the
    /// pattern.
    fn append(&mut self, gap: u32, kind: MarkKind) -> bool {
        let [first, second] = &mut self.kinds;
        let [after_first, after_second] = &mut self.gaps;
        let fits = match self.count {
            1 => {
                (*second, *after_first) = (kind, gap);
                true
            }
            2 => {
                *after_second = gap;
                kind == *first
            }
            count if count % 2 == 0 => (kind, gap) == (*first, *after_second),
            _ => (kind, gap) == (*second, *after_first),
        };
        self.count += u32::from(fits);
        fits
    }

    /// Removes the first mark. There must be one.
    fn pop(&mut self) -> Mark {
        let ([first, _], [gap, _]) = (self.kinds, self.gaps);
        let mark = Mark { at: self.at, kind: first };
        self.kinds.reverse();
        self.gaps.reverse();
        self.at = self.at.wrapping_add(gap);
        self.count = self.count.saturating_sub(1);
        mark
    }
}

/// The marks, as a FIFO queue.
#[derive(Debug, Default)]
pub(crate) struct InFlightMarks {
    inline: [Mark; INLINE_MARKS],
    /// How many of `inline` are in use; further marks are in `queue`.
    len: u8,
    /// Whether a request that needs a mark has none; `unmarked_at` is the position of the last one.
    has_unmarked: bool,
    unmarked_at: u32,
    queue: Option<Box<MarkQueue>>,
}

/// The marks that do not fit inline. Boxed, to keep idle sessions small.
#[derive(Debug)]
struct MarkQueue {
    runs: VecDeque<MarkRun>,
    /// The position of the last mark, if there is one.
    last: u32,
    share: Share,
}

impl Default for MarkQueue {
    fn default() -> Self {
        Self { runs: VecDeque::new(), last: 0, share: Share::of(&budget::MARKS) }
    }
}

impl MarkQueue {
    fn push(&mut self, mark: Mark, most: u16) -> bool {
        let gap = mark.at.wrapping_sub(self.last);
        if !self.runs.back_mut().is_some_and(|run| run.append(gap, mark.kind)) {
            if !self.has_room(usize::from(most)) {
                return false;
            }
            self.runs.push_back(MarkRun::new(mark));
        }
        self.last = mark.at;
        true
    }

    /// Whether there may be one more run. Reserves memory for it.
    fn has_room(&mut self, most: usize) -> bool {
        let (len, capacity) = (self.runs.len(), self.runs.capacity());
        if len >= most {
            return false;
        }
        if len < capacity {
            return true;
        }
        let larger = (capacity * 2).clamp(INITIAL_RUNS, most.max(INITIAL_RUNS));
        if !self.share.grow_to(larger.saturating_sub(FREE_RUNS) * size_of::<MarkRun>()) {
            return false;
        }
        self.runs.reserve_exact(larger - len);
        true
    }

    fn pop(&mut self) -> Option<Mark> {
        let run = self.runs.front_mut()?;
        let mark = run.pop();
        if run.count == 0 {
            self.runs.pop_front();
        }
        Some(mark)
    }
}

impl InFlightMarks {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a mark. False if there are `most` runs already, or if the shared budget is used up.
    pub(crate) fn push(&mut self, mark: Mark, most: u16) -> bool {
        match self.inline.get_mut(usize::from(self.len)) {
            Some(slot) if self.queue.is_none() => {
                *slot = mark;
                self.len += 1;
                true
            }
            _ => self.push_queued(mark, most),
        }
    }

    fn push_queued(&mut self, mark: Mark, most: u16) -> bool {
        most > 0 && self.queue.get_or_insert_default().push(mark, most)
    }

    /// Records that the request at that position has no mark.
    pub(crate) fn record_unmarked(&mut self, at: u32) {
        (self.has_unmarked, self.unmarked_at) = (true, at);
    }

    /// The position of the last request that needs a mark and has none.
    pub(crate) fn last_unmarked(&self) -> Option<u32> {
        self.has_unmarked.then_some(self.unmarked_at)
    }

    pub(crate) fn forget_unmarked(&mut self) {
        self.has_unmarked = false;
    }

    /// The oldest mark.
    pub(crate) fn first(&self) -> Option<&Mark> {
        if self.len > 0 { self.inline.first() } else { None }
    }

    /// The oldest mark, mutable.
    pub(crate) fn first_mut(&mut self) -> Option<&mut Mark> {
        if self.len > 0 { self.inline.first_mut() } else { None }
    }

    /// Removes the oldest mark.
    pub(crate) fn pop(&mut self) {
        self.inline.rotate_left(1);
        self.len = self.len.saturating_sub(1);
        if let Some(queue) = &mut self.queue {
            if let Some((slot, next)) = self.inline.get_mut(usize::from(self.len)).zip(queue.pop())
            {
                *slot = next;
                self.len += 1;
            }
            if queue.runs.is_empty() {
                self.queue = None;
            }
        }
    }

    /// Allocated runs.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.runs.capacity())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::{FREE_RUNS, InFlightMarks, MAX_EXPECTED, Mark, MarkQueue};
    use crate::commands::class::Class;
    use crate::ledger::budget::{Budget, Share};

    const MOST: u16 = 16 * 1024;

    #[test]
    fn packs_a_mark_into_eight_bytes() {
        assert_eq!(size_of::<Mark>(), 8);
        let mut mark = Mark::new(7, Class::Subscribe, MAX_EXPECTED);
        assert_eq!(mark.expected(), MAX_EXPECTED);
        mark.expect(0x01_02_03);
        assert_eq!((mark.at, mark.class(), mark.expected()), (7, Class::Subscribe, 0x01_02_03));
    }

    /// Marks of which no three form a run.
    fn odd(n: u32) -> Mark {
        let classes = [Class::Multi, Class::Exec, Class::Select];
        Mark::new(n, classes[n as usize % 3], 0)
    }

    #[test]
    fn holds_two_marks_inline_and_limits_the_runs() {
        let mut marks = InFlightMarks::default();
        assert!((0..2).all(|n| marks.push(odd(n), 5)) && marks.queue.is_none());
        assert!((2..12).all(|n| marks.push(odd(n), 5)));
        assert!(!marks.push(odd(12), 5));
        assert!(!InFlightMarks { len: 2, ..InFlightMarks::default() }.push(odd(0), 0));
    }

    #[test]
    fn encodes_repeating_pipelines_as_one_run() {
        for kinds in
            [[(Class::Multi, 0), (Class::Exec, 0)], [(Class::Subscribe, 1), (Class::Subscribe, 1)]]
        {
            let mut marks = InFlightMarks::default();
            for (n, (class, expected)) in (0..2_000_000).zip(kinds.into_iter().cycle()) {
                assert!(marks.push(Mark::new(n * 3 + n % 2, class, expected), 1));
            }
            assert!(marks.allocated() <= 4, "{}", marks.allocated());
            for (n, (class, expected)) in (0..2_000_000).zip(kinds.into_iter().cycle()) {
                assert_eq!(marks.first(), Some(&Mark::new(n * 3 + n % 2, class, expected)));
                marks.pop();
            }
            assert!(marks.is_empty() && marks.queue.is_none());
        }
    }

    static TIGHT: Budget = Budget::new(3 * FREE_RUNS * RUN);
    const RUN: usize = 24;

    #[test]
    fn takes_further_runs_from_the_budget_and_returns_them() {
        let queue = || MarkQueue { share: Share::of(&TIGHT), ..MarkQueue::default() };
        let fill = |queue: &mut MarkQueue, most| {
            (0_u32..).take_while(|n| queue.push(odd(*n), most)).count()
        };
        let (mut one, mut other, free) = (queue(), queue(), u16::try_from(FREE_RUNS).unwrap());
        assert_eq!(fill(&mut one, free), 2 * FREE_RUNS);
        assert_eq!((one.runs.capacity(), TIGHT.left()), (FREE_RUNS, 3 * FREE_RUNS * RUN));
        assert_eq!(fill(&mut one, 2 * free) + fill(&mut one, 4 * free), 6 * FREE_RUNS);
        assert_eq!((one.runs.len(), TIGHT.left()), (4 * FREE_RUNS, 0));
        // The other session has only the runs that need no budget.
        assert_eq!(fill(&mut other, MOST), 2 * FREE_RUNS);
        drop(one);
        assert!(other.push(odd(0), MOST));
        drop(other);
        assert_eq!(TIGHT.left(), 3 * FREE_RUNS * RUN);
    }

    proptest! {
        #[test]
        fn keeps_fifo_order_for_any_repetition(
            steps in prop::collection::vec(
                (prop::bool::weighted(0.55), 0_usize..5, 1_u32..3, 0_u32..2),
                1..400,
            ),
            from in prop::sample::select(vec![0_u32, u32::MAX - 20]),
        ) {
            let classes =
                [Class::Multi, Class::Exec, Class::Select, Class::Subscribe, Class::Blocking];
            let (mut marks, mut model, mut at) = (InFlightMarks::default(), VecDeque::new(), from);
            for (push, class, gap, expected) in steps {
                if push {
                    at = at.wrapping_add(gap);
                    let mark = Mark::new(at, classes[class], expected);
                    prop_assert!(marks.push(mark, 1000));
                    model.push_back(mark);
                } else if model.pop_front().is_some() {
                    marks.pop();
                }
                prop_assert_eq!(marks.first(), model.front());
            }
            while let Some(mark) = model.pop_front() {
                prop_assert_eq!(marks.first(), Some(&mark));
                marks.pop();
            }
            prop_assert!(marks.is_empty() && marks.queue.is_none());
        }
    }
}
