//! Clients that verify with each request that it is answered for them by the right server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{Client, Pointsman, wait_until};

/// Longer than any client is held here.
const PATIENCE: Duration = Duration::from_secs(40);

/// The results of all clients.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: usize,
    pub(crate) longest: Duration,
    pub(crate) errors: Vec<Failed>,
}

/// A failed request, which is the last one of its client.
#[derive(Debug, PartialEq)]
pub(crate) struct Failed {
    /// When the previous request was answered.
    pub(crate) before: Instant,
    pub(crate) sent: Instant,
    pub(crate) at: Instant,
    pub(crate) error: String,
}

/// Clients that authenticated, selected a database and set a name, and that verify these regularly.
pub(crate) struct Crowd {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    /// How many clients should pause, and how many do.
    rest: Arc<(AtomicUsize, AtomicUsize)>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Crowd {
    pub(crate) fn gather(pointsman: &Pointsman, size: usize) -> Self {
        Self::gather_by(|| pointsman.client(), size)
    }

    /// Gathers clients that connect in this way.
    pub(crate) fn gather_by(connect: impl Fn() -> Client, size: usize) -> Self {
        let (seen, over) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let rest = Arc::<(AtomicUsize, AtomicUsize)>::default();
        let threads = (0..size).map(|number| {
            let mut member = Member::join(connect(), number);
            let (seen, over, rest) = (Arc::clone(&seen), Arc::clone(&over), Arc::clone(&rest));
            let mut before = Instant::now();
            let body = move || {
                harness::pause(Duration::from_millis(100 * number as u64 / size as u64));
                while !over.load(Ordering::Relaxed) {
                    if number < rest.0.load(Ordering::Acquire) {
                        rest.1.fetch_add(1, Ordering::Release);
                        wait_until("the end of the rest", 2 * PATIENCE, || {
                            number >= rest.0.load(Ordering::Acquire)
                        });
                    }
                    let sent = Instant::now();
                    let result = member.ask();
                    let at = Instant::now();
                    let mut seen = seen.lock().unwrap();
                    seen.longest = seen.longest.max(at - sent);
                    match result {
                        Ok(()) => seen.answered += 1,
                        Err(error) => {
                            seen.errors.push(Failed { before, sent, at, error });
                            return;
                        }
                    }
                    drop(seen);
                    before = at;
                    harness::pause(Duration::from_millis(100));
                }
            };
            std::thread::Builder::new().stack_size(256 * 1024).spawn(body).unwrap()
        });
        let threads = threads.collect();
        Self { seen, over, rest, threads }
    }

    pub(crate) fn answered(&self) -> usize {
        self.seen.lock().unwrap().answered
    }

    pub(crate) fn failed(&self) -> usize {
        self.seen.lock().unwrap().errors.len()
    }

    /// Makes `count` clients pause without a request in flight.
    pub(crate) fn lay_down(&self, count: usize) {
        self.rest.0.store(count, Ordering::Release);
        wait_until("them to rest", PATIENCE, || self.rest.1.load(Ordering::Acquire) >= count);
    }

    pub(crate) fn get_up(&self) {
        self.rest.0.store(0, Ordering::Release);
    }

    pub(crate) fn end(self) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        Arc::into_inner(self.seen).unwrap().into_inner().unwrap()
    }
}

pub(crate) struct Member {
    client: Client,
    db: usize,
    name: String,
    count: i64,
}

impl Member {
    pub(crate) fn join(mut client: Client, number: usize) -> Self {
        client.set_timeout(PATIENCE).unwrap();
        let (db, name) = (number % 16, format!("member-{number}"));
        let hello: &[&str] = if number.is_multiple_of(2) {
            &["AUTH", "app", "pw"]
        } else {
            &["HELLO", "3", "AUTH", "app", "pw"]
        };
        for command in [hello, &["SELECT", &db.to_string()], &["CLIENT", "SETNAME", &name]] {
            let answer = client.cmd(command).unwrap();
            assert!(answer.error().is_none(), "{command:?}: {answer}");
        }
        Self { client, db, name, count: 0 }
    }

    /// Sends a write and a query of the client's identity together; both must be answered by the
    /// right server for the right client.
    pub(crate) fn ask(&mut self) -> Result<(), String> {
        self.count += 1;
        let commands = [vec!["INCR", &self.name], vec!["CLIENT", "INFO"]];
        let answers = self.client.pipeline(&commands).map_err(|error| error.to_string())?;
        if answers[0].int() != Some(self.count) {
            return Err(format!("INCR number {} answered {}", self.count, answers[0]));
        }
        let info = answers[1].text().unwrap_or_default().to_owned();
        let own =
            [format!(" name={} ", self.name), format!(" db={} ", self.db), " user=app ".to_owned()];
        if own.iter().all(|it| info.contains(it)) {
            Ok(())
        } else {
            Err(format!("{own:?}: {info}"))
        }
    }
}
