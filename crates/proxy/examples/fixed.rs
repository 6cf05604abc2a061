//! The data plane alone, with its points fixed on one address: for benches and for trying things by
//! hand.
//!
//!     cargo run --release -p pointsman-proxy --example fixed -- 127.0.0.1:7000 127.0.0.1:6379 [WORKERS [copy]]
//!
//! The first address is listened on, the second is the target. On SIGINT or SIGTERM it drains for
//! up to two seconds, then prints its counters.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use drain::{ShutdownSettings, StopRequest};
use proxy::{Bound, NoHints, Options, Service, Splice, worker_count};
use target::{Destination, TargetWriter};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let listen = words.next().ok_or("usage: fixed LISTEN TARGET [WORKERS]")?.parse()?;
    let addr: std::net::SocketAddr = words.next().ok_or("TARGET is missing")?.parse()?;
    let workers = words.next().map_or(Ok(worker_count()), |word| word.parse::<NonZeroUsize>())?;

    let (mut points, route) = TargetWriter::new();
    points.commit(Destination { addr, name: addr.to_string().into(), epoch: 0, run_id: None });
    let splice =
        if words.next().is_some_and(|word| word == "copy") { Splice::Off } else { Splice::On };
    let options = Options { max_connections: 100_000, splice, ..Options::default() };
    let service = Service {
        name: "fixed".into(),
        route: route.into(),
        options: options.into(),
        hints: Arc::new(NoHints),
    };
    let settings = ShutdownSettings {
        accept_min: Duration::ZERO,
        accept_quiet: Duration::ZERO,
        accept_max: Duration::ZERO,
        drain_spread: Duration::ZERO,
        drain_timeout: Duration::from_secs(2),
    };
    let (drain, controller) = drain::new(settings);

    let bound = Bound::bind(workers, 100_000, [(service, vec![listen])])?;
    println!("{:?} -> {addr}, {workers} workers", bound.local_addrs());
    let running = bound.serve(&drain)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let summary = runtime.block_on(async {
        let (mut int, mut term) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let controller = tokio::spawn(controller.run());
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
        drain.request_stop(StopRequest::DrainAtOnce);
        Ok::<_, std::io::Error>(controller.await)
    })??;
    println!("{summary:?}\n{:#?}", running.stats().service("fixed"));
    running.join()?;
    Ok(())
}
