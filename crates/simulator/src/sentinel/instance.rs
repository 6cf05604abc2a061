//! A Redis node or another sentinel, as one sentinel sees it.

use crate::net::{ConnId, Net};
use crate::wire::{Addr, Pid, SECOND};

/// Timeout of a dial: as long as the operating system tries.
const DIAL: u64 = 60 * SECOND;

/// The kind of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum InstanceKind {
    #[default]
    Master,
    Replica,
    Sentinel,
}

/// How far the reconfiguration of a replica has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ReconfState {
    #[default]
    None,
    Sent,
    InProgress,
    Done,
}

/// A connection, open or being dialled.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) connection: Option<ConnId>,
    pub(crate) token: Option<u64>,
    pub(crate) dialled_at: i64,
}

impl Link {
    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_some() || self.token.is_some()
    }

    pub(crate) fn dial(&mut self, addr: Addr, token: u64, pid: Pid, net: &mut Net) {
        (self.token, self.dialled_at) = (Some(token), net.wall_ms(pid));
        net.dial(pid, addr, DIAL, token);
    }

    pub(crate) fn close(&mut self, pid: Pid, net: &mut Net) {
        self.token = None;
        self.connection.take().into_iter().for_each(|it| net.close(it, pid));
    }
}

/// An instance. Times are milliseconds of the sentinel's wall clock; 0: never.
#[derive(Debug, Default)]
pub(crate) struct Instance {
    pub(crate) kind: InstanceKind,
    pub(crate) addr: Addr,
    /// The `run_id` of a redis node, or the MYID of a sentinel.
    pub(crate) id: Option<u64>,
    /// For commands.
    pub(crate) cc: Link,
    /// For hellos.
    pub(crate) pc: Link,
    pub(crate) disconnected: bool,
    pub(crate) reconnect_at: i64,
    pub(crate) pc_activity: i64,
    pub(crate) open_ping: i64,
    pub(crate) last_ping: i64,
    pub(crate) last_pong: i64,
    pub(crate) last_avail: i64,
    pub(crate) last_pub: i64,
    pub(crate) info_at: i64,
    pub(crate) info_asked: i64,
    // Its state.
    pub(crate) s_down: bool,
    pub(crate) s_down_at: i64,
    pub(crate) o_down: bool,
    pub(crate) o_down_at: i64,
    pub(crate) says_master: bool,
    pub(crate) role_at: i64,
    // Of a replica.
    pub(crate) follows: Option<Addr>,
    pub(crate) follows_at: i64,
    pub(crate) link_up: bool,
    pub(crate) link_down_for: i64,
    pub(crate) priority: u64,
    pub(crate) offset: u64,
    pub(crate) reconf: ReconfState,
    pub(crate) reconf_at: i64,
    // Of a sentinel.
    pub(crate) master_down: bool,
    pub(crate) leader: Option<u64>,
    pub(crate) leader_epoch: u64,
    pub(crate) asked_back_at: i64,
}

impl Instance {
    pub(crate) fn new(kind: InstanceKind, addr: Addr, id: Option<u64>, now: i64) -> Self {
        Self {
            kind,
            addr,
            id,
            disconnected: true,
            open_ping: now,
            last_pong: now,
            last_avail: now,
            last_pub: now,
            says_master: kind == InstanceKind::Master,
            role_at: now,
            follows_at: now,
            priority: 100,
            ..Self::default()
        }
    }

    pub(crate) fn pong(&mut self, now: i64) {
        (self.open_ping, self.last_avail, self.last_pong) = (0, now, now);
    }

    pub(crate) fn pinged(&mut self, now: i64) {
        self.last_ping = now;
        if self.open_ping == 0 {
            self.open_ping = now;
        }
    }

    /// A connection ended.
    pub(crate) fn closed(&mut self, connection: ConnId) {
        for link in [&mut self.cc, &mut self.pc] {
            if link.connection == Some(connection) {
                (link.connection, self.disconnected) = (None, true);
            }
        }
    }

    pub(crate) fn drop_links(mut self, pid: Pid, net: &mut Net) {
        self.cc.close(pid, net);
        self.pc.close(pid, net);
    }

    /// The connection for commands, unless it has to be renewed.
    pub(crate) fn commands(&self) -> Option<ConnId> {
        self.cc.connection.filter(|_| !self.disconnected)
    }

    /// Since when it is not considered down; `true` if that is longer ago than `ms`.
    pub(crate) fn no_down_for(&self, ms: i64, now: i64) -> bool {
        let recent = self.s_down_at.max(self.o_down_at);
        recent == 0 || now - recent > ms
    }
}
