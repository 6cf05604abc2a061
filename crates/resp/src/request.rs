//! Where requests end: arrays of bulk strings, inline commands, and the empty ones that nobody answers.
//!
//! Follows `redis:src/networking.c`, `processMultibulkBuffer` and `processInlineBuffer`, byte for byte in what is accepted. The
//! arguments are skipped by their announced length; only words that may name the command are looked at.

use crate::class::Class;
use crate::inline::{Inline, Line};
use crate::limits::Limits;
use crate::naming::Naming;
use crate::number::{Length, Number, Taken};
use crate::stack::MOST;
use crate::word::{LONGEST, Word};

/// What the bytes came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// They ran out within a request, or between two.
    More,
    /// A request that gets no reply ended: an empty line, or an array of none.
    Empty,
    /// A request ended, of that class and with that many words, its name included.
    Request(Class, u32),
    /// Not a request, or beyond a limit.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between requests.
    Start,
    /// Behind `*`.
    Count,
    /// Before `$`.
    Dollar,
    /// Behind `$`.
    Length,
    /// In an argument that may name the command.
    Word,
    /// In any other argument, or in the line end behind one.
    Body,
    Inline,
}

/// Lengths of line ends.
const CRLF: u64 = 2;

#[derive(Debug)]
pub(crate) struct Requests {
    /// Of the argument under way: bytes to come with its line end. Of an inline command: bytes seen.
    left: u64,
    number: Number,
    /// Words of the request: announced by an array, seen so far of an inline command.
    args: u32,
    args_left: u32,
    word: Word,
    naming: Naming,
    state: State,
    inline: Inline,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            left: 0,
            number: Number::default(),
            args: 0,
            args_left: 0,
            word: Word::default(),
            naming: Naming::START,
            state: State::Start,
            inline: Inline::default(),
        }
    }

    pub(crate) fn at_boundary(&self) -> bool {
        self.state == State::Start
    }

    /// Bytes of the argument under way that nobody needs to see.
    pub(crate) fn body_left(&self) -> u64 {
        if self.state == State::Body { self.left.saturating_sub(CRLF) } else { 0 }
    }

    /// Notes bytes moved unseen, at most as many as [`body_left`](Self::body_left).
    pub(crate) fn skip_body(&mut self, n: u64) {
        self.left -= n.min(self.body_left());
    }

    /// Takes bytes off the front of `input` up to the end of a request.
    pub(crate) fn scan(&mut self, input: &mut &[u8], limits: &Limits) -> Asked {
        loop {
            match self.state {
                State::Start => {
                    let Some((&first, rest)) = input.split_first() else { return Asked::More };
                    self.naming = Naming::START;
                    if first == b'*' {
                        *input = rest;
                        self.state = State::Count;
                    } else {
                        self.inline = Inline::default();
                        self.left = 0;
                        self.args = 0;
                        self.state = State::Inline;
                    }
                }
                State::Count => match self.number.take(input) {
                    Taken::More => return Asked::More,
                    Taken::Whole(Length::Count(0) | Length::Minus(_)) => {
                        self.state = State::Start;
                        return Asked::Empty;
                    }
                    Taken::Whole(Length::Count(count)) => match u32::try_from(count) {
                        Ok(count) if count <= limits.elements.min(MOST) => {
                            self.args = count;
                            self.args_left = count;
                            self.state = State::Dollar;
                        }
                        _ => return Asked::Lost,
                    },
                    Taken::Whole(Length::Streamed) | Taken::Bad => return Asked::Lost,
                },
                State::Dollar => match input.split_first() {
                    None => return Asked::More,
                    Some((b'$', rest)) => {
                        *input = rest;
                        self.state = State::Length;
                    }
                    Some(_) => return Asked::Lost,
                },
                State::Length => match self.number.take(input) {
                    Taken::More => return Asked::More,
                    Taken::Whole(Length::Count(len)) if len <= limits.bulk_bytes => self.begin_argument(len),
                    _ => return Asked::Lost,
                },
                State::Word => {
                    if !self.take_word(input) {
                        return Asked::More;
                    }
                }
                State::Body => {
                    if !skip(&mut self.left, input) {
                        return Asked::More;
                    }
                    self.args_left -= 1;
                    if self.args_left == 0 {
                        self.state = State::Start;
                        return Asked::Request(self.naming.class(), self.args);
                    }
                    self.state = State::Dollar;
                }
                State::Inline => return self.take_inline(input, limits),
            }
        }
    }

    #[inline]
    fn begin_argument(&mut self, len: u64) {
        self.left = len.saturating_add(CRLF);
        self.state = State::Body;
        if let Naming::After(_) = self.naming {
            if len > LONGEST as u64 {
                self.naming = self.naming.with(b"");
            } else {
                self.word.clear();
                self.state = State::Word;
            }
        }
    }

    /// Takes what there is of a word; whether that was its end.
    #[inline]
    fn take_word(&mut self, input: &mut &[u8]) -> bool {
        let wanted = usize::try_from(self.left - CRLF).unwrap_or_default();
        match input.split_at_checked(wanted) {
            Some((word, rest)) => {
                *input = rest;
                self.naming = if self.word.is_empty() {
                    self.naming.with(word)
                } else {
                    self.word.push(word);
                    self.naming.with(self.word.whole())
                };
                self.left = CRLF;
                self.state = State::Body;
                true
            }
            None => {
                self.left -= input.len() as u64;
                self.word.push(input);
                *input = &[];
                false
            }
        }
    }

    fn take_inline(&mut self, input: &mut &[u8], limits: &Limits) -> Asked {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            self.left += 1;
            if self.left > u64::from(limits.inline_bytes) {
                return Asked::Lost;
            }
            match self.inline.take(byte, &mut self.args, &mut self.word, &mut self.naming) {
                Line::More => {}
                Line::Bad => return Asked::Lost,
                Line::End => {
                    self.state = State::Start;
                    return if self.args == 0 { Asked::Empty } else { Asked::Request(self.naming.class(), self.args) };
                }
            }
        }
        Asked::More
    }
}

/// Skips up to `left` bytes; whether that was all of them.
#[inline]
pub(crate) fn skip(left: &mut u64, input: &mut &[u8]) -> bool {
    match usize::try_from(*left).ok().and_then(|n| input.split_at_checked(n)) {
        Some((_, rest)) => {
            *input = rest;
            *left = 0;
            true
        }
        None => {
            *left -= input.len() as u64;
            *input = &[];
            false
        }
    }
}
