//! How deep in nested aggregates a reply is, and how many elements each level still wants.
//!
//! A session is idle most of the time and shallow nearly always, so four levels live in the ledger
//! itself; only a deeper frame allocates, once, up to the configured depth, and gives the memory
//! back at its end.

/// How many levels fit without an allocation, besides the innermost one.
const NEAR: usize = 3;

/// Set in a level that belongs to an attribute, which prefixes a value and is none itself.
const ATTRIBUTE: u32 = 1 << 31;
/// The count of a level whose end will be marked.
const STREAMED: u32 = ATTRIBUTE - 1;
/// The most elements a level can count.
pub(crate) const MOST: u32 = STREAMED - 1;

/// What the end of an element was the end of, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Of nothing more, or of an attribute: another value follows.
    Element,
    /// Of the whole frame.
    Frame,
}

#[derive(Debug, Default)]
pub(crate) struct Stack {
    /// The innermost level.
    current: u32,
    near: [u32; NEAR],
    depth: u16,
    broken: bool,
    far: Option<Box<Far>>,
}

/// The levels that did not fit; behind a box to keep idle sessions small.
#[derive(Debug, Default)]
struct Far {
    levels: Vec<u32>,
}

impl Stack {
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Enters an aggregate of `count` elements, at least one and at most [`MOST`], or of unknown
    /// length. False if `depth` would be exceeded.
    pub(crate) fn enter(&mut self, count: Option<u32>, attribute: bool, depth: u16) -> bool {
        if self.depth >= depth {
            return false;
        }
        if self.depth > 0 {
            match self.near.get_mut(usize::from(self.depth) - 1) {
                Some(slot) => *slot = self.current,
                None => self.far.get_or_insert_default().levels.push(self.current),
            }
        }
        self.depth += 1;
        self.current = count.unwrap_or(STREAMED) | if attribute { ATTRIBUTE } else { 0 };
        true
    }

    /// Notes that a value has ended where one was expected.
    #[inline]
    pub(crate) fn element(&mut self) -> Ended {
        while self.depth > 0 {
            if self.current & STREAMED != STREAMED {
                self.current -= 1;
            }
            if self.current & STREAMED != 0 {
                return Ended::Element;
            }
            if self.leave() {
                return Ended::Element;
            }
        }
        Ended::Frame
    }

    /// Whether an end mark may stand here.
    pub(crate) fn is_streamed(&self) -> bool {
        self.depth > 0 && self.current & STREAMED == STREAMED
    }

    /// Notes the end mark of a streamed aggregate.
    pub(crate) fn end_streamed(&mut self) -> Ended {
        if self.leave() { Ended::Element } else { self.element() }
    }

    /// Whether a level was missing that had been entered. The frame was taken to end there.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Goes up one level; whether the level left was an attribute.
    fn leave(&mut self) -> bool {
        let attribute = self.current & ATTRIBUTE != 0;
        self.depth = self.depth.saturating_sub(1);
        self.current = match usize::from(self.depth).checked_sub(1) {
            None => 0,
            Some(above) => match self.near.get(above) {
                Some(level) => *level,
                None => self.far_level(),
            },
        };
        if self.depth == 0 {
            self.far = None;
        }
        attribute
    }

    /// The innermost of the far levels, which is taken out.
    #[cold]
    fn far_level(&mut self) -> u32 {
        let level = self.far.as_mut().and_then(|far| far.levels.pop());
        if level.is_none() {
            (self.broken, self.depth) = (true, 0);
        }
        level.unwrap_or(0)
    }

    /// Levels that have been allocated.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.far.as_ref().map_or(0, |far| far.levels.capacity())
    }

    /// Forgets everything and frees what was allocated.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{Ended, MOST, NEAR, Stack};

    #[test]
    fn counts_elements_at_every_depth_and_frees_the_far_levels() {
        let mut stack = Stack::default();
        for _ in 0..64 {
            assert!(stack.enter(Some(2), false, 64));
        }
        assert!(!stack.enter(Some(1), false, 64), "one too deep");
        assert_eq!(stack.far.as_ref().map(|far| far.levels.len()), Some(64 - 1 - NEAR));
        assert_eq!(stack.element(), Ended::Element);
        for _ in 0..63 {
            assert_eq!(stack.element(), Ended::Element);
            assert!(stack.depth() < 64);
        }
        assert_eq!(stack.depth(), 1);
        assert_eq!(stack.element(), Ended::Frame);
        assert!(stack.far.is_none());
    }

    #[test]
    fn notices_a_level_that_is_missing() {
        let mut stack = Stack::default();
        for _ in 0..NEAR + 3 {
            stack.enter(Some(1), false, 64);
        }
        stack.far = None;
        assert!(!stack.is_broken());
        assert_eq!((stack.element(), stack.is_broken()), (Ended::Frame, true));
    }

    #[test]
    fn a_few_levels_cost_no_allocation() {
        let mut stack = Stack::default();
        for _ in 0..=NEAR {
            stack.enter(Some(1), false, 64);
        }
        assert!(stack.far.is_none());
        assert_eq!(stack.element(), Ended::Frame);
    }

    #[test]
    fn an_attribute_is_no_element() {
        let mut stack = Stack::default();
        stack.enter(Some(1), false, 64);
        stack.enter(Some(2), true, 64);
        assert_eq!(stack.element(), Ended::Element);
        assert_eq!(stack.element(), Ended::Element);
        assert_eq!(stack.depth(), 1);
        assert_eq!(stack.element(), Ended::Frame);
    }

    #[test]
    fn a_streamed_level_ends_by_its_mark_only() {
        let mut stack = Stack::default();
        assert!(!stack.is_streamed());
        stack.enter(None, false, 64);
        for _ in 0..100 {
            assert_eq!(stack.element(), Ended::Element);
        }
        assert!(stack.is_streamed());
        stack.enter(Some(MOST), false, 64);
        assert!(!stack.is_streamed());
        assert_eq!(stack.element(), Ended::Element);
        stack.clear();
        stack.enter(Some(1), false, 64);
        stack.enter(None, false, 64);
        assert_eq!(stack.end_streamed(), Ended::Frame);
    }
}
