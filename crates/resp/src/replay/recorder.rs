//! Records, from requests and the replies to them, what a [`ReplayState`] holds.
//!
//! A request is copied when it is one of the few that a memory is made of, and enters the memory
//! when its reply says that it was accepted: the copies wait in the order of their requests, which
//! is the order of the replies. A request that comes in pieces is copied while it may still turn
//! out to be one of them, which its first words decide. A session that never says such a thing
//! costs one empty pointer.
//!
//! What is queued in a transaction takes effect within the reply to `EXEC`, which is not looked
//! into: the parts it is about are in doubt from then on.
//!
//! Deliberately absent: which reply belongs to which request; the book knows.

use std::collections::VecDeque;
use std::fmt;

use zeroize::Zeroizing;

use crate::commands::class::{Class, ClassGroup};
use crate::commands::stateless::{HEAD, StatelessCommands, StatelessLookup};
use crate::ledger::budget::{self, Share};
use crate::ledger::session_state::ReplyOutcome;
use crate::replay::state::{ReplayState, Text, parts};
use crate::scan::limits::CopyLimits;
use crate::scan::request_words::words;

/// The bytes of a request; overwritten with zeros when they go. Names of channels come out of a
/// budget of all sessions.
struct RequestCopy {
    bytes: Zeroizing<Vec<u8>>,
    share: Share,
}

impl Default for RequestCopy {
    fn default() -> Self {
        Self { bytes: Zeroizing::default(), share: Share::of(&budget::NAMES) }
    }
}

impl RequestCopy {
    /// With `piece` behind it; `None` if that would be more than `most` bytes or more than the
    /// process has for all. Each byte is moved only a few times, however small the pieces are.
    fn with(mut self, piece: &[u8], most: usize, names: bool) -> Option<Self> {
        let (len, capacity) = (self.bytes.len() + piece.len(), self.bytes.capacity());
        if len > most {
            return None;
        }
        let larger = if len > capacity { len.max((capacity * 2).min(most)) } else { capacity };
        if names && !self.share.grow_to(larger) {
            return None;
        }
        if larger > capacity {
            // A vector that grows by itself leaves copies behind.
            let mut all = Zeroizing::new(Vec::with_capacity(larger));
            all.extend_from_slice(&self.bytes);
            self.bytes = all;
        }
        self.bytes.extend_from_slice(piece);
        Some(self)
    }
}

/// A request that was forwarded and not answered yet.
struct PendingRequest {
    class: Class,
    /// `None` if its bytes are not known.
    bytes: Option<RequestCopy>,
}

/// The most requests that wait for their answer with their bytes known.
const MAX_PENDING: usize = 1024;

/// Room for what stands around the names of all kinds of subscription, on the wire.
const FRAMES: usize = 128;

/// A request whose reply ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered<'a> {
    pub(crate) class: Class,
    pub(crate) answer: ReplyOutcome,
    /// The first byte of the reply.
    pub(crate) top: u8,
    /// The beginning of an error.
    pub(crate) line: &'a [u8],
}

#[derive(Default)]
struct Recording {
    state: ReplayState,
    pending: VecDeque<PendingRequest>,
    /// Requests of which no copy is kept any more although one was made: their answers come before
    /// those in `pending`.
    skipped: u32,
    /// Bytes in `pending`.
    copied: usize,
    /// The request under way so far.
    fragment: Option<RequestCopy>,
    /// Parts that requests queued in the transaction are about.
    queued: u8,
    /// Most bytes of names.
    max_names: usize,
    /// The first command that was neither in the table nor declared to leave no state.
    unknown: Option<Box<str>>,
}

/// Records a session's memory. How much it may hold is told each time, since a pointer is all that
/// a session of every day has room for; if there is no room for text, nothing must be recorded.
#[derive(Default)]
pub(crate) struct Recorder {
    record: Option<Box<Recording>>,
}

impl fmt::Debug for Recorder {
    /// Without what it recorded, which may be a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("anything", &self.record.is_some()).finish_non_exhaustive()
    }
}

