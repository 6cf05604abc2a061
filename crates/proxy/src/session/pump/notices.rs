//! Words of our own between the server's replies: pushes about maintenance, and the answer to the
//! handshake about them.
//!
//! Replies are forwarded as they come, in pieces that end anywhere. While something of ours is to
//! go among them, and only then, they are taken apart at the ends of their frames: what came is
//! kept up to such an end, our words follow, and then the rest. As soon as our words are among what
//! is kept, the replies flow as always; so nobody else pays for this.
//!
//! The handshake is forwarded like any other request. If the server answers that it does not know
//! it, that one answer is exchanged for `+OK`: since nothing is made up before the server has
//! spoken, the order of replies is its own, and a server that does know the command is left alone.
//! From the first byte of an error on, that answer is held back until it is whole.
//!
//! The ledger is not shown our words. They are frames that answer nothing, so it misses nothing.
//!
//! Deliberately absent: what a push looks like ([`notice`](crate::maintenance::notice)), and telling clients
//! that a worse replica dismisses them: a client library moves all its connections at such a word,
//! not the one that was meant.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use resp::{Direction, MaintenanceHandshake, SessionState};
use target::Replies as Fate;

use super::Pump;
use super::superseded::Withheld;
use crate::io::end::End;
use crate::io::flow::Step;
use crate::io::forwarding::Replies;
use crate::io::kept::Kept;
use crate::maintenance::notice::{self, MaintenanceKind, Notice};
use crate::session::broken;
use crate::session::leave::{self, Leaving};

/// Reads in a row before others get their turn.
const ROUNDS: usize = 4;

/// The longest refusal that is held back. A real one has less than a hundred bytes.
const LONGEST_REFUSAL: usize = 1024;

/// A body with more to come than this does not end within one turn, so it may flow as always.
const FAR: u64 = 16 * 1024 * 1024;

/// A client that was told to move is left alone for this part of the time until the cut, so that
/// there is time for those who were told and stay.
const PART: f64 = 0.75;

/// Longest time that a client is given to move. It comes back after half of it, and need not wait
/// for a long drain to end.
const LONGEST: Duration = Duration::from_secs(10);

/// What is to go between the replies.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// Pushes, at most one of each kind.
    due: Vec<Notice>,
    /// The beginning of the server's refusal of the handshake; it came and was not delivered.
    held: Vec<u8>,
    /// Read from the target, and not to be looked at yet; see [`superseded`](super::superseded).
    pub(super) withheld: Option<Kept>,
}

impl Aside {
    fn is_needed(&self) -> bool {
        !self.due.is_empty() || !self.held.is_empty() || self.withheld.is_some()
    }
}

