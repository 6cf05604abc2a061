//! Records the replayable state of a session from its requests and their replies.
//!
//! A request that changes the replayable state is copied, and applied when its reply says that it
//! was accepted. The copies wait in the order of their requests, which is the order of the replies.
//! A request that arrives in pieces is copied as long as it may be one of these, which its first
//! words determine. A session without such a request costs one empty pointer.
//!
//! A request that is queued in a transaction takes effect within the reply to `EXEC`, which is not
//! inspected: the parts of the state that it may change are unknown from then on.

use std::collections::VecDeque;
use std::fmt;
use std::sync::LazyLock;

use zeroize::Zeroizing;

use crate::commands::class::{Class, ClassGroup};
use crate::commands::request_words::words;
use crate::commands::stateless::{HEAD, StatelessCommands, StatelessLookup};
use crate::ledger::budget::Share;
use crate::ledger::replay_state::{ReplayState, parts};
use crate::ledger::session_state::ReplyOutcome;
use crate::scan::limits::Bounds;
use crate::scan::reply::ReplyScanner;

/// A copy of a request, overwritten with zeros when dropped. Memory for names of channels is taken
/// from the budget of all sessions.
#[derive(Default)]
struct RequestCopy {
    bytes: Zeroizing<Vec<u8>>,
    share: Share,
}

impl RequestCopy {
    /// The copy with `piece` appended; `None` if it would exceed `most` bytes or the budget. Each
    /// byte is moved only a few times, however small the pieces are.
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
            // A vector that grows by itself leaves unerased copies in freed memory.
            let mut all = Zeroizing::new(Vec::with_capacity(larger));
            all.extend_from_slice(&self.bytes);
            self.bytes = all;
        }
        self.bytes.extend_from_slice(piece);
        Some(self)
    }
}

/// A request that was forwarded and is not answered yet.
struct PendingRequest {
    class: Class,
    /// `None` if its bytes are not known.
    bytes: Option<RequestCopy>,
}

/// Maximum number of unanswered requests that are kept.
const MAX_PENDING: usize = 1024;

/// Bytes on the wire around the names of a request to subscribe.
const FRAMES: usize = 128;

#[derive(Default)]
struct Recording {
    state: ReplayState,
    pending: VecDeque<PendingRequest>,
    /// Number of requests whose copies were dropped. Their replies come before those of `pending`.
    skipped: u32,
    /// Bytes in `pending`.
    copied: usize,
    /// The incomplete request so far.
    fragment: Option<RequestCopy>,
    /// Parts of the state that requests queued in the transaction may change.
    queued: u8,
    /// Maximum bytes of names.
    max_names: usize,
    /// The first command that is neither in the table nor declared stateless.
    unknown: Option<Box<str>>,
}

/// Records the replayable state of a session. The limits are arguments of each call, so that a
/// session without recorded state needs only a pointer. If the limit of text is zero, nothing must
/// be recorded.
#[derive(Default)]
pub(crate) struct Recorder {
    record: Option<Box<Recording>>,
}

impl fmt::Debug for Recorder {
    /// Omits the recorded state, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("anything", &self.record.is_some()).finish_non_exhaustive()
    }
}

/// Whether a request of that class is copied.
fn is_copied(class: Class, limits: &Bounds) -> bool {
    match class.group() {
        ClassGroup::Replayable => true,
        ClassGroup::Subscribing => limits.max_names() > 0,
        _ => false,
    }
}

/// Whether a request of that class names channels or patterns.
fn is_about_names(class: Class) -> bool {
    class.group() == ClassGroup::Subscribing
}

/// Whether a request of that class, if it is known yet, may have to be copied.
pub(crate) fn may_be_copied(class: Option<Class>, limits: &Bounds) -> bool {
    class.is_none_or(|class| is_copied(class, limits))
}

impl Recorder {
    /// The state; `None` if a part of it is unknown, or if a request that may change it is
    /// unanswered.
    pub(crate) fn replay_state(&self) -> Option<&ReplayState> {
        let is_settled = |record: &Recording| record.is_answered() && record.queued == 0;
        let sure = !self.state().is_in_doubt() && self.record.as_deref().is_none_or(is_settled);
        sure.then(|| self.state())
    }

    /// What is recorded, parts in doubt included.
    pub(crate) fn state(&self) -> &ReplayState {
        /// The state of a client that has changed nothing.
        static NEW: LazyLock<ReplayState> = LazyLock::new(ReplayState::default);
        self.record.as_ref().map_or(&*NEW, |record| &record.state)
    }

