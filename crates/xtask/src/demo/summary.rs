//! The summary of the demo: the cost of the failover, and whether it was followed.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use bench::stats::grouped;
use harness::{Counts, Verdict};

use super::screen::{self, BAD, GOOD, HEADING, NOTE};
use super::stage::Stage;
use super::timeline::{Timeline, after, short};

/// Stops the clients, checks every acknowledged write and prints the result. Returns whether
/// everything went as it should.
pub(super) fn close(stage: &mut Stage, timeline: &Timeline) -> io::Result<bool> {
    stage.stop_clients();
    let running = stage.pointsman().process().is_running();
    let looked = stage.verify();
    let (master, looked) = looked.unwrap_or_else(|| ("no master".to_owned(), Verdict::default()));
    let counts = stage.load().counts();
    screen::painted(HEADING, "\nSummary\n")?;
    screen::line(&numbers(&counts, &looked, &master, timeline))?;
    let verdict = verdict(timeline, &counts, &looked, running);
    match &verdict {
        Ok(text) => screen::painted(GOOD, &format!("  {text}\n"))?,
        Err(text) => {
            screen::painted(BAD, &format!("  {text}\n"))?;
            for error in stage.load().errors() {
                screen::painted(NOTE, &format!("  a client saw: {error}"))?;
            }
            screen::painted(NOTE, &stage.pointsman().process().tail())?;
        }
    }
    Ok(verdict.is_ok())
}

fn numbers(counts: &Counts, looked: &Verdict, master: &str, timeline: &Timeline) -> String {
    let mut text = String::new();
    let mut row = |what: &str, value: &str, remark: &str| {
        let line = format!("  {what:<26}{value:>12}   {remark}");
        let _ = writeln!(text, "{}", line.trim_end());
    };
    row(
        "acknowledged writes",
        &grouped(counts.acknowledged),
        &format!("each one checked on {master}"),
    );
    let remark = match (looked.missing, timeline.killed) {
        (0, _) => "",
        (_, Some(_)) => {
            "acknowledged by the old master, and not yet sent to a replica when it died"
        }
        (_, None) => "acknowledged and missing",
    };
    row("lost", &grouped(looked.missing), remark);
    let remark = match (counts.errors, timeline.killed) {
        (0, _) | (_, None) => "",
        _ => "connections closed with the master, and attempts until there was a new one",
    };
    row("errors seen by clients", &grouped(counts.errors), remark);
    row("longest gap without a write", &short(counts.longest_gap), "");
    let switched = timeline.back.and_then(|back| back.switched);
    if let (Some(killed), Some(switched), Some(back)) = (timeline.killed, switched, timeline.back) {
        row(
            "  Sentinel's part",
            &short(switched.saturating_duration_since(killed)),
            "from the kill to the first +switch-master",
        );
        let part = after(switched, back.gap.to);
        let (time, order) = part.rsplit_once(' ').unwrap_or((&part, "after"));
        row(
            "  Pointsman's part",
            time,
            &format!("the first write on the new master came {order} that event"),
        );
    }
    text
}

/// Whether it went as it should, and a sentence about it.
fn verdict(
    timeline: &Timeline,
    counts: &Counts,
    looked: &Verdict,
    running: bool,
) -> Result<String, String> {
    if !running {
        return Err("Pointsman ended during the demo.".to_owned());
    }
    if looked.acknowledged < counts.acknowledged {
        let missing = counts.acknowledged - looked.acknowledged;
        return Err(format!(
            "{} acknowledged writes could not be checked: no master answered.",
            grouped(missing)
        ));
    }
    if timeline.killed.is_none() {
        return if looked.missing == 0 {
            Ok("Every acknowledged write is present.".to_owned())
        } else {
            Err("Acknowledged writes are missing, although the demo killed nothing.".to_owned())
        };
    }
    match timeline.back {
        None => {
            Err("The failover was not followed: no client could write after the master was killed."
                .to_owned())
        }
        Some(back) if back.switched.is_none() => {
            Err("No sentinel announced a new master.".to_owned())
        }
        Some(back) if counts.acknowledged <= back.acknowledged => {
            Err("The failover was not followed: writes stopped again after it.".to_owned())
        }
        Some(back) => Ok(format!(
            "The failover was followed: clients were writing again {} after the kill.",
            whole(back.gap.length())
        )),
    }
}

fn whole(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use harness::Gap;

    use super::super::explain::Names;
    use super::super::timeline::Back;
    use super::*;

    fn timeline(killed: bool) -> Timeline {
        let start = Instant::now();
        let mut timeline = Timeline::new(start, Names::default());
        timeline.killed = killed.then_some(start);
        timeline
    }

    fn counts(acknowledged: u64) -> Counts {
        Counts {
            acknowledged,
            errors: 8,
            connections: 16,
            longest_gap: Duration::from_millis(2310),
            ..Counts::default()
        }
    }

    fn looked(acknowledged: u64, missing: u64) -> Verdict {
        Verdict { acknowledged, missing, ..Verdict::default() }
    }

    fn followed() -> Timeline {
        let mut timeline = timeline(true);
        let switched = Some(timeline.start + Duration::from_millis(2296));
        let gap = Gap { from: timeline.start, to: timeline.start + Duration::from_millis(2310) };
        timeline.back = Some(Back { gap, switched, acknowledged: 50 });
        timeline
    }

    #[test]
    fn requires_writes_after_a_failover() {
        assert!(verdict(&followed(), &counts(100), &looked(100, 3), true).is_ok());
        assert!(verdict(&followed(), &counts(50), &looked(50, 0), true).is_err());
        assert!(verdict(&followed(), &counts(100), &looked(100, 0), false).is_err());
        assert!(verdict(&followed(), &counts(100), &looked(90, 0), true).is_err());
        assert!(verdict(&timeline(true), &counts(100), &looked(100, 0), true).is_err());
        let mut unannounced = followed();
        unannounced.back = unannounced.back.map(|back| Back { switched: None, ..back });
        assert!(verdict(&unannounced, &counts(100), &looked(100, 0), true).is_err());
    }

    #[test]
    fn tolerates_no_loss_without_a_kill() {
        assert!(verdict(&timeline(false), &counts(100), &looked(100, 0), true).is_ok());
        assert!(verdict(&timeline(false), &counts(100), &looked(100, 1), true).is_err());
    }

    #[test]
    fn names_both_parts_of_the_outage() {
        let text = numbers(&counts(12_345), &looked(12_345, 0), "redis-2", &followed());
        for part in [
            "12,345   each one checked on redis-2",
            "2.31 s",
            "2.30 s   from the kill",
            "14 ms   the first write",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
