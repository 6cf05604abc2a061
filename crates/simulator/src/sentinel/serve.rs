//! A sentinel's answers to clients: the five replies of a poll, in the format of a real one.

use sentinel::simulation::Reply;

use super::{Instance, InstanceKind, NAME, Sentinel};
use crate::net::{ConnId, Net};
use crate::plan::ClusterConfig;
use crate::resp::{self, put_error, put_ok};
use crate::speech::{SentinelSpeech, is_poll};
use crate::wire::{Addr, Message, Told, fields, hex, text};

impl Sentinel {
    #[cfg(test)]
    pub(crate) fn answers(&self) -> Vec<Reply> {
        self.round(0)
    }

    /// Answers a proxy.
    pub(super) fn request(&mut self, connection: ConnId, bytes: &[u8], net: &mut Net) {
        let commands = resp::commands(bytes);
        let plot = self.plot.clone();
        let (mut event, mut told) = (None, None);
        let (mut tilt, mut round) = (self.tilt_since.is_some(), Vec::new());
        if let Some(plot) = &plot {
            if SentinelSpeech::needs_round(&commands) {
                (tilt, round) = plot.round(self.id, net);
            }
            event = is_poll(&commands).then(|| plot.some_event(self.id, net)).flatten();
        } else if SentinelSpeech::needs_round(&commands) {
            round = self.round(net.wall_ms(self.pid));
            let (id, master, epoch) = (self.id, self.current_master(), self.config_epoch);
            let successor = self.successor();
            told = is_poll(&commands).then_some(Told::View { id, master, epoch, successor });
        }
        let ClusterConfig { connections, coordinates, .. } = self.config;
        let speech = SentinelSpeech { id: self.id, tilt, connections, coordinates, round };
        let (mut out, mut listener) =
            (Vec::new(), self.listeners.remove(&connection).unwrap_or_default());
        for words in &commands {
            if !speech.answer(words, &mut listener, &mut out) {
                if self.order_failover(words.len() > 3, net) {
                    put_ok(&mut out);
                } else {
                    put_error(&mut out, "NOGOODSLAVE No suitable replica to promote");
                }
            }
        }
        net.send(connection, self.pid, Message::Response(out.into(), told));
        if let Some(bytes) = event.and_then(|(channel, text)| listener.event(channel, &text)) {
            net.send(connection, self.pid, Message::Response(bytes.into(), None));
        }
        self.listeners.insert(connection, listener);
    }

    /// The replies to one poll.
    pub(super) fn round(&self, now: i64) -> Vec<Reply> {
        let addr = self.current_master();
        let address = || Reply::List(vec![text(self.host(addr)), text(addr.port.to_string())]);
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
        vec![
            address(),
            self.master_fields(now),
            Reply::List(peers),
            Reply::List(replicas.collect()),
            address(),
        ]
    }

    fn master_fields(&self, now: i64) -> Reply {
        let mut flags = flags_of(&self.master);
        if self.failing_over {
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

    fn fields_of(&self, it: &Instance, more: Vec<(&'static str, String)>) -> Reply {
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
