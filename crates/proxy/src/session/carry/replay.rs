//! Replay of a session's state on a new connection: opened, sent what the session had set, and its
//! answers checked.
//!
//! The target is proved by its answers and by nothing less ([`resp::Replay`] contains a `PING`).
//! Its fence and its gate are checked before every write to it, as in the pump.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Instant;

use resp::{Frames, Ledger, Limits, Replay, ReplayError};
use target::Target;
use tls::OutsideText;

use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::stream;
use crate::service::DialFailure;
use crate::session::carry::Opened;
use crate::session::dial::{self, Dial};
use crate::session::pump::Start;
use crate::session::upstream::Upstream;

/// Why an attempt to connect failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The connection could not be opened.
    Dial(DialFailure),
    /// The connection broke, or no answer came in time.
    Broken,
    /// The server replied that it cannot serve now.
    NotReady(resp::Hint),
    /// The server has too many clients, or runs a script.
    Unavailable,
    /// The target must not be sent anything any more, or at present.
    Superseded,
    /// The server does not accept the session's state.
    Refused,
}

impl Failed {
    /// Whether the cause is on this host, so that it says nothing about the target.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::Dial(failure) if failure.is_ours())
    }

    /// Why a session ends that has no time for another attempt.
    pub(crate) fn end_reason(self) -> EndReason {
        match self {
            Self::Dial(failure) if failure.is_ours() => EndReason::ResourcesExhausted,
            Self::Dial(DialFailure::Tls) => EndReason::TargetTlsFailed,
            _ => EndReason::DialFailed,
        }
    }
}

/// A server that is dialled, or asked on a connection to it, until a deadline.
#[derive(Clone, Copy)]
pub(crate) struct Server<'a> {
    pub(crate) target: &'a Target,
    pub(crate) context: &'a WorkerContext,
    pub(crate) deadline: Instant,
}

