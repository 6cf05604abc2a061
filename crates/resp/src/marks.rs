//! The few requests in flight whose reply needs an eye, by their position among all requests.
//!
//! Ordinary requests are only counted, so a pipeline of any depth costs nothing. The others (MULTI, SUBSCRIBE, HELLO, ...) are
//! kept here in order: two in the ledger itself, more in a queue that is allocated only then and freed when it is empty.

use std::collections::VecDeque;

use crate::class::Class;

const NEAR: usize = 2;

/// The most confirmations a mark can wait for.
pub(crate) const MOST_EXPECTED: u32 = (1 << 24) - 1;

/// One request that is not ordinary, eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Its position among the requests that get a reply, counted from the session's start, modulo 2^32.
    pub(crate) at: u32,
    expected: [u8; 3],
    pub(crate) class: Class,
}

impl Mark {
    /// A mark that waits for `expected` confirmations, at most [`MOST_EXPECTED`].
    pub(crate) fn new(at: u32, class: Class, expected: u32) -> Self {
        let mut mark = Self { at, expected: [0; 3], class };
        mark.expect(expected);
        mark
    }

    /// How many confirmations are still to come; zero if the number is not known yet.
    pub(crate) fn expected(&self) -> u32 {
        let [a, b, c] = self.expected;
        u32::from_le_bytes([a, b, c, 0])
    }

    pub(crate) fn expect(&mut self, expected: u32) {
        let [a, b, c, _] = expected.min(MOST_EXPECTED).to_le_bytes();
        self.expected = [a, b, c];
    }
}

/// The marks, first in, first out.
#[derive(Debug)]
pub(crate) struct Marks {
    near: [Mark; NEAR],
    /// How many of `near` are in use; the rest follow in `far`.
    len: u8,
    far: Option<Box<Far>>,
}

/// The marks that did not fit; behind a box to keep idle sessions small.
#[derive(Debug, Default)]
struct Far {
    queue: VecDeque<Mark>,
}

impl Marks {
    pub(crate) fn new() -> Self {
        Self { near: [Mark { at: 0, expected: [0; 3], class: Class::Ordinary }; NEAR], len: 0, far: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a mark; false if there are `most` already.
    pub(crate) fn push(&mut self, mark: Mark, most: u16) -> bool {
        let waiting = usize::from(self.len) + self.far.as_ref().map_or(0, |far| far.queue.len());
        if waiting >= usize::from(most) {
            return false;
        }
        match self.near.get_mut(usize::from(self.len)) {
            Some(slot) if self.far.is_none() => {
                *slot = mark;
                self.len += 1;
            }
            _ => self.far.get_or_insert_default().queue.push_back(mark),
        }
        true
    }

    /// The oldest mark.
    pub(crate) fn first(&self) -> Option<&Mark> {
        if self.len > 0 { self.near.first() } else { None }
    }

    /// The oldest mark, to be changed.
    pub(crate) fn first_mut(&mut self) -> Option<&mut Mark> {
        if self.len > 0 { self.near.first_mut() } else { None }
    }

    /// Removes the oldest mark.
    pub(crate) fn pop(&mut self) {
        self.near.rotate_left(1);
        self.len = self.len.saturating_sub(1);
        if let Some(far) = &mut self.far {
            if let Some((slot, next)) = self.near.get_mut(usize::from(self.len)).zip(far.queue.pop_front()) {
                *slot = next;
                self.len += 1;
            }
            if far.queue.is_empty() {
                self.far = None;
            }
        }
    }

    /// Marks that have been allocated.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.far.as_ref().map_or(0, |far| far.queue.capacity())
    }

    /// Forgets all and frees what was allocated.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_EXPECTED, Mark, Marks};
    use crate::class::Class;

    #[test]
    fn a_mark_is_eight_bytes_and_counts_far() {
        assert_eq!(size_of::<Mark>(), 8);
        let mut mark = Mark::new(7, Class::Subscribe, MOST_EXPECTED);
        assert_eq!(mark.expected(), MOST_EXPECTED);
        mark.expect(0x01_02_03);
        assert_eq!((mark.at, mark.class, mark.expected()), (7, Class::Subscribe, 0x01_02_03));
    }

    #[test]
    fn first_in_first_out_over_both_parts() {
        let mut marks = Marks::new();
        let (mut pushed, mut popped) = (0, 0);
        for round in 1..20_u32 {
            for _ in 0..round {
                assert!(marks.push(Mark::new(pushed, Class::Multi, 0), 1000));
                pushed += 1;
            }
            for _ in 0..round.saturating_sub(round % 3) {
                assert_eq!(marks.first().map(|mark| mark.at), Some(popped));
                marks.pop();
                popped += 1;
            }
        }
        while let Some(mark) = marks.first() {
            assert_eq!(mark.at, popped);
            marks.pop();
            popped += 1;
        }
        assert_eq!(pushed, popped);
        assert!(marks.is_empty() && marks.far.is_none());
    }

    #[test]
    fn holds_no_more_than_it_may_and_two_without_an_allocation() {
        let mut marks = Marks::new();
        for at in 0..2 {
            assert!(marks.push(Mark::new(at, Class::Multi, 0), 5));
        }
        assert!(marks.far.is_none());
        for at in 2..5 {
            assert!(marks.push(Mark::new(at, Class::Multi, 0), 5));
        }
        assert!(!marks.push(Mark::new(5, Class::Multi, 0), 5));
    }
}