impl<C: End, U: End> Pump<'_, C, U> {
    /// Whether something of ours has to go between the replies, or may have to.
    #[inline]
    pub(super) fn has_words(&self) -> bool {
        self.aside.is_some() || self.ledger.awaits_handshake_reply()
    }

    /// What the client agreed to be told; nothing if that was turned off.
    fn notices(&self) -> MaintenanceHandshake {
        match self.ledger.maintenance_handshake() {
            agreed
                if agreed == MaintenanceHandshake::Off
                    || self.seat.shared.service.options.now().maintenance_push =>
            {
                agreed
            }
            _ => MaintenanceHandshake::Off,
        }
    }

    pub(super) fn announce(&mut self, notice: Notice) {
        let due = &mut self.aside.get_or_insert_default().due;
        due.retain(|it| it.kind() != notice.kind());
        due.push(notice);
    }

    /// Takes back what was announced and not yet said. Whether there was such a thing.
    fn take_back(&mut self, kind: MaintenanceKind) -> bool {
        let Some(aside) = &mut self.aside else { return false };
        let before = aside.due.len();
        aside.due.retain(|it| it.kind() != kind);
        aside.due.len() < before
    }

    /// Tells the client what became of the gate, once each time. What it was not told yet when the
    /// opposite is true, it need not be.
    pub(super) fn tell_of_the_gate(&mut self) {
        let shut = self.target.is_shut();
        // Who has to leave this target is told where it arrives.
        if self.target.fence().has_fallen() || self.notices() == MaintenanceHandshake::Off {
            return;
        }
        let (due, opposite) = match shut {
            true => (MaintenanceKind::FailingOver, MaintenanceKind::FailedOver),
            false => (MaintenanceKind::FailedOver, MaintenanceKind::FailingOver),
        };
        let is_due =
            self.aside.as_ref().is_some_and(|aside| aside.due.iter().any(|it| it.kind() == due));
        if self.take_back(opposite) || is_due || shut == self.ledger.failover_announced() {
            return;
        }
        let number = notice::number();
        self.announce(if shut {
            let seconds = notice::seconds(self.seat.shared.service.options.now().hold_timeout);
            Notice::FailingOver { number, seconds }
        } else {
            Notice::FailedOver { number }
        });
    }

    /// It is this session's turn to leave. A client that can be told so leaves by itself; the
    /// others are left behind a reply.
    pub(super) fn begin_to_leave(&mut self, waker: &Waker) {
        let moving = if self.is_draining() { self.moving() } else { None };
        if let Some((seconds, notice)) = moving {
            self.announce(notice);
            self.leaving = Leaving::Told;
            self.rare().patience.set(Duration::from_secs(seconds), waker);
        } else {
            self.listen_for_a_reply(waker);
        }
    }

    pub(super) fn listen_for_a_reply(&mut self, waker: &Waker) {
        self.leaving = Leaving::AfterReply;
        self.replied = false;
        self.rare().patience.set(leave::LISTEN, waker);
    }

    /// The word that tells this client to move, and the seconds that it has for that.
    fn moving(&self) -> Option<(u64, Notice)> {
        let options = self.seat.shared.service.options.now();
        let to = match self.notices() {
            MaintenanceHandshake::Off => return None,
            MaintenanceHandshake::WithoutAddress => None,
            MaintenanceHandshake::On => Some(options.moving_to.clone()?),
        };
        let seconds = notice::seconds(self.seat.drain.time_left()?.mul_f64(PART).min(LONGEST));
        let number = *self.seat.shared.moving.get_or_init(notice::number);
        Some((seconds, Notice::Moving { number, seconds, to }))
    }

    /// Moves replies while there are words of ours to go among them. `None` if they are to go on as
    /// always.
    #[cold]
    pub(super) fn move_replies_apart(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> Option<Step> {
        for _ in 0..ROUNDS {
            let mut valve = Replies {
                ledger: &mut self.ledger,
                target: self.target,
                seat: self.seat,
                stopwatch: &mut self.stopwatch,
                commands: &mut self.commands,
            };
            if let Some(step) = self.replies.empty(cx, self.client, &mut valve) {
                return Some(step);
            }
            if self.replies.has_ended() {
                // Half a refusal is delivered like half of any reply.
                self.replies
                    .keep_instead(self.aside.take().map_or_else(Vec::new, |aside| aside.held));
            } else {
                let words = self.words_due();
                self.replies.keep_instead(words);
            }
            if !self.replies.is_clear() {
                continue;
            }
            match self.take_withheld() {
                Withheld::Nothing => {}
                Withheld::Waits => return Some(Step::Stuck),
                Withheld::Over(came) => {
                    let came = self.take_apart(&came);
                    self.replies.keep_instead(came);
                    continue;
                }
            }
            self.aside = self.aside.take().filter(|aside| aside.is_needed());
            if self.dropped {
                return Some(Step::Stuck);
            }
            let far = self.ledger.body_left(Direction::Reply) > FAR;
            if far || !self.has_words() || self.replies.has_ended() {
                return None;
            }
            // All of it is kept for a moment, and for longer if the client does not take it.
            let piece = self.replies.piece().min(scratch.len());
            let Some(room) = scratch.get_mut(..piece) else { return Some(Step::Stuck) };
            let read = match self.upstream.poll_read(cx, room) {
                Poll::Pending => return Some(Step::Idle),
                Poll::Ready(Ok(read)) => read,
                Poll::Ready(Err(error)) => return Some(Step::SourceFailed(error)),
            };
            self.replies.ended = read == 0;
            let bytes = match broken::first(room, read) {
                Ok(bytes) => bytes,
                Err(error) => return Some(Step::SourceFailed(error)),
            };
            let came = self.take_apart(bytes);
            self.replies.keep_instead(came);
        }
        Some(Step::More)
    }

    /// What came, with our words among it, and less what is held back, what waits, and what is
    /// dropped.
    pub(super) fn take_apart(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = Vec::with_capacity(bytes.len());
        let mut rest = bytes;
        let fate = self.target.replies();
        while let Some(first) = rest.first() {
            if fate != Fate::Pass && self.may_acknowledge(*first) {
                self.give_up(fate, rest);
                break;
            }
            let holding = self.aside.as_ref().is_some_and(|aside| !aside.held.is_empty());
            let refusal = holding || (*first == b'-' && self.ledger.next_reply_is_handshake());
            let (piece, behind) = self.ledger.reply_split(rest);
            rest = behind;
            if refusal {
                all.append(&mut self.hold_back(piece));
            } else {
                all.extend_from_slice(piece);
            }
            all.append(&mut self.words_due());
        }
        let mut valve = Replies {
            ledger: &mut self.ledger,
            target: self.target,
            seat: self.seat,
            stopwatch: &mut self.stopwatch,
            commands: &mut self.commands,
        };
        valve.note();
        all
    }

    /// Holds back a piece of the server's refusal. What is to be delivered of it.
    fn hold_back(&mut self, piece: &[u8]) -> Vec<u8> {
        let whole = self.ledger.at_boundary(Direction::Reply);
        let held = &mut self.aside.get_or_insert_default().held;
        held.extend_from_slice(piece);
        if !whole
            && held.len() <= LONGEST_REFUSAL
            && self.ledger.session_state() != SessionState::Opaque
        {
            return Vec::new();
        }
        let refusal = std::mem::take(held);
        let wanted = self.seat.shared.service.options.now().maintenance_push;
        if whole && wanted && notice::is_unknown(&refusal) && self.ledger.accept_handshake() {
            self.seat.block.agreements.one();
            return b"+OK\r\n".to_vec();
        }
        refusal
    }

    /// The pushes that are due, if this is a place for them: they are due no more then.
    fn words_due(&mut self) -> Vec<u8> {
        let place = self.ledger.at_boundary(Direction::Reply);
        let Some(aside) =
            self.aside.as_mut().filter(|aside| aside.held.is_empty() && !aside.due.is_empty())
        else {
            return Vec::new();
        };
        if self.ledger.maintenance_handshake() == MaintenanceHandshake::Off {
            // It went back to RESP2, or left the protocol.
            aside.due.clear();
        }
        if !place {
            return Vec::new();
        }
        let mut words = Vec::new();
        for notice in aside.due.drain(..) {
            match notice.kind() {
                MaintenanceKind::Moving => {}
                kind => self.ledger.set_failover_announced(kind == MaintenanceKind::FailingOver),
            }
            self.seat.block.noticed(notice.kind());
            words.extend_from_slice(notice.encode().as_bytes());
        }
        words
    }

    /// What is held back goes with what the client has not taken yet, if the session ends.
    pub(super) fn undelivered(&mut self) -> Vec<u8> {
        let mut undelivered = self.replies.take_kept();
        undelivered.append(&mut self.aside.take().map_or_else(Vec::new, |aside| aside.held));
        undelivered
    }
}
