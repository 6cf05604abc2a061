//! Resources of a running pointsman as the kernel reports them, and how fast its probes answer
//! under load.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Pointsman, http_get};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The longest that a probe or a scrape may take, whatever happens to the data plane.
const PROBE: Duration = Duration::from_secs(1);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_millis(20);

/// Private memory in bytes.
pub(crate) fn memory(pointsman: &Pointsman) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pointsman.process().pid()))
        .expect("its status");
    let found = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
    found.map(|kib: u64| kib * 1024).expect("its memory")
}

/// CPU time of all threads, including ended ones, from the process clock, which never decreases.
pub(crate) fn cpu(pointsman: &Pointsman) -> Duration {
    let pid = Pid::from_raw(pointsman.process().pid().try_into().expect("a process id"));
    clock_getcpuclockid(pid).and_then(clock_gettime).expect("its clock").into()
}

/// The lowest free descriptor. With this as its limit the process cannot open any.
pub(crate) fn first_free_file(pointsman: &Pointsman) -> u64 {
    let files =
        std::fs::read_dir(format!("/proc/{}/fd", pointsman.process().pid())).expect("its files");
    let taken: Vec<u64> =
        files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok()).collect();
    (0..).find(|file| !taken.contains(file)).expect("a number")
}

/// Response times during an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worst {
    probe: Duration,
    /// The longest response of a server that does nothing, measured at the same time: the share of
    /// the machine.
    machine: Duration,
}

impl Worst {
    /// Fails if a probe took over a second more than the machine explains.
    #[track_caller]
    pub(crate) fn check(self, what: &str) {
        self.check_within(what, PROBE);
    }

    /// Like [`check`](Self::check), with another bound.
    #[track_caller]
    pub(crate) fn check_within(self, what: &str, bound: Duration) {
        assert!(self.probe < bound + 4 * self.machine, "{what}: {self:?}");
    }
}

/// Runs an operation while liveness and metrics are requested repeatedly. Returns the result and
/// the longest response.
pub(crate) fn probed<R>(pointsman: &Pointsman, work: impl FnOnce() -> R) -> (R, Worst) {
    let (admin, over) = (pointsman.admin(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut paths = ["/alive", "/metrics"].into_iter().cycle();
            longest(&over, || {
                let path = paths.next().expect("one of the two");
                let (status, _) = http_get(admin, path).expect("an answer of the admin server");
                assert_eq!(status, 200, "{path}");
            })
        });
        let bystander = TcpListener::bind("127.0.0.1:0").expect("a server that does nothing");
        let addr = bystander.local_addr().expect("its address");
        scope.spawn(move || {
            // Ends with the only connection that sends something.
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
                let (probe, machine) = (
                    probe.expect("every probe was answered"),
                    machine.expect("the machine's part"),
                );
                (outcome, Worst { probe, machine })
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Repeats an operation and returns the longest time from when it was due. A pause of the machine
/// between two rounds delays the next one; a round of a tenth of a millisecond would rarely meet
/// it.
fn longest(over: &AtomicBool, mut turn: impl FnMut()) -> Duration {
    let (mut worst, mut due, mut first) = (Duration::ZERO, Instant::now(), true);
    while first || !over.load(Ordering::Relaxed) {
        turn();
        worst = worst.max(due.elapsed());
        first = false;
        due = Instant::now() + PAUSE;
        harness::pause(PAUSE);
    }
    worst
}
