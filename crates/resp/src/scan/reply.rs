//! Where the server's frames end: all of RESP2 and RESP3, nested, streamed, with attributes before
//! any value.
//!
//! The grammar is that of the RESP3 specification. Nothing is checked that is not needed to find
//! the end: the text of a line is not, nor is a bulk string's body, which is skipped by its length.
//! Of a frame's content only what tells replies from other frames is kept: the type of the frame,
//! the first bytes of a line that is the whole frame, and, when asked for, the first element of an
//! array and the count in a confirmation.

use crate::ledger::session_state::Hint;
use crate::scan::bulk::{CRLF, find_feed, len, size, skip};
use crate::scan::limits::Bounds;
use crate::scan::message_kind::{self, MessageKind};
use crate::scan::number::{Length, Number, NumberScan};
use crate::scan::short_word::{SHORT_WORD_LEN, ShortWord};
use crate::scan::stack::{Stack, ValueEnd};

/// What the bytes came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameScan {
    /// They ran out within a frame, or between two.
    More,
    /// A frame ended.
    Frame,
    /// Not RESP, or beyond a limit.
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyState {
    /// Between frames.
    Start,
    /// Within a frame, before the first byte of a value.
    Value,
    /// In the header of a value of type `kind`.
    Header,
    /// In a bulk string that is looked at.
    Word,
    /// In a bulk string, a chunk of one, or the line end behind it.
    Body,
    /// In a streamed string, before a chunk.
    Chunk,
    /// In a line.
    Line,
}

/// What to look at in the frame under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inspect {
    /// The line that is the whole frame.
    Line,
    /// The first element of the outermost aggregate, which has not begun.
    First,
    /// The value under way, if it is a string or line: it is the first element of the outermost
    /// aggregate.
    WithoutAddress,
    /// The number in the outermost aggregate, which is a confirmation.
    Number,
    /// The number under way, which follows an aggregate: the second element of the outermost one.
    Second,
    Nothing,
}

#[derive(Debug)]
pub(crate) struct ReplyScanner {
    /// Bytes of the bulk string under way that are still to come, with its line end. In a header:
    /// its number so far.
    left: u32,
    pub(crate) stack: Stack,
    word: ShortWord,
    message: MessageKind,
    state: ReplyState,
    number: Number,
    inspect: Inspect,
    /// The type of the value under way.
    kind: u8,
    /// The type of the frame under way, or of the one that ended last.
    top: u8,
    /// Whether a streamed string is under way.
    chunked: bool,
    /// Whether the last byte of the line so far is a carriage return.
    carriage: bool,
    /// One bit for each [`Hint`] heard and not taken.
    hints: u8,
}

impl ReplyScanner {
    pub(crate) fn new() -> Self {
        Self {
            left: 0,
            number: Number::default(),
            hints: 0,
            stack: Stack::default(),
            word: ShortWord::default(),
            message: MessageKind::Other,
            state: ReplyState::Start,
            inspect: Inspect::Nothing,
            kind: 0,
            top: 0,
            chunked: false,
            carriage: false,
        }
    }

    pub(crate) fn at_boundary(&self) -> bool {
        self.state == ReplyState::Start
    }

    /// Bytes of the bulk string under way that nobody needs to see.
    pub(crate) fn body_left(&self) -> u32 {
        if self.state == ReplyState::Body { self.left.saturating_sub(CRLF) } else { 0 }
    }

    /// Notes bytes moved unseen, at most as many as [`body_left`](Self::body_left).
    pub(crate) fn skip_body(&mut self, n: u32) {
        self.left -= n.min(self.body_left());
    }

    /// The type of the frame that has just ended: its first byte behind any attribute.
    pub(crate) fn top(&self) -> u8 {
        self.top
    }

    /// The first bytes of the frame that has just ended, if it was a line of type `+` or `-`.
    pub(crate) fn line(&self) -> &[u8] {
        self.word.beginning()
    }

    /// The first element of the frame that has just ended, if it was looked at, and the count of a
    /// confirmation.
    pub(crate) fn message(&self) -> (MessageKind, Option<u32>) {
        (self.message, message_kind::count(self.word.whole()))
    }

    /// The cursor in the array that has just ended, if it was looked at: its first element, or the
    /// number behind an aggregate.
    pub(crate) fn cursor(&self) -> Option<&[u8]> {
        Some(self.word.whole()).filter(|word| self.top == b'*' && !word.is_empty())
    }

    /// Everyday replies were taken elsewhere, from one boundary to another: nothing is said of the
    /// last of them.
    #[inline]
    pub(crate) fn skip_run(&mut self) {
        (self.top, self.message) = (0, MessageKind::Other);
        self.word.clear();
    }

