//! Time, processes, connections and the paths between hosts. Actors interact only through this
//! module.
//!
//! A connection keeps its order, as TCP does. A path that is cut loses nothing that is on a
//! connection: it waits, and arrives after the path has healed and a retransmission is due, unless
//! the connection was closed by then. A stopped process (SIGSTOP) still has a kernel that accepts
//! connections and receives bytes; it handles them, in order, when it continues.

mod event;
mod paths;
mod processes;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use event::{ConnId, Dns, Event, Leak, Observation, ProcessInput};

use crate::rng::Rng;
use crate::trace::Trace;
use crate::wire::{Addr, MS, Message, Micros, Pid};

#[derive(Debug)]
struct End {
    pid: Pid,
    incarnation: u32,
    open: bool,
    /// When the last message to this end arrives: no later one may overtake it.
    last_arrival: Micros,
}

#[derive(Debug)]
struct Connection {
    ends: [End; 2],
    made_at: Micros,
}

/// A process as the operating system sees it.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) host: usize,
    pub(crate) addr: Addr,
    pub(crate) up: bool,
    pub(crate) stopped: bool,
    pub(crate) incarnation: u32,
    /// The offset of its wall clock.
    pub(crate) clock_off: i64,
    /// How long its host was suspended: its monotonic clock stood still.
    pub(crate) suspended: Micros,
    pub(crate) stopped_at: Micros,
    inbox: VecDeque<(u32, ProcessInput)>,
}

#[derive(Debug, Clone, Default)]
struct Path {
    cut_since: Option<Micros>,
    cuts: u32,
    /// Messages of connections that existed before arrive from then on: a retransmission was due.
    ready_at: Micros,
    mended_at: Micros,
    parked: Vec<(Pid, u32, ConnId, ProcessInput)>,
    slow: Micros,
}

/// The network. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) now: Micros,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) events: u64,
    pub(crate) facts: Vec<(Pid, Observation)>,
    pub(crate) dns: Dns,
    writes: u32,
    processes: Vec<Process>,
    hosts: usize,
    /// By their time, then in the order in which they were added.
    queue: BTreeMap<(Micros, u64), Event>,
    order: u64,
    conns: Vec<Connection>,
    paths: Vec<Path>,
    latency: (Micros, Micros),
    slow_until: Micros,
}

impl Net {
    pub(crate) fn new(rng: Rng, hosts: usize, latency: (Micros, Micros), trace: Trace) -> Self {
        let paths = vec![Path::default(); hosts * hosts];
        Self { rng, trace, hosts, paths, latency, ..Self::default() }
    }

    pub(crate) fn add(&mut self, name: String, host: usize, addr: Addr) -> Pid {
        self.processes.push(Process { name, host, addr, up: true, ..Process::default() });
        self.processes.len() - 1
    }

    pub(crate) fn process(&self, pid: Pid) -> &Process {
        &self.processes[pid]
    }

    pub(crate) fn process_mut(&mut self, pid: Pid) -> &mut Process {
        &mut self.processes[pid]
    }

    /// Whether a process is up and not stopped.
    pub(crate) fn runs(&self, pid: Pid) -> bool {
        self.processes[pid].up && !self.processes[pid].stopped
    }

    pub(crate) fn addr(&self, pid: Pid) -> Addr {
        self.processes[pid].addr
    }

    /// The process that listens at an address, running or not.
    pub(crate) fn owner(&self, addr: Addr) -> Option<Pid> {
        let there = |up: bool| self.processes.iter().position(|it| it.addr == addr && it.up == up);
        there(true).or_else(|| there(false))
    }

    /// The wall clock of a process, in milliseconds.
    pub(crate) fn wall_ms(&self, pid: Pid) -> i64 {
        (self.now / MS) as i64 + self.processes[pid].clock_off + 1_000_000
    }

    pub(crate) fn observe(&mut self, pid: Pid, observation: Observation) {
        self.facts.push((pid, observation));
    }

    pub(crate) fn new_write(&mut self) -> u32 {
        self.writes += 1;
        self.writes
    }

