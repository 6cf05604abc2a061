//! The scripted servers: a sentinel that answers what a test sets, and a Redis node with a role and
//! a replication history.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::fake::{AccessRules, ConnectionState, Script, common};
use crate::wire;

/// A sentinel's answers about one master.
#[derive(Debug, Clone)]
pub(crate) struct MasterRecord {
    pub(crate) ip: String,
    pub(crate) port: u16,
    pub(crate) epoch: u64,
    pub(crate) flags: String,
    pub(crate) run_id: String,
    /// Announced addresses of the replicas.
    pub(crate) replicas: Vec<(String, u16)>,
    /// The ports of the replicas that it considers down.
    pub(crate) down: Vec<u16>,
    /// The other sentinels: MYID, ip, port.
    pub(crate) peers: Vec<(String, String, u16)>,
    /// If set, the second query of the address in a poll is answered with this port instead.
    pub(crate) torn: Option<u16>,
    /// Whether it has just read the `run_id`, and not ten minutes ago.
    pub(crate) informed: bool,
}

/// A sentinel.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentinelScript {
    pub(crate) id: String,
    pub(crate) access: AccessRules,
    pub(crate) tilt: bool,
    pub(crate) masters: BTreeMap<String, MasterRecord>,
    /// Raw answers by the beginning of the command, in capitals.
    pub(crate) overrides: BTreeMap<String, Vec<u8>>,
    /// Subscribed connections get no answer any more.
    pub(crate) ignores_subscribers: bool,
    asked: usize,
}

/// A MYID of forty digits.
pub(crate) fn my_id(number: usize) -> String {
    format!("{number:040x}")
}

impl SentinelScript {
    pub(crate) fn new(number: usize) -> Self {
        Self { id: my_id(number), ..Self::default() }
    }

    /// Its answers about `mymaster`.
    pub(crate) fn record(&mut self) -> &mut MasterRecord {
        self.masters.get_mut("mymaster").expect("it watches mymaster")
    }

    fn about(&mut self, what: &str, name: &str, resp3: bool) -> Vec<u8> {
        let Some(record) = self.masters.get(name).cloned() else {
            return match what {
                "GET-MASTER-ADDR-BY-NAME" => wire::nothing(resp3),
                _ => b"-ERR No such master with that name\r\n".to_vec(),
            };
        };
        match what {
            "GET-MASTER-ADDR-BY-NAME" => {
                self.asked += 1;
                let port = if self.asked.is_multiple_of(2) {
                    record.torn.unwrap_or(record.port)
                } else {
                    record.port
                };
                wire::words(&[&record.ip, &port.to_string()])
            }
            "MASTER" => wire::fields(
                resp3,
                &[
                    ("name", name.to_owned()),
                    ("ip", "203.0.113.9".to_owned()),
                    ("port", "1".to_owned()),
                    ("runid", record.run_id),
                    ("flags", record.flags),
                    ("last-ok-ping-reply", "0".to_owned()),
                    ("info-refresh", if record.informed { "0" } else { "600000" }.to_owned()),
                    ("config-epoch", record.epoch.to_string()),
                ],
            ),
            "SENTINELS" => wire::array(record.peers.iter().map(|(id, ip, port)| {
                let at = [("ip", ip.clone()), ("port", port.to_string())];
                wire::fields(
                    resp3,
                    &[
                        at[0].clone(),
                        at[1].clone(),
                        ("runid", id.clone()),
                        ("flags", "sentinel".to_owned()),
                    ],
                )
            })),
            "REPLICAS" => wire::array(record.replicas.iter().map(|(ip, port)| {
                let at = [("ip", ip.clone()), ("port", port.to_string())];
                let flags =
                    if record.down.contains(port) { "s_down,slave,disconnected" } else { "slave" };
                let state = [("flags", flags.to_owned()), ("master-link-status", "ok".to_owned())];
                wire::fields(
                    resp3,
                    &[at[0].clone(), at[1].clone(), state[0].clone(), state[1].clone()],
                )
            })),
            _ => b"-ERR Unknown sentinel subcommand\r\n".to_vec(),
        }
    }
}

impl Script for SentinelScript {
    fn answer(&mut self, command: &[String], state: &mut ConnectionState) -> Vec<u8> {
        if self.ignores_subscribers && state.subscribed {
            return Vec::new();
        }
        if let Some(answer) = common(&self.access, command, state) {
            return answer;
        }
        let whole = command.join(" ").to_ascii_uppercase();
        if let Some((_, answer)) =
            self.overrides.iter().find(|(beginning, _)| whole.starts_with(beginning.as_str()))
        {
            return answer.clone();
        }
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["SUBSCRIBE", channels @ ..] => {
                state.subscribed = true;
                let confirm = |(number, channel): (usize, &&str)| {
                    let count = format!(":{}\r\n", number + 1).into_bytes();
                    wire::push(state.resp3, [wire::bulk("subscribe"), wire::bulk(channel), count])
                };
                channels.iter().enumerate().flat_map(confirm).collect()
            }
            ["PING", ..] => b"+PONG\r\n".to_vec(),
            ["INFO", ..] => wire::bulk(&format!(
                "# Sentinel\r\nsentinel_masters:1\r\nsentinel_tilt:{}\r\n",
                u8::from(self.tilt)
            )),
            ["SENTINEL", what, ..] if what.eq_ignore_ascii_case("MYID") => wire::bulk(&self.id),
            ["SENTINEL", what, name] => self.about(&what.to_ascii_uppercase(), name, state.resp3),
            _ => b"-ERR unknown command\r\n".to_vec(),
        }
    }
}

