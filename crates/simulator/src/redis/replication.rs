//! Replication: dialling the master, continuing a history or copying it whole, and the stream.

use std::rc::Rc;

use super::{Redis, SYNCS};
use crate::net::{ConnId, Net};
use crate::wire::{Addr, Body, MS, SECOND, Snapshot, Us};

impl Redis {
    pub(super) fn cron(&mut self, net: &mut Net) {
        let Some(upstream) = &mut self.upstream else { return };
        if upstream.conn.is_none()
            && upstream.dialling.is_none()
            && upstream.master != net.addr(self.pid)
        {
            self.tokens += 1;
            upstream.dialling = Some(self.tokens);
            net.dial(self.pid, upstream.master, 2 * SECOND, self.tokens);
        }
    }

    pub(super) fn dialled(&mut self, token: u64, conn: Option<ConnId>, net: &mut Net) {
        let Some(upstream) = self.upstream.as_mut().filter(|it| it.dialling == Some(token)) else {
            return conn.into_iter().for_each(|conn| net.close(conn, self.pid));
        };
        (upstream.dialling, upstream.conn) = (None, conn);
        if let Some(conn) = conn {
            let from = net.addr(self.pid);
            net.send(
                conn,
                self.pid,
                Body::Psync { replid: self.replid, offset: self.offset, from },
            );
        }
    }

    /// A replica wants to follow: from where it is, if this node has what is missing, or from a
    /// whole copy.
    pub(super) fn sync_with(
        &mut self,
        conn: ConnId,
        replid: u64,
        offset: u64,
        from: Addr,
        net: &mut Net,
    ) {
        self.clients.retain(|it| *it != conn);
        if !self.is_master() && !self.upstream.as_ref().is_some_and(|it| it.up) {
            return net.close(conn, self.pid);
        }
        let shared = u64::try_from(self.second_offset - 1).unwrap_or(0);
        let ours = replid == self.replid || (replid == self.replid2 && offset <= shared);
        if ours && (self.backlog_from..=self.offset).contains(&offset) {
            net.send(conn, self.pid, Body::Continue { replid: self.replid });
            let missing = self.backlog.partition_point(|(after, _)| *after <= offset);
            for (offset, id) in &self.backlog[missing..] {
                net.send(conn, self.pid, Body::Stream { id: *id, offset: *offset });
            }
            self.replicas.push((conn, from));
        } else {
            let due = net.now + net.rng.range(20 * MS, 400 * MS);
            self.syncing.push((conn, from, due));
            net.timer(self.pid, due, SYNCS);
        }
    }

    pub(super) fn send_copies(&mut self, net: &mut Net) {
        let (due, later) = self.syncing.drain(..).partition(|(.., at)| *at <= net.now);
        self.syncing = later;
        let due: Vec<(ConnId, Addr, Us)> = due;
        for (conn, from, _) in due {
            let copy = Snapshot {
                replid: self.replid,
                offset: self.offset,
                writes: Rc::clone(&self.writes),
            };
            net.send(conn, self.pid, Body::Full(Box::new(copy)));
            self.replicas.push((conn, from));
        }
    }

    fn link_is_up(&mut self, conn: ConnId) -> bool {
        let upstream = self.upstream.as_mut().filter(|it| it.conn == Some(conn));
        upstream.map(|it| it.up = true).is_some()
    }

    pub(super) fn continued(&mut self, conn: ConnId, replid: u64) {
        if self.link_is_up(conn) && replid != self.replid {
            self.replid2 = self.replid;
            self.second_offset = i64::try_from(self.offset).unwrap_or(i64::MAX - 1) + 1;
            self.replid = replid;
        }
    }

    pub(super) fn copied(&mut self, conn: ConnId, copy: &Snapshot) {
        if self.link_is_up(conn) {
            self.writes = Rc::clone(&copy.writes);
            (self.replid, self.offset) = (copy.replid, copy.offset);
            (self.replid2, self.second_offset) = (0, -1);
            (self.backlog, self.backlog_from) = (Vec::new(), copy.offset);
        }
    }

    pub(super) fn streamed(&mut self, conn: ConnId, id: Option<u32>, offset: u64, net: &mut Net) {
        if self.upstream.as_ref().is_some_and(|it| it.conn == Some(conn)) {
            if let Some(id) = id {
                Rc::make_mut(&mut self.writes).push(id);
            }
            self.append(id, offset - self.offset, net);
        }
    }
}
