//! A sentinel's answers to clients: the five replies of a poll, in the format of a real one.

use redis_protocol::resp3::types::BytesFrame as Frame;

use super::{Instance, InstanceKind, NAME, Sentinel};
use crate::net::{ConnId, Net};
use crate::plan::ClusterConfig;
use crate::resp::{self, fields, list, text};
use crate::speech::SentinelSpeech;
use crate::wire::{Addr, Told, hex};

impl Sentinel {
    #[cfg(test)]
    pub(crate) fn answers(&self) -> Vec<Frame> {
        self.round(0)
    }

    /// Answers a proxy.
    pub(super) fn request(&mut self, connection: ConnId, bytes: &[u8], net: &mut Net) {
        let commands = resp::commands(bytes);
        let ClusterConfig { connections, coordinates, .. } = self.config;
        let (id, tilt) = (self.id, self.tilt_since.is_some());
        let mut speech =
            SentinelSpeech { id, tilt, connections, coordinates, ..SentinelSpeech::default() };
        if let Some(plot) = &self.plot {
            plot.lie(&mut speech, &commands, net);
        } else if SentinelSpeech::needs_round(&commands) {
            speech.round = self.round(net.wall_ms(self.pid));
            let (master, epoch) = (self.current_master(), self.config_epoch);
            let successor = self.successor();
            speech.told = SentinelSpeech::is_poll(&commands).then_some(Told::View {
                id,
                master,
                epoch,
                successor,
            });
        }
        let mut listener = self.listeners.remove(&connection).unwrap_or_default();
        let order = |coordinated| self.order_failover(coordinated, net);
        for message in speech.answer(&commands, &mut listener, order) {
            net.send(connection, self.pid, message);
        }
        self.listeners.insert(connection, listener);
    }

    /// The replies to one poll.
    pub(super) fn round(&self, now: i64) -> Vec<Frame> {
        let addr = self.current_master();
        let address = || list(vec![text(self.host(addr)), text(addr.port.to_string())]);
        let peers = self.peers.iter().map(|it| self.fields_of(it, Vec::new())).collect();
        let replicas = self.replicas.iter().map(|it| {
            let status = if it.link_up { "ok" } else { "err" };
            let master = it.follows.unwrap_or(Addr { ip: 0, port: 0 });
            let more = vec![
                ("master-link-status", status.to_owned()),
                ("master-host", self.host(master)),
                ("master-port", master.port.to_string()),
                ("slave-priority", it.priority.to_string()),
                ("slave-repl-offset", it.offset.to_string()),
            ];
            self.fields_of(it, more)
        });
        vec![address(), self.master_fields(now), list(peers), list(replicas.collect()), address()]
    }

    fn master_fields(&self, now: i64) -> Frame {
        let mut flags = flags_of(&self.master);
        if self.is_failing_over() {
            flags.push_str(",failover_in_progress");
        }
        let it = &self.master;
        fields(vec![
            ("name", NAME.to_owned()),
            ("ip", self.host(it.addr)),
            ("port", it.addr.port.to_string()),
            ("runid", it.id.map(hex).unwrap_or_default()),
            ("flags", flags),
            ("last-ok-ping-reply", (now - it.last_avail).to_string()),
            ("info-refresh", (now - it.info_at).to_string()),
            ("role-reported", if it.says_master { "master" } else { "slave" }.to_owned()),
            ("role-reported-time", (now - it.role_at).to_string()),
            ("config-epoch", self.config_epoch.to_string()),
            ("num-slaves", self.replicas.len().to_string()),
            ("num-other-sentinels", self.peers.len().to_string()),
            ("quorum", self.config.quorum.to_string()),
            ("failover-timeout", self.config.failover_timeout.to_string()),
            ("down-after-milliseconds", self.config.down_after.to_string()),
        ])
    }

    fn fields_of(&self, it: &Instance, more: Vec<(&'static str, String)>) -> Frame {
        let mut all = vec![
            ("ip", self.host(it.addr)),
            ("port", it.addr.port.to_string()),
            ("runid", it.id.map(hex).unwrap_or_default()),
            ("flags", flags_of(it)),
        ];
        all.extend(more);
        fields(all)
    }
}

fn flags_of(it: &Instance) -> String {
    let mut flags = String::from(match it.kind {
        InstanceKind::Master => "master",
        InstanceKind::Replica => "slave",
        InstanceKind::Sentinel => "sentinel",
    });
    for (set, name) in
        [(it.s_down, ",s_down"), (it.o_down, ",o_down"), (it.disconnected, ",disconnected")]
    {
        if set {
            flags.push_str(name);
        }
    }
    flags
}