impl Server<'_> {
    /// Opens a connection, within `connect_timeout`.
    ///
    /// # Errors
    ///
    /// Why that failed.
    pub(crate) async fn connect(self) -> Result<Upstream, Failed> {
        let Self { target, context, deadline } = self;
        let dial = Dial::begin(target, &context.shared.service.options.peek());
        let dialled = dial.map_err(Failed::Dial)?.finish(target, context, deadline).await;
        dialled.map_err(Failed::Dial)
    }

    /// Opens a connection and replays the state of the session of `ledger` on it.
    ///
    /// # Errors
    ///
    /// Why the attempt failed.
    pub(crate) async fn replay(self, ledger: &Ledger) -> Opened {
        let Some(mut replay) = Replay::of(ledger) else { return Err(Failed::Refused) };
        let mut upstream = self.exchange(&mut replay).await;
        if upstream.is_ok()
            && let Some(other_order) = replay.before_authentication(ledger)
        {
            replay = other_order;
            upstream = self.exchange(&mut replay).await;
        }
        let (refusal, lacks_names) = (replay.refusal().to_vec(), replay.lacks_names(ledger));
        let replayed = upstream.and_then(|upstream| {
            let finished = replay.finish(ledger).map_err(|_| Failed::Refused)?;
            Ok((upstream, finished))
        });
        if matches!(replayed, Err(Failed::Refused)) {
            self.log_refusal(&refusal);
        }
        let (upstream, (ledger, messages)) = replayed?;
        if lacks_names {
            self.context.counters.names_dropped.increment();
        }
        Ok((upstream, Start { messages, ..Start::resumed(Vec::new(), Box::new(ledger)) }))
    }

    pub(crate) fn log_refusal(self, refusal: &[u8]) {
        let shared = &self.context.shared;
        let Some(unlogged) = shared.logs.refused_replays.due(0, Instant::now()) else { return };
        let error = match refusal {
            [] => "it sent unexpected replies".into(),
            words => OutsideText::of_bytes(words, OutsideText::MAX_CHARS),
        };
        tracing::warn!(
            service = &*shared.service.name, upstream = %self.target.addr(), %error, unlogged,
            "server refuses a session that it, or the master before, had accepted"
        );
    }

    /// Opens a connection and has all requests of `replay` answered on it.
    ///
    /// # Errors
    ///
    /// Why the attempt failed.
    pub(crate) async fn exchange(self, replay: &mut Replay) -> Result<Upstream, Failed> {
        let mut upstream = self.connect().await?;
        self.exchange_on(&mut upstream, replay).await?;
        Ok(upstream)
    }

    /// Has all requests of `replay` answered on a connection that is in the state of a new one.
    ///
    /// # Errors
    ///
    /// Why the attempt failed. The connection is of no use then.
    pub(crate) async fn exchange_on(
        self,
        upstream: &mut Upstream,
        replay: &mut Replay,
    ) -> Result<(), Failed> {
        let answered = async {
            self.send(upstream, replay.requests()).await?;
            while !replay.is_answered() {
                let answered = |bytes: &[u8]| {
                    let taken = replay.answer(bytes)?;
                    let after =
                        invariant::rest_after(bytes, taken).map_err(|_| ReplayError::Unexpected)?;
                    replay.follow(after)?;
                    Ok(!after.is_empty())
                };
                match self.read(upstream, answered).await? {
                    Ok(false) => {}
                    // The server has answered everything: what follows was sent after that.
                    Ok(true) => break,
                    Err(ReplayError::NotReady(hint)) => return Err(Failed::NotReady(hint)),
                    Err(ReplayError::Unavailable) => return Err(Failed::Unavailable),
                    Err(ReplayError::Refused | ReplayError::Unexpected) => {
                        return Err(Failed::Refused);
                    }
                }
            }
            Ok(())
        };
        self.within(answered).await
    }

    /// Returns when the server has accepted a connection and answered on it. Any answer counts,
    /// even that there are too many clients: the server is alive, with its data.
    pub(crate) async fn answers(self) -> Result<(), Failed> {
        let mut upstream = self.connect().await?;
        match self.answers_on(&mut upstream).await {
            Err(Failed::Unavailable) => Ok(()),
            answered => answered,
        }
    }

    /// Returns when the server has answered on a connection on which it was sent nothing yet. That
    /// a password is needed or that a script runs is an answer. A server that replies that it has
    /// lost its role or its data, or that it has too many clients, counts as failed.
    pub(crate) async fn answers_on(self, upstream: &mut Upstream) -> Result<(), Failed> {
        match self.exchange_on(upstream, &mut Replay::of_new().on_same_server()).await {
            Err(Failed::Refused) => Err(Failed::Broken),
            answered => answered,
        }
    }

    /// Has one more request answered on a connection that [`exchange`](Self::exchange) has opened,
    /// with a reply of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// Why that failed. The connection is of no use then.
    pub(crate) async fn ask(
        self,
        upstream: &mut Upstream,
        request: &[u8],
        most: usize,
    ) -> Result<Vec<u8>, Failed> {
        let (mut reply, mut frames) = (Vec::new(), Frames::new(Limits::default()));
        let answered = async {
            self.send(upstream, request).await?;
            loop {
                let end = |bytes: &[u8]| {
                    reply.extend_from_slice(bytes);
                    (frames.end(bytes), bytes.len())
                };
                match self.read(upstream, end).await? {
                    (Ok(None), _) if reply.len() <= most => {}
                    (Ok(Some(end)), len) if end == len => return Ok(()),
                    _ => return Err(Failed::Broken),
                }
            }
        };
        self.within(answered).await?;
        Ok(reply)
    }

    /// An answer may take as long as a dial.
    async fn within(self, work: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
        let longest = self.context.shared.service.options.now().connect_timeout;
        let deadline = self.deadline.min(Instant::now() + longest);
        tokio::time::timeout_at(deadline.into(), work).await.unwrap_or(Err(Failed::Broken))
    }

    /// Writes all bytes, as long as the target may be sent anything.
    async fn send(self, upstream: &mut Upstream, bytes: &[u8]) -> Result<(), Failed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = poll_fn(|cx| {
                if !self.target.accepts_requests() {
                    return Poll::Ready(Err(Failed::Superseded));
                }
                upstream.stream().poll_write(cx, rest).map_err(|error| self.broken(&error))
            });
            rest = invariant::rest_after(rest, written.await?).map_err(|_| Failed::Broken)?;
        }
        Ok(())
    }

    /// Reads once and parses the received bytes.
    async fn read<T>(
        self,
        upstream: &mut Upstream,
        mut parse: impl FnMut(&[u8]) -> T,
    ) -> Result<T, Failed> {
        let mut parse = |read: io::Result<&[u8]>| match read {
            Ok([]) => Err(Failed::Broken),
            Ok(bytes) => Ok(parse(bytes)),
            Err(error) => Err(self.broken(&error)),
        };
        poll_fn(|cx| stream::poll_parse(upstream.stream(), cx, usize::MAX, &mut parse)).await
    }

    /// A server that wants a certificate of this side says so after its part of the handshake.
    fn broken(self, error: &io::Error) -> Failed {
        match dial::note_error(self.context, self.target, error) {
            true => Failed::Dial(DialFailure::Tls),
            false => Failed::Broken,
        }
    }
}
