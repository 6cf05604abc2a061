//! The workers alone, with a fixed target: for benchmarks and manual tests.
//!
//! ```text
//! cargo run --release -p pointsman-proxy --example fixed -- LISTEN TARGET [WORKERS [copy|shared]]
//! ```
//!
//! The proxy listens on LISTEN, for example 127.0.0.1:7000, and forwards to TARGET, for example
//! 127.0.0.1:6379. On SIGINT or SIGTERM it drains for up to two seconds, then prints its
//! counters.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use drain::{ShutdownSettings, StopRequest};
use proxy::{AddressPlan, NoHints, Options, Running, Service, Splice, UpstreamMode, worker_count};
use target::{Destination, TargetWriter};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen =
        arguments.next().ok_or("usage: fixed LISTEN TARGET [WORKERS [copy|shared]]")?.parse()?;
    let addr: std::net::SocketAddr = arguments.next().ok_or("TARGET is missing")?.parse()?;
    let workers =
        arguments.next().map_or(Ok(worker_count()), |count| count.parse::<NonZeroUsize>())?;

    let (mut publisher, route) = TargetWriter::new();
    publisher.commit(Destination { addr, name: addr.to_string().into(), epoch: 0, run_id: None });
    let mode = arguments.next().unwrap_or_default();
    let splice = if mode == "copy" { Splice::Off } else { Splice::On };
    let upstream = match mode.as_str() {
        "shared" => UpstreamMode::Shared(NonZeroU16::MIN),
        _ => UpstreamMode::Dedicated,
    };
    let options = Options { max_connections: 100_000, splice, upstream, ..Options::default() };
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

    let plan = AddressPlan::new(workers, &[listen], Vec::new());
    let listener = plan.bind(listen, &service.options.now())?;
    println!("{} -> {addr}, {workers} workers", listener.addr);
    let mut running = Running::start(workers, 100_000, &drain)?;
    let number = running.add_service(service);
    running.open(number, listener, false);
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
    println!("{summary:?}\n{:#?}", running.stats.service("fixed"));
    running.join()?;
    Ok(())
}
