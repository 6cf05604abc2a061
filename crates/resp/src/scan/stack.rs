//! The stack of nested aggregates in a reply, with the number of missing elements per level.
//!
//! Most replies are not nested deeply, so four levels are stored in the ledger itself. Only a
//! deeper frame allocates, once, up to the configured depth, and frees the memory at its end.
//! Beyond that depth an aggregate of `n` elements counts as `n` elements of the level around it,
//! which ends at the same byte: a script may nest its reply as deeply as it likes. Streamed
//! aggregates, which Redis does not send, need a level of their own.

/// Number of levels that need no allocation, in addition to the innermost one.
const SHALLOW_LEVELS: usize = 3;

/// Flag of a level that belongs to an attribute, which precedes a value and is not one itself.
const ATTRIBUTE: u32 = 1 << 31;
/// The count of a level that ends with an end mark.
const STREAMED: u32 = ATTRIBUTE - 1;
/// Maximum number of elements of a level.
pub(crate) const MAX_ELEMENTS: u32 = STREAMED - 1;

/// What ended with an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueEnd {
    /// The element alone, or an attribute: another value follows.
    Element,
    /// The whole frame.
    Frame,
}

#[derive(Debug, Default)]
pub(crate) struct Stack {
    /// The innermost level.
    current: u32,
    shallow: [u32; SHALLOW_LEVELS],
    depth: u16,
    broken: bool,
    /// A level of the current frame was merged into the one around it.
    merged: bool,
    deep: Option<Box<DeepLevels>>,
}

/// The levels that do not fit. Boxed, to keep idle sessions small.
#[derive(Debug, Default)]
struct DeepLevels {
    levels: Vec<u32>,
}

impl Stack {
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Enters an aggregate of `count` elements, from one to [`MAX_ELEMENTS`], or of unknown length.
    /// Beyond `depth` it is merged; false if that is not possible.
    pub(crate) fn enter(&mut self, count: Option<u32>, attribute: bool, depth: u16) -> bool {
        if self.depth >= depth {
            return self.merge(count, attribute);
        }
        self.merged &= self.depth > 0;
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

    /// Counts the elements of an aggregate as elements of the current level.
    #[cold]
    fn merge(&mut self, count: Option<u32>, attribute: bool) -> bool {
        let Some(count) = count.filter(|_| self.depth > 0 && !self.is_streamed()) else {
            return false;
        };
        // The aggregate was one element of this level; an attribute is none.
        let missing = (self.current & STREAMED) + count - u32::from(!attribute);
        if missing > MAX_ELEMENTS {
            return false;
        }
        self.current = self.current & ATTRIBUTE | missing;
        self.merged = true;
        true
    }

    /// Whether levels of the current frame, or of the one that ended last, were merged.
    pub(crate) fn has_merged(&self) -> bool {
        self.merged
    }

    /// A value ended where one was expected.
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

    /// Whether an end mark is valid here.
    pub(crate) fn is_streamed(&self) -> bool {
        self.depth > 0 && self.current & STREAMED == STREAMED
    }

    /// The end mark of a streamed aggregate was read.
    pub(crate) fn end_streamed(&mut self) -> ValueEnd {
        if self.leave() { ValueEnd::Element } else { self.element() }
    }

    /// Whether a level that had been entered was missing. The frame was ended at that point.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Leaves a level. Returns whether it was an attribute.
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

    /// Removes the innermost of the deep levels.
    #[cold]
    fn pop_deep_level(&mut self) -> u32 {
        let level = self.deep.as_mut().and_then(|deep| deep.levels.pop());
        if level.is_none() {
            (self.broken, self.depth) = (true, 0);
        }
        level.unwrap_or(0)
    }

    /// Allocated levels.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.deep.as_ref().map_or(0, |deep| deep.levels.capacity())
    }

    /// Removes all levels and frees the memory.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_ELEMENTS, SHALLOW_LEVELS, Stack, ValueEnd};

    #[test]
    fn counts_elements_at_every_depth_and_frees_levels() {
        let mut stack = Stack::default();
        for _ in 0..64 {
            assert!(stack.enter(Some(2), false, 64));
        }
        assert!(!stack.enter(None, false, 64), "one too deep");
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
    fn merges_levels_beyond_the_depth() {
        let mut stack = Stack::default();
        for _ in 0..2 {
            assert!(stack.enter(Some(2), false, 2));
        }
        assert!(!stack.has_merged());
        // Two elements, of which the first has three and an attribute of two.
        assert!(stack.enter(Some(3), false, 2) && stack.enter(Some(2), true, 2));
        assert!(stack.has_merged());
        for left in (0..6).rev() {
            assert_eq!(stack.element(), ValueEnd::Element, "{left}");
        }
        assert_eq!((stack.depth(), stack.element()), (1, ValueEnd::Frame));
        assert!(stack.enter(Some(MAX_ELEMENTS), false, 1) && !stack.has_merged(), "another frame");
        assert!(!stack.enter(Some(2), false, 1), "more than can be counted");
        stack.clear();
        assert!(
            stack.enter(None, false, 1) && !stack.enter(Some(1), false, 1),
            "in a streamed one"
        );
    }

    #[test]
    fn detects_a_missing_level() {
        let mut stack = Stack::default();
        for _ in 0..SHALLOW_LEVELS + 3 {
            stack.enter(Some(1), false, 64);
        }
        stack.deep = None;
        assert!(!stack.is_broken());
        assert_eq!((stack.element(), stack.is_broken()), (ValueEnd::Frame, true));
    }

    #[test]
    fn stores_shallow_levels_without_allocation() {
        let mut stack = Stack::default();
        for _ in 0..=SHALLOW_LEVELS {
            stack.enter(Some(1), false, 64);
        }
        assert!(stack.deep.is_none());
        assert_eq!(stack.element(), ValueEnd::Frame);
    }

    #[test]
    fn counts_no_attribute_as_an_element() {
        let mut stack = Stack::default();
        stack.enter(Some(1), false, 64);
        stack.enter(Some(2), true, 64);
        assert_eq!(stack.element(), ValueEnd::Element);
        assert_eq!(stack.element(), ValueEnd::Element);
        assert_eq!(stack.depth(), 1);
        assert_eq!(stack.element(), ValueEnd::Frame);
    }

    #[test]
    fn ends_a_streamed_level_only_at_its_mark() {
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