    /// The gravest of the hints heard, once each.
    pub(crate) fn take_hint(&mut self) -> Option<Hint> {
        let hint = message_kind::HINTS
            .into_iter()
            .find(|hint| self.hints & message_kind::bit(*hint) != 0)?;
        self.hints &= !message_kind::bit(hint);
        Some(hint)
    }

    /// Frees what was allocated.
    pub(crate) fn clear(&mut self) {
        self.stack.clear();
    }

    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.stack.allocated()
    }

    /// Takes bytes off the front of `input` up to the end of a frame. `inspect_arrays`: look at the first
    /// element if the frame is an array; at that of a push it always looks.
    pub(crate) fn scan(
        &mut self,
        input: &mut &[u8],
        limits: &Bounds,
        inspect_arrays: bool,
    ) -> FrameScan {
        loop {
            let step = match self.state {
                ReplyState::Start | ReplyState::Value => self.value(input, inspect_arrays),
                ReplyState::Header => self.header(input, limits),
                ReplyState::Word => self.take_word(input),
                ReplyState::Body => {
                    if !skip(&mut self.left, input) {
                        return FrameScan::More;
                    }
                    self.body_end()
                }
                ReplyState::Chunk => match input.split_first() {
                    None => ScanStep::More,
                    Some((b';', rest)) => {
                        *input = rest;
                        self.kind = b';';
                        self.state = ReplyState::Header;
                        ScanStep::Go
                    }
                    Some(_) => ScanStep::Invalid,
                },
                ReplyState::Line => self.take_line(input),
            };
            match step {
                ScanStep::Go => {}
                ScanStep::More => return FrameScan::More,
                ScanStep::Frame => return FrameScan::Frame,
                ScanStep::Invalid => return FrameScan::Invalid,
            }
        }
    }

    /// The first byte of a value.
    #[inline]
    fn value(&mut self, input: &mut &[u8], inspect_arrays: bool) -> ScanStep {
        let Some((&kind, rest)) = input.split_first() else { return ScanStep::More };
        *input = rest;
        self.kind = kind;
        let outermost = self.stack.depth() == 0;
        if outermost && kind != b'|' {
            self.top = kind;
            self.word.clear();
            self.message = MessageKind::Other;
            self.inspect = match kind {
                b'+' | b'-' => Inspect::Line,
                b'>' => Inspect::First,
                b'*' if inspect_arrays => Inspect::First,
                _ => Inspect::Nothing,
            };
        } else if self.inspect != Inspect::Nothing && kind != b'|' && self.stack.depth() == 1 {
            self.inspect = match self.inspect {
                Inspect::First => Inspect::WithoutAddress,
                Inspect::Number => Inspect::Number,
                Inspect::WithoutAddress if kind == b':' => Inspect::Second,
                Inspect::WithoutAddress | Inspect::Second | Inspect::Line | Inspect::Nothing => {
                    Inspect::Nothing
                }
            };
        }
        match kind {
            b'$' | b'*' | b'%' | b'~' | b'=' | b'!' | b'|' => self.state = ReplyState::Header,
            // A push within another frame is none.
            b'>' if outermost => self.state = ReplyState::Header,
            b'.' if !self.stack.is_streamed() => return ScanStep::Invalid,
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' | b'.' => {
                self.carriage = false;
                self.state = ReplyState::Line;
            }
            _ => return ScanStep::Invalid,
        }
        ScanStep::Go
    }

    #[inline]
    fn header(&mut self, input: &mut &[u8], limits: &Bounds) -> ScanStep {
        let length = match self.number.take(&mut self.left, input) {
            NumberScan::More => return ScanStep::More,
            NumberScan::Bad => return ScanStep::Invalid,
            NumberScan::Whole(length) => length,
        };
        match (self.kind, length) {
            (b';', Length::Count(0)) => {
                self.chunked = false;
                self.element()
            }
            (b'$' | b'=' | b'!' | b';', Length::Count(len)) if len <= limits.bulk_bytes => {
                self.begin_string(len)
            }
            (b'$', Length::Streamed) => {
                self.chunked = true;
                self.state = ReplyState::Chunk;
                ScanStep::Go
            }
            (b'$' | b'*', Length::Minus(1)) => self.element(),
            (b'*' | b'~' | b'>' | b'%' | b'|', Length::Count(count)) => {
                self.aggregate(count, limits)
            }
            (b'*' | b'~' | b'%', Length::Streamed) => self.enter(None, limits),
            _ => ScanStep::Invalid,
        }
    }

    #[inline]
    fn begin_string(&mut self, len: u32) -> ScanStep {
        self.left = len + CRLF;
        self.state = ReplyState::Body;
        if self.inspect == Inspect::WithoutAddress
            && len <= SHORT_WORD_LEN
            && self.stack.depth() == 1
            && !self.chunked
        {
            self.state = ReplyState::Word;
        }
        ScanStep::Go
    }

    fn aggregate(&mut self, count: u32, limits: &Bounds) -> ScanStep {
        let each = if matches!(self.kind, b'%' | b'|') { 2 } else { 1 };
        match count.checked_mul(each) {
            Some(0) if self.kind == b'|' => {
                self.state = ReplyState::Value;
                ScanStep::Go
            }
            Some(0) => self.element(),
            Some(elements) if elements <= limits.elements => self.enter(Some(elements), limits),
            _ => ScanStep::Invalid,
        }
    }

    fn enter(&mut self, count: Option<u32>, limits: &Bounds) -> ScanStep {
        self.state = ReplyState::Value;
        if self.stack.enter(count, self.kind == b'|', limits.depth) {
            ScanStep::Go
        } else {
            ScanStep::Invalid
        }
    }

    /// Takes what there is of the first element.
    fn take_word(&mut self, input: &mut &[u8]) -> ScanStep {
        let wanted = size(self.left - CRLF);
        let (word, rest) = input.split_at(wanted.min(input.len()));
        *input = rest;
        self.word.push(word);
        self.left -= len(word);
        if self.left > CRLF {
            return ScanStep::More;
        }
        self.first_element_read();
        self.state = ReplyState::Body;
        ScanStep::Go
    }

    fn first_element_read(&mut self) {
        let word = self.word.whole();
        self.message = MessageKind::of(word.strip_suffix(b"\r").unwrap_or(word));
        self.inspect = Inspect::Nothing;
        if let MessageKind::Confirmed(_) = self.message {
            self.inspect = Inspect::Number;
            self.word.clear();
        }
    }

    #[inline]
    fn body_end(&mut self) -> ScanStep {
        if self.chunked {
            self.state = ReplyState::Chunk;
            return ScanStep::Go;
        }
        self.element()
    }

    /// Takes what there is of a line. A line ends with `\r\n`; neither byte alone ends it.
    #[inline]
    fn take_line(&mut self, input: &mut &[u8]) -> ScanStep {
        loop {
            let Some(feed) = find_feed(input) else {
                self.keep(input);
                self.carriage = input.last().map_or(self.carriage, |last| *last == b'\r');
                *input = &[];
                return ScanStep::More;
            };
            // It was found there, so this cannot fail; if it did, the session would only not be
            // followed any more.
            let Some((text, [_, rest @ ..])) = input.split_at_checked(feed) else {
                return ScanStep::Invalid;
            };
            self.keep(text);
            *input = rest;
            if text.last().map_or(self.carriage, |last| *last == b'\r') {
                return self.line_end();
            }
            self.carriage = false;
        }
    }

    /// Keeps what may be looked at of a line.
    #[inline]
    fn keep(&mut self, text: &[u8]) {
        let wanted = match self.inspect {
            Inspect::Nothing | Inspect::First => false,
            Inspect::Line => true,
            Inspect::WithoutAddress | Inspect::Second => self.stack.depth() == 1,
            Inspect::Number => self.stack.depth() == 1 && self.kind == b':',
        };
        if wanted {
            self.word.push(text);
        }
    }

    #[inline]
    fn line_end(&mut self) -> ScanStep {
        match self.inspect {
            Inspect::WithoutAddress if self.stack.depth() == 1 => self.first_element_read(),
            // Kept until the frame ends.
            Inspect::Number if self.stack.depth() == 1 && self.kind == b':' => {
                self.inspect = Inspect::Nothing
            }
            Inspect::Line if self.kind == b'-' => {
                self.hints |= message_kind::hint(self.word.beginning()).map_or(0, message_kind::bit)
            }
            _ => {}
        }
        if self.kind == b'.' {
            let ended = self.stack.end_streamed();
            return self.ended(ended);
        }
        self.element()
    }

    /// A value has ended.
    #[inline]
    fn element(&mut self) -> ScanStep {
        let ended = self.stack.element();
        self.ended(ended)
    }

    #[inline]
    fn ended(&mut self, ended: ValueEnd) -> ScanStep {
        match ended {
            ValueEnd::Element => {
                self.state = ReplyState::Value;
                ScanStep::Go
            }
            ValueEnd::Frame => {
                self.state = ReplyState::Start;
                if self.stack.is_broken() { ScanStep::Invalid } else { ScanStep::Frame }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanStep {
    Go,
    More,
    Frame,
    Invalid,
}