/// Whether a request of that class is copied.
fn is_copied(class: Class, copy_limits: CopyLimits) -> bool {
    match class.group() {
        ClassGroup::Replayable => true,
        ClassGroup::Subscribing => copy_limits.names > 0,
        _ => false,
    }
}

/// Whether a request of that class names channels or patterns.
fn is_about_names(class: Class) -> bool {
    class.group() == ClassGroup::Subscribing
}

/// Whether a request may turn out to be copied: its class, if that is known.
pub(crate) fn may_be_copied(class: Option<Class>, copy_limits: CopyLimits) -> bool {
    class.is_none_or(|class| is_copied(class, copy_limits))
}

impl Recorder {
    /// The memory, unless a part of it is in doubt or a request that may change it is unanswered.
    /// The outer `None`. The inner one: that of a fresh connection.
    pub(crate) fn replay_state(&self) -> Option<Option<&ReplayState>> {
        let Some(record) = &self.record else { return Some(None) };
        let sure = !record.state.is_in_doubt() && record.is_answered() && record.queued == 0;
        sure.then_some(Some(&record.state))
    }

    /// Whether a part of the memory is not known.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.state.is_in_doubt())
    }

    /// The first unknown command's name.
    pub(crate) fn unknown_command(&self) -> Option<&str> {
        self.record.as_ref()?.unknown.as_deref()
    }

    /// The beginning of a request that the table does not list, of which `piece` has come, and what
    /// `declared` says of it.
    #[cold]
    pub(crate) fn look_up(
        &mut self,
        declared: &StatelessCommands,
        piece: &[u8],
        (first, whole): (bool, bool),
    ) -> Option<Class> {
        let before = self.record.as_ref().and_then(|record| record.fragment.as_ref());
        let found = match before {
            _ if first => declared.look_up(piece, whole),
            Some(before) => {
                let both: Zeroizing<Vec<u8>> =
                    Zeroizing::new(before.bytes.iter().chain(piece).copied().take(HEAD).collect());
                declared.look_up(&both, whole)
            }
            None => StatelessLookup::Unknown(String::new()),
        };
        match found {
            StatelessLookup::Declared => Some(Class::Ordinary),
            StatelessLookup::NotYet => None,
            StatelessLookup::Unknown(name) => {
                self.record.get_or_insert_default().unknown.get_or_insert(name.into());
                Some(Class::Unknown)
            }
        }
    }

    /// The name that the client library gave; empty if it gave none.
    pub(crate) fn library(&self) -> &[u8] {
        self.record.as_ref().map_or(&[], |record| record.state.text(Text::LibName))
    }

    /// A piece of a request came that may be one to be copied, and not its end. `first`: it is its
    /// beginning.
    #[cold]
    pub(crate) fn record_piece(
        &mut self,
        class: Option<Class>,
        piece: &[u8],
        first: bool,
        copy_limits: CopyLimits,
    ) {
        if first {
            self.record.get_or_insert_default().fragment = Some(RequestCopy::default());
        }
        let Some(record) = &mut self.record else { return };
        let left = record.left(class, copy_limits);
        let names = class.is_some_and(is_about_names);
        record.fragment = record.fragment.take().and_then(|before| before.with(piece, left, names));
    }

    /// A request ended of which nobody will know how it was answered.
    #[cold]
    pub(crate) fn unmarked(&mut self, class: Class) {
        self.drop_pieces();
        if parts(class) != 0 {
            self.record.get_or_insert_default().state.doubt(parts(class));
        }
    }

    /// The request under way is none to be copied.
    #[cold]
    pub(crate) fn drop_pieces(&mut self) {
        if let Some(record) = &mut self.record {
            record.fragment = None;
            self.tidy();
        }
    }

    /// A request ended with `piece`, and gets a reply. `first`: the piece is all of it.
    #[cold]
    pub(crate) fn request(
        &mut self,
        class: Class,
        piece: &[u8],
        first: bool,
        copy_limits: CopyLimits,
    ) {
        if !is_copied(class, copy_limits) {
            self.drop_pieces();
            return;
        }
        let record = self.record.get_or_insert_default();
        if first {
            record.fragment = Some(RequestCopy::default());
        }
        record.max_names = copy_limits.names;
        let left = record.left(Some(class), copy_limits);
        let request = record
            .fragment
            .take()
            .and_then(|before| before.with(piece, left, is_about_names(class)));
        let len = request.as_ref().map_or(0, |request| request.bytes.len());
        let beyond = record.copied + len > left;
        if record.pending.len() >= MAX_PENDING || (beyond && record.may_replace_pending(class)) {
            record.skip_pending();
        }
        let bytes = request.filter(|_| record.copied + len <= left);
        record.copied += bytes.as_ref().map_or(0, |copied| copied.bytes.len());
        record.pending.push_back(PendingRequest { class, bytes });
    }

    /// The server says that the session is subscribed to nothing.
    pub(crate) fn unsubscribed(&mut self) {
        if let Some(record) = &mut self.record {
            record.state.unsubscribed();
            self.tidy();
        }
    }

    /// How many subscriptions of each kind are remembered.
    pub(crate) fn subscriptions(&self) -> [usize; 3] {
        self.record.as_ref().map_or([0; 3], |record| record.state.names().counts())
    }

    /// A marked request was answered, a subscription in full.
    pub(crate) fn answered(&mut self, it: Answered<'_>) {
        let Some(record) = &mut self.record else { return };
        // All requests of a class are copied, or none is.
        if record.skipped > 0
            && (it.class.group() == ClassGroup::Replayable || record.copies_names(it.class))
        {
            record.skipped -= 1;
            record.state.doubt(parts(it.class));
        } else if record.pending.front().is_some_and(|oldest| oldest.class == it.class) {
            record.decide(it);
        } else if it.class.group() == ClassGroup::Replayable {
            record.state.doubt(parts(it.class));
        }
        match (it.class, it.answer) {
            (Class::Exec, ReplyOutcome::Done) => {
                let queued = std::mem::take(&mut record.queued);
                record.state.doubt(queued);
            }
            (Class::Exec, ReplyOutcome::Error) | (Class::Discard, ReplyOutcome::Done) => {
                record.queued = 0
            }
            (Class::Reset, ReplyOutcome::Done) => {
                record.queued = 0;
                record.state.reset();
            }
            _ => {}
        }
        self.tidy();
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.record = None;
    }

    fn tidy(&mut self) {
        if self.record.as_ref().is_some_and(|record| record.is_blank()) {
            self.record = None;
        }
    }

    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        self.record.as_ref().map_or(0, |record| {
            1 + record.copied + record.state.weight() + record.state.names().weight()
        })
    }
}