/// A redis node.
#[derive(Debug, Clone)]
pub(crate) struct RedisScript {
    pub(crate) access: AccessRules,
    /// The master that it follows, as configured; `None` for a master.
    pub(crate) follows: Option<(String, u16)>,
    /// The state of its replication link, as reported by `ROLE`.
    pub(crate) link: &'static str,
    /// The replicas that it lists as a master.
    pub(crate) attached: Vec<SocketAddr>,
    pub(crate) pong: Vec<u8>,
    pub(crate) run_id: String,
    pub(crate) replid: String,
    pub replid2: String,
    pub(crate) offset: u64,
    pub(crate) second_offset: i64,
    /// Closes a connection at the second PING on it.
    pub(crate) once: bool,
    /// Sent after every answer.
    pub(crate) chatter: Vec<u8>,
    /// The entries of its commands in `COMMAND INFO`, by their names.
    pub(crate) commands: BTreeMap<String, Vec<u8>>,
    /// Answers the question about them as a server that runs a script.
    pub(crate) hides_commands: bool,
}

impl RedisScript {
    pub(crate) fn master(number: usize) -> Self {
        Self {
            access: AccessRules::default(),
            follows: None,
            link: "connected",
            attached: Vec::new(),
            pong: b"+PONG\r\n".to_vec(),
            run_id: format!("{number:040x}"),
            replid: "1".repeat(40),
            replid2: "0".repeat(40),
            offset: 1000,
            second_offset: -1,
            once: false,
            chatter: Vec::new(),
            commands: BTreeMap::new(),
            hides_commands: false,
        }
    }

    pub(crate) fn replica(number: usize, of: SocketAddr) -> Self {
        Self { follows: Some((of.ip().to_string(), of.port())), ..Self::master(number) }
    }

    /// `SLAVEOF NO ONE`: a new history that continues the old one.
    pub(crate) fn promote(&mut self) {
        self.follows = None;
        self.second_offset = i64::try_from(self.offset).expect("small") + 1;
        let number = u64::from_str_radix(&self.replid[..8], 16).expect("digits") + 1;
        self.replid2 = std::mem::replace(&mut self.replid, format!("{number:08x}").repeat(5));
    }

    pub(crate) fn follow(&mut self, master: &Self, addr: SocketAddr) {
        self.follows = Some((addr.ip().to_string(), addr.port()));
        (self.replid, self.replid2) = (master.replid.clone(), master.replid2.clone());
    }
}

impl Script for RedisScript {
    fn answer(&mut self, command: &[String], state: &mut ConnectionState) -> Vec<u8> {
        state.over = self.once && state.answered > 3 && command == ["PING"];
        let mut said = self.reply(command, state);
        said.extend(&self.chatter);
        said
    }
}

impl RedisScript {
    fn reply(&self, command: &[String], state: &mut ConnectionState) -> Vec<u8> {
        if let Some(answer) = common(&self.access, command, state) {
            return answer;
        }
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match (words.as_slice(), &self.follows) {
            (["PING"], _) => self.pong.clone(),
            (["ROLE"], None) => wire::array([
                wire::bulk("master"),
                format!(":{}\r\n", self.offset).into_bytes(),
                wire::array(self.attached.iter().map(|replica| {
                    let (host, port) = (replica.ip().to_string(), replica.port().to_string());
                    wire::array([wire::bulk(&host), wire::bulk(&port), wire::bulk("0")])
                })),
            ]),
            (["ROLE"], Some((host, port))) => wire::array([
                wire::bulk("slave"),
                wire::bulk(host),
                format!(":{port}\r\n").into_bytes(),
                wire::bulk(self.link),
                format!(":{}\r\n", self.offset).into_bytes(),
            ]),
            (["COMMAND", ..], _) if self.hides_commands => b"-BUSY running a script\r\n".to_vec(),
            (["COMMAND", "LIST"], _) if !self.commands.is_empty() => {
                wire::array(self.commands.keys().map(|name| wire::bulk(name)))
            }
            (["COMMAND", "INFO", names @ ..], _) => {
                let entry = |name: &&str| self.commands.get(*name).cloned();
                wire::array(names.iter().map(|it| entry(it).unwrap_or(wire::nothing(false))))
            }
            (["INFO", "server"], _) => {
                wire::bulk(&format!("# Server\r\nrun_id:{}\r\n", self.run_id))
            }
            (["INFO", "replication"], _) => wire::bulk(&format!(
                "# Replication\r\nmaster_replid:{}\r\nmaster_replid2:{}\r\nmaster_repl_offset:{}\r\nsecond_repl_offset:{}\r\n",
                self.replid, self.replid2, self.offset, self.second_offset
            )),
            _ => b"-ERR unknown command\r\n".to_vec(),
        }
    }
}