    /// The addresses of a host, or of the sentinels that one of `names` configured names stands
    /// for, and the delay of the answer.
    pub(crate) fn look_up(&mut self, name: &str, port: u16, names: usize) -> (Micros, Vec<Addr>) {
        let late = self.rng.range(MS, 5 * MS) + self.dns.late;
        if self.dns.missing {
            return (late, Vec::new());
        }
        if let Some(host) = Addr::named(name, port) {
            return (late, vec![host]);
        }
        let number = name.trim_start_matches("sentinel").parse().unwrap_or(0);
        let all = self.dns.sentinels.iter().enumerate();
        let mine = all.filter(|(at, _)| names == 1 || *at == number).map(|(_, pid)| *pid);
        let mut found: Vec<Addr> = mine
            .filter(|pid| self.processes[*pid].up && !self.dns.left_out.contains(pid))
            .map(|pid| self.processes[pid].addr)
            .collect();
        self.rng.shuffle(&mut found);
        found.sort_unstable();
        (late, found)
    }

    /// Adds a line to the timeline.
    pub(crate) fn trace_line(&mut self, pid: Pid, text: impl FnOnce() -> String) {
        if self.trace.is_on() {
            let (now, name) = (self.now, self.processes[pid].name.clone());
            self.trace.add(now, &name, text());
        }
    }

    pub(crate) fn at(&mut self, when: Micros, event: Event) {
        self.order += 1;
        self.queue.insert((when.max(self.now), self.order), event);
    }

    pub(crate) fn timer(&mut self, pid: Pid, when: Micros, key: u64) {
        let incarnation = self.processes[pid].incarnation;
        self.at(when, Event::To(pid, incarnation, ProcessInput::Timer(key)));
    }

    /// The next event that a process has to handle.
    pub(crate) fn next(&mut self) -> Option<Event> {
        loop {
            let ((when, _), event) = self.queue.pop_first()?;
            self.now = when;
            self.events += 1;
            let Event::To(pid, incarnation, input) = event else { return Some(event) };
            let process = &mut self.processes[pid];
            let alive = process.up && process.incarnation == incarnation;
            if !alive {
                // The kernel of a restarted host does not know the connection.
                if let (true, ProcessInput::Message(connection, _)) = (process.up, &input) {
                    let side = self.side(*connection, pid);
                    self.finish(*connection, 1 - side);
                }
                continue;
            }
            if process.stopped {
                process.inbox.push_back((incarnation, input));
                continue;
            }
            if let Some(event) = self.hand_over(pid, incarnation, input) {
                return Some(event);
            }
        }
    }

    /// Data for a connection that this end has closed is dropped.
    fn hand_over(&mut self, pid: Pid, incarnation: u32, input: ProcessInput) -> Option<Event> {
        let connection = match &input {
            ProcessInput::Accepted(connection)
            | ProcessInput::Message(connection, _)
            | ProcessInput::Closed(connection) => *connection,
            ProcessInput::Dialled(..) | ProcessInput::Timer(_) | ProcessInput::Continued => {
                return Some(Event::To(pid, incarnation, input));
            }
        };
        let side = self.side(connection, pid);
        if !self.conns[connection].ends[side].open {
            if matches!(input, ProcessInput::Message(..)) {
                self.finish(connection, 1 - side);
            }
            return None;
        }
        if matches!(input, ProcessInput::Closed(_)) {
            self.conns[connection].ends[side].open = false;
        }
        Some(Event::To(pid, incarnation, input))
    }

    fn side(&self, connection: ConnId, pid: Pid) -> usize {
        usize::from(self.conns[connection].ends[0].pid != pid)
    }

    fn path(&mut self, from: Pid, to: Pid) -> &mut Path {
        let (from, to) = (self.processes[from].host, self.processes[to].host);
        &mut self.paths[from * self.hosts + to]
    }

    /// Whether bytes pass in this direction.
    pub(crate) fn passes(&self, from: Pid, to: Pid) -> bool {
        let (from, to) = (self.processes[from].host, self.processes[to].host);
        self.paths[from * self.hosts + to].cuts == 0
    }

    /// Whether two processes can communicate.
    pub(crate) fn reach(&self, one: Pid, two: Pid) -> bool {
        self.passes(one, two) && self.passes(two, one)
    }