impl Recording {
    fn is_blank(&self) -> bool {
        let blank = self.is_answered() && self.fragment.is_none() && self.queued == 0;
        blank && self.unknown.is_none() && self.state == ReplayState::default()
    }

    fn is_answered(&self) -> bool {
        self.pending.is_empty() && self.skipped == 0
    }

    fn copies_names(&self, class: Class) -> bool {
        self.max_names > 0 && is_about_names(class)
    }

    /// Whether a request of that class is worth more than those that wait: what it says may replace
    /// what they say. Names are added up, so all of them are wanted.
    fn may_replace_pending(&self, class: Class) -> bool {
        !is_about_names(class) && !self.pending.iter().any(|it| is_about_names(it.class))
    }

    /// Keeps nothing of the requests that wait. What they are about is in doubt when they are
    /// answered.
    fn skip_pending(&mut self) {
        let gone = std::mem::take(&mut self.pending).len();
        self.skipped = self.skipped.saturating_add(u32::try_from(gone).unwrap_or(u32::MAX));
        self.copied = 0;
    }

    /// How long a request of that class may be, with those that wait.
    fn left(&self, class: Option<Class>, copy_limits: CopyLimits) -> usize {
        let names = class.is_some_and(is_about_names);
        let (most, weight) = match names {
            // On the wire a name takes less than in the memory, but for the frame around all of
            // them.
            true => (copy_limits.names + FRAMES, self.state.names().weight()),
            false => (copy_limits.text, self.state.weight()),
        };
        most.saturating_sub(weight)
    }

