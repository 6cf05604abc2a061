//! What the kernel says of a running pointsman, and how fast its probes answer while something is done to it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Pointsman, http_get};

/// The longest that a probe and a scrape may take together, whatever happens to the data plane.
const PROBE: Duration = Duration::from_secs(1);

/// Memory of its own that it uses, in bytes.
pub(crate) fn memory(pointsman: &Pointsman) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pointsman.process().pid())).expect("its status");
    let found = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
    found.map(|kib: u64| kib * 1024).expect("its memory")
}

/// CPU time that all its threads have used.
pub(crate) fn cpu(pointsman: &Pointsman) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pointsman.process().pid())).expect("its threads");
    let used = tasks.filter_map(|task| {
        let schedstat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        schedstat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(used.sum())
}

/// The lowest descriptor that is free. With this as its limit it can open nothing.
pub(crate) fn first_free_file(pointsman: &Pointsman) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{}/fd", pointsman.process().pid())).expect("its files");
    let taken: Vec<u64> = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok()).collect();
    (0..).find(|file| !taken.contains(file)).expect("a number")
}

/// How long answers took while something was done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worst {
    probe: Duration,
    /// What a server that does nothing needed at the worst, for as many turns of as many threads: the machine's own part.
    machine: Duration,
}

impl Worst {
    /// Fails if a probe took longer than a second more than the machine explains.
    #[track_caller]
    pub(crate) fn check(self, what: &str) {
        assert!(self.probe < PROBE + 4 * self.machine, "{what}: {self:?}");
    }
}

/// Does something, and meanwhile asks for liveness and metrics again and again. Tells the longest answer with the outcome.
pub(crate) fn probed<R>(pointsman: &Pointsman, work: impl FnOnce() -> R) -> (R, Worst) {
    let (admin, over) = (pointsman.admin(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let prober = scope.spawn(|| {
            longest(&over, || {
                for path in ["/alive", "/metrics"] {
                    assert_eq!(http_get(admin, path).expect("an answer of the admin server").0, 200, "{path}");
                }
            })
        });
        let bystander = TcpListener::bind("127.0.0.1:0").expect("a server that does nothing");
        let addr = bystander.local_addr().expect("its address");
        scope.spawn(move || {
            // Ends with the one connection that says something.
            for mut stream in bystander.incoming().flatten() {
                let mut said = [0; 1];
                if stream.write_all(b"x").is_err() || stream.read(&mut said).is_ok_and(|n| n > 0) {
                    return;
                }
            }
        });
        let connect = move || TcpStream::connect(addr).expect("a connection");
        let control = scope.spawn({
            let over = &over;
            move || longest(over, || connect().read_exact(&mut [0; 1]).expect("an answer"))
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        let (probe, machine) = (prober.join(), control.join());
        connect().write_all(b"!").expect("the end of the server that does nothing");
        match outcome {
            Ok(outcome) => {
                let (probe, machine) = (probe.expect("every probe was answered"), machine.expect("the machine's part"));
                (outcome, Worst { probe, machine })
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Does something again and again, and returns the longest time it took.
fn longest(over: &AtomicBool, mut turn: impl FnMut()) -> Duration {
    let (mut worst, mut first) = (Duration::ZERO, true);
    while first || !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        turn();
        worst = worst.max(begin.elapsed());
        first = false;
        harness::pause(Duration::from_millis(20));
    }
    worst
}