    /// The name of the first unknown command.
    pub(crate) fn unknown_command(&self) -> Option<&str> {
        self.record.as_ref()?.unknown.as_deref()
    }

    /// Looks up, in the declared commands, a request whose command is not in the table. `piece` is
    /// its next piece.
    #[cold]
    pub(crate) fn look_up(
        &mut self,
        declared: &StatelessCommands,
        piece: &[u8],
        first: bool,
        whole: bool,
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

    /// Adds a piece of a request that may have to be copied. The request does not end with it;
    /// `first` is whether it begins with it.
    #[cold]
    pub(crate) fn record_piece(
        &mut self,
        class: Option<Class>,
        piece: &[u8],
        first: bool,
        limits: &Bounds,
    ) {
        if first {
            self.record.get_or_insert_default();
        }
        if let Some(record) = &mut self.record {
            record.append(class, piece, first, limits);
        }
    }

    /// A request ended that has no mark, so that its outcome will not be known.
    #[cold]
    pub(crate) fn unmarked(&mut self, class: Class) {
        self.drop_pieces();
        if parts(class) != 0 {
            self.record.get_or_insert_default().state.doubt(parts(class));
        }
    }

    /// The incomplete request does not have to be copied.
    #[cold]
    pub(crate) fn drop_pieces(&mut self) {
        if let Some(record) = &mut self.record {
            record.fragment = None;
            self.tidy();
        }
    }

    /// A request that gets a reply ended with `piece`; `first` is whether that is the whole
    /// request.
    #[cold]
    pub(crate) fn request(&mut self, class: Class, piece: &[u8], first: bool, limits: &Bounds) {
        if !is_copied(class, limits) {
            self.drop_pieces();
            return;
        }
        let record = self.record.get_or_insert_default();
        record.max_names = limits.max_names();
        let left = record.append(Some(class), piece, first, limits);
        let request = record.fragment.take();
        let len = request.as_ref().map_or(0, |request| request.bytes.len());
        let beyond = record.copied + len > left;
        if record.pending.len() >= MAX_PENDING || (beyond && record.may_replace_pending(class)) {
            record.skip_pending();
        }
        let bytes = request.filter(|_| record.copied + len <= left);
        record.copied += bytes.as_ref().map_or(0, |copied| copied.bytes.len());
        record.pending.push_back(PendingRequest { class, bytes });
    }

    /// The server reported that there are no subscriptions.
    pub(crate) fn unsubscribed(&mut self) {
        if let Some(record) = &mut self.record {
            record.state.unsubscribed();
            self.tidy();
        }
    }

    /// A marked request was answered by `frame`; if it subscribes, that is its last confirmation.
    pub(crate) fn answered(&mut self, class: Class, answer: ReplyOutcome, frame: &ReplyScanner) {
        let Some(record) = &mut self.record else { return };
        // Either all requests of a class are copied or none.
        if record.skipped > 0
            && (class.group() == ClassGroup::Replayable || record.copies_names(class))
        {
            record.skipped -= 1;
            record.state.doubt(parts(class));
        } else if record.pending.front().is_some_and(|oldest| oldest.class == class) {
            record.decide(class, answer, frame);
        } else if class.group() == ClassGroup::Replayable {
            record.state.doubt(parts(class));
        }
        match (class, answer) {
            (Class::Exec, ReplyOutcome::Done) => {
                let queued = std::mem::take(&mut record.queued);
                record.state.doubt(queued);
            }
            (Class::Exec, ReplyOutcome::Error) | (Class::Discard, ReplyOutcome::Done) => {
                record.queued = 0;
            }
            (Class::Reset, ReplyOutcome::Done) => {
                record.queued = 0;
                record.state.reset();
            }
            _ => {}
        }
        self.tidy();
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

    /// Whether a request of that class may replace the unanswered ones, because its effect may
    /// override theirs. Names of subscriptions accumulate, so all of these requests are needed.
    fn may_replace_pending(&self, class: Class) -> bool {
        !is_about_names(class) && !self.pending.iter().any(|it| is_about_names(it.class))
    }

    /// Drops the copies of all unanswered requests. What they may change is unknown when they are
    /// answered.
    fn skip_pending(&mut self) {
        let gone = std::mem::take(&mut self.pending).len();
        self.skipped = self.skipped.saturating_add(u32::try_from(gone).unwrap_or(u32::MAX));
        self.copied = 0;
    }

    /// Adds a piece to the incomplete request of that class, if it still fits. Returns the maximum
    /// size of that request together with the unanswered ones.
    fn append(
        &mut self,
        class: Option<Class>,
        piece: &[u8],
        first: bool,
        limits: &Bounds,
    ) -> usize {
        let names = class.is_some_and(is_about_names);
        let (most, weight) = match names {
            // A name takes fewer bytes on the wire than in the state, except for the frame around
            // all names.
            true => (limits.max_names() + FRAMES, self.state.names().weight()),
            false => (usize::from(limits.memory), self.state.weight()),
        };
        let left = most.saturating_sub(weight);
        let before = if first { Some(RequestCopy::default()) } else { self.fragment.take() };
        self.fragment = before.and_then(|before| before.with(piece, left, names));
        left
    }

    /// The oldest copied request was answered.
    fn decide(&mut self, class: Class, answer: ReplyOutcome, frame: &ReplyScanner) {
        let Some(PendingRequest { bytes: mut request, .. }) = self.pending.pop_front() else {
            return;
        };
        self.copied -= request.as_ref().map_or(0, |request| request.bytes.len()).min(self.copied);
        if self.pending.is_empty() {
            self.pending = VecDeque::new();
        }
        if let Some(request) = &mut request {
            // The names that are recorded from it take their own share.
            request.share.give_back();
        }
        let words = request.as_ref().and_then(|request| words(&request.bytes));
        match answer {
            ReplyOutcome::Done if class.group() == ClassGroup::Subscribing => {
                self.state.subscribe(class, words.as_deref(), self.max_names);
            }
            ReplyOutcome::Done => self.state.accept(class, words.as_deref(), frame.top() == b'%'),
            ReplyOutcome::Queued => self.queued |= parts(class),
            ReplyOutcome::Error
                if class == Class::Hello && !is_without_effect(words.as_deref(), frame.line()) =>
            {
                self.state.doubt(parts(class));
            }
            ReplyOutcome::Error => {}
        }
    }
}

/// Whether a refused `HELLO` certainly changed nothing: without credentials and a name there is
/// nothing that it could have changed. Up to Redis 7.0, its options take effect one by one, so an
/// earlier option may have taken effect when a later one is refused, also the first of two `AUTH`
/// (`redis:src/networking.c`, `helloCommand`).
fn is_without_effect(words: Option<&[&[u8]]>, error: &[u8]) -> bool {
    let refused_as_a_whole =
        [&b"NOPROTO"[..], b"ERR unknown", b"NOPERM"].iter().any(|start| error.starts_with(start));
    let options = words.map(|words| words.get(2..).unwrap_or_default());
    let is = |option: &[u8], name: &[u8]| option.eq_ignore_ascii_case(name);
    refused_as_a_whole
        || options.is_some_and(|it| {
            let logins = it.iter().filter(|word| is(word, b"AUTH")).count();
            let first_is_login = it.first().is_some_and(|word| is(word, b"AUTH"));
            match logins {
                0 => !it.iter().any(|word| is(word, b"SETNAME")),
                1 => first_is_login && error.starts_with(b"WRONGPASS"),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::{RequestCopy, Share};
    use crate::ledger::budget::Budget;

    static TIGHT: Budget = Budget::new(500_000);

    #[test]
    fn moves_a_copy_rarely_for_pieces_of_any_size() {
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
    fn takes_names_from_the_budget_and_returns_them() {
        let empty = || RequestCopy { share: Share::of(&TIGHT), ..RequestCopy::default() };
        let names = vec![b'x'; 200_000];
        let one = empty().with(&names, 512 * 1024, true).unwrap();
        let other = empty().with(&names, 512 * 1024, true).unwrap();
        assert_eq!(TIGHT.left(), 100_000);
        assert!(empty().with(&names, 512 * 1024, true).is_none());
        // A request without names does not count against the budget.
        assert!(empty().with(&names, 512 * 1024, false).is_some());
        drop(one);
        let other = other.with(&names, 512 * 1024, true).unwrap();
        assert_eq!((other.bytes.len(), TIGHT.left()), (400_000, 100_000));
        drop(other);
        assert_eq!(TIGHT.left(), 500_000);
    }
}
