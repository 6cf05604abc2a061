//! The reply scanner: finds the ends of frames from the server. It supports all of RESP2 and RESP3:
//! nested and streamed values, and attributes before any value.
//!
//! The grammar is that of the RESP3 specification. Only what determines the end of a frame is
//! checked; the text of a line is not, nor is the body of a bulk string, which is skipped by its
//! length. Of the content, only what distinguishes replies from other frames is kept: the type of
//! the frame, the first bytes of a line that is the whole frame, and, if requested, the first
//! element of an array and the count in a confirmation.

use crate::scan::bulk::{CRLF, find_feed, len, size, skip};
use crate::scan::limits::Bounds;
use crate::scan::message_kind::{self, Hint, MessageKind};
use crate::scan::number::{Number, NumberScan};
use crate::scan::short_word::{SHORT_WORD_LEN, ShortWord};
use crate::scan::stack::{Stack, ValueEnd};

/// The result of scanning bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameScan {
    /// All bytes were read; no further frame ended.
    More,
    /// A frame ended.
    Frame,
    /// The bytes are not RESP, or exceed a limit.
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ReplyState {
    /// Between frames.
    #[default]
    Start,
    /// Within a frame, before the first byte of a value.
    Value,
    /// In the header of a value of type `kind`.
    Header,
    /// In a bulk string that is inspected.
    Word,
    /// In a bulk string, in a chunk of one, or in its line end.
    Body,
    /// In a streamed string, before a chunk.
    Chunk,
    /// In a line.
    Line,
}

/// What to inspect in the current frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Inspect {
    /// The line that is the whole frame.
    Line,
    /// The first element of the outermost aggregate; it has not begun.
    First,
    /// The current value, if it is a string or line. It is the first element of the outermost
    /// aggregate.
    WithoutAddress,
    /// The number in the outermost aggregate, which is a confirmation.
    Number,
    /// The current number, which follows an aggregate: the second element of the outermost one.
    Second,
    #[default]
    Nothing,
}

#[derive(Debug, Default)]
pub(crate) struct ReplyScanner {
    /// In a bulk string: the missing bytes, including its line end. In a header: its number so far.
    left: u32,
    pub(crate) stack: Stack,
    word: ShortWord,
    message: MessageKind,
    state: ReplyState,
    number: Number,
    inspect: Inspect,
    /// The type of the current value.
    kind: u8,
    /// The type of the current frame, or of the one that ended last.
    top: u8,
    /// Whether the current string is streamed.
    chunked: bool,
    /// Whether the last byte of the current line is a carriage return.
    carriage: bool,
    /// One bit for each [`Hint`] that was seen and not taken.
    hints: u8,
}

impl ReplyScanner {
    #[inline]
    pub(crate) fn at_boundary(&self) -> bool {
        self.state == ReplyState::Start
    }

    /// Missing bytes of the current bulk string that need not be shown.
    #[inline]
    pub(crate) fn body_left(&self) -> u32 {
        if self.state == ReplyState::Body { self.left.saturating_sub(CRLF) } else { 0 }
    }

    /// Skips `n` bytes that were not shown, at most [`body_left`](Self::body_left).
    pub(crate) fn skip_body(&mut self, n: u32) {
        self.left -= n.min(self.body_left());
    }

    /// The type of the frame that has just ended: its first byte after any attribute.
    pub(crate) fn top(&self) -> u8 {
        self.top
    }

    /// The first bytes of the frame that has just ended, if it was a line of type `+` or `-`.
    pub(crate) fn line(&self) -> &[u8] {
        self.word.beginning()
    }

    /// The kind of the frame that has just ended, if it was inspected, and the count in a
    /// confirmation.
    pub(crate) fn message(&self) -> (MessageKind, Option<u32>) {
        (self.message, message_kind::count(self.word.whole()))
    }

    /// The cursor in the array that has just ended, if it was inspected: its first element, or the
    /// number after an aggregate.
    pub(crate) fn cursor(&self) -> Option<&[u8]> {
        Some(self.word.whole()).filter(|word| self.top == b'*' && !word.is_empty())
    }

    /// Ordinary replies were read by `frame_runs`, from one boundary to another. Nothing is known
    /// of the last one.
    #[inline]
    pub(crate) fn skip_run(&mut self) {
        (self.top, self.message) = (0, MessageKind::Other);
        self.word.clear();
    }

    /// Takes the most severe of the hints seen.
    #[inline]
    pub(crate) fn take_hint(&mut self) -> Option<Hint> {
        if self.hints == 0 { None } else { self.take_worst_hint() }
    }

