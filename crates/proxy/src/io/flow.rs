//! One direction of a session: from a source to a sink, as fast as the sink takes it.
//!
//! What is read is written at once, out of the worker's buffer. Only what the sink does not take
//! stays behind, in a buffer of its own, and while it is there nothing more is read: so the sender
//! feels the receiver's pace (TCP's own window does the rest), and memory is bounded by one read.
//! Who has been slow is read from in smaller pieces until it has caught up, and so is everybody
//! while many are slow ([`kept`](crate::io::kept)).
//!
//! Whether a byte may go at all is not decided here: the [`ForwardingPolicy`] is asked before every single
//! write.
//!
//! Deliberately absent: which end is the client, what the bytes mean, and time.

use std::io;
use std::task::{Context, Poll};

use crate::io::bulk::Bulk;
use crate::io::end::End;
use crate::io::kept::{self, Kept};
use crate::io::pipe::Pipe;
use crate::io::scratch;
use crate::runtime::run_queue::HEAVY;
use crate::runtime::tasks;
use crate::session::broken;

/// After a write that its sink did not take, reads are halved so often: 16 KiB are left of them.
const HALVED: u8 = 4;

/// Reads in a row before other sessions get their turn and the event loop looks for new events. One
/// that brings [`HEAVY`] bytes or more counts twice, as does a full pipe: 512 KiB then.
const ROUNDS: usize = 4;

/// How much of what was read may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Everything.
    Free,
    /// Nothing now: not even reading.
    Shut,
    /// At most so many bytes, which the valve has already accounted for; 0 for none at present.
    Measured(usize),
}

/// What stands between source and sink.
pub(crate) trait ForwardingPolicy {
    /// Asked before every read: whether it is of use.
    fn expects(&mut self) -> Leave;

    /// Asked after every read, before the valve is shown the bytes: whether they may go on as
    /// always.
    fn admits(&mut self) -> bool;

    /// Asked before every write. `waiting` are the bytes that would go next, if they have been read
    /// already.
    fn leave(&mut self, waiting: &[u8]) -> Leave;

    /// These bytes were read from the source.
    fn came(&mut self, bytes: &[u8]);

    /// These bytes were written to the sink. `measured` if the valve has accounted for them.
    fn went(&mut self, bytes: &[u8], measured: bool);

    /// How many bytes come next that the valve need not see.
    fn unseen(&self) -> u64;

    /// So many of them have come from the source.
    fn came_unseen(&mut self, n: u64);

    /// So many of them have gone to the sink.
    fn went_unseen(&mut self, n: u64);
}

/// Where a direction stands after it was moved as far as it goes.
#[derive(Debug)]
pub(crate) enum Step {
    /// It waits for its source: everything read has been written.
    Idle,
    /// It waits for its sink, or to be allowed.
    Stuck,
    /// It could go on, but others want their turn: poll it again.
    More,
    /// So many bytes were read, and the valve did not admit them. They are in the buffer that was
    /// given, and nowhere else.
    Stopped(usize),
    /// The source has ended, everything was written, and the sink has been told.
    Done,
    /// Its source failed.
    SourceFailed(io::Error),
    /// Its sink failed.
    SinkFailed(io::Error),
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Read and not yet written. In a box, because most sessions never have any.
    kept: Option<Box<Kept>>,
    /// How often the most that is read was halved because the sink was slow.
    halved: u8,
    /// What goes unseen; nothing is in it while something is in `kept`.
    pub(crate) pipe: Option<Box<Pipe>>,
    /// Bytes written.
    pub(crate) moved: u64,
    pub(crate) ended: bool,
    told: bool,
}

/// Whether a sink is told that its source has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// As soon as it has.
    Yes,
    /// Whoever asks decides when he knows: it may be about to be closed, which tells it as well, or
    /// the session goes on elsewhere.
    NotYet,
}

impl Flow {
    /// A direction in which `early` has been read already.
    pub(crate) fn new(early: Vec<u8>) -> Self {
        let mut flow =
            Self { kept: None, halved: 0, pipe: None, moved: 0, ended: false, told: false };
        flow.keep_instead(early);
        flow
    }

