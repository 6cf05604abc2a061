//! `bench clients --maintenance`: what libraries that ask for maintenance notifications notice of a
//! failover, a pause, a drain and a takeover, with notifications and without.
//!
//! Clients connect through a relay, which stands for the address of a Service: in a drain it leads
//! new connections to the successor when the old process receives SIGTERM.

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::{io, thread};

use harness::{Cluster, Pointsman, Process, Signal, pause};
use serde_json::Value;
use setup::{files, must};

use super::libraries::{self, Library};
use super::{FAILOVER, told};
use crate::raw::benches;
use crate::{lock, markdown};

const TOKEN: &str = "a-token-of-more-than-16";
/// Stops without an accepting phase, and asks sessions to leave within five seconds.
const SHUTDOWN: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
                        drain_spread = \"5s\"\ndrain_timeout = \"30s\"\n";

#[derive(Debug, Clone, Copy)]
enum Event {
    Failover,
    Pause,
    Drain,
    Takeover,
}

/// Runs the measurement and writes its page.
///
/// # Errors
/// A message for people, if something is missing or a run fails.
pub(super) fn run(program: &Path, dry: bool) -> Result<ExitCode, String> {
    let (all, _without_go) = libraries::fetch(vec![
        libraries::REDIS_PY_MAINTENANCE,
        libraries::NODE_REDIS_MAINTENANCE,
        libraries::GO_REDIS,
    ])?;
    let mut page = String::from(PREFACE);
    for event in [Event::Failover, Event::Pause, Event::Drain, Event::Takeover] {
        for on in [true, false] {
            for seen in scene(program, &all, event, on)? {
                let row = row(event, on, &seen);
                print!("{row}");
                page += &row;
            }
        }
    }
    if !dry {
        files::write(benches().join("CLIENTS_MAINTENANCE.md"), page)?;
    }
    Ok(ExitCode::SUCCESS)
}

const PREFACE: &str = include_str!("preface_with_maintenance.md");

fn row(event: Event, on: bool, seen: &Value) -> String {
    let text = |key: &str| seen.get(key).map_or_else(String::new, ToString::to_string);
    let received = seen.get("told").and_then(Value::as_object).into_iter().flatten();
    let received: Vec<String> = received.map(|(kind, count)| format!("{count} {kind}")).collect();
    let mut cells = vec![format!("{event:?}"), if on { "on" } else { "off" }.to_owned()];
    cells.extend(["library", "answered", "errors", "wrong", "longest_ms", "reconnects"].map(text));
    cells.push(received.join(", "));
    markdown::row(&cells).replace('"', "")
}

/// One event of a new cluster with all libraries at once; what each of them saw.
fn scene(program: &Path, all: &[Library], event: Event, on: bool) -> Result<Vec<Value>, String> {
    let cluster = Cluster::builder().start();
    let bound =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| Ok((it.local_addr()?, it)));
    let (addr, listener) = bound.map_err(|error| format!("no relay: {error}"))?;
    let start = |lines: &str| {
        Pointsman::builder(program, &cluster)
            .service_line(&format!("moving_to = \"{addr}\""))
            .arg("--set=admin.control=true")
            .arg("--set=admin.control_token_env=CLIENTS_TOKEN")
            .env("CLIENTS_TOKEN", TOKEN)
            .lines(SHUTDOWN)
            .lines(lines)
            .start()
    };
    let first = start(&format!("[process]\nstate_dir = {:?}\n", cluster.folder()));
    let target = Arc::new(Mutex::new(first.addr()));
    relay(listener, Arc::clone(&target));
    let clients = all.iter().map(|library| library.start_maintained(addr, on));
    let clients: Vec<Child> = clients.collect::<Result<_, _>>()?;
    pause(FAILOVER);
    // What has to run until the clients have ended.
    let mut kept: (Option<Pointsman>, Option<Process>) = (None, None);
    match event {
        Event::Failover => drop(cluster.failover()),
        Event::Pause => hold(program, &first)?,
        Event::Drain => {
            let second = start("");
            *lock(&target) = second.addr();
            first.process().signal(Signal::TERM);
            kept.0 = Some(second);
        }
        Event::Takeover => kept.1 = Some(first.taken_over_by(program)),
    }
    clients.into_iter().map(told).collect()
}

/// Holds all traffic for three seconds.
fn hold(program: &Path, pointsman: &Pointsman) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(["pause", "--for", "3s", "--admin", &pointsman.admin().to_string()]);
    must(command.env("POINTSMAN_CONTROL_TOKEN", TOKEN).stdout(Stdio::null()))
}

/// Leads connections to an address that may change. Established ones stay.
fn relay(listener: TcpListener, target: Arc<Mutex<SocketAddr>>) {
    thread::spawn(move || {
        for client in listener.incoming().filter_map(Result::ok) {
            let to = *lock(&target);
            if let Ok(server) = TcpStream::connect(to) {
                let _lost = forward(&client, &server).and(forward(&server, &client));
            }
        }
    });
}

/// Forwards one direction of a connection, with its end.
fn forward(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
    to.set_nodelay(true)?;
    thread::spawn(move || (io::copy(&mut from, &mut to), to.shutdown(Shutdown::Write)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_received_notifications() {
        let seen = serde_json::json!({"library": "it 1", "answered": 9, "errors": 2, "wrong": 0,
            "longest_ms": 7, "reconnects": 4, "told": {"MOVING": 4}});
        let row = row(Event::Drain, true, &seen);
        assert_eq!(row, "| Drain | on | it 1 | 9 | 2 | 0 | 7 | 4 | 4 MOVING |\n");
    }
}