    #[cold]
    fn take_worst_hint(&mut self) -> Option<Hint> {
        let hint = message_kind::HINTS
            .into_iter()
            .map(|(hint, _)| hint)
            .find(|hint| self.hints & message_kind::bit(*hint) != 0)?;
        self.hints &= !message_kind::bit(hint);
        Some(hint)
    }

    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.stack.allocated()
    }

    /// Reads bytes from the beginning of `input` up to the end of a frame. `inspect_arrays`:
    /// inspect the first element if the frame is an array. That of a push message is always
    /// inspected.
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
                ReplyState::Word => self.read_word(input),
                ReplyState::Body => {
                    if !skip(&mut self.left, input) {
                        return FrameScan::More;
                    }
                    self.body_end()
                }
                ReplyState::Chunk => match input.split_first() {
                    None => Some(FrameScan::More),
                    Some((b';', rest)) => {
                        *input = rest;
                        self.kind = b';';
                        self.state = ReplyState::Header;
                        None
                    }
                    Some(_) => Some(FrameScan::Invalid),
                },
                ReplyState::Line => self.read_line(input),
            };
            if let Some(scan) = step {
                return scan;
            }
        }
    }

    // A step returns what the scan ends with; `None` if it goes on.

    /// Reads the first byte of a value.
    #[inline]
    fn value(&mut self, input: &mut &[u8], inspect_arrays: bool) -> Option<FrameScan> {
        let Some((&kind, rest)) = input.split_first() else { return Some(FrameScan::More) };
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
            // A push message cannot be within another frame.
            b'>' if outermost => self.state = ReplyState::Header,
            b'.' if !self.stack.is_streamed() => return Some(FrameScan::Invalid),
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' | b'.' => {
                self.carriage = false;
                self.state = ReplyState::Line;
            }
            _ => return Some(FrameScan::Invalid),
        }
        None
    }

    #[inline]
    fn header(&mut self, input: &mut &[u8], limits: &Bounds) -> Option<FrameScan> {
        match (self.kind, self.number.take(&mut self.left, input)) {
            (_, NumberScan::More) => Some(FrameScan::More),
            (b';', NumberScan::Count(0)) => {
                self.chunked = false;
                self.element()
            }
            (b'$' | b'=' | b'!' | b';', NumberScan::Count(len)) if len <= limits.bulk_bytes => {
                self.begin_string(len)
            }
            (b'$', NumberScan::Streamed) => {
                self.chunked = true;
                self.state = ReplyState::Chunk;
                None
            }
            (b'$' | b'*', NumberScan::Minus(1)) => self.element(),
            (b'*' | b'~' | b'>' | b'%' | b'|', NumberScan::Count(count)) => {
                self.aggregate(count, limits)
            }
            (b'*' | b'~' | b'%', NumberScan::Streamed) => self.enter(None, limits),
            _ => Some(FrameScan::Invalid),
        }
    }

    #[inline]
    fn begin_string(&mut self, len: u32) -> Option<FrameScan> {
        self.left = len + CRLF;
        self.state = ReplyState::Body;
        if self.inspect == Inspect::WithoutAddress
            && len <= SHORT_WORD_LEN
            && self.stack.depth() == 1
            && !self.chunked
        {
            self.state = ReplyState::Word;
        }
        None
    }

    fn aggregate(&mut self, count: u32, limits: &Bounds) -> Option<FrameScan> {
        let each = if matches!(self.kind, b'%' | b'|') { 2 } else { 1 };
        match count.checked_mul(each) {
            Some(0) if self.kind == b'|' => {
                self.state = ReplyState::Value;
                None
            }
            Some(0) => self.element(),
            Some(elements) if elements <= limits.elements => self.enter(Some(elements), limits),
            _ => Some(FrameScan::Invalid),
        }
    }

    fn enter(&mut self, count: Option<u32>, limits: &Bounds) -> Option<FrameScan> {
        self.state = ReplyState::Value;
        let entered = self.stack.enter(count, self.kind == b'|', limits.depth);
        (!entered).then_some(FrameScan::Invalid)
    }

    /// Reads the available part of the first element.
    fn read_word(&mut self, input: &mut &[u8]) -> Option<FrameScan> {
        let wanted = size(self.left - CRLF);
        let (word, rest) = input.split_at(wanted.min(input.len()));
        *input = rest;
        self.word.push(word);
        self.left -= len(word);
        if self.left > CRLF {
            return Some(FrameScan::More);
        }
        self.first_element_read();
        self.state = ReplyState::Body;
        None
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
    fn body_end(&mut self) -> Option<FrameScan> {
        if self.chunked {
            self.state = ReplyState::Chunk;
            return None;
        }
        self.element()
    }

    /// Reads the available part of a line. A line ends with `\r\n`; neither byte alone ends it.
    #[inline]
    fn read_line(&mut self, input: &mut &[u8]) -> Option<FrameScan> {
        loop {
            let Some(feed) = find_feed(input) else {
                self.keep(input);
                self.carriage = input.last().map_or(self.carriage, |last| *last == b'\r');
                *input = &[];
                return Some(FrameScan::More);
            };
            // This cannot fail, because the line feed was found there.
            let Some((text, [_, rest @ ..])) = input.split_at_checked(feed) else {
                return Some(FrameScan::Invalid);
            };
            self.keep(text);
            *input = rest;
            if text.last().map_or(self.carriage, |last| *last == b'\r') {
                return self.line_end();
            }
            self.carriage = false;
        }
    }

    /// Keeps the inspected part of a line.
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
    fn line_end(&mut self) -> Option<FrameScan> {
        match self.inspect {
            Inspect::WithoutAddress if self.stack.depth() == 1 => self.first_element_read(),
            // The number is kept until the frame ends.
            Inspect::Number if self.stack.depth() == 1 && self.kind == b':' => {
                self.inspect = Inspect::Nothing;
            }
            Inspect::Line if self.kind == b'-' => {
                self.hints |=
                    message_kind::hint(self.word.beginning()).map_or(0, message_kind::bit);
            }
            _ => {}
        }
        if self.kind == b'.' {
            let ended = self.stack.end_streamed();
            return self.ended(ended);
        }
        self.element()
    }

    /// A value ended.
    #[inline]
    fn element(&mut self) -> Option<FrameScan> {
        let ended = self.stack.element();
        self.ended(ended)
    }

    #[inline]
    fn ended(&mut self, ended: ValueEnd) -> Option<FrameScan> {
        match ended {
            ValueEnd::Element => {
                self.state = ReplyState::Value;
                None
            }
            ValueEnd::Frame => {
                self.state = ReplyState::Start;
                if self.stack.is_broken() {
                    Some(FrameScan::Invalid)
                } else {
                    Some(FrameScan::Frame)
                }
            }
        }
    }
}
