//! One direction of a session: moves bytes from a source to a sink, as fast as the sink accepts
//! them.
//!
//! Bytes are written immediately after they are read, out of the worker's scratch buffer. Only what
//! the sink does not accept is kept in a buffer, and while there is any, nothing more is read. So
//! the sender is slowed to the receiver's pace (TCP's window does the rest), and memory is bounded
//! by one read. After a slow write, reads are smaller until the sink has caught up, and they are
//! smaller for all sessions while many sinks are slow ([`buffer`]).
//!
//! Whether a byte may be forwarded is not decided here: the [`ForwardingPolicy`] is consulted
//! before every single write.

use std::io;
use std::task::{Context, Poll};

use crate::invariant;
use crate::io::buffer::{self, KeptBytes};
use crate::io::pipe::{self, Pipe};
use crate::io::stream::ByteStream;
use crate::runtime::run_queue::HEAVY;
use crate::runtime::tasks;

/// After a write that the sink did not accept in full, reads are smaller by this many powers of
/// two: 16 KiB.
const SLOW_SHIFT: u8 = 4;

/// Reads in a row before other sessions and the event loop run. A read of at least [`HEAVY`] bytes
/// counts twice, as does a filled pipe: 512 KiB in total.
pub(crate) const MAX_READS: usize = 4;

/// How much of what was read may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WritePermission {
    /// Everything.
    Unlimited,
    /// Nothing now, and nothing should be read either.
    Blocked,
    /// At most this many bytes, which the policy has already accounted for; 0 for none at present.
    Limited(usize),
    /// At most this many bytes, which cannot be taken back one by one
    /// ([`ByteStream::begun_write`]). The policy accounts for them when they are written.
    Begun(usize),
}

/// Decides what may be forwarded and observes what was.
pub(crate) trait ForwardingPolicy {
    /// Called before every read: whether reading makes sense.
    fn before_read(&mut self) -> WritePermission;

    /// Called after every read, before [`on_read`](Self::on_read): whether the bytes may be
    /// forwarded normally.
    fn after_read(&mut self, bytes: &[u8]) -> bool;

    /// Called before every write. `waiting` are the next bytes, if they have been read already; the
    /// first `begun` of them cannot be taken back one by one.
    fn before_write(&mut self, waiting: &[u8], begun: usize) -> WritePermission;

    /// These bytes were read from the source.
    fn on_read(&mut self, bytes: &[u8]);

    /// These bytes were written to the sink. `measured` if the policy has already accounted for
    /// them.
    fn on_written(&mut self, bytes: &[u8], measured: bool);

    /// The number of bytes that come next and that the policy need not see.
    fn bulk_left(&self) -> u64;

    /// This many of them were read from the source.
    fn on_bulk_read(&mut self, n: u64);

    /// This many of them were written to the sink.
    fn on_bulk_written(&mut self, n: u64);
}

/// The state of a direction after it was moved as far as possible.
#[derive(Debug)]
pub(crate) enum FlowStep {
    /// Waits for its source: everything read has been written.
    Idle,
    /// Waits for its sink or for permission.
    Stuck,
    /// Could continue, but other tasks should run first: poll it again.
    More,
    /// This many bytes were read, and the policy did not admit them. They are in the caller's
    /// buffer and nowhere else.
    Stopped(usize),
    /// The source has ended, everything was written, and the end was signalled to the sink if it is
    /// to be.
    Done,
    /// The source failed.
    SourceFailed(io::Error),
    /// The sink failed.
    SinkFailed(io::Error),
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Read and not yet written. Boxed, because most sessions never have any.
    pub(super) kept: Option<Box<KeptBytes>>,
    /// How many times the size of reads is halved because the sink was slow.
    size_shift: u8,
    /// The pipe of a body; empty while `kept` has bytes.
    pub(crate) pipe: Option<Box<Pipe>>,
    /// Bytes written.
    pub(crate) moved: u64,
    pub(crate) ended: bool,
    end_sent: bool,
    /// The end is not signalled to the sink, which ends by itself: nothing more is taken from the
    /// source, which has not ended. A server that reads an end discards replies that it has not
    /// written yet.
    pub(crate) end_withheld: bool,
}

/// Whether the end of the source is signalled to the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndSignal {
    /// As soon as it ends.
    Yes,
    /// Decided by the caller: the sink may be about to be closed, which signals the end as well, or
    /// the session may continue with another target.
    NotYet,
}

impl Flow {
    /// A direction whose first bytes, `early`, have already been read.
    pub(crate) fn new(early: Vec<u8>) -> Self {
        let mut flow = Self::default();
        flow.replace_kept(early);
        flow
    }

