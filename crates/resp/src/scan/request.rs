//! Where requests end: arrays of bulk strings, inline commands, and the empty ones that nobody
//! answers.
//!
//! Follows `redis:src/networking.c`, `processMultibulkBuffer` and `processInlineBuffer`, byte for
//! byte in what is accepted. The arguments are skipped by their announced length; only words that
//! may name the command are looked at.

use crate::commands::class::Class;
use crate::commands::table::Naming;
use crate::scan::bulk::{CRLF, LONGEST_SHORT, len, short_string, size, skip};
use crate::scan::inline::{Inline, Line};
use crate::scan::limits::Bounds;
use crate::scan::number::{Length, Number, Taken};
use crate::scan::word::{LONGEST, Word};

/// What the bytes came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// They ran out within a request, or between two.
    More,
    /// A request that gets no reply ended: an empty line, or an array of none.
    Empty,
    /// A request ended, of that class and with that many words, its name included; one that
    /// iterates with the digest of its cursor instead.
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

#[derive(Debug)]
pub(crate) struct Requests {
    /// Of the argument under way: bytes to come with its line end. Of an inline command: bytes
    /// seen. In a header: its number so far.
    left: u32,
    /// Words of the request: announced by an array, seen so far of an inline command.
    args: u32,
    args_left: u32,
    word: Word,
    naming: Naming,
    state: State,
    number: Number,
    inline: Inline,
    /// Of the request that ended last; `None` for an empty one.
    last: Option<Class>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            left: 0,
            args: 0,
            args_left: 0,
            word: Word::default(),
            naming: Naming::START,
            state: State::Start,
            number: Number::default(),
            inline: Inline::default(),
            last: None,
        }
    }

    pub(crate) fn at_boundary(&self) -> bool {
        self.state == State::Start
    }

    /// The command under way, or the one that ended last, is not in the table but leaves no state.
    pub(crate) fn leave_no_state(&mut self) {
        if self.at_boundary() {
            self.last = Some(Class::Ordinary);
        } else {
            self.naming = Naming::Known(Class::Ordinary);
        }
    }

    /// The class of the request under way, if that is known yet.
    pub(crate) fn class_so_far(&self) -> Option<Class> {
        match self.naming {
            Naming::Known(class) => Some(class),
            Naming::Iterates(_) => Some(Class::Iterate),
            Naming::After(_) => None,
        }
    }

    /// Bytes of the argument under way that nobody needs to see.
    pub(crate) fn body_left(&self) -> u32 {
        if self.state == State::Body { self.left.saturating_sub(CRLF) } else { 0 }
    }

    /// Notes bytes moved unseen, at most as many as [`body_left`](Self::body_left).
    pub(crate) fn skip_body(&mut self, n: u32) {
        self.left -= n.min(self.body_left());
    }

    /// The class of the request that ended last; `None` for an empty one, and before the first.
    pub(crate) fn last(&self) -> Option<Class> {
        self.last
    }

    /// Takes bytes off the front of `input` up to the end of a request.
    pub(crate) fn scan(&mut self, input: &mut &[u8], limits: &Bounds) -> Asked {
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
                State::Count => match self.number.take(&mut self.left, input) {
                    Taken::More => return Asked::More,
                    Taken::Whole(Length::Count(0) | Length::Minus(_)) => {
                        return self.empty();
                    }
                    Taken::Whole(Length::Count(count)) if count <= limits.elements => {
                        self.args = count;
                        self.args_left = count;
                        self.state = State::Dollar;
                    }
                    Taken::Whole(_) | Taken::Bad => return Asked::Lost,
                },
                State::Dollar => {
                    if self.take_short(input, limits) {
                        return self.end();
                    }
                    match input.split_first() {
                        None => return Asked::More,
                        Some((b'$', rest)) => {
                            *input = rest;
                            self.state = State::Length;
                        }
                        Some(_) => return Asked::Lost,
                    }
                }
                State::Length => match self.number.take(&mut self.left, input) {
                    Taken::More => return Asked::More,
                    Taken::Whole(Length::Count(len)) if len <= limits.bulk_bytes => {
                        self.begin_argument(len);
                    }
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
                        return self.end();
                    }
                    self.state = State::Dollar;
                }
                State::Inline => return self.take_inline(input, limits),
            }
        }
    }

    /// Ordinary requests were taken elsewhere, from one boundary to another: `whole` of them, and
    /// the words of one more.
    #[inline]
    pub(crate) fn ran(&mut self, whole: u32, begun: Option<(u32, u32)>) {
        if whole > 0 {
            self.last = Some(Class::Ordinary);
        }
        if let Some((args, left)) = begun {
            (self.args, self.args_left) = (args, left);
            self.naming = Naming::Known(Class::Ordinary);
            self.state = State::Dollar;
        }
    }

    #[inline]
    fn end(&mut self) -> Asked {
        let class = self.naming.class();
        self.state = State::Start;
        self.last = Some(class);
        let detail = if let Naming::Iterates(cursor) = self.naming { cursor } else { self.args };
        Asked::Request(class, detail)
    }

    fn empty(&mut self) -> Asked {
        self.state = State::Start;
        self.last = None;
        Asked::Empty
    }

    /// Takes arguments as long as they are short and whole, which they nearly always are; whether
    /// that was all of them.
    #[inline]
    fn take_short(&mut self, input: &mut &[u8], limits: &Bounds) -> bool {
        if limits.bulk_bytes < LONGEST_SHORT {
            return false;
        }
        let (mut rest, mut args_left) = (*input, self.args_left);
        while args_left > 0 {
            let Some((argument, behind)) = short_string(rest) else { break };
            rest = behind;
            args_left -= 1;
            // Nearly always the first word is the only one that matters.
            if let Naming::After(_) = self.naming {
                self.naming = self.naming.with(argument);
            }
        }
        (*input, self.args_left) = (rest, args_left);
        args_left == 0
    }

    #[inline]
    fn begin_argument(&mut self, len: u32) {
        self.left = len + CRLF;
        self.state = State::Body;
        if let Naming::After(_) = self.naming {
            if len > LONGEST {
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
        let wanted = size(self.left - CRLF);
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
                self.left -= len(input);
                self.word.push(input);
                *input = &[];
                false
            }
        }
    }

    fn take_inline(&mut self, input: &mut &[u8], limits: &Bounds) -> Asked {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            self.left += 1;
            if self.left > limits.inline_bytes {
                return Asked::Lost;
            }
            match self.inline.take(byte, &mut self.args, &mut self.word, &mut self.naming) {
                Line::More => {}
                Line::Bad => return Asked::Lost,
                Line::End => {
                    return if self.args == 0 { self.empty() } else { self.end() };
                }
            }
        }
        Asked::More
    }
}
