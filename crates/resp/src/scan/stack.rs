//! How deep in nested aggregates a reply is, and how many elements each level still wants.
//!
//! A session is idle most of the time and shallow nearly always, so four levels live in the ledger
//! itself; only a deeper frame allocates, once, up to the configured depth, and gives the memory
//! back at its end.

/// How many levels fit without an allocation, besides the innermost one.
const SHALLOW_LEVELS: usize = 3;

/// Set in a level that belongs to an attribute, which prefixes a value and is none itself.
const ATTRIBUTE: u32 = 1 << 31;
/// The count of a level whose end will be marked.
const STREAMED: u32 = ATTRIBUTE - 1;
/// The most elements a level can count.
pub(crate) const MAX_ELEMENTS: u32 = STREAMED - 1;

/// What the end of an element was the end of, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueEnd {
    /// Of nothing more, or of an attribute: another value follows.
    Element,
    /// Of the whole frame.
    Frame,
}

#[derive(Debug, Default)]
pub(crate) struct Stack {
    /// The innermost level.
    current: u32,
    shallow: [u32; SHALLOW_LEVELS],
    depth: u16,
    broken: bool,
    deep: Option<Box<DeepLevels>>,
}

/// The levels that did not fit; behind a box to keep idle sessions small.
#[derive(Debug, Default)]
struct DeepLevels {
    levels: Vec<u32>,
}

impl Stack {
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Enters an aggregate of `count` elements, at least one and at most [`MAX_ELEMENTS`], or of unknown
    /// length. False if `depth` would be exceeded.
    pub(crate) fn enter(&mut self, count: Option<u32>, attribute: bool, depth: u16) -> bool {
        if self.depth >= depth {
            return false;
        }
        if self.depth > 0 {
            match self.shallow.get_mut(usize::from(self.depth) - 1) {
                Some(slot) => *slot = self.current,
                None => self.deep.get_or_insert_default().levels.push(self.current),
            }
        }
        self.depth += 1;
        self.current = count.unwrap_or(STREAMED) | if attribute { ATTRIBUTE } else { 0 };
        true
    }

    /// Notes that a value has ended where one was expected.
    #[inline]
    pub(crate) fn element(&mut self) -> ValueEnd {
        while self.depth > 0 {
            if self.current & STREAMED != STREAMED {
                self.current -= 1;
            }
            if self.current & STREAMED != 0 {
                return ValueEnd::Element;
            }
            if self.leave() {
                return ValueEnd::Element;
            }
        }
        ValueEnd::Frame
    }

    /// Whether an end mark may stand here.
    pub(crate) fn is_streamed(&self) -> bool {
        self.depth > 0 && self.current & STREAMED == STREAMED
    }

    /// Notes the end mark of a streamed aggregate.
    pub(crate) fn end_streamed(&mut self) -> ValueEnd {
        if self.leave() { ValueEnd::Element } else { self.element() }
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
            Some(above) => match self.shallow.get(above) {
                Some(level) => *level,
                None => self.pop_deep_level(),
            },
        };
        if self.depth == 0 {
            self.deep = None;
        }
        attribute
    }

    /// The innermost of the far levels, which is taken out.
    #[cold]
    fn pop_deep_level(&mut self) -> u32 {
        let level = self.deep.as_mut().and_then(|deep| deep.levels.pop());
        if level.is_none() {
            (self.broken, self.depth) = (true, 0);
        }
        level.unwrap_or(0)
    }

    /// Levels that have been allocated.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.deep.as_ref().map_or(0, |deep| deep.levels.capacity())
    }

    /// Forgets everything and frees what was allocated.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_ELEMENTS, SHALLOW_LEVELS, Stack, ValueEnd};

    #[test]
    fn counts_elements_at_every_depth_and_frees_the_far_levels() {
        let mut stack = Stack::default();
        for _ in 0..64 {
            assert!(stack.enter(Some(2), false, 64));
        }
        assert!(!stack.enter(Some(1), false, 64), "one too deep");
        assert_eq!(
            stack.deep.as_ref().map(|deep| deep.levels.len()),
            Some(64 - 1 - SHALLOW_LEVELS)
        );
        assert_eq!(stack.element(), ValueEnd::Element);
        for _ in 0..63 {
            assert_eq!(stack.element(), ValueEnd::Element);
            assert!(stack.depth() < 64);
        }
        assert_eq!(stack.depth(), 1);
        assert_eq!(stack.element(), ValueEnd::Frame);
        assert!(stack.deep.is_none());
    }

    #[test]
    fn notices_a_level_that_is_missing() {
        let mut stack = Stack::default();
        for _ in 0..SHALLOW_LEVELS + 3 {
            stack.enter(Some(1), false, 64);
        }
        stack.deep = None;
        assert!(!stack.is_broken());
        assert_eq!((stack.element(), stack.is_broken()), (ValueEnd::Frame, true));
    }

    #[test]
    fn a_few_levels_cost_no_allocation() {
        let mut stack = Stack::default();
        for _ in 0..=SHALLOW_LEVELS {
            stack.enter(Some(1), false, 64);
        }
        assert!(stack.deep.is_none());
        assert_eq!(stack.element(), ValueEnd::Frame);
    }

    #[test]
    fn an_attribute_is_no_element() {
        let mut stack = Stack::default();
        stack.enter(Some(1), false, 64);
        stack.enter(Some(2), true, 64);
        assert_eq!(stack.element(), ValueEnd::Element);
        assert_eq!(stack.element(), ValueEnd::Element);
        assert_eq!(stack.depth(), 1);
        assert_eq!(stack.element(), ValueEnd::Frame);
    }

    #[test]
    fn a_streamed_level_ends_by_its_mark_only() {
        let mut stack = Stack::default();
        assert!(!stack.is_streamed());
        stack.enter(None, false, 64);
        for _ in 0..100 {
            assert_eq!(stack.element(), ValueEnd::Element);
        }
        assert!(stack.is_streamed());
        stack.enter(Some(MAX_ELEMENTS), false, 64);
        assert!(!stack.is_streamed());
        assert_eq!(stack.element(), ValueEnd::Element);
        stack.clear();
        stack.enter(Some(1), false, 64);
        stack.enter(None, false, 64);
        assert_eq!(stack.end_streamed(), ValueEnd::Frame);
    }
}
