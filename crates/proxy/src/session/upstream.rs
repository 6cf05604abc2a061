//! The connection of a session to its target: with or without TLS, or shared.
//!
//! The pump is compiled for each kind, so its paths have no branch for the other one. This type is
//! what everything around the pump uses: connecting, replay, and the end.

use tls::ClientSide;

use crate::durability::ConfirmedStream;
use crate::io::stream::{ByteStream, SocketStream};
use crate::io::tls_stream::TlsStream;
use crate::shared::Member;

/// The target's end of a session, as its pump uses it.
pub(crate) trait TargetStream: ByteStream {
    /// Whether written bytes may still be taken back, and are recorded when they are sent: true of
    /// a member of a shared connection only.
    const SHARED: bool = false;

    /// The member of a shared connection, if it is one.
    #[inline]
    fn member(&self) -> Option<&Member> {
        None
    }
}

impl TargetStream for SocketStream {}

impl TargetStream for TlsStream<ClientSide> {}

impl TargetStream for Member {
    const SHARED: bool = true;

    #[inline]
    fn member(&self) -> Option<&Member> {
        Some(self)
    }
}

impl<S: ByteStream> TargetStream for ConfirmedStream<S> {}

/// A connection that a pump takes out of an [`Upstream`] and puts back.
pub(crate) trait UpstreamPart: TargetStream + Into<Upstream> + 'static {}

impl<S: TargetStream + Into<Upstream> + 'static> UpstreamPart for S {}

/// A connection to a target. When it is dropped it is closed, and its end is announced if the
/// protocol has a word for that and nothing is under way. A part that is taken out of it does the
/// same.
#[derive(Debug)]
pub(crate) enum Upstream {
    Plain(SocketStream),
    Tls(TlsStream<ClientSide>),
    /// A share of a connection that has other clients, too.
    Shared(Member),
}

impl Upstream {
    /// A share of a connection that is chosen when there is a request.
    pub(crate) fn sharing() -> Self {
        Self::Shared(Member::new())
    }

    /// Whether it has other clients, too.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The connection, of whichever kind.
    pub(crate) fn stream(&mut self) -> &mut dyn ByteStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream,
            Self::Shared(member) => member,
        }
    }

    /// Closes a connection on which everything was answered, by a reset: after an end in order its
    /// local port could not be used for a minute. TLS ends in order, because servers do not resume
    /// a session of which the end was not announced.
    pub(crate) fn close_answered(self) {
        if let Self::Plain(socket) = self {
            socket.reset_on_close();
        }
    }

    /// Makes close discard everything that was written and has not left this host, with a reset
    /// instead of an end.
    pub(crate) fn reset_on_close(&mut self) {
        match self {
            Self::Plain(socket) => socket.reset_on_close(),
            Self::Tls(stream) => stream.reset_on_close(),
            // Its task resets it, if its target is fenced.
            Self::Shared(_) => {}
        }
    }
}

impl From<SocketStream> for Upstream {
    fn from(socket: SocketStream) -> Self {
        Self::Plain(socket)
    }
}

impl From<TlsStream<ClientSide>> for Upstream {
    fn from(stream: TlsStream<ClientSide>) -> Self {
        Self::Tls(stream)
    }
}

impl From<Member> for Upstream {
    fn from(member: Member) -> Self {
        Self::Shared(member)
    }
}

impl<S: ByteStream + Into<Upstream>> From<ConfirmedStream<S>> for Upstream {
    fn from(confirmed: ConfirmedStream<S>) -> Self {
        confirmed.into_inner().into()
    }
}