    /// Whether an end of a connection to `to` gives it up: its peer has acknowledged nothing for
    /// `timeout`, or for `keepalive` while a host at that address answers, if only with a
    /// reset. The kernel of a stopped process acknowledges, too.
    pub(crate) fn gives_up(
        &self,
        connection: ConnId,
        by: Pid,
        to: Addr,
        keepalive: Micros,
        timeout: Micros,
        silent_since: &mut Option<Micros>,
    ) -> bool {
        let end = &self.conns[connection].ends[1 - self.side(connection, by)];
        let peer = &self.processes[end.pid];
        if peer.up && peer.incarnation == end.incarnation && self.reach(by, end.pid) {
            *silent_since = None;
            return false;
        }
        let owner = self.owner(to).filter(|owner| self.processes[*owner].up);
        let is_replaced = owner.is_some_and(|owner| self.reach(by, owner));
        let (now, limit) = (self.mono(by), if is_replaced { keepalive } else { timeout });
        now - *silent_since.get_or_insert(now) >= limit
    }

    /// The monotonic clock of a process, which stands still while its host is suspended.
    pub(crate) fn mono(&self, pid: Pid) -> Micros {
        self.now - self.processes[pid].suspended
    }

    fn latency(&mut self, from: Pid, to: Pid) -> Micros {
        let (least, most) = self.latency;
        let slow = self.path(from, to).slow;
        self.rng.range(least, most) + if slow > 0 { self.rng.range(slow / 2, slow) } else { 0 }
    }

    pub(crate) fn send(&mut self, connection: ConnId, from: Pid, body: Message) {
        let side = self.side(connection, from);
        if self.conns[connection].ends[side].open {
            self.carry(connection, 1 - side, ProcessInput::Message(connection, body));
        }
    }

    /// Delivers an input to one end of a connection, in order.
    fn carry(&mut self, connection: ConnId, side: usize, input: ProcessInput) {
        let (from, to) =
            (self.conns[connection].ends[1 - side].pid, self.conns[connection].ends[side].pid);
        let incarnation = self.conns[connection].ends[side].incarnation;
        if !self.passes(from, to) {
            self.path(from, to).parked.push((to, incarnation, connection, input));
            return;
        }
        let made_at = self.conns[connection].made_at;
        let path = self.path(from, to);
        let ready = if made_at < path.mended_at { path.ready_at } else { 0 };
        let arrival = (self.now + self.latency(from, to)).max(ready);
        let arrival = arrival.max(self.conns[connection].ends[side].last_arrival + 1);
        self.conns[connection].ends[side].last_arrival = arrival;
        self.at(arrival, Event::To(to, incarnation, input));
    }

    /// Notifies one end that the other is gone.
    fn finish(&mut self, connection: ConnId, side: usize) {
        if self.conns[connection].ends[side].open {
            self.carry(connection, side, ProcessInput::Closed(connection));
        }
    }

    pub(crate) fn close(&mut self, connection: ConnId, by: Pid) {
        let side = self.side(connection, by);
        if std::mem::replace(&mut self.conns[connection].ends[side].open, false) {
            self.finish(connection, 1 - side);
        }
    }

    pub(crate) fn peer(&self, connection: ConnId, of: Pid) -> Pid {
        self.conns[connection].ends[1 - self.side(connection, of)].pid
    }

    #[cfg(test)]
    pub(crate) fn last_conn(&self) -> ConnId {
        self.conns.len() - 1
    }

    /// Connects; the result is delivered as [`ProcessInput::Dialled`] with this token.
    pub(crate) fn dial(&mut self, pid: Pid, to: Addr, timeout: Micros, token: u64) {
        let incarnation = self.processes[pid].incarnation;
        let answer =
            |connection| Event::To(pid, incarnation, ProcessInput::Dialled(token, connection));
        let owner = self.owner(to).filter(|owner| self.reach(pid, *owner));
        let Some(owner) = owner else { return self.at(self.now + timeout, answer(None)) };
        let way = self.latency(pid, owner);
        let both = way + self.latency(owner, pid);
        if both > timeout {
            return self.at(self.now + timeout, answer(None));
        }
        if !self.processes[owner].up {
            return self.at(self.now + both, answer(None));
        }
        let end = |pid: Pid, incarnation, last_arrival| End {
            pid,
            incarnation,
            open: true,
            last_arrival,
        };
        let theirs = self.processes[owner].incarnation;
        let (there, back) = (self.now + way, self.now + both);
        self.conns.push(Connection {
            ends: [end(pid, incarnation, back), end(owner, theirs, there)],
            made_at: self.now,
        });
        let connection = self.conns.len() - 1;
        self.at(there, Event::To(owner, theirs, ProcessInput::Accepted(connection)));
        self.at(back, answer(Some(connection)));
    }
}
