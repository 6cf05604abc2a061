//! A timer that takes no room until it is set.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Sleep;

/// Set or not. Rings a waker when it is due.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Sets it to ring `waker` after `span`, in place of an earlier setting.
    pub(crate) fn set(&mut self, span: Duration, waker: &Waker) {
        let mut sleep = Box::pin(tokio::time::sleep(span));
        // The first poll is what enters it into the timer wheel. If it is due at once, the waker
        // must be told by hand.
        if sleep.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            waker.wake_by_ref();
        }
        self.0 = Some(sleep);
    }

    /// Takes it back.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Whether it is set, due or not.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is due.
    pub(crate) fn is_due(&mut self, waker: &Waker) -> bool {
        self.0.as_mut().is_some_and(|sleep| {
            sleep.is_elapsed() || sleep.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
        })
    }
}
