//! Pairs of windows: the latency of a fixed load while strangers visit a server that does nothing,
//! and while the same strangers visit Pointsman.
//!
//! Both windows of a pair follow each other, in reverse order in every second round, and the result
//! is the median of the pairs' ratios, so that the drift of the machine's speed affects both. A
//! latency counts from the time at which the request was due. A pair that other processes disturbed
//! is left out, and so are requests that were open while a core was away; how many stands beside
//! the result for both kinds of windows, since Pointsman would be the cause if it differed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Absences, pause};

use super::give_way;
use super::stranger::{Port, Strangers};
use crate::cores::pin;
use crate::load::{Flow, Latency, Loader, Measured, Meter, Pace, Reply, Window, Workload, pair};
use crate::stats::{Spread, figure, number, spread};

/// The load of the established sessions.
const FLOW: Flow = Flow { workload: Workload::Ping, clients: 50, pipeline: 1, rate: Some(5000) };
/// The length of a window, and of the time before it counts.
pub(super) const WINDOW: Duration = Duration::from_secs(5);
const WARM: Duration = Duration::from_millis(300);
/// How long before and after the absence of a core requests may be delayed by it.
const MARGIN: Duration = Duration::from_millis(1);
/// The part of a core that other processes or the host may take before a pair does not count.
const FOREIGN: f64 = 0.1;
/// The least number of pairs: quiet windows were seen to differ eightfold.
const PAIRS: usize = 5;
/// The least number of strangers that shows anything.
const ENOUGH: u64 = 1000;
/// The largest ratio of the p99 with and without junk, in the median of the pairs.
const MOST: f64 = 1.10;

/// The load and the strangers beside it.
pub(super) struct Windows {
    pub(super) to: SocketAddr,
    pub(super) loader: Loader,
    pub(super) meter: Meter,
    pub(super) absences: Absences,
    /// Visits per second, and the core on which the strangers run.
    pub(super) rate: u32,
    pub(super) core: usize,
    pub(super) tls: harness::Tls,
}

impl Windows {
    /// Measures a window with strangers at the sink, and one with strangers at Pointsman.
    pub(super) fn pair(&self, round: u32, sinks: &[Port], ports: &[Port]) -> Result<Pair, String> {
        let (mut sinks, mut ports) = (sinks, ports);
        let both = pair(round, [&mut sinks, &mut ports], |ports| self.window(ports))?;
        let [quiet, disturbed] = both;
        Ok(Pair { quiet, disturbed })
    }

    pub(super) fn window(&self, ports: &[Port]) -> Result<Quality, String> {
        let (begin, over) = (Instant::now(), AtomicBool::new(false));
        let (measured, strangers) = thread::scope(|scope| {
            let visits = scope.spawn(|| self.visit(ports, &over));
            let (to, meter, pace) =
                (self.to, self.meter.clone(), Pace { warm: WARM, time: WINDOW });
            let measured = self.loader.run(move |engine| FLOW.run(engine, to, None, pace, &meter));
            over.store(true, Ordering::Relaxed);
            let strangers = visits.join().map_err(|panic| crate::words(&*panic))??;
            Ok::<_, String>((measured.map_err(|error| format!("the load: {error}"))?, strangers))
        })?;
        let Measured { replies, window, .. } = measured;
        let (all, away) = (replies.len(), self.absences.within(begin, Instant::now()));
        let is_delayed = |it: &Reply| {
            let (due, end) = (it.due, it.due + it.took);
            away.iter().any(|(left, back)| *left <= end + MARGIN && due <= *back + MARGIN)
        };
        let kept: Vec<Reply> = replies.into_iter().filter(|it| !is_delayed(it)).collect();
        let stalled = number((all - kept.len()) as u64) / number(all as u64);
        Ok(Quality { p99: Latency::of(&kept).p99, stalled, window, strangers })
    }

    /// Visits ports until it is over; the number of strangers.
    fn visit(&self, ports: &[Port], over: &AtomicBool) -> Result<u64, String> {
        pin(self.core)?;
        give_way()?;
        let mut strangers = Strangers::new(self.tls.clone());
        let (gap, mut next) = (Duration::from_secs(1) / self.rate, Instant::now());
        while !over.load(Ordering::Relaxed) {
            if let Some(early) = next.checked_duration_since(Instant::now()) {
                pause(early);
            }
            next += gap;
            strangers.visit(ports);
        }
        Ok(strangers.count())
    }
}

/// What a window measures.
pub(super) struct Quality {
    /// Of requests that no absence of a core delayed, in microseconds.
    p99: f64,
    /// The part of the requests that one delayed.
    stalled: f64,
    window: Window,
    strangers: u64,
}

/// Two consecutive windows.
pub(super) struct Pair {
    quiet: Quality,
    disturbed: Quality,
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.disturbed.p99 / self.quiet.p99
    }

    /// Whether other processes disturbed it.
    fn is_void(&self) -> bool {
        let share = |it: Window| (it.foreign + it.stolen) / it.seconds;
        share(self.quiet.window).max(share(self.disturbed.window)) > FOREIGN
    }

    /// CPU time of Pointsman per stranger in milliseconds: the difference of the windows.
    fn cost(&self) -> f64 {
        let share = |it: Window| it.proxy / it.seconds;
        let more = share(self.disturbed.window) - share(self.quiet.window);
        more * self.disturbed.window.seconds / number(self.disturbed.strangers) * 1e3
    }

    pub(super) fn line(&self) -> String {
        let [quiet, disturbed, ratio, cost] =
            [self.quiet.p99, self.disturbed.p99, self.ratio(), self.cost()].map(figure);
        let (void, count) =
            (if self.is_void() { "  (disturbed)" } else { "" }, self.disturbed.strangers);
        format!(
            "p99 {quiet} us, with {count} strangers of {cost} ms CPU {disturbed} us: {ratio}{void}"
        )
    }
}

/// Prints the result of the pairs that were not disturbed. Whether the median of the ratios is
/// small enough.
///
/// # Errors
/// There were too few.
pub(super) fn verdict(pairs: &[Pair]) -> Result<bool, String> {
    let good: Vec<&Pair> = pairs.iter().filter(|pair| !pair.is_void()).collect();
    let of = |what: fn(&Pair) -> f64| spread(&good.iter().map(|it| what(it)).collect::<Vec<_>>());
    println!("Without: the same strangers went to a server that does nothing.");
    for (name, spread) in [
        ("p99 without, in us", of(|pair| pair.quiet.p99)),
        ("p99 with, in us", of(|pair| pair.disturbed.p99)),
        ("part in stalls without", of(|pair| pair.quiet.stalled)),
        ("part in stalls with", of(|pair| pair.disturbed.stalled)),
        ("CPU of one, in ms", of(Pair::cost)),
        ("the ratio of the p99s", of(Pair::ratio)),
    ] {
        if let Some(Spread { median, min, max, .. }) = spread {
            println!("{name:>28}: {} ({} to {})", figure(median), figure(min), figure(max));
        }
    }
    let strangers: u64 = good.iter().map(|pair| pair.disturbed.strangers).sum();
    println!("{strangers} strangers in {} undisturbed pairs of {}", good.len(), pairs.len());
    match of(Pair::ratio) {
        Some(ratio) if strangers >= ENOUGH && good.len() >= PAIRS => Ok(ratio.median <= MOST),
        _ => {
            Err("too few to tell: use more --minutes or --strangers, or a quieter machine"
                .to_owned())
        }
    }
}
