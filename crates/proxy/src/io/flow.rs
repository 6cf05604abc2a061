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

use crate::io::buffer::{self, KeptBytes};
use crate::io::bulk::BulkStep;
use crate::io::pipe::Pipe;
use crate::io::stream::ByteStream;
use crate::runtime::run_queue::HEAVY;
use crate::runtime::tasks;
use crate::session::broken;

/// After a write that its sink did not take, reads are halved so often: 16 KiB are left of them.
const SLOW_SHIFT: u8 = 4;

/// Reads in a row before other sessions get their turn and the event loop looks for new events. One
/// that brings [`HEAVY`] bytes or more counts twice, as does a full pipe: 512 KiB then.
const MAX_READS: usize = 4;

/// How much of what was read may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WritePermission {
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
    fn before_read(&mut self) -> WritePermission;

    /// Asked after every read, before the valve is shown the bytes: whether they may go on as
    /// always.
    fn after_read(&mut self) -> bool;

    /// Asked before every write. `waiting` are the bytes that would go next, if they have been read
    /// already.
    fn leave(&mut self, waiting: &[u8]) -> WritePermission;

    /// These bytes were read from the source.
    fn on_read(&mut self, bytes: &[u8]);

    /// These bytes were written to the sink. `measured` if the valve has accounted for them.
    fn on_written(&mut self, bytes: &[u8], measured: bool);

    /// How many bytes come next that the valve need not see.
    fn bulk_left(&self) -> u64;

    /// So many of them have come from the source.
    fn on_bulk_read(&mut self, n: u64);

    /// So many of them have gone to the sink.
    fn on_bulk_written(&mut self, n: u64);
}

/// Where a direction stands after it was moved as far as it goes.
#[derive(Debug)]
pub(crate) enum FlowStep {
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
    kept: Option<Box<KeptBytes>>,
    /// How often the most that is read was halved because the sink was slow.
    size_shift: u8,
    /// What goes unseen; nothing is in it while something is in `kept`.
    pub(crate) pipe: Option<Box<Pipe>>,
    /// Bytes written.
    pub(crate) moved: u64,
    pub(crate) ended: bool,
    end_sent: bool,
}

