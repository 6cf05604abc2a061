//! `cargo xtask bench junk --half-handshakes`: how long new clients with TLS wait while strangers
//! begin handshakes and do not continue, beside haproxy in the same run.
//!
//! Half of the strangers send half a hello, half a whole one, which the server answers with a
//! signature. They stay for ten seconds, which is the time that both proxies give them. New
//! clients come fifty times per second, complete a handshake and send a PING; a client that is
//! established sends one every five milliseconds. Pointsman and haproxy have one worker each on a
//! core of their own, and their default limits.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Authority, Client, Cluster, Launch, Process, Tls, find_in_path, pause};
use setup::files;

use super::stranger::connect;
use super::{NAME, cores, start, words};
use crate::cores::{move_to, pin};
use crate::load::private_memory;
use crate::stats::spread;

/// Strangers per second, and the number of their addresses.
const SCENES: [(u32, u32); 5] = [(0, 1), (300, 1), (300, 200), (1000, 1), (1000, 200)];
/// How long a scene lasts: longer than strangers may stay.
const LENGTH: Duration = Duration::from_secs(15);
/// How long strangers may stay.
const STAY: u32 = 10;
/// Between two new clients, and between two requests of the established one.
const GAPS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(5));
/// The largest median and the largest time of a new client, in milliseconds.
const MOST: (f64, f64) = (50.0, 500.0);
/// How long a client waits for anything.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A proxy that is measured.
struct Front {
    name: &'static str,
    pid: u32,
    addr: SocketAddr,
}

/// What clients met in a scene, in milliseconds.
struct Met {
    new: Vec<f64>,
    established: Vec<f64>,
    /// New clients that were not served.
    failed: usize,
    strangers: usize,
}

/// Runs the measurement; success if new clients of Pointsman wait for no longer than the aim.
///
/// # Errors
/// A message for people, if it cannot start.
pub(super) fn run(program: PathBuf) -> Result<ExitCode, String> {
    let _most = harness::raise_files();
    let (core, other) = cores()?;
    pin(other)?;
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let authority = Authority::new("half");
    let (pointsman, ports) = start(program, &cluster, &authority);
    let (haproxy, addr) = haproxy(&cluster, &authority)?;
    let fronts = [
        Front { name: "pointsman", pid: pointsman.process().pid(), addr: ports[1].addr },
        Front { name: "haproxy", pid: haproxy.pid(), addr },
    ];
    for front in &fronts {
        move_to(core, front.pid)?;
    }
    let tls = Tls::new(&authority, NAME);
    let mut met = true;
    println!(
        "| half handshakes | addresses | proxy | new clients: median | longest | not served | established: longest | memory |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (number, (rate, sources)) in (0..).zip(SCENES) {
        for front in &fronts {
            let scene = Scene { front, tls: &tls, rate, sources, network: 60 + number };
            let found = scene.play()?;
            let new = spread(&found.new).ok_or("no new client was served")?;
            let established = spread(&found.established).ok_or("no request was answered")?;
            println!(
                "| {rate}/s ({} in all) | {sources} | {} | {:.1} ms | {:.1} ms | {} | {:.1} ms | {} kB |",
                found.strangers,
                front.name,
                new.median,
                new.max,
                found.failed,
                established.max,
                private_memory(&[front.pid]) >> 10,
            );
            let is_ours = front.pid == pointsman.process().pid();
            met &= !is_ours || (new.median <= MOST.0 && new.max <= MOST.1 && found.failed == 0);
        }
    }
    println!("{}", if met { "The aim is met." } else { "The aim is MISSED." });
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A rate of half handshakes at a proxy.
struct Scene<'a> {
    front: &'a Front,
    tls: &'a Tls,
    rate: u32,
    sources: u32,
    /// The second byte of the strangers' addresses: local ports are used up otherwise.
    network: u8,
}

