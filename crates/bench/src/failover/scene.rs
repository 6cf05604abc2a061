//! One failover: a new cluster, all contenders with their clients, a fault, and the count after
//! everything has settled.
//!
//! All contenders serve the same failover, so that nothing differs for them: neither when Sentinel
//! notices nor what disturbs the machine. The clients work until the old master is back and
//! follows the new one, because most losses of a planned failover occur in those seconds.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Cluster, Event, Events, Load, Watch, pause};
use serde_json::json;

use super::contender::{Contender, Front, Programs};
use super::record::{Measure, Record};
use super::scenario::{Parties, Scenario, stop_and_start};
use crate::stats::number;
use crate::{machine, name_of, words};

/// Writes of each contender before the fault.
const BEFORE: u64 = 300;
/// How long all clients write before the fault.
const CALM: Duration = Duration::from_secs(2);
/// How long the new master is written to before the old one returns.
const ABSENT: Duration = Duration::from_millis(2500);
/// How long the clients go on when everything has settled.
const AFTER: Duration = Duration::from_secs(2);
/// The longest time for a sentinel, a proxy and a writer to find the new master.
pub(super) const FAILOVER: Duration = Duration::from_secs(40);
/// The longest time for the old master to become a replica in sync.
const SETTLE: Duration = Duration::from_secs(60);

/// The settings that all runs share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage<'a> {
    pub(super) programs: &'a Programs,
    /// Set to end the measurement.
    pub(super) stop: &'a AtomicBool,
}

/// What a failover gave: a record for each contender, or why there is none.
pub(super) type Played = Vec<(Contender, Result<Record, String>)>;

/// A contender with its clients.
struct Act {
    contender: Contender,
    front: Front,
    load: Load,
}

/// The moments of a failover.
#[derive(Debug, Clone, Copy)]
struct Moments {
    cause: Instant,
    /// When a majority of the sentinels had announced the new master.
    switch: Option<Instant>,
    end: Instant,
}

/// Executes one run of a scenario with all its contenders at once.
///
/// # Errors
/// A message for people: what was missing, or that the measurement was interrupted.
pub(super) fn play(
    stage: &Stage<'_>,
    scenario: Scenario,
    contenders: &[Contender],
    run: u32,
) -> Result<Played, String> {
    let cluster = Cluster::builder().down_after(scenario.down_after()).start_apart();
    let parties = Parties::of(&cluster).ok_or("no sentinel")?;
    let taking_part: Vec<_> =
        contenders.iter().copied().filter(|it| scenario.includes(*it)).collect();
    let (mut acts, mut played) = start_all(stage, &cluster, &taking_part);
    let events = Events::of_all(cluster.sentinels());
    let watch = Watch::start(parties.old.addr());
    let waited = machine::waited_for_cpu();
    let began = Instant::now();
    wait("the first writes", FAILOVER, stage, || {
        acts.iter().all(|it| it.load.counts().acknowledged > BEFORE)
    })?;
    pause(CALM);

    if scenario == Scenario::RollingRedis {
        for replica in &parties.replicas {
            stop_and_start(replica);
            wait("a restarted replica", SETTLE, stage, || cluster.follows(replica).is_ok())?;
        }
        // A replica that reports its link up is sent nothing before its first acknowledgement, up
        // to a second later. Sentinel would promote it nevertheless.
        cluster.wait_in_sync();
    }
    let cause = Instant::now();
    let cut = scenario.begin(&cluster, &parties);
    let mut switch = None;
    if scenario.switches() {
        wait("a majority that switches", FAILOVER, stage, || {
            switch = majority_switch(&events.all(), cluster.sentinels().len());
            switch.is_some()
        })?;
        pause(ABSENT);
        scenario.repair(&parties, cut);
        wait("the old master to follow the new one", SETTLE, stage, || {
            cluster.follows(parties.old).is_ok()
        })?;
        pause(AFTER);
    } else {
        acts.iter_mut().for_each(|act| act.front.restart());
    }
    let tail = (switch.unwrap_or(cause) + scenario.tail(&taking_part))
        .saturating_duration_since(Instant::now());
    let _over = wait("the end", tail, stage, || false);
    let end = Instant::now();
    acts.iter_mut().for_each(|act| act.load.stop());
    let moments = Moments { cause, switch, end };
    let (waited, switches) = (share_of_waiting(waited, began), switches(&events));
    played.extend(acts.iter().map(|act| {
        let more = json!({
            "share_of_time_waited_for_cpu": waited,
            "switches": switches,
            "errors": act.load.errors(),
            "connections": act.load.counts().connections,
        });
        let values = count(&cluster, act, &watch, moments);
        let record = |values| Record { scenario, contender: act.contender, run, values, more };
        (act.contender, values.map(record))
    }));
    Ok(played)
}