    /// Appends these bytes to what is kept.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        match &mut self.kept {
            Some(kept) => kept.add(bytes),
            None => self.replace_kept(bytes.to_vec()),
        }
    }

    /// Replaces what is kept by these bytes.
    pub(crate) fn replace_kept(&mut self, bytes: Vec<u8>) {
        self.kept = if bytes.is_empty() { None } else { Some(Box::new(KeptBytes::new(bytes))) };
    }

    /// Whether everything that was read has been written.
    pub(crate) fn is_clear(&self) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.rest().is_empty())
            && self.pipe.as_ref().is_none_or(|pipe| pipe.len() == 0)
    }

    /// Takes what was read and could not be written.
    pub(crate) fn take_kept(&mut self) -> Vec<u8> {
        // A loss has been logged. The value that it belongs to ends with the session in any case.
        drop(self.drain_pipe());
        self.kept.take().map_or_else(Vec::new, |kept| kept.into_rest())
    }

    /// Writes what was read and could not be written. `None` if nothing of it is left.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
    ) -> Option<FlowStep> {
        // The usual case.
        if self.pipe.is_none() && self.kept.is_none() {
            return None;
        }
        self.empty_pipe(cx, sink, policy).or_else(|| self.flush_kept(cx, sink, policy))
    }

    /// Moves bytes until one of the ends makes it wait. The caller must have updated the readiness
    /// of the source, or it may miss bytes when this returns [`FlowStep::Idle`]. `reads_left` is
    /// what [`poll_usual`](Self::poll_usual) has left of [`MAX_READS`].
    pub(crate) fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl ByteStream,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
        scratch: &mut [u8],
        end_signal: EndSignal,
        mut reads_left: usize,
    ) -> FlowStep {
        while reads_left > 0 {
            reads_left -= 1;
            if let Some(step) = self.flush(cx, sink, policy) {
                return step;
            }
            if self.ended {
                if end_signal == EndSignal::NotYet {
                    return FlowStep::Done;
                }
                return self.send_end(cx, sink);
            }
            // Checked first: most iterations end here. Every event concerns one direction, and an
            // incomplete read is the last one.
            if !source.is_readable() {
                return FlowStep::Idle;
            }
            if let Err(step) = self.forward_once(cx, source, sink, policy, scratch, &mut reads_left)
            {
                return step;
            }
        }
        FlowStep::More
    }

    /// Whether nothing was read that is not written yet, and the source has not ended.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.kept.is_none() && self.pipe.is_none() && !self.ended
    }

    /// The usual move: nothing waits, and one read takes everything that has arrived. Its
    /// conditions are those of [`poll_move`](Self::poll_move).
    ///
    /// Nearly every poll moves one small piece in one direction. Inlined where that is known, it
    /// saves the calls, and the checks for what cannot have changed.
    ///
    /// # Errors
    ///
    /// `poll_move` has to continue, with so many reads left.
    #[inline(always)]
    pub(crate) fn poll_usual(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl ByteStream,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
        scratch: &mut [u8],
    ) -> Result<FlowStep, usize> {
        if !self.is_plain() {
            return Err(MAX_READS);
        }
        if source.is_readable() {
            let mut reads_left = MAX_READS - 1;
            if let Err(step) = self.forward_once(cx, source, sink, policy, scratch, &mut reads_left)
            {
                return Ok(step);
            }
            // What is limited or spliced is not written yet.
            if !self.is_plain() || source.is_readable() {
                return Err(reads_left);
            }
        }
        Ok(FlowStep::Idle)
    }

    /// Reads once, and writes what was read. An end of the source is only recorded.
    ///
    /// # Errors
    ///
    /// The step with which the move ends.
    #[inline(always)]
    fn forward_once(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl ByteStream,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
        scratch: &mut [u8],
        reads_left: &mut usize,
    ) -> Result<(), FlowStep> {
        if !sink.has_room() {
            return Err(FlowStep::Stuck);
        }
        let measured = match policy.before_read() {
            WritePermission::Unlimited => false,
            WritePermission::Limited(_) => true,
            WritePermission::Blocked | WritePermission::Begun(_) => return Err(FlowStep::Stuck),
        };
        if !measured && self.fill_pipe(cx, source, sink, policy)? {
            *reads_left = reads_left.saturating_sub(1);
            return Ok(());
        }
        let read_size = self.read_size().min(scratch.len());
        let Some(unread) = scratch.get_mut(..read_size) else { return Err(FlowStep::Stuck) };
        let read = match source.poll_read(cx, unread) {
            Poll::Pending => return Err(FlowStep::Idle),
            Poll::Ready(Ok(0)) => {
                self.ended = true;
                return Ok(());
            }
            Poll::Ready(Ok(n)) => n,
            Poll::Ready(Err(error)) => return Err(FlowStep::SourceFailed(error)),
        };
        if read >= HEAVY {
            *reads_left = count_large_read(*reads_left, read);
        }
        let bytes = invariant::first_bytes(unread, read).map_err(FlowStep::SourceFailed)?;
        if !policy.after_read(bytes) {
            return Err(FlowStep::Stopped(read));
        }
        policy.on_read(bytes);
        if measured {
            self.keep(bytes);
            return Ok(());
        }
        self.write(cx, sink, policy, bytes)
    }

    /// The size of the next read: what the sink does not accept of it is kept.
    #[inline]
    pub(crate) fn read_size(&self) -> usize {
        (buffer::SCRATCH_SIZE >> self.size_shift).min(buffer::max_read())
    }

    /// Writes `bytes` and keeps what the sink does not accept. Each direction of each kind of
    /// session calls it once; out of line it costs 54 instructions per request.
    #[inline(always)]
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
        bytes: &[u8],
    ) -> Result<(), FlowStep> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // A limit that came up meanwhile is applied by `flush_kept`, which knows what was kept.
            let wrote = match policy.before_write(&[], 0) {
                WritePermission::Unlimited => sink.poll_write(cx, rest),
                WritePermission::Blocked
                | WritePermission::Limited(_)
                | WritePermission::Begun(_) => Poll::Pending,
            };
            match wrote {
                Poll::Ready(Ok(n)) => {
                    let Some((gone, left)) = rest.split_at_checked(n) else {
                        return Err(FlowStep::SinkFailed(invariant::violation(
                            "more bytes were written than available",
                        )));
                    };
                    policy.on_written(gone, false);
                    self.moved += gone.len() as u64;
                    rest = left;
                }
                Poll::Pending => {
                    self.size_shift = SLOW_SHIFT;
                    return Err(self.keep_unwritten(rest, None));
                }
                Poll::Ready(Err(error)) => return Err(self.keep_unwritten(rest, Some(error))),
            }
        }
        self.size_shift = self.size_shift.saturating_sub(1);
        Ok(())
    }

    /// Keeps what the sink did not accept, and was never sent: it may still go to another target if
    /// the sink has failed with `error`.
    #[cold]
    fn keep_unwritten(&mut self, rest: &[u8], error: Option<io::Error>) -> FlowStep {
        self.keep(rest);
        error.map_or(FlowStep::Stuck, FlowStep::SinkFailed)
    }

    /// Writes what was kept. `None` if nothing of it is left.
    fn flush_kept(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
    ) -> Option<FlowStep> {
        let kept = self.kept.as_deref_mut()?;
        while let rest @ [_, ..] = kept.rest() {
            let (max_write, measured) = match policy.before_write(rest, sink.begun_write()) {
                WritePermission::Unlimited => (rest.len(), false),
                WritePermission::Begun(max_write) => (max_write.min(rest.len()), false),
                WritePermission::Limited(max_write) if max_write > 0 => {
                    (max_write.min(rest.len()), true)
                }
                WritePermission::Limited(_) | WritePermission::Blocked => {
                    return Some(FlowStep::Stuck);
                }
            };
            // Not more than there is, as computed above.
            let bytes = rest.get(..max_write).unwrap_or(rest);
            match sink.poll_write(cx, bytes) {
                Poll::Ready(Ok(n)) => {
                    let Some(gone) = bytes.get(..n) else {
                        return Some(FlowStep::SinkFailed(invariant::violation(
                            "more bytes were written than available",
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
        if !self.end_sent && !self.end_withheld {
            match sink.poll_shutdown(cx) {
                Poll::Pending => return FlowStep::Stuck,
                // The other side has closed too, so there is no peer to signal.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => {
                    self.end_sent = true;
                }
                Poll::Ready(Err(error)) => return FlowStep::SinkFailed(error),
                Poll::Ready(Ok(())) => self.end_sent = true,
            }
        }
        FlowStep::Done
    }
}

/// The remaining reads of a turn after a read of this size.
#[cold]
fn count_large_read(reads_left: usize, read: usize) -> usize {
    tasks::record_bytes(read);
    reads_left.saturating_sub(1)
}

// Splicing: bodies of large bulk strings go through a kernel [`pipe`] instead of
// this process, since their length is known and their content is not needed.
//
// Everything else is as for bytes that are read: the policy is consulted before each move to the
// sink, so what is in the pipe when the fence is raised never leaves it; a sink that accepts
// nothing keeps the pipe full and the source unread; the end or an error of the source is
// processed after what was moved before.
//
// Splicing costs two system calls and some work per page, copying costs the copy. Measured on
// loopback, where a copy is all that "the network" does (values of 1 MiB, four interleaved runs on
// two cores): GET .202 against .282 CPU seconds per GiB, SET .181 against .357, throughput 3 to 5
// % lower; at 64 KiB no difference beyond the noise. So it begins at [`MIN_BODY`] bytes.
//
// What the ledger does not follow is never spliced: in an opaque session no length is known.

/// The minimum remaining length of a body for which splicing begins.
const MIN_BODY: u64 = 512 * 1024;

/// Once it has begun, splicing continues down to this remaining length; the rest arrives in one
/// read together with what follows.
const MIN_REST: u64 = 64 * 1024;

impl Flow {
    /// Moves the content of the pipe to the sink. `None` if nothing is left in it.
    pub(crate) fn empty_pipe(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl ByteStream,
        policy: &mut impl ForwardingPolicy,
    ) -> Option<FlowStep> {
        while let Some(pipe) = self.pipe.as_deref_mut().filter(|pipe| pipe.len() > 0) {
            // The length needs no check: all of it belongs to a body in progress.
            if policy.before_write(&[], 0) == WritePermission::Blocked {
                return Some(FlowStep::Stuck);
            }
            match sink.poll_drain(cx, pipe) {
                Poll::Ready(Ok(n)) => {
                    policy.on_bulk_written(n as u64);
                    self.moved += n as u64;
                }
                Poll::Pending => return Some(FlowStep::Stuck),
                Poll::Ready(Err(error)) if pipe::is_unsupported(&error) => {
                    disable_splicing(&error);
                    if let Err(error) = self.drain_pipe() {
                        return Some(FlowStep::SinkFailed(error));
                    }
                }
                Poll::Ready(Err(error)) => return Some(FlowStep::SinkFailed(error)),
            }
        }
        None
    }

    /// Moves a part of a body from the source into the pipe, which must be empty, if a large enough
    /// body is in progress. Returns whether it did, or the source has ended; otherwise the source
    /// is to be read.
    ///
    /// # Errors
    ///
    /// The step with which the move ends.
    #[inline]
    pub(crate) fn fill_pipe(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl ByteStream,
        sink: &impl ByteStream,
        policy: &mut impl ForwardingPolicy,
    ) -> Result<bool, FlowStep> {
        let body = policy.bulk_left();
        // The usual case.
        if body < MIN_BODY && self.pipe.is_none() {
            return Ok(false);
        }
        self.fill_pipe_from(cx, source, sink, policy, body)
    }

    #[cold]
    fn fill_pipe_from(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut impl ByteStream,
        sink: &impl ByteStream,
        policy: &mut impl ForwardingPolicy,
        body: u64,
    ) -> Result<bool, FlowStep> {
        if !source.can_splice() || !sink.can_splice() {
            return Ok(false);
        }
        if body < MIN_REST {
            self.pipe = None;
            return Ok(false);
        }
        let Some(pipe) = self.pipe.take().or_else(pipe::acquire) else { return Ok(false) };
        let pipe = self.pipe.insert(pipe);
        match source.poll_fill(cx, pipe, usize::try_from(body).unwrap_or(pipe::PIPE_SIZE)) {
            Poll::Ready(Ok(0)) => self.ended = true,
            Poll::Ready(Ok(n)) => {
                policy.on_bulk_read(n as u64);
                tasks::record_bytes(n);
            }
            Poll::Pending => {
                // A session that waits for its source holds no pipe.
                self.pipe = None;
                return Err(FlowStep::Idle);
            }
            Poll::Ready(Err(error)) => {
                self.pipe = None;
                if pipe::is_unsupported(&error) {
                    disable_splicing(&error);
                    return Ok(false);
                }
                return Err(FlowStep::SourceFailed(error));
            }
        }
        Ok(true)
    }

    /// Moves the content of the pipe into memory.
    ///
    /// # Errors
    ///
    /// Not all of it is there.
    pub(crate) fn drain_pipe(&mut self) -> io::Result<()> {
        if let Some(mut pipe) = self.pipe.take() {
            self.keep(&pipe.read_all()?);
        }
        Ok(())
    }
}

/// Makes this worker copy from now on, and logs that once.
#[cold]
fn disable_splicing(error: &io::Error) {
    if pipe::disable() {
        tracing::warn!(%error, "splice is not available, copying instead");
    }
}
