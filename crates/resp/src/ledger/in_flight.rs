//! The requests in flight whose reply needs an eye, by their position among all requests.
//!
//! Ordinary requests are only counted, so a pipeline of any depth costs nothing. The others (MULTI,
//! SUBSCRIBE, HELLO, ...) are kept here in order: two in the ledger itself, more in a queue that is
//! allocated only then and freed when it is empty.
//!
//! The queue holds runs in which two kinds of mark alternate at constant distances. A pipeline of
//! transactions with the same number of commands each is one run, however long it is; so is one of
//! SUBSCRIBE or SELECT alone. Where nothing repeats, a run is two marks. A few runs are free, more
//! come out of a [budget](crate::ledger::budget) that all sessions share.

use std::collections::VecDeque;

use crate::commands::class::Class;
use crate::ledger::budget::{self, Share};

const INLINE_MARKS: usize = 2;

/// Runs that a session may have without asking for them: twelve kilobytes.
const FREE_RUNS: usize = 512;

/// The first allocation, in runs.
const INITIAL_RUNS: usize = 4;

/// The most confirmations a mark can wait for.
pub(crate) const MAX_EXPECTED: u32 = (1 << 24) - 1;

/// What a mark says of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MarkKind {
    expected: [u8; 3],
    class: Class,
}

const NO_KIND: MarkKind = MarkKind { expected: [0; 3], class: Class::Ordinary };

/// One request that is not ordinary, eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Its position among the requests that get a reply, counted from the session's start, modulo
    /// 2^32.
    pub(crate) at: u32,
    kind: MarkKind,
}

impl Mark {
    /// A mark that waits for `expected` confirmations, at most [`MAX_EXPECTED`].
    pub(crate) fn new(at: u32, class: Class, expected: u32) -> Self {
        let mut mark = Self { at, kind: MarkKind { expected: [0; 3], class } };
        mark.expect(expected);
        mark
    }

    pub(crate) fn class(&self) -> Class {
        self.kind.class
    }

    /// How many confirmations are still to come; zero if the number is not known yet.
    pub(crate) fn expected(&self) -> u32 {
        let [a, b, c] = self.kind.expected;
        u32::from_le_bytes([a, b, c, 0])
    }

    pub(crate) fn expect(&mut self, expected: u32) {
        let [a, b, c, _] = expected.min(MAX_EXPECTED).to_le_bytes();
        self.kind.expected = [a, b, c];
    }
}

/// Marks of two kinds by turns, at least one.
#[derive(Debug)]
struct MarkRun {
    /// The position of its first mark.
    at: u32,
    count: u32,
    /// Of its first mark, its third, and so on; and of the others.
    kinds: [MarkKind; 2],
    /// From a mark of the first kind to the next mark, and from one of the second kind.
    gaps: [u32; 2],
}

impl MarkRun {
    fn new(mark: Mark) -> Self {
        Self { at: mark.at, count: 1, kinds: [mark.kind, NO_KIND], gaps: [0; 2] }
    }

    /// Appends a mark that is `gap` positions from the last one; false if it does not fit in.
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

    /// Removes the first mark, of which there is one.
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

/// The marks, first in, first out.
#[derive(Debug)]
pub(crate) struct InFlightMarks {
    inline: [Mark; INLINE_MARKS],
    /// How many of `inline` are in use; the rest follow in `queue`.
    len: u8,
    /// A request that should have a mark has none, the last such at this position.
    has_unmarked: bool,
    unmarked_at: u32,
    queue: Option<Box<MarkQueue>>,
}

/// The marks that did not fit; behind a box to keep idle sessions small.
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

    /// Whether there may be one more run. Makes room for it.
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
    pub(crate) fn new() -> Self {
        Self {
            inline: [Mark { at: 0, kind: NO_KIND }; INLINE_MARKS],
            len: 0,
            has_unmarked: false,
            unmarked_at: 0,
            queue: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a mark; false if there is no room, because of `most` runs or because all sessions
    /// together have too many.
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

    /// Notes that there is no mark for the request at that position.
    pub(crate) fn record_unmarked(&mut self, at: u32) {
        (self.has_unmarked, self.unmarked_at) = (true, at);
    }

    /// The position of the last request without the mark that it should have.
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

    /// The oldest mark, to be changed.
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

    /// Runs that have been allocated.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.runs.capacity())
    }

    /// Forgets all and frees what was allocated.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
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
    fn a_mark_is_eight_bytes_and_counts_far() {
        assert_eq!(size_of::<Mark>(), 8);
        let mut mark = Mark::new(7, Class::Subscribe, MAX_EXPECTED);
        assert_eq!(mark.expected(), MAX_EXPECTED);
        mark.expect(0x01_02_03);
        assert_eq!((mark.at, mark.class(), mark.expected()), (7, Class::Subscribe, 0x01_02_03));
    }

    /// Marks of which no three make a run.
    fn odd(n: u32) -> Mark {
        let classes = [Class::Multi, Class::Exec, Class::Select];
        Mark::new(n, classes[n as usize % 3], 0)
    }

    #[test]
    fn holds_two_without_an_allocation_and_not_more_runs_than_it_may() {
        let mut marks = InFlightMarks::new();
        assert!((0..2).all(|n| marks.push(odd(n), 5)) && marks.queue.is_none());
        assert!((2..12).all(|n| marks.push(odd(n), 5)));
        assert!(!marks.push(odd(12), 5));
        assert!(!InFlightMarks { len: 2, ..InFlightMarks::new() }.push(odd(0), 0));
    }

    #[test]
    fn pipelines_that_repeat_are_one_run() {
        for kinds in
            [[(Class::Multi, 0), (Class::Exec, 0)], [(Class::Subscribe, 1), (Class::Subscribe, 1)]]
        {
            let mut marks = InFlightMarks::new();
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
    fn takes_from_the_budget_beyond_its_own_and_gives_back() {
        let queue = || MarkQueue { share: Share::of(&TIGHT), ..MarkQueue::default() };
        let fill = |queue: &mut MarkQueue, most| {
            (0_u32..).take_while(|n| queue.push(odd(*n), most)).count()
        };
        let (mut one, mut other, free) = (queue(), queue(), u16::try_from(FREE_RUNS).unwrap());
        assert_eq!(fill(&mut one, free), 2 * FREE_RUNS);
        assert_eq!((one.runs.capacity(), TIGHT.left()), (FREE_RUNS, 3 * FREE_RUNS * RUN));
        assert_eq!(fill(&mut one, 2 * free) + fill(&mut one, 4 * free), 6 * FREE_RUNS);
        assert_eq!((one.runs.len(), TIGHT.left()), (4 * FREE_RUNS, 0));
        // Nothing is left for the other one but what is its own.
        assert_eq!(fill(&mut other, MOST), 2 * FREE_RUNS);
        drop(one);
        assert!(other.push(odd(0), MOST));
        drop(other);
        assert_eq!(TIGHT.left(), 3 * FREE_RUNS * RUN);
    }

    proptest! {
        #[test]
        fn first_in_first_out_whatever_repeats(
            steps in prop::collection::vec((prop::bool::weighted(0.55), 0_usize..5, 1_u32..3, 0_u32..2), 1..400),
            from in prop::sample::select(vec![0_u32, u32::MAX - 20]),
        ) {
            let classes = [Class::Multi, Class::Exec, Class::Select, Class::Subscribe, Class::Blocking];
            let (mut marks, mut model, mut at) = (InFlightMarks::new(), VecDeque::new(), from);
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