    /// Keeps these bytes behind what is kept already.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        match &mut self.kept {
            Some(kept) => kept.add(bytes),
            None => self.keep_instead(bytes.to_vec()),
        }
    }

    /// Keeps these bytes in the place of what was kept.
    pub(crate) fn keep_instead(&mut self, bytes: Vec<u8>) {
        self.kept = if bytes.is_empty() { None } else { Some(Box::new(Kept::new(bytes))) };
    }

    /// Bytes written to the sink so far.
    pub(crate) fn bytes_moved(&self) -> u64 {
        self.moved
    }

    /// Whether the source has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether everything that has come was written.
    pub(crate) fn is_clear(&self) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.rest().is_empty())
            && self.pipe.as_ref().is_none_or(|pipe| pipe.holds() == 0)
    }

    /// Takes what has come and could not be written.
    pub(crate) fn take_kept(&mut self) -> Vec<u8> {
        // What is lost of it has been logged. The value that it belongs to ends with the session in
        // any case.
        drop(self.take_over());
        self.kept.take().map_or_else(Vec::new, |kept| kept.into_rest())
    }

    /// Bytes of memory it holds.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.memory())
    }

    /// Writes what has come and could not be written. `None` if nothing is left of it.
    #[inline]
    pub(crate) fn empty(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl End,
        valve: &mut impl ForwardingPolicy,
    ) -> Option<Step> {
        // So it nearly always is.
        if self.pipe.is_none() && self.kept.is_none() {
            return None;
        }
        self.empty_pipe(cx, sink, valve).or_else(|| self.flush(cx, sink, valve))
    }

    /// Moves bytes until one of the ends makes it wait. Who is told that it waits for its source
    /// must have looked at that before the call.
    pub(crate) fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl End,
        sink: &mut impl End,
        valve: &mut impl ForwardingPolicy,
        (scratch, tell): (&mut [u8], Tell),
    ) -> Step {
        let mut rounds = ROUNDS;
        while rounds > 0 {
            rounds -= 1;
            if let Some(step) = self.empty(cx, sink, valve) {
                return step;
            }
            if self.ended {
                if tell == Tell::NotYet {
                    return Step::Done;
                }
                return self.pass_on_the_end(cx, sink);
            }
            // Asked before all else: most rounds end here. Every event is about one direction, and
            // a read that came out short is the last one.
            if !source.is_readable() {
                return Step::Idle;
            }
            let measured = match valve.expects() {
                Leave::Free => false,
                Leave::Measured(_) => true,
                Leave::Shut => return Step::Stuck,
            };
            if !measured {
                match self.fill_pipe(cx, source, sink, valve) {
                    Bulk::Read => {}
                    Bulk::Moved => {
                        rounds = rounds.saturating_sub(1);
                        continue;
                    }
                    Bulk::Wait(step) => return step,
                }
            }
            let piece = self.piece().min(scratch.len());
            let Some(room) = scratch.get_mut(..piece) else { return Step::Stuck };
            let read = match source.poll_read(cx, room) {
                Poll::Pending => return Step::Idle,
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    continue;
                }
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Step::SourceFailed(error),
            };
            if read >= HEAVY {
                rounds = after_large(rounds, read);
            }
            if !valve.admits() {
                return Step::Stopped(read);
            }
            let bytes = match broken::first(room, read) {
                Ok(bytes) => bytes,
                Err(error) => return Step::SourceFailed(error),
            };
            valve.came(bytes);
            if measured {
                self.keep(bytes);
            } else if let Err(step) = self.write(cx, sink, valve, bytes) {
                return step;
            }
        }
        Step::More
    }

    /// How much is read at a time: what its sink does not take of it is kept.
    #[inline]
    pub(crate) fn piece(&self) -> usize {
        (scratch::SIZE >> self.halved).min(kept::most())
    }

    /// Writes `bytes` and keeps what the sink does not take.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl End,
        valve: &mut impl ForwardingPolicy,
        bytes: &[u8],
    ) -> Result<(), Step> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // A bound that came up meanwhile is minded by `flush`, which knows what was kept.
            let wrote = match valve.leave(&[]) {
                Leave::Free => sink.poll_write(cx, rest),
                Leave::Shut | Leave::Measured(_) => Poll::Pending,
            };
            match wrote {
                Poll::Ready(Ok(n)) => {
                    let Some((gone, left)) = rest.split_at_checked(n) else {
                        return Err(Step::SinkFailed(broken::broken(
                            "more was written than there was",
                        )));
                    };
                    valve.went(gone, false);
                    self.moved += gone.len() as u64;
                    rest = left;
                }
                Poll::Pending => {
                    self.keep(rest);
                    self.halved = HALVED;
                    return Err(Step::Stuck);
                }
                Poll::Ready(Err(error)) => {
                    // What never went may still go elsewhere.
                    self.keep(rest);
                    return Err(Step::SinkFailed(error));
                }
            }
        }
        self.halved = self.halved.saturating_sub(1);
        Ok(())
    }

    /// Writes what was kept. `None` if nothing is left of it.
    fn flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl End,
        valve: &mut impl ForwardingPolicy,
    ) -> Option<Step> {
        let kept = self.kept.as_deref_mut()?;
        while let rest @ [_, ..] = kept.rest() {
            let (most, measured) = match valve.leave(rest) {
                Leave::Free => (rest.len(), false),
                Leave::Measured(most) if most > 0 => (most.min(rest.len()), true),
                Leave::Measured(_) | Leave::Shut => return Some(Step::Stuck),
            };
            // No more than there is, as was just seen to.
            let bytes = rest.get(..most).unwrap_or(rest);
            match sink.poll_write(cx, bytes) {
                Poll::Ready(Ok(n)) => {
                    let Some(gone) = bytes.get(..n) else {
                        return Some(Step::SinkFailed(broken::broken(
                            "more was written than there was",
                        )));
                    };
                    valve.went(gone, measured);
                    self.moved += n as u64;
                    if let Err(error) = kept.took(n) {
                        return Some(Step::SinkFailed(error));
                    }
                }
                Poll::Pending => return Some(Step::Stuck),
                Poll::Ready(Err(error)) => return Some(Step::SinkFailed(error)),
            }
        }
        // An idle session holds no buffer.
        self.kept = None;
        None
    }

    fn pass_on_the_end(&mut self, cx: &mut Context<'_>, sink: &mut impl End) -> Step {
        if !self.told {
            match sink.poll_end(cx) {
                Poll::Pending => return Step::Stuck,
                // The other side has gone too: there is nobody left to tell.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => {
                    self.told = true
                }
                Poll::Ready(Err(error)) => return Step::SinkFailed(error),
                Poll::Ready(Ok(())) => self.told = true,
            }
        }
        Step::Done
    }
}

/// What is left of the rounds of a turn after a read that brought this much.
#[cold]
fn after_large(rounds: usize, read: usize) -> usize {
    tasks::note_bytes(read);
    rounds.saturating_sub(1)
}
