//! The access log: one line at the end of a session, and which sessions get one.
//!
//! To find the cause of an error, an operator needs the line of that one session; with ten thousand
//! sessions per second, few lines are wanted. So sessions that failed are always logged unless the
//! log is off, and sessions that ended well can be left out or sampled. A line that is not wanted
//! is logged at level debug.

use tracing::Level;

use crate::end_reason::EndReason;
use crate::not_carried::Uncarried;

/// Which sessions are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LoggedSessions {
    /// None.
    Off,
    /// Sessions that ended other than client or operator wanted.
    #[default]
    Failed,
    /// All.
    All,
}

/// The settings of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessLog {
    /// Which sessions are logged.
    pub which: LoggedSessions,
    /// The level of a line.
    pub level: Level,
    /// Of the sessions that ended well, one in this many is logged.
    pub one_in: u32,
}

impl Default for AccessLog {
    fn default() -> Self {
        Self { which: LoggedSessions::default(), level: Level::INFO, one_in: 1 }
    }
}

impl AccessLog {
    /// The level of the line of one session. `sampled` says whether the session is in a sample of
    /// one in the given number.
    pub(crate) fn level(self, failed: bool, sampled: impl FnOnce(u32) -> bool) -> Level {
        let wanted = match self.which {
            LoggedSessions::Off => false,
            LoggedSessions::Failed => failed,
            LoggedSessions::All => failed || self.one_in <= 1 || sampled(self.one_in),
        };
        if wanted { self.level } else { Level::DEBUG }
    }
}

/// Whether a session ended other than wanted. A server that dies closes connections as one that
/// wants to, so that alone is no failure; but for an unknown command the operator can act, and
/// needs its name.
pub(crate) fn has_failed(reason: EndReason, uncarried: Option<&Uncarried>) -> bool {
    reason.is_failure() || uncarried.is_some_and(|it| it.command.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::not_carried::NotCarried;

    #[test]
    fn logs_all_failures_and_a_sample_of_the_rest() {
        let level = |which, one_in, reason, sampled| {
            AccessLog { which, level: Level::WARN, one_in }.level(reason, |_| sampled)
                == Level::WARN
        };
        let session = has_failed;
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
