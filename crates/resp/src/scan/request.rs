//! The request scanner: finds the ends of requests, which are arrays of bulk strings, inline
//! commands, or empty and then not answered.
//!
//! It accepts exactly what `redis:src/networking.c`, `processMultibulkBuffer` and
//! `processInlineBuffer`, accept. Arguments are skipped by their announced length; only words that
//! may name the command are read.

use crate::commands::class::Class;
use crate::commands::table::ClassLookup;
use crate::scan::bulk::{CRLF, MAX_SHORT_LEN, len, short_string, size, skip};
use crate::scan::inline::{Inline, InlineStep};
use crate::scan::limits::Bounds;
use crate::scan::number::{Number, NumberScan};
use crate::scan::short_word::{SHORT_WORD_LEN, ShortWord};

/// The result of scanning bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestScan {
    /// All bytes were read; no further request ended.
    More,
    /// A request without a reply ended: an empty line, or an array without elements.
    Empty,
    /// A request ended, with its class and its number of words, the name included; for an iterating
    /// request, the digest of its cursor instead of the number.
    Request(Class, u32),
    /// The bytes are not a request, or exceed a limit.
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum RequestState {
    /// Between requests.
    #[default]
    Start,
    /// After `*`.
    Count,
    /// Before `$`.
    Dollar,
    /// After `$`.
    Length,
    /// In an argument that may name the command.
    Word,
    /// In any other argument, or in the line end of an argument.
    Body,
    Inline,
}

#[derive(Debug, Default)]
pub(crate) struct RequestScanner {
    /// In an argument: the missing bytes, including its line end. In an inline command: the bytes
    /// read. In a header: its number so far.
    left: u32,
    /// Number of words: as announced by an array, or read so far of an inline command.
    args: u32,
    args_left: u32,
    word: ShortWord,
    lookup: ClassLookup,
    state: RequestState,
    number: Number,
    inline: Inline,
    /// The class of the request that ended last; `None` if it was empty.
    last: Option<Class>,
}

/// Bytes that are not a request.
pub(crate) const NO_REQUEST: &[u8] = b"*1\r\n!\r\n";

impl RequestScanner {
    #[inline]
    pub(crate) fn at_boundary(&self) -> bool {
        self.state == RequestState::Start
    }

    /// The current command, or the one that ended last, is not in the table and declared stateless.
    pub(crate) fn set_stateless(&mut self) {
        if self.at_boundary() {
            self.last = Some(Class::Ordinary);
        } else {
            self.lookup = ClassLookup::Known(Class::Ordinary);
        }
    }

    /// The class of the incomplete request, if it is known yet.
    pub(crate) fn class_so_far(&self) -> Option<Class> {
        Some(self.lookup).filter(|it| !matches!(it, ClassLookup::After(_))).map(ClassLookup::class)
    }

    /// Missing bytes of the current argument that need not be shown.
    #[inline]
    pub(crate) fn body_left(&self) -> u32 {
        if self.state == RequestState::Body { self.left.saturating_sub(CRLF) } else { 0 }
    }

    /// Skips `n` bytes that were not shown, at most [`body_left`](Self::body_left).
    pub(crate) fn skip_body(&mut self, n: u32) {
        self.left -= n.min(self.body_left());
    }

    /// The class of the request that ended last; `None` if it was empty, or if none has ended.
    pub(crate) fn last(&self) -> Option<Class> {
        self.last
    }

    /// Reads bytes from the beginning of `input` up to the end of a request.
    pub(crate) fn scan(&mut self, input: &mut &[u8], limits: &Bounds) -> RequestScan {
        loop {
            match self.state {
                RequestState::Start => {
                    let Some((&first, rest)) = input.split_first() else {
                        return RequestScan::More;
                    };
                    self.lookup = ClassLookup::START;
                    if first == b'*' {
                        *input = rest;
                        self.state = RequestState::Count;
                    } else {
                        self.inline = Inline::default();
                        self.left = 0;
                        self.args = 0;
                        self.state = RequestState::Inline;
                    }
                }
                RequestState::Count => match self.number.take(&mut self.left, input) {
                    NumberScan::More => return RequestScan::More,
                    NumberScan::Count(0) | NumberScan::Minus(_) => return self.empty(),
                    NumberScan::Count(count) if count <= limits.elements => {
                        self.args = count;
                        self.args_left = count;
                        self.state = RequestState::Dollar;
                    }
                    _ => return RequestScan::Invalid,
                },
                RequestState::Dollar => {
                    if self.read_short(input, limits) {
                        return self.end();
                    }
                    match input.split_first() {
                        None => return RequestScan::More,
                        Some((b'$', rest)) => {
                            *input = rest;
                            self.state = RequestState::Length;
                        }
                        Some(_) => return RequestScan::Invalid,
                    }
                }
                RequestState::Length => match self.number.take(&mut self.left, input) {
                    NumberScan::More => return RequestScan::More,
                    NumberScan::Count(len) if len <= limits.bulk_bytes => self.begin_argument(len),
                    _ => return RequestScan::Invalid,
                },
                RequestState::Word => {
                    if !self.read_word(input) {
                        return RequestScan::More;
                    }
                }
                RequestState::Body => {
                    if !skip(&mut self.left, input) {
                        return RequestScan::More;
                    }
                    self.args_left -= 1;
                    if self.args_left == 0 {
                        return self.end();
                    }
                    self.state = RequestState::Dollar;
                }
                RequestState::Inline => return self.read_inline(input, limits),
            }
        }
    }