/// Starts all contenders at once: haproxy's checks take ten seconds to settle.
fn start_all(stage: &Stage<'_>, cluster: &Cluster, contenders: &[Contender]) -> (Vec<Act>, Played) {
    let start = |contender: Contender| {
        let front = Front::start(contender, stage.programs, cluster)?;
        let load = front.load(cluster)?;
        Ok(Act { contender, front, load })
    };
    let started: Vec<(Contender, Result<Act, String>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = contenders
            .iter()
            .map(|contender| (*contender, scope.spawn(move || start(*contender))))
            .collect();
        // The harness panics if something is missing.
        threads
            .into_iter()
            .map(|(it, thread)| (it, thread.join().unwrap_or_else(|panic| Err(words(&*panic)))))
            .collect()
    });
    let (mut acts, mut failed) = (Vec::new(), Vec::new());
    for (contender, act) in started {
        match act {
            Ok(act) => acts.push(act),
            Err(why) => failed.push((contender, Err(why))),
        }
    }
    (acts, failed)
}

/// The share of the time since `began` in which some process waited for a core.
fn share_of_waiting(waited: Option<u64>, began: Instant) -> Option<f64> {
    let (now, then) = machine::waited_for_cpu().zip(waited)?;
    let waited = Duration::from_micros(now.saturating_sub(then));
    Some((1000.0 * waited.as_secs_f64() / began.elapsed().as_secs_f64()).round() / 1000.0)
}

/// The values of a contender.
fn count(
    cluster: &Cluster,
    act: &Act,
    watch: &Watch,
    moments: Moments,
) -> Result<BTreeMap<Measure, f64>, String> {
    let Act { contender, load, .. } = act;
    let master = cluster.current_master_addr()?;
    let verdict =
        load.verify(master).map_err(|error| format!("the new master cannot be asked: {error}"))?;
    let (counts, kept) = (load.counts(), load.kept(&verdict));
    let mut values = BTreeMap::from([
        (Measure::Acknowledged, number(counts.acknowledged)),
        (Measure::Lost, number(verdict.missing)),
        (Measure::Errors, number(counts.errors)),
        (Measure::Wrong, number(counts.wrong)),
        (Measure::Gap, ms(longest_gap(&kept, moments))),
    ]);
    if let Some(switch) = moments.switch {
        values.insert(Measure::Switch, ms(switch.saturating_duration_since(moments.cause)));
        values.insert(Measure::Late, number(watch.after(switch, &name_of(contender))));
        let first = kept.iter().find(|at| **at > switch);
        values.extend(first.map(|at| (Measure::First, ms(at.saturating_duration_since(switch)))));
    }
    Ok(values)
}

/// The longest time without a kept write, from a second before the fault to the end.
fn longest_gap(kept: &[Instant], moments: Moments) -> Duration {
    let from = moments.cause.checked_sub(Duration::from_secs(1)).unwrap_or(moments.cause);
    let (mut last, mut longest) = (from, Duration::ZERO);
    let within = kept.iter().copied().filter(|at| *at >= from && *at < moments.end);
    for at in within.chain([moments.end]) {
        longest = longest.max(at.saturating_duration_since(last));
        last = at;
    }
    longest
}

/// When more than half of the sentinels had announced another master.
fn majority_switch(events: &[Event], sentinels: usize) -> Option<Instant> {
    let mut announced = BTreeSet::new();
    events.iter().filter(|it| it.channel == "+switch-master").find_map(|event| {
        announced.insert(event.from);
        (announced.len() * 2 > sentinels).then_some(event.at)
    })
}

/// How many different switches the sentinels announced; more than one means a second failover.
fn switches(events: &Events) -> usize {
    let events = events.all().into_iter().filter(|event| event.channel == "+switch-master");
    events.map(|event| event.payload).collect::<BTreeSet<_>>().len()
}

pub(super) fn wait(
    what: &str,
    timeout: Duration,
    stage: &Stage<'_>,
    mut look: impl FnMut() -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + timeout;
    while !look() {
        if stage.stop.load(Ordering::Acquire) {
            return Err("the end was asked for".to_owned());
        }
        if Instant::now() > deadline {
            return Err(format!("waited {} s in vain for {what}", timeout.as_secs()));
        }
        pause(Duration::from_millis(10));
    }
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_gap_of_kept_writes_until_the_end() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let gap = |kept: &[u64]| {
            let kept: Vec<Instant> = kept.iter().map(|ms| at(*ms)).collect();
            let moments = Moments { cause: at(1000), switch: None, end: at(5000) };
            longest_gap(&kept, moments).as_millis()
        };
        assert_eq!(gap(&[100, 900, 2900, 4500]), 2000);
        assert_eq!(gap(&[100, 1000]), 4000, "a contender that never writes again");
        assert_eq!(gap(&[]), 5000);
    }

    #[test]
    fn switches_with_second_of_three_sentinels() {
        let start = Instant::now();
        let event = |ms: u64, sentinel: u8, channel: &str| Event {
            at: start + Duration::from_millis(ms),
            from: ([127, 0, 101, sentinel], 26379).into(),
            channel: channel.to_owned(),
            payload: "mymaster".to_owned(),
        };
        let events = [
            event(1, 1, "+sdown"),
            event(5, 1, "+switch-master"),
            event(6, 1, "+switch-master"),
            event(9, 3, "+switch-master"),
        ];
        assert_eq!(majority_switch(&events, 3), Some(start + Duration::from_millis(9)));
        assert_eq!(majority_switch(&events[..3], 3), None);
    }
}
