//! The first thing a visitor sees: a failover, told while it happens.
//!
//! Everything shown is real: the servers, the clients, the kill, the times. The clients count what
//! they got acknowledged, and at the end every one of those writes is looked for, so the summary is
//! a measurement and not a claim.
//!
//! Deliberately absent: anything staged. If the failover is not followed, the demo says so and
//! exits with 1.

mod explain;
mod screen;
mod stage;
mod story;
mod summary;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use screen::Screen;
use setup::{build, install};
use stage::Stage;
use story::Story;

/// How often the sentinels' news are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How often, in calm times, the acknowledged writes are looked for and then removed, so that
/// memory does not grow.
const SETTLE: Duration = Duration::from_secs(30);
/// How long after the start the master is killed.
const KILL: Duration = Duration::from_secs(8);

/// How to show it.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Options {
    /// End by itself after so many seconds, at least 10; without it, Ctrl-C ends it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(10..))]
    seconds: Option<u64>,
    /// Keep the master alive. Its process id is shown, so you can do the killing.
    #[arg(long)]
    keep: bool,
}

impl Options {
    /// When the master is killed: early enough for the failover to be seen to its end.
    fn kill_after(self) -> Option<Duration> {
        let third = self.seconds.map_or(KILL, |seconds| Duration::from_secs(seconds / 3));
        (!self.keep).then(|| third.min(KILL))
    }
}

/// Shows the demo: success if the failover was followed, or if none was asked for.
///
/// # Errors
/// In words, if it cannot begin.
pub(crate) fn run(options: Options) -> Result<ExitCode, String> {
    let mut screen = Screen::of_this_terminal();
    install::whatever_is_missing()?;
    let program = build::pointsman()?;
    let stop = stop_on_signals().map_err(|error| format!("signals cannot be handled: {error}"))?;
    let mut stage = Stage::set(&program);
    let shown = show(&mut screen, &stage, options, &stop);
    let followed = match shown {
        Ok(story) => summary::close(&mut screen, &mut stage, &story),
        // Whoever reads this has gone away: nothing to tell any more, and all is to be taken down.
        Err(error) => Err(error),
    };
    stage.strike();
    let ended = followed
        .and_then(|followed| screen.line("Everything is stopped and removed.").map(|()| followed));
    let followed = ended.map_err(|error| {
        format!("Ended and removed, since nothing can be printed any more: {error}")
    })?;
    Ok(if followed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Set by the first signal that asks to end; the second ends at once, and the kernel then ends what
/// was started.
fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn show(
    screen: &mut Screen,
    stage: &Stage,
    options: Options,
    stop: &AtomicBool,
) -> io::Result<Story> {
    let start = Instant::now();
    let mut story = Story::new(start, stage.names());
    let kill_at = options.kill_after().map(|after| start + after);
    let end = options.seconds.map(|seconds| start + Duration::from_secs(seconds));
    stage.introduce(screen, options.kill_after())?;
    let mut told = story::Told::default();
    let (mut second, mut settled) = (1, start);
    while !stop.load(Ordering::Acquire) && end.is_none_or(|end| Instant::now() < end) {
        tell_news(screen, stage, &mut story, &mut told)?;
        if story.killed.is_none() && kill_at.is_some_and(|at| Instant::now() >= at) {
            tell_kill(screen, stage, &mut story)?;
        }
        if start.elapsed() >= Duration::from_secs(second) {
            screen.line(&story.second(Duration::from_secs(second), &stage.now()))?;
            second = start.elapsed().as_secs() + 1;
        }
        if settled.elapsed() > SETTLE && (options.keep || story.back.is_some()) {
            settled = Instant::now();
            if let Some((master, verdict)) = stage.settle() {
                screen.note(&story.checked(&master, &verdict))?;
            }
        }
        harness::pause(LOOK);
    }
    tell_news(screen, stage, &mut story, &mut told)?;
    Ok(story)
}

/// What the sentinels said and what the clients noticed since the last look.
fn tell_news(
    screen: &mut Screen,
    stage: &Stage,
    story: &mut Story,
    told: &mut story::Told,
) -> io::Result<()> {
    for event in stage.events().after(told.events) {
        told.events += 1;
        if let Some(text) = story.hear(&event) {
            screen.event(&text)?;
        }
    }
    for gap in stage.load().gaps().into_iter().skip(told.gaps) {
        let Some(text) = story.gap(gap, Instant::now(), stage.load().counts().acknowledged) else {
            break;
        };
        told.gaps += 1;
        if !text.is_empty() {
            screen.good(&text)?;
        }
    }
    Ok(())
}

fn tell_kill(screen: &mut Screen, stage: &Stage, story: &mut Story) -> io::Result<()> {
    let Some(node) = stage.master() else { return Ok(()) };
    let (name, pid) = (story.name(node.addr()), node.pid().unwrap_or_default());
    story.killed = Some(Instant::now());
    node.kill();
    screen.bad(&story.line(Instant::now(), &format!("kill -9 {pid}: {name}, the master, is dead")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_master_early_enough() {
        let after = |seconds, keep| Options { seconds, keep }.kill_after();
        assert_eq!(after(None, false), Some(KILL));
        assert_eq!(after(Some(40), false), Some(KILL));
        assert_eq!(after(Some(12), false), Some(Duration::from_secs(4)));
        assert_eq!(after(Some(40), true), None);
    }
}
