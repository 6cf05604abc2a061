//! A sentinel's answers to clients: the five replies of a poll, in the format of a real one.

use sentinel::simulation::Reply;

use super::{Instance, InstanceKind, NAME, Sentinel};
use crate::wire::{Addr, fields, hex, text};

impl Sentinel {
    #[cfg(test)]
    pub(crate) fn answers(&self) -> Vec<Reply> {
        self.round()
    }

    /// The replies to one poll.
    pub(super) fn round(&self) -> Vec<Reply> {
        let addr = self.current_master();
        let address = || Reply::List(vec![text(addr.host()), text(addr.port.to_string())]);
        let peers = self.peers.iter().map(|it| of(it, Vec::new())).collect();
        let replicas = self.replicas.iter().map(|it| {
            let status = if it.link_up { "ok" } else { "err" };
            let master = it.follows.unwrap_or(Addr { ip: 0, port: 0 });
            let more = vec![
                ("master-link-status", status.to_owned()),
                ("master-host", master.host()),
                ("master-port", master.port.to_string()),
                ("slave-priority", it.priority.to_string()),
                ("slave-repl-offset", it.offset.to_string()),
            ];
            of(it, more)
        });
        vec![
            address(),
            self.master_fields(),
            Reply::List(peers),
            Reply::List(replicas.collect()),
            address(),
        ]
    }

    fn master_fields(&self) -> Reply {
        let mut flags = flags_of(&self.master);
        if self.failing_over {
            flags.push_str(",failover_in_progress");
        }
        let it = &self.master;
        fields(vec![
            ("name", NAME.to_owned()),
            ("ip", it.addr.host()),
            ("port", it.addr.port.to_string()),
            ("runid", it.id.map(hex).unwrap_or_default()),
            ("flags", flags),
            ("role-reported", if it.says_master { "master" } else { "slave" }.to_owned()),
            ("config-epoch", self.config_epoch.to_string()),
            ("num-slaves", self.replicas.len().to_string()),
            ("num-other-sentinels", self.peers.len().to_string()),
            ("quorum", self.config.quorum.to_string()),
            ("failover-timeout", self.config.failover_timeout.to_string()),
            ("down-after-milliseconds", self.config.down_after.to_string()),
        ])
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

fn of(it: &Instance, more: Vec<(&'static str, String)>) -> Reply {
    let mut all = vec![
        ("ip", it.addr.host()),
        ("port", it.addr.port.to_string()),
        ("runid", it.id.map(hex).unwrap_or_default()),
        ("flags", flags_of(it)),
    ];
    all.extend(more);
    fields(all)
}
