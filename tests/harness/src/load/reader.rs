//! One reader: asks for the write acknowledged last, and reconnects on any error.

use std::time::Duration;

use super::tally::Tally;
use super::writer::{Plan, key};
use crate::wait::pause;

/// The time between two reads.
const INTERVAL: Duration = Duration::from_millis(20);

/// Reads until the tally is stopped. `index` is that of its connection.
pub(super) fn run(index: usize, plan: &Plan, tally: &Tally) {
    while !tally.stopped() {
        if let Err(text) = one_connection(index, plan, tally)
            && !tally.stopped()
        {
            tally.fail(text);
            pause(plan.back_off);
        }
    }
}

fn one_connection(index: usize, plan: &Plan, tally: &Tally) -> Result<(), String> {
    let mut client = plan.connect()?;
    tally.connected(index, client.stream());
    while !tally.stopped() {
        // Acknowledged before the read begins, so that the reply has to show it.
        if let Some(newest) = tally.newest() {
            let key = key(&plan.prefix, newest.writer, newest.number);
            let reply = client.cmd(&["GET", &key]).map_err(|error| format!("reading: {error}"))?;
            if reply.is_error() {
                return Err(format!("answered: {reply}"));
            }
            if reply.text() != Some("1") {
                tally.wrong();
            }
        }
        pause(INTERVAL);
    }
    Ok(())
}