/// Whether a sink is told that its source has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndSignal {
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
            Self { kept: None, size_shift: 0, pipe: None, moved: 0, ended: false, end_sent: false };
        flow.replace_kept(early);
        flow
    }

    /// Keeps these bytes behind what is kept already.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        match &mut self.kept {
            Some(kept) => kept.add(bytes),
            None => self.replace_kept(bytes.to_vec()),
        }
    }

    /// Keeps these bytes in the place of what was kept.
    pub(crate) fn replace_kept(&mut self, bytes: Vec<u8>) {
        self.kept = if bytes.is_empty() { None } else { Some(Box::new(KeptBytes::new(bytes))) };
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
            && self.pipe.as_ref().is_none_or(|pipe| pipe.len() == 0)
    }

    /// Takes what has come and could not be written.
    pub(crate) fn take_kept(&mut self) -> Vec<u8> {
        // What is lost of it has been logged. The value that it belongs to ends with the session in
        // any case.
        drop(self.drain_pipe());
        self.kept.take().map_or_else(Vec::new, |kept| kept.into_rest())
    }

    /// Bytes of memory it holds.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.memory())
    }

    /// Writes what has come and could not be written. `None` if nothing is left of it.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
    ) -> Option<FlowStep> {
        // So it nearly always is.
        if self.pipe.is_none() && self.kept.is_none() {
            return None;
        }
        self.empty_pipe(cx, sink, policy).or_else(|| self.flush_kept(cx, sink, policy))
    }

    /// Moves bytes until one of the ends makes it wait. Who is told that it waits for its source
    /// must have looked at that before the call.
    pub(crate) fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl ByteStream,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
        (scratch, tell): (&mut [u8], EndSignal),
    ) -> FlowStep {
        let mut reads_left = MAX_READS;
        while reads_left > 0 {
            reads_left -= 1;
            if let Some(step) = self.flush(cx, sink, policy) {
                return step;
            }
            if self.ended {
                if tell == EndSignal::NotYet {
                    return FlowStep::Done;
                }
                return self.send_end(cx, sink);
            }
            // Asked before all else: most rounds end here. Every event is about one direction, and
            // a read that came out short is the last one.
            if !source.is_readable() {
                return FlowStep::Idle;
            }
            let measured = match policy.before_read() {
                WritePermission::Free => false,
                WritePermission::Measured(_) => true,
                WritePermission::Shut => return FlowStep::Stuck,
            };
            if !measured {
                match self.fill_pipe(cx, source, sink, policy) {
                    BulkStep::Read => {}
                    BulkStep::Moved => {
                        reads_left = reads_left.saturating_sub(1);
                        continue;
                    }
                    BulkStep::Wait(step) => return step,
                }
            }
            let read_size = self.read_size().min(scratch.len());
            let Some(room) = scratch.get_mut(..read_size) else { return FlowStep::Stuck };
            let read = match source.poll_read(cx, room) {
                Poll::Pending => return FlowStep::Idle,
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    continue;
                }
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return FlowStep::SourceFailed(error),
            };
            if read >= HEAVY {
                reads_left = count_large_read(reads_left, read);
            }
            if !policy.after_read() {
                return FlowStep::Stopped(read);
            }
            let bytes = match broken::first(room, read) {
                Ok(bytes) => bytes,
                Err(error) => return FlowStep::SourceFailed(error),
            };
            policy.on_read(bytes);
            if measured {
                self.keep(bytes);
            } else if let Err(step) = self.write(cx, sink, policy, bytes) {
                return step;
            }
        }
        FlowStep::More
    }

    /// How much is read at a time: what its sink does not take of it is kept.
    #[inline]
    pub(crate) fn read_size(&self) -> usize {
        (buffer::SCRATCH_SIZE >> self.size_shift).min(buffer::max_read())
    }

    /// Writes `bytes` and keeps what the sink does not take.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
        bytes: &[u8],
    ) -> Result<(), FlowStep> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // A bound that came up meanwhile is minded by `flush_kept`, which knows what was kept.
            let wrote = match policy.leave(&[]) {
                WritePermission::Free => sink.poll_write(cx, rest),
                WritePermission::Shut | WritePermission::Measured(_) => Poll::Pending,
            };
            match wrote {
                Poll::Ready(Ok(n)) => {
                    let Some((gone, left)) = rest.split_at_checked(n) else {
                        return Err(FlowStep::SinkFailed(broken::broken(
                            "more was written than there was",
                        )));
                    };
                    policy.on_written(gone, false);
                    self.moved += gone.len() as u64;
                    rest = left;
                }
                Poll::Pending => {
                    self.keep(rest);
                    self.size_shift = SLOW_SHIFT;
                    return Err(FlowStep::Stuck);
                }
                Poll::Ready(Err(error)) => {
                    // What never went may still go elsewhere.
                    self.keep(rest);
                    return Err(FlowStep::SinkFailed(error));
                }
            }
        }
        self.size_shift = self.size_shift.saturating_sub(1);
        Ok(())
    }

    /// Writes what was kept. `None` if nothing is left of it.
    fn flush_kept(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
    ) -> Option<FlowStep> {
        let kept = self.kept.as_deref_mut()?;
        while let rest @ [_, ..] = kept.rest() {
            let (max_write, measured) = match policy.leave(rest) {
                WritePermission::Free => (rest.len(), false),
                WritePermission::Measured(max_write) if max_write > 0 => {
                    (max_write.min(rest.len()), true)
                }
                WritePermission::Measured(_) | WritePermission::Shut => {
                    return Some(FlowStep::Stuck);
                }
            };
            // No more than there is, as was just seen to.
            let bytes = rest.get(..max_write).unwrap_or(rest);
            match sink.poll_write(cx, bytes) {
                Poll::Ready(Ok(n)) => {
                    let Some(gone) = bytes.get(..n) else {
                        return Some(FlowStep::SinkFailed(broken::broken(
                            "more was written than there was",
                        )));
                    };
                    policy.on_written(gone, measured);
                    self.moved += n as u64;
                    if let Err(error) = kept.consume(n) {
                        return Some(FlowStep::SinkFailed(error));
                    }
                }
                Poll::Pending => return Some(FlowStep::Stuck),
                Poll::Ready(Err(error)) => return Some(FlowStep::SinkFailed(error)),
            }
        }
        // An idle session holds no buffer.
        self.kept = None;
        None
    }

    fn send_end(&mut self, cx: &mut Context<'_>, sink: &mut impl ByteStream) -> FlowStep {
        if !self.end_sent {
            match sink.poll_shutdown(cx) {
                Poll::Pending => return FlowStep::Stuck,
                // The other side has gone too: there is nobody left to tell.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => {
                    self.end_sent = true
                }
                Poll::Ready(Err(error)) => return FlowStep::SinkFailed(error),
                Poll::Ready(Ok(())) => self.end_sent = true,
            }
        }
        FlowStep::Done
    }
}

/// What is left of the rounds of a turn after a read that brought this much.
#[cold]
fn count_large_read(reads_left: usize, read: usize) -> usize {
    tasks::record_bytes(read);
    reads_left.saturating_sub(1)
}
