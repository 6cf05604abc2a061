//! A new connection for a session that had another: opened, told what the session is, and its
//! answers checked.
//!
//! The target is proved by its answers and by nothing less ([`resp::Replay`] has a `PING` in it).
//! Before every byte to it its fence and its gate are looked at, as the pump does.
//!
//! Deliberately absent: when to try and how often, and what a failure means for the client.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};
use std::time::Instant;

use crate::io::connection::Line;
use resp::{Ledger, Limits, Replay, ReplayError};
use target::Target;

use crate::io::end::End;
use crate::io::scratch;
use crate::live_options::LiveOptions;
use crate::service::DialFailure;
use crate::session::broken;
use crate::session::dial;

/// The question whether anybody is at home.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Why there is no such connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It could not be opened.
    Dial(DialFailure),
    /// It broke, or stayed without an answer for too long.
    Broken,
    /// The server says that it is not able to serve.
    NotReady(resp::Hint),
    /// It takes no connections at present, or executes nothing but a script.
    Unavailable,
    /// The target must not be sent anything any more, or at present.
    Superseded,
    /// The server does not accept what the session is.
    Refused,
}

/// What goes on with a session on its new connection.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) ledger: Ledger,
    /// Messages for the client that have come meanwhile.
    pub(crate) messages: Vec<u8>,
}

/// Opens a connection to `target` and leads it to where the session of `ledger` was.
///
/// # Errors
///
/// Why not.
pub(crate) async fn resume(
    target: &Target,
    options: &LiveOptions,
    ledger: &Ledger,
    deadline: Instant,
) -> Result<(Line, Box<Followed>), Failed> {
    let mut upstream =
        dial::connect(target.addr(), options, deadline).await.map_err(Failed::Dial)?;
    let Some(mut replay) = Replay::of(ledger) else { return Err(Failed::Refused) };
    let answered = async {
        ask(&mut upstream, target, replay.requests()).await?;
        while !replay.is_answered() {
            let answered = |bytes: &[u8]| {
                let taken = replay.answer(bytes)?;
                let behind = broken::behind(bytes, taken).map_err(|_| ReplayError::Unexpected)?;
                replay.follow(behind)?;
                Ok(!behind.is_empty())
            };
            match read(&mut upstream, answered).await? {
                Ok(false) => {}
                // What stands behind the answers comes from a server that is done with them.
                Ok(true) => break,
                Err(ReplayError::NotReady(hint)) => return Err(Failed::NotReady(hint)),
                Err(ReplayError::Unavailable) => return Err(Failed::Unavailable),
                Err(ReplayError::Refused | ReplayError::Unexpected) => return Err(Failed::Refused),
            }
        }
        Ok(())
    };
    within(options, deadline, answered).await?;
    let (ledger, messages) = replay.finish(ledger).map_err(|_| Failed::Refused)?;
    Ok((upstream, Box::new(Followed { ledger, messages })))
}

/// Whether `target` takes a connection and answers on it. Any answer will do, be it that a password
/// is wanted, that it has too many clients or that it runs a script: it lives, with its data. Only
/// one that says that it has lost its role or its data is none.
pub(crate) async fn answers(
    target: &Target,
    options: &LiveOptions,
    deadline: Instant,
) -> Result<(), Failed> {
    let mut upstream =
        dial::connect(target.addr(), options, deadline).await.map_err(Failed::Dial)?;
    let mut ledger = Ledger::new(&Limits::default());
    ledger.request(PING);
    let asked = async {
        ask(&mut upstream, target, PING).await?;
        while ledger.owed() > 0 {
            read(&mut upstream, |bytes| ledger.reply(bytes)).await?;
            if let Some(hint) = ledger.take_hint() {
                return Err(Failed::NotReady(hint));
            }
            if ledger.session_state() == resp::SessionState::Opaque {
                return Err(Failed::Broken);
            }
        }
        Ok(())
    };
    within(options, deadline, asked).await
}

/// An answer may take as long as a dial.
async fn within(
    options: &LiveOptions,
    deadline: Instant,
    work: impl Future<Output = Result<(), Failed>>,
) -> Result<(), Failed> {
    let deadline = deadline.min(Instant::now() + options.now().connect_timeout);
    tokio::time::timeout_at(deadline.into(), work).await.unwrap_or(Err(Failed::Broken))
}

/// Writes all of it, as long as the target may be sent anything.
async fn ask(upstream: &mut Line, target: &Target, bytes: &[u8]) -> Result<(), Failed> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = poll_fn(|cx| {
            if !target.takes_requests() {
                return Poll::Ready(Err(Failed::Superseded));
            }
            upstream.poll_write(cx, rest).map_err(broken_off)
        });
        rest = broken::behind(rest, written.await?).map_err(broken_off)?;
    }
    Ok(())
}

/// Writes all of it.
pub(crate) async fn write(upstream: &mut Line, bytes: &[u8]) -> Result<(), Failed> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = poll_fn(|cx| upstream.poll_write(cx, rest)).await.map_err(broken_off)?;
        rest = broken::behind(rest, written).map_err(broken_off)?;
    }
    Ok(())
}

/// Reads once and shows what came.
async fn read<T>(upstream: &mut Line, mut look: impl FnMut(&[u8]) -> T) -> Result<T, Failed> {
    poll_fn(|cx| {
        scratch::with(|scratch| {
            let read = ready!(upstream.poll_read(cx, scratch)).map_err(broken_off)?;
            let bytes =
                scratch.get(..read).filter(|bytes| !bytes.is_empty()).ok_or(Failed::Broken)?;
            Poll::Ready(Ok(look(bytes)))
        })
    })
    .await
}

fn broken_off(_: io::Error) -> Failed {
    Failed::Broken
}
