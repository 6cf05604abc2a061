//! The screening of requests before they are forwarded: see [`Screen`](crate::scan::screen).
//!
//! Nearly all requests are short, whole and ordinary. These are read once, before they are
//! forwarded, and only counted afterwards.
//!
//! Deliberately absent: the reply to a refused request, which the caller replaces.

use crate::commands::refused::RefusedCommand;
use crate::ledger::Ledger;
use crate::scan::frame_runs;
use crate::scan::screen::{Screen, Screened};

impl Ledger {
    /// Whether bytes that were read from the client may be forwarded as they are, without
    /// [`screen`](Self::screen). `recorded`: they are recorded next.
    #[inline]
    pub fn admits(&mut self, bytes: &[u8], recorded: bool) -> bool {
        let Some(rules) = self.refusals.rules() else { return true };
        if self.screen.is_some() || rules.has_frequent {
            return false;
        }
        let scripts = !self.matcher.may_queue();
        let run = frame_runs::requests(bytes, &self.limits, scripts, Some(rules));
        let admitted = run.rest.is_empty() && run.begun.is_none();
        if admitted && recorded {
            self.admitted = (u32::try_from(bytes.len()).unwrap_or_default(), run.whole);
        }
        admitted
    }

    /// Reads bytes that were not [admitted](Self::admits). `None` if they are to be forwarded as
    /// they are.
    #[cold]
    pub fn screen(&mut self, bytes: &[u8]) -> Option<Screened> {
        let rules = self.refusals.rules()?;
        let mut kept = self.screen.take();
        let mut fresh = Screen::default();
        let screen = kept.as_deref_mut().unwrap_or(&mut fresh);
        let screened = screen.read(rules, bytes);
        if !screen.is_idle() {
            self.screen = Some(kept.unwrap_or_else(|| Box::new(fresh)));
        }
        screened
    }

    /// `n` bytes of a body were read and are forwarded without being shown.
    pub fn skip_screen(&mut self, n: u64) {
        if let Some(screen) = &mut self.screen {
            screen.skip_body(u32::try_from(n).unwrap_or(u32::MAX));
        }
    }

    /// Whether bytes were read that are not to be forwarded yet.
    #[must_use]
    pub fn is_screening(&self) -> bool {
        self.screen.is_some()
    }

    /// Takes the bytes that were read and are not to be forwarded yet. They are screened again,
    /// with the bytes before them that were not forwarded.
    pub fn take_screened(&mut self) -> Vec<u8> {
        self.screen.take().map_or_else(Vec::new, |mut screen| screen.take_held())
    }

    /// The refused command that the next frame answers, unless that is a push message. Only at a
    /// reply boundary.
    #[must_use]
    pub fn next_reply_is_refusal(&self) -> Option<RefusedCommand> {
        if self.replies.at_boundary() { self.matcher.next_reply_is_refusal() } else { None }
    }
}
