//! The line at a session's end: which sessions get one, and what stands in it.
//!
//! Whoever chases an error needs the line of that one session; whoever has ten thousand sessions a
//! second needs few lines. So what failed is always told unless lines are off, and what ended well
//! can be left out or sampled. Lines that nobody asked for are there at the level debug.
//!
//! Deliberately absent: a bound on the rate, which the log has for everything.

use std::time::Duration;

use target::Target;
use tracing::Level;

use crate::address::Peer;
use crate::session::end_reason::EndReason;
use crate::session::not_carried::Uncarried;

/// Which sessions get a line at their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LoggedSessions {
    /// None.
    Off,
    /// Those that ended otherwise than client or operator wanted.
    #[default]
    Failed,
    /// All.
    All,
}

/// The rule for lines at sessions' ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessLog {
    /// Which sessions.
    pub which: LoggedSessions,
    /// At which level.
    pub level: Level,
    /// Of those that ended well, one in so many.
    pub one_in: u32,
}

impl Default for AccessLog {
    fn default() -> Self {
        Self { which: LoggedSessions::default(), level: Level::INFO, one_in: 1 }
    }
}

impl AccessLog {
    /// The level of the line about a session that failed or not. `chosen` says whether this one is
    /// in the sample.
    fn level(self, failed: bool, chosen: impl FnOnce(u32) -> bool) -> Level {
        let told = match self.which {
            LoggedSessions::Off => false,
            LoggedSessions::Failed => failed,
            LoggedSessions::All => failed || self.one_in <= 1 || chosen(self.one_in),
        };
        if told { self.level } else { Level::DEBUG }
    }
}

macro_rules! line {
    ($session:ident, $level:expr) => {
        tracing::event!(
            $level,
            service = $session.service,
            client = %$session.client,
            // Not `target`: that is what the log calls the place in the program.
            upstream = $session.target.map(|target| tracing::field::display(target.addr())),
            reason = $session.reason.label(),
            duration_ms = u64::try_from($session.lasted.as_millis()).unwrap_or(u64::MAX),
            bytes_in = $session.bytes.0,
            bytes_out = $session.bytes.1,
            commands = $session.commands,
            not_carried = $session.uncarried.map(|it| it.why.label()),
            unknown_command = $session.uncarried.and_then(|it| it.command.as_deref()),
            "session ended"
        )
    };
}

/// What is known of a session at its end.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) service: &'a str,
    pub(crate) client: Peer,
    pub(crate) target: Option<&'a Target>,
    pub(crate) reason: EndReason,
    pub(crate) lasted: Duration,
    pub(crate) bytes: (u64, u64),
    pub(crate) commands: u32,
    pub(crate) uncarried: Option<&'a Uncarried>,
}

impl Session<'_> {
    /// Whether it ended otherwise than wanted. A server that dies closes connections like one that
    /// wants to; but for an unknown command the operator can do something, and needs its name.
    fn has_failed(&self) -> bool {
        self.reason.is_failure() || self.uncarried.is_some_and(|it| it.command.is_some())
    }

    /// Tells of it by the rule.
    pub(crate) fn tell(&self, lines: AccessLog) {
        // A level is part of a line's place in the program, so each needs a place of its own.
        match lines.level(self.has_failed(), |one_in| fastrand::u32(..one_in) == 0) {
            Level::ERROR => line!(self, Level::ERROR),
            Level::WARN => line!(self, Level::WARN),
            Level::INFO => line!(self, Level::INFO),
            Level::DEBUG => line!(self, Level::DEBUG),
            Level::TRACE => line!(self, Level::TRACE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::not_carried::NotCarried;

    #[test]
    fn failures_are_told_and_the_others_as_far_as_wanted() {
        let level = |which, one_in, reason, chosen| {
            AccessLog { which, level: Level::WARN, one_in }.level(reason, |_| chosen) == Level::WARN
        };
        let session = |reason, uncarried| {
            let (client, lasted) = (Peer::UNIX, Duration::ZERO);
            Session {
                service: "s",
                client,
                target: None,
                reason,
                lasted,
                bytes: (0, 0),
                commands: 0,
                uncarried,
            }
            .has_failed()
        };
        let (well, badly) =
            (session(EndReason::ClientClosed, None), session(EndReason::Fenced, None));
        assert!(!well && badly);
        let named = Uncarried {
            why: NotCarried::Pinned(resp::Pin::UnknownCommand),
            command: Some("FETCH".into()),
        };
        assert!(
            !session(EndReason::UpstreamClosed, None)
                && session(EndReason::UpstreamClosed, Some(&named))
        );
        assert!(!level(LoggedSessions::Off, 1, badly, true));
        assert!(
            level(LoggedSessions::Failed, 9, badly, false)
                && !level(LoggedSessions::Failed, 1, well, true)
        );
        assert!(
            level(LoggedSessions::All, 1, well, false) && level(LoggedSessions::All, 9, well, true)
        );
        assert!(
            !level(LoggedSessions::All, 9, well, false)
                && level(LoggedSessions::All, 9, badly, false)
        );
    }
}