    /// The oldest copied request was answered.
    fn decide(&mut self, it: Answered<'_>) {
        let Some(PendingRequest { bytes: mut request, .. }) = self.pending.pop_front() else {
            return;
        };
        self.copied -= request.as_ref().map_or(0, |request| request.bytes.len()).min(self.copied);
        if self.pending.is_empty() {
            self.pending = VecDeque::new();
        }
        if let Some(request) = &mut request {
            // The names that follow from it take their own part.
            request.share.give_back();
        }
        let words = request.as_ref().and_then(|request| words(&request.bytes));
        match it.answer {
            ReplyOutcome::Done if it.class.group() == ClassGroup::Subscribing => {
                self.state.subscribe(it.class, words.as_deref(), self.max_names);
            }
            ReplyOutcome::Done => self.state.accept(it.class, words.as_deref(), it.top == b'%'),
            ReplyOutcome::Queued => self.queued |= parts(it.class),
            ReplyOutcome::Error
                if it.class == Class::Hello && !is_without_effect(words.as_deref(), it.line) =>
            {
                self.state.doubt(parts(it.class));
            }
            ReplyOutcome::Error => {}
        }
    }
}

/// Whether a refused `HELLO` certainly changed nothing. Up to Redis 7.0 its options take effect one
/// by one, so that the refusal of a later one leaves the effect of an earlier one
/// (`redis:src/networking.c`, `helloCommand`).
fn is_without_effect(words: Option<&[&[u8]]>, error: &[u8]) -> bool {
    let refused_as_a_whole =
        [&b"NOPROTO"[..], b"ERR unknown", b"NOPERM"].iter().any(|start| error.starts_with(start));
    let first_option = words.and_then(|words| words.get(2));
    let wrong_password = error.starts_with(b"WRONGPASS");
    refused_as_a_whole
        || words.is_some_and(|words| words.len() <= 2)
        || (wrong_password
            && first_option.is_some_and(|option| option.eq_ignore_ascii_case(b"AUTH")))
}

#[cfg(test)]
mod tests {
    use super::{RequestCopy, Share};
    use crate::ledger::budget::Budget;

    static TIGHT: Budget = Budget::new(500_000);

    #[test]
    fn moves_a_copy_seldom_however_small_its_pieces_are() {
        let (mut copied, mut moves, mut place) = (RequestCopy::default(), 0, std::ptr::null());
        for n in 0..300_000_u32 {
            copied = copied.with(&n.to_le_bytes()[..1], 512 * 1024, false).unwrap();
            moves += u32::from(copied.bytes.as_ptr() != place);
            place = copied.bytes.as_ptr();
        }
        assert!(moves <= 20, "{moves}");
        assert!((0_u32..).zip(copied.bytes.iter()).all(|(n, byte)| n.to_le_bytes()[0] == *byte));
        assert!(copied.with(&[0; 300_000], 512 * 1024, false).is_none());
    }

    #[test]
    fn takes_names_out_of_the_budget_and_gives_them_back() {
        let empty = || RequestCopy { share: Share::of(&TIGHT), ..RequestCopy::default() };
        let names = vec![b'x'; 200_000];
        let one = empty().with(&names, 512 * 1024, true).unwrap();
        let other = empty().with(&names, 512 * 1024, true).unwrap();
        assert_eq!(TIGHT.left(), 100_000);
        assert!(empty().with(&names, 512 * 1024, true).is_none());
        // What is no name is bounded by itself.
        assert!(empty().with(&names, 512 * 1024, false).is_some());
        drop(one);
        let other = other.with(&names, 512 * 1024, true).unwrap();
        assert_eq!((other.bytes.len(), TIGHT.left()), (400_000, 100_000));
        drop(other);
        assert_eq!(TIGHT.left(), 500_000);
    }
}