impl Scene<'_> {
    fn play(&self) -> Result<Met, String> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let strangers = scope.spawn(|| self.strangers(&over));
            let established = scope.spawn(|| self.established(&over));
            let (new, failed) = self.newcomers();
            over.store(true, Ordering::Relaxed);
            let words = |panic: Box<dyn std::any::Any + Send>| crate::words(&*panic);
            let established = established.join().map_err(words)??;
            let strangers = strangers.join().map_err(words)?;
            Ok(Met { new, established, failed, strangers })
        })
    }

    /// The times of new clients, and how many were not served.
    fn newcomers(&self) -> (Vec<f64>, usize) {
        let (mut times, mut failed, begin) = (Vec::new(), 0, Instant::now());
        while begin.elapsed() < LENGTH {
            let since = Instant::now();
            let client = Client::connect_tls(self.front.addr, self.tls, TIMEOUT);
            match client.and_then(|mut client| client.cmd(&["PING"])) {
                Ok(_) => times.push(milliseconds(since)),
                Err(_) => failed += 1,
            }
            pause(GAPS.0.saturating_sub(since.elapsed()));
        }
        (times, failed)
    }

    fn established(&self, over: &AtomicBool) -> Result<Vec<f64>, String> {
        let words = |error: std::io::Error| format!("{}: {error}", self.front.name);
        let mut client = Client::connect_tls(self.front.addr, self.tls, TIMEOUT).map_err(words)?;
        let mut times = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let since = Instant::now();
            client.cmd(&["PING"]).map_err(words)?;
            times.push(milliseconds(since));
            pause(GAPS.1.saturating_sub(since.elapsed()));
        }
        Ok(times)
    }

    /// Lets strangers come until `over`; how many did.
    fn strangers(&self, over: &AtomicBool) -> usize {
        let (mut random, mut open) = (fastrand::Rng::with_seed(1), VecDeque::new());
        let (mut count, mut next) = (0, Instant::now());
        while !over.load(Ordering::Relaxed) {
            if self.rate == 0 {
                pause(GAPS.0);
                continue;
            }
            next += Duration::from_secs(1) / self.rate;
            pause(next.saturating_duration_since(Instant::now()));
            let mut hello = words::client_hello(true, &mut random);
            if count % 2 == 0 {
                hello.truncate(hello.len() / 2);
            }
            let [.., high, low] = (u32::try_from(count).unwrap_or(0) % self.sources).to_be_bytes();
            let from = Ipv4Addr::new(127, self.network, 1 + high, low);
            if let Some(mut stranger) = connect(Some(from), self.front.addr) {
                let _sent = stranger.write_all(&hello);
                open.push_back(stranger);
                count += 1;
            }
            if open.len() > (self.rate * STAY) as usize {
                open.pop_front();
            }
        }
        count
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Starts haproxy with TLS in front of the master.
fn haproxy(cluster: &Cluster, authority: &Authority) -> Result<(Process, SocketAddr), String> {
    let addr = cluster.address().port();
    let folder = cluster.folder().join("haproxy");
    files::make(&folder)?;
    let certificate = authority.issue(&[NAME]);
    let (pem, file) = (folder.join("both.pem"), folder.join("haproxy.cfg"));
    files::write(&pem, certificate.chain + &certificate.key)?;
    let (pem, master) = (pem.display(), cluster.master().addr());
    let text = format!(
        "global\n  nbthread 1\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
         timeout client {STAY}s\n  timeout server {STAY}s\n\
         listen redis\n  bind {addr} ssl crt {pem}\n  server s {master}\n"
    );
    files::write(&file, text)?;
    let program = find_in_path("haproxy").ok_or("haproxy is not installed")?;
    let args = vec!["-db".into(), "-f".into(), file.into_os_string()];
    let launch = Launch { name: "haproxy".to_owned(), program, args, env: Vec::new(), folder };
    let process = Process::start(&launch);
    harness::wait_until("haproxy to listen", TIMEOUT, || Client::connect(addr).is_ok());
    Ok((process, addr))
}
