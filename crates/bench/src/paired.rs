//! Pairs of windows: one way to compare two things on a machine whose speed drifts.
//!
//! Both windows of a pair follow each other, in reverse order in every second round, and the result
//! is the median of the pairs' ratios.
//!
//! [`Load`] compares latencies at a fixed rate with what happens meanwhile, from the times at which
//! requests were due. A pair that was disturbed by other processes is left out. So are requests
//! that a stall of the machine delayed ([`StallWatch`]); how many stands beside the result, as the
//! p99 of all does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::cores;
use crate::load::{
    Flow, Latency, Loader, Measured, Meter, Pace, StallWatch, Window, Workload, pair,
};
use crate::stats::{Spread, figure, number, spread};

/// Connections of the load.
const CLIENTS: usize = 50;
/// The least number of pairs: quiet windows were seen to differ eightfold.
const PAIRS: usize = 5;
/// The part of a core that other processes or the host may take before a pair does not count.
const FOREIGN: f64 = 0.1;

/// What happens during a window until the flag is set; how often it did.
pub(crate) type Disturbance<'a> = dyn Fn(&AtomicBool) -> Result<u64, String> + Sync + 'a;

/// The load of every window.
#[derive(Debug)]
pub(crate) struct Load {
    to: SocketAddr,
    rate: u32,
    time: Duration,
    meter: Meter,
    loader: Loader,
    stalls: Option<StallWatch>,
}

impl Load {
    /// A load on `to` with this many requests per second, in windows of this length.
    ///
    /// # Errors
    /// A message for people, if there is no core or thread for it.
    pub(crate) fn new(
        to: SocketAddr,
        rate: u32,
        seconds: u32,
        meter: Meter,
    ) -> Result<Self, String> {
        let core = *cores::allowed()?.first().ok_or("there is no core")?;
        let loader = Loader::start(core, IpAddr::V4(Ipv4Addr::LOCALHOST))
            .map_err(|error| format!("no load: {error}"))?;
        let time = Duration::from_secs(seconds.into());
        Ok(Self { to, rate, time, meter, loader, stalls: None })
    }

    /// Leaves out what stalls of these cores delay.
    ///
    /// # Errors
    /// A message for people, if stalls cannot be noticed.
    pub(crate) fn watch_stalls(&mut self, cores: &[usize]) -> Result<(), String> {
        self.stalls = Some(StallWatch::start(cores)?);
        Ok(())
    }

    /// Measures a pair of windows: with a control meanwhile, which takes as much of the machine and
    /// is not sent to what is measured, and with the disturbance.
    ///
    /// # Errors
    /// A message for people, if a request fails, or that of what happens meanwhile.
    pub(crate) fn pair(
        &self,
        round: u32,
        [mut control, mut disturb]: [&Disturbance<'_>; 2],
    ) -> Result<Pair, String> {
        let [quiet, disturbed] =
            pair(round, [&mut control, &mut disturb], |meanwhile| self.window(*meanwhile))?;
        Ok(Pair { quiet, disturbed })
    }

    fn window(&self, meanwhile: &Disturbance<'_>) -> Result<Quality, String> {
        let over = AtomicBool::new(false);
        let (measured, times) = thread::scope(|scope| {
            let happening = scope.spawn(|| meanwhile(&over));
            let measured = self.measure();
            over.store(true, Ordering::Relaxed);
            let times = happening.join().map_err(|panic| crate::words(&*panic))??;
            Ok::<_, String>((measured?, times))
        })?;
        let Measured { replies, window, .. } = measured;
        let p99_of_all = Latency::of(&replies).p99;
        let (replies, stalled) = match &self.stalls {
            Some(watch) => watch.undelayed(replies),
            None => (replies, 0.0),
        };
        Ok(Quality { p99: Latency::of(&replies).p99, p99_of_all, stalled, window, times })
    }

    fn measure(&self) -> Result<Measured, String> {
        let (to, rate) = (self.to, Some(self.rate));
        let flow = Flow { workload: Workload::Ping, clients: CLIENTS, pipeline: 1, rate };
        let pace = Pace { warm: Duration::from_millis(300), time: self.time };
        let meter = self.meter.clone();
        let measured = self.loader.run(move |engine| flow.run(engine, to, None, pace, &meter));
        measured.map_err(|error| format!("the load: {error}"))
    }
}

/// What a window measures.
struct Quality {
    /// Of requests that no stall delayed, in microseconds.
    p99: f64,
    p99_of_all: f64,
    /// The part of the requests that a stall delayed.
    stalled: f64,
    window: Window,
    /// How often it happened what happened meanwhile.
    times: u64,
}

/// Two consecutive windows.
pub(crate) struct Pair {
    quiet: Quality,
    disturbed: Quality,
}

impl Pair {
    /// The p99 of the second kind of window, to that of the first.
    fn ratio(&self) -> f64 {
        self.disturbed.p99 / self.quiet.p99
    }