    /// A few bytes that are invalid for the same reason as those that were read last.
    pub(crate) fn as_invalid(&self, limits: &Bounds) -> &'static [u8] {
        match self.state {
            RequestState::Count => b"*x\r\n",
            RequestState::Inline if self.left <= limits.inline_bytes => b"\"\r\n",
            _ => NO_REQUEST,
        }
    }

    /// `whole` ordinary requests, and some words of one more, were read by `frame_runs`, from one
    /// boundary to another.
    #[inline]
    pub(crate) fn skip_run(&mut self, whole: u32, begun: Option<(u32, u32)>) {
        if whole > 0 {
            self.last = Some(Class::Ordinary);
        }
        if let Some((args, left)) = begun {
            (self.args, self.args_left) = (args, left);
            self.lookup = ClassLookup::Known(Class::Ordinary);
            self.state = RequestState::Dollar;
        }
    }

    #[inline]
    fn end(&mut self) -> RequestScan {
        let class = self.lookup.class().of_words(self.args);
        self.state = RequestState::Start;
        self.last = Some(class);
        let detail = match self.lookup {
            ClassLookup::Iterates(detail) | ClassLookup::Refused(detail) => detail,
            _ => self.args,
        };
        RequestScan::Request(class, detail)
    }

    fn empty(&mut self) -> RequestScan {
        self.state = RequestState::Start;
        self.last = None;
        RequestScan::Empty
    }

    /// Reads arguments while they are short and complete, as nearly all are. Returns whether the
    /// last one was read.
    #[inline]
    fn read_short(&mut self, input: &mut &[u8], limits: &Bounds) -> bool {
        if limits.bulk_bytes < MAX_SHORT_LEN {
            return false;
        }
        let (mut rest, mut args_left) = (*input, self.args_left);
        while args_left > 0 {
            let Some((argument, after)) = short_string(rest) else { break };
            rest = after;
            args_left -= 1;
            // Nearly always the first word determines the class.
            if let ClassLookup::After(_) = self.lookup {
                self.lookup = self.lookup.with(argument);
            }
        }
        (*input, self.args_left) = (rest, args_left);
        args_left == 0
    }

    #[inline]
    fn begin_argument(&mut self, len: u32) {
        self.left = len + CRLF;
        self.state = RequestState::Body;
        if let ClassLookup::After(_) = self.lookup {
            if len > SHORT_WORD_LEN {
                self.lookup = self.lookup.with(b"");
            } else {
                self.word.clear();
                self.state = RequestState::Word;
            }
        }
    }

    /// Reads the available part of a word. Returns whether it ended.
    #[inline]
    fn read_word(&mut self, input: &mut &[u8]) -> bool {
        let wanted = size(self.left - CRLF);
        match input.split_at_checked(wanted) {
            Some((word, rest)) => {
                *input = rest;
                self.lookup = if self.word.is_empty() {
                    self.lookup.with(word)
                } else {
                    self.word.push(word);
                    self.lookup.with(self.word.whole())
                };
                self.left = CRLF;
                self.state = RequestState::Body;
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

    fn read_inline(&mut self, input: &mut &[u8], limits: &Bounds) -> RequestScan {
        loop {
            let most = limits.inline_bytes.saturating_sub(self.left);
            let plain = self.inline.skip_plain(input, size(most), &mut self.word);
            *input = input.get(plain..).unwrap_or_default();
            self.left += u32::try_from(plain).unwrap_or(most);
            let Some((&byte, rest)) = input.split_first() else { return RequestScan::More };
            *input = rest;
            self.left += 1;
            if self.left > limits.inline_bytes {
                return RequestScan::Invalid;
            }
            match self.inline.take(byte, &mut self.args, &mut self.word, &mut self.lookup) {
                InlineStep::More => {}
                InlineStep::Bad => return RequestScan::Invalid,
                InlineStep::End => {
                    return if self.args == 0 { self.empty() } else { self.end() };
                }
            }
        }
    }
}
