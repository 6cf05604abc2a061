//! `cargo xtask demo`: a failover of a real cluster, explained while it happens.
//!
//! Everything shown is real: servers, clients, kill and times. The clients record acknowledged
//! writes, and at the end each of them is looked up, so the summary is a measurement.
//!
//! Nothing is staged: if the failover is not followed, the demo says so and exits with 1.

mod explain;
mod screen;
mod stage;
mod summary;
mod timeline;

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use setup::{build, install};

use screen::{BAD, EVENT, GOOD};
use stage::Stage;
use timeline::Timeline;

/// The interval at which events of the sentinels are printed.
const LOOK: Duration = Duration::from_millis(20);
/// The time from the start to the kill of the master.
const KILL: Duration = Duration::from_secs(8);

/// Options of the demo.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DemoOptions {
    /// End after this many seconds, at least 10, unless Ctrl-C ends the demo before.
    #[arg(long, value_name = "N", default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(10..=86_400))]
    seconds: u64,
}

impl DemoOptions {
    /// When the master is killed: early enough to see the whole failover.
    fn kill_after(self) -> Duration {
        Duration::from_secs(self.seconds / 3).min(KILL)
    }
}

/// Runs the demo; success if the failover was followed, or if it ended before.
///
/// # Errors
/// A message for people, if it cannot start.
pub(crate) fn run(options: DemoOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = build::pointsman_or(None)?;
    let stop = bench::stop_on_signals()?;
    let mut stage = Stage::set(&program);
    let shown = show(&stage, options, &stop);
    let followed = match shown {
        Ok(timeline) => summary::close(&mut stage, &timeline),
        // The reader of the output has gone: stop everything.
        Err(error) => Err(error),
    };
    stage.stop();
    let ended = followed
        .and_then(|followed| screen::line("Everything is stopped and removed.").map(|()| followed));
    let followed = ended.map_err(|error| {
        format!("Ended and removed, since nothing can be printed any more: {error}")
    })?;
    Ok(if followed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(stage: &Stage, options: DemoOptions, stop: &AtomicBool) -> io::Result<Timeline> {
    let start = Instant::now();
    let mut timeline = Timeline::new(start, stage.names());
    let kill_at = start + options.kill_after();
    let end = start + Duration::from_secs(options.seconds);
    stage.introduce(options.kill_after())?;
    let mut told = timeline::Told::default();
    let mut second = 1;
    while !stop.load(Ordering::Acquire) && Instant::now() < end {
        tell_news(stage, &mut timeline, &mut told)?;
        if timeline.killed.is_none() && Instant::now() >= kill_at {
            tell_kill(stage, &mut timeline)?;
        }
        if start.elapsed() >= Duration::from_secs(second) {
            screen::line(&timeline.second(Duration::from_secs(second), &stage.now()))?;
            second = start.elapsed().as_secs() + 1;
        }
        harness::pause(LOOK);
    }
    tell_news(stage, &mut timeline, &mut told)?;
    Ok(timeline)
}

/// Prints the events of the sentinels and the outages of the clients since the last call.
fn tell_news(stage: &Stage, timeline: &mut Timeline, told: &mut timeline::Told) -> io::Result<()> {
    for event in stage.events().after(told.events) {
        told.events += 1;
        if let Some(text) = timeline.hear(&event) {
            screen::painted(EVENT, &text)?;
        }
    }
    for gap in stage.load().gaps().into_iter().skip(told.gaps) {
        let Some(text) = timeline.gap(gap, Instant::now(), stage.load().counts().acknowledged)
        else {
            break;
        };
        told.gaps += 1;
        if !text.is_empty() {
            screen::painted(GOOD, &text)?;
        }
    }
    Ok(())
}

fn tell_kill(stage: &Stage, timeline: &mut Timeline) -> io::Result<()> {
    let Some(node) = stage.master() else { return Ok(()) };
    let (name, pid) = (timeline.name(node.addr()), node.pid().unwrap_or_default());
    timeline.killed = Some(Instant::now());
    node.kill();
    screen::painted(
        BAD,
        &timeline.line(Instant::now(), &format!("kill -9 {pid}: {name}, the master, is dead")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_master_early_enough() {
        let after = |seconds| DemoOptions { seconds }.kill_after();
        assert_eq!((after(40), after(12)), (KILL, Duration::from_secs(4)));
    }
}