    /// Whether other processes disturbed it.
    fn is_void(&self) -> bool {
        [self.quiet.window, self.disturbed.window]
            .iter()
            .any(|it| (it.foreign + it.stolen) / it.seconds > FOREIGN)
    }

    /// CPU time of the proxy per event in milliseconds: the difference of the windows.
    fn cost(&self) -> f64 {
        let a_second = |window: Window| window.proxy / window.seconds;
        let more = a_second(self.disturbed.window) - a_second(self.quiet.window);
        more * self.disturbed.window.seconds / number(self.disturbed.times) * 1e3
    }

    /// The pair for people. `events` is what happened in the second window.
    pub(crate) fn line(&self, events: &str) -> String {
        let [quiet, disturbed, ratio, cost] =
            [self.quiet.p99, self.disturbed.p99, self.ratio(), self.cost()].map(figure);
        let void = if self.is_void() { "  (disturbed)" } else { "" };
        let times = self.disturbed.times;
        format!(
            "p99 {quiet} us, with {times} {events} of {cost} ms CPU {disturbed} us: {ratio}{void}"
        )
    }
}

/// Prints the result of the pairs that were not disturbed, with at least `enough` `events`; success
/// if the median of the ratios is at most `most`.
///
/// # Errors
/// There were too few.
pub(crate) fn verdict(
    pairs: &[Pair],
    events: &str,
    enough: u64,
    most: f64,
) -> Result<ExitCode, String> {
    let good: Vec<&Pair> = pairs.iter().filter(|pair| !pair.is_void()).collect();
    let of =
        |what: fn(&Pair) -> f64| spread(&good.iter().map(|pair| what(pair)).collect::<Vec<f64>>());
    let times: u64 = good.iter().map(|pair| pair.disturbed.times).sum();
    println!();
    for (name, spread) in [
        ("p99 without, in us", of(|pair| pair.quiet.p99)),
        ("p99 with, in us", of(|pair| pair.disturbed.p99)),
        ("part in stalls without", of(|pair| pair.quiet.stalled)),
        ("part in stalls with", of(|pair| pair.disturbed.stalled)),
        ("CPU of one, in ms", of(Pair::cost)),
        ("the ratio of all", of(|pair| pair.disturbed.p99_of_all / pair.quiet.p99_of_all)),
        ("the ratio of the p99s", of(Pair::ratio)),
    ] {
        if let Some(Spread { median, min, max, .. }) = spread {
            println!("{name:>28}: {} ({} to {})", figure(median), figure(min), figure(max));
        }
    }
    println!("{times} {events} in {} undisturbed pairs of {}", good.len(), pairs.len());
    match of(Pair::ratio) {
        Some(ratio) if times >= enough && good.len() >= PAIRS => {
            Ok(if ratio.median <= most { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        _ => Err("too few to tell: take more rounds, or a quieter machine".to_owned()),
    }
}
