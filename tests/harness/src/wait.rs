//! Waits for a condition, never for a duration.
//!
//! A test that sleeps is slow or flaky, usually both. Every wait names its condition and its
//! timeout, and a failure reports the condition, the time waited and the last observation. This
//! file holds the only pause of all test code: the short, growing one between two checks of a
//! condition.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// The result of one check of a condition: `bool`, `Option<T>` or `Result<T, E>`, whose error says
/// why the condition does not hold yet.
pub trait Condition {
    /// The value that the wait returns.
    type Value;

    /// The value, or why the condition does not hold yet.
    ///
    /// # Errors
    /// The reason as text; empty if there is none.
    fn look(self) -> Result<Self::Value, String>;
}

impl Condition for bool {
    type Value = ();

    fn look(self) -> Result<(), String> {
        if self { Ok(()) } else { Err(String::new()) }
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn look(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Display> Condition for Result<T, E> {
    type Value = T;

    fn look(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Checks the condition repeatedly, first after 1 ms, then less often up to every 20 ms, until it
/// holds.
///
/// # Panics
/// After `timeout`, with `what`, the time waited and the last reason.
#[track_caller]
pub fn wait_until<C: Condition>(
    what: &str,
    timeout: Duration,
    mut look: impl FnMut() -> C,
) -> C::Value {
    let start = Instant::now();
    let mut step = Duration::from_millis(1);
    loop {
        let why = match look().look() {
            Ok(value) => return value,
            Err(why) => why,
        };
        let waited = start.elapsed();
        if waited >= timeout {
            let seen = if why.is_empty() {
                String::new()
            } else {
                format!("; the last look showed: {why}")
            };
            panic!("waited {:.1} s in vain for: {what}{seen}", waited.as_secs_f64());
        }
        pause(step.min(timeout.saturating_sub(waited)));
        step = (step * 2).min(Duration::from_millis(20));
    }
}

/// Sleeps: between two checks, or to keep the rate of a load. Never a way to make a test pass.
#[allow(
    clippy::disallowed_methods,
    reason = "the one place where the test code sleeps; its caller checks the condition again"
)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_awaited_value() {
        let mut looks = 0;
        let found = wait_until("the third look", Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }

    #[test]
    #[should_panic(expected = "in vain for: a wonder; the last look showed: nothing yet")]
    fn reports_condition_and_last_observation() {
        wait_until("a wonder", Duration::from_millis(5), || Err::<(), _>("nothing yet"));
    }
}
