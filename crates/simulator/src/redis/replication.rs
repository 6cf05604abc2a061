//! Replication: dialling the master, partial and full synchronisation, and the stream.

use std::rc::Rc;

use super::{Handover, Redis, SYNCS};
use crate::net::{ConnId, Net};
use crate::wire::{Addr, MS, Message, Micros, SECOND};

/// A replica acknowledges at this interval. If another host has its master's address, that host
/// answers with a reset.
const ACKNOWLEDGEMENT: Micros = SECOND;
/// A silent link ends after this time (`repl-timeout`).
const LINK_TIMEOUT: Micros = 60 * SECOND;

impl Redis {
    /// Ends a link to a master that is gone.
    fn check_link(&mut self, net: &mut Net) {
        let Some(upstream) = &mut self.upstream else { return };
        let Some(connection) = upstream.connection else {
            upstream.silent_since = None;
            return;
        };
        let (to, since) = (upstream.master, &mut upstream.silent_since);
        if net.gives_up(connection, self.pid, to, ACKNOWLEDGEMENT, LINK_TIMEOUT, since) {
            net.close(connection, self.pid);
            self.closed(connection, net);
        }
    }

    /// `FAILOVER TO` a replica: writes wait until it has everything, for at most `lasts`.
    pub(super) fn hand_over(&mut self, to: Addr, lasts: Micros, net: &mut Net) {
        let link = self.replicas.iter().find(|(_, addr)| *addr == to).map(|(link, _)| *link);
        if let Some(link) = link.filter(|_| self.is_master() && self.handover.is_none()) {
            net.trace_line(self.pid, || format!("hands over to {to}"));
            net.send(link, self.pid, Message::CatchUp);
            self.handover = Some(Handover { to, link, until: net.now + lasts, held: Vec::new() });
        }
    }

    /// The replica has everything, or the handover is given up.
    pub(super) fn end_handover(&mut self, caught_up: Option<ConnId>, net: &mut Net) {
        let Some(handover) = self.handover.take() else { return };
        if caught_up != Some(handover.link) {
            return self.resume(Some(handover), net);
        }
        let to = handover.to;
        self.handover = Some(handover);
        self.slave_of(Some(to), net);
        self.upstream.as_mut().into_iter().for_each(|it| it.succeeds = true);
    }

    /// Answers the writes that have waited for the end of a handover.
    pub(super) fn resume(&mut self, handover: Option<Handover>, net: &mut Net) {
        for (connection, id) in handover.into_iter().flat_map(|it| it.held) {
            self.write(connection, id, net);
        }
    }

    pub(super) fn cron(&mut self, net: &mut Net) {
        if self.handover.as_ref().is_some_and(|it| it.until < net.now) {
            self.end_handover(None, net);
        }
        self.check_link(net);
        let Some(upstream) = &mut self.upstream else { return };
        if upstream.connection.is_none()
            && upstream.dialling.is_none()
            && upstream.master != net.addr(self.pid)
        {
            self.tokens += 1;
            upstream.dialling = Some(self.tokens);
            net.dial(self.pid, upstream.master, 2 * SECOND, self.tokens);
        }
    }

    pub(super) fn dialled(&mut self, token: u64, connection: Option<ConnId>, net: &mut Net) {
        let Some(upstream) = self.upstream.as_mut().filter(|it| it.dialling == Some(token)) else {
            return connection.into_iter().for_each(|connection| net.close(connection, self.pid));
        };
        (upstream.dialling, upstream.connection) = (None, connection);
        let failover = upstream.succeeds;
        if let Some(connection) = connection {
            let from = net.addr(self.pid);
            net.send(
                connection,
                self.pid,
                Message::Psync { replid: self.replid, offset: self.offset, from, failover },
            );
        }
    }

    /// A replica requests synchronisation: partial if this node has the missing part of the stream,
    /// otherwise full.
    pub(super) fn sync_with(
        &mut self,
        connection: ConnId,
        replid: u64,
        offset: u64,
        from: Addr,
        net: &mut Net,
    ) {
        self.clients.retain(|it| *it != connection);
        if !self.is_master() && !self.upstream.as_ref().is_some_and(|it| it.up) {
            return net.close(connection, self.pid);
        }
        let shared = u64::try_from(self.second_offset - 1).unwrap_or(0);
        let ours = replid == self.replid || (replid == self.replid2 && offset <= shared);
        if ours && (self.backlog_from..=self.offset).contains(&offset) {
            net.send(connection, self.pid, Message::Continue { replid: self.replid });
            let missing = self.backlog.partition_point(|(after, _)| *after <= offset);
            for (offset, id) in &self.backlog[missing..] {
                net.send(connection, self.pid, Message::Stream { id: *id, offset: *offset });
            }
            self.replicas.push((connection, from));
        } else {
            let due = net.now + net.rng.range(20 * MS, 400 * MS);
            self.syncing.push((connection, from, due));
            net.timer(self.pid, due, SYNCS);
        }
    }

    pub(super) fn send_copies(&mut self, net: &mut Net) {
        let (due, later) = self.syncing.drain(..).partition(|(.., at)| *at <= net.now);
        self.syncing = later;
        let due: Vec<(ConnId, Addr, Micros)> = due;
        for (connection, from, _) in due {
            let (replid, offset, writes) = (self.replid, self.offset, Rc::clone(&self.writes));
            net.send(connection, self.pid, Message::Full { replid, offset, writes });
            self.replicas.push((connection, from));
        }
    }

    fn link_is_up(&mut self, connection: ConnId) -> bool {
        let upstream = self.upstream.as_mut().filter(|it| it.connection == Some(connection));
        upstream.map(|it| it.up = true).is_some()
    }

    pub(super) fn continued(&mut self, connection: ConnId, replid: u64) {
        if self.link_is_up(connection) && replid != self.replid {
            self.begin_history(replid);
        }
    }

    pub(super) fn copied(
        &mut self,
        connection: ConnId,
        replid: u64,
        offset: u64,
        writes: Rc<Vec<u32>>,
    ) {
        if self.link_is_up(connection) {
            (self.replid, self.offset, self.writes) = (replid, offset, writes);
            (self.replid2, self.second_offset) = (0, -1);
            (self.backlog, self.backlog_from) = (Vec::new(), offset);
        }
    }

    pub(super) fn streamed(
        &mut self,
        connection: ConnId,
        id: Option<u32>,
        offset: u64,
        net: &mut Net,
    ) {
        if self.upstream.as_ref().is_some_and(|it| it.connection == Some(connection)) {
            if let Some(id) = id {
                Rc::make_mut(&mut self.writes).push(id);
            }
            self.append(id, offset - self.offset, net);
        }
    }
}
