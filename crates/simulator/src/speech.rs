//! What sentinels and Redis nodes answer to the commands of a proxy, honest or not.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use redis_protocol::resp3::types::BytesFrame as Frame;

use crate::net::ConnId;
use crate::resp::{commands, error, list, put, text};
use crate::wire::{Addr, Info, Message, NODE_SECRET, Told, hex};

/// A proxy's connection to a sentinel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listener {
    pub(crate) resp3: bool,
    channels: BTreeSet<String>,
}

impl Listener {
    /// The bytes of an event, if it is subscribed to.
    pub(crate) fn event(&self, channel: &str, payload: &str) -> Option<Bytes> {
        let mut out = BytesMut::new();
        let items = vec![text("message"), text(channel), text(payload)];
        self.channels.contains(channel).then(|| put(&mut out, &self.push(items)))?;
        Some(out.freeze())
    }

    fn push(&self, data: Vec<Frame>) -> Frame {
        if self.resp3 { Frame::Push { data, attributes: None } } else { list(data) }
    }
}

/// A sentinel in the moment in which it answers.
#[derive(Debug, Default)]
pub(crate) struct SentinelSpeech {
    pub(crate) id: u64,
    pub(crate) tilt: bool,
    pub(crate) connections: u32,
    /// It can lead a coordinated failover, as Valkey's sentinels since 9.0.
    pub(crate) coordinates: bool,
    /// The replies to a poll.
    pub(crate) round: Vec<Frame>,
    /// What the oracle learns of that.
    pub(crate) told: Option<Told>,
    /// An event that follows, with its channel.
    pub(crate) event: Option<(&'static str, String)>,
}

impl SentinelSpeech {
    /// Answers commands. `order` takes an order to fail over, coordinated or not.
    pub(crate) fn answer(
        self,
        commands: &[Vec<&str>],
        listener: &mut Listener,
        mut order: impl FnMut(bool) -> bool,
    ) -> Vec<Message> {
        let mut out = BytesMut::new();
        for words in commands {
            match words.as_slice() {
                ["SUBSCRIBE", channels @ ..] => {
                    for channel in channels {
                        listener.channels.insert((*channel).to_owned());
                        let count = (listener.channels.len() as i64).into();
                        let items = vec![text("subscribe"), text(*channel), count];
                        put(&mut out, &listener.push(items));
                    }
                    continue;
                }
                ["HELLO", ..] => listener.resp3 = true,
                _ => {}
            }
            put(&mut out, &self.reply(words, &mut order));
        }
        let event = self.event.and_then(|(channel, payload)| listener.event(channel, &payload));
        let event = event.map(|bytes| Message::Response(bytes, None));
        [Message::Response(out.freeze(), self.told)].into_iter().chain(event).collect()
    }

    fn reply(&self, words: &[&str], mut order: impl FnMut(bool) -> bool) -> Frame {
        match words {
            ["PING"] => text("PONG"),
            ["INFO", section @ ..] => {
                let count = self.connections;
                let clients = if section.is_empty() && count > 0 {
                    format!("# Clients\r\nconnected_clients:{count}\r\n")
                } else {
                    String::new()
                };
                let tilt = u8::from(self.tilt);
                text(format!("{clients}# Sentinel\r\nsentinel_tilt:{tilt}\r\n"))
            }
            ["SENTINEL", "MYID"] => text(hex(self.id)),
            ["SENTINEL", "FAILOVER", _, coordinated @ ..]
                if coordinated.is_empty() || self.coordinates =>
            {
                if order(!coordinated.is_empty()) {
                    text("OK")
                } else {
                    error("NOGOODSLAVE No suitable replica to promote")
                }
            }
            ["SENTINEL", "FAILOVER", ..] => {
                error("ERR wrong number of arguments for 'sentinel|failover' command")
            }
            ["SENTINEL", subcommand, _] => {
                let at = match subcommand.to_ascii_lowercase().as_str() {
                    "master" => 1,
                    "sentinels" => 2,
                    "replicas" => 3,
                    _ => 0,
                };
                self.round[at].clone()
            }
            _ => text("OK"),
        }
    }

    /// Whether the answer to `SENTINEL MASTER` or `REPLICAS` is needed.
    pub(crate) fn needs_round(commands: &[Vec<&str>]) -> bool {
        commands.iter().any(|words| words[0] == "SENTINEL" && words.len() == 3)
    }

    /// Whether the commands contain a poll.
    pub(crate) fn is_poll(commands: &[Vec<&str>]) -> bool {
        commands.iter().any(|words| words[0] == "SENTINEL" && words[1] == "sentinels")
    }
}

/// Answers commands as a node with this state does.
pub(crate) fn answer_as_node(
    bytes: &[u8],
    info: &Info,
    has_password: bool,
    authenticated: &mut BTreeSet<ConnId>,
    connection: ConnId,
) -> Message {
    let (mut out, mut told) = (BytesMut::new(), None);
    for words in commands(bytes) {
        if words[0] == "AUTH" && words.last() == Some(&NODE_SECRET) {
            authenticated.insert(connection);
        }
        let reply = match words.as_slice() {
            _ if has_password && !authenticated.contains(&connection) => {
                error("NOAUTH Authentication required.")
            }
            ["PING"] => text("PONG"),
            ["ROLE"] => {
                told = Some(Told::Role { is_master: info.master.is_none(), history: info.replid });
                role(info)
            }
            ["INFO", "server"] => text(format!("# Server\r\nrun_id:{}\r\n", hex(info.run_id))),
            ["INFO", ..] => text(replication(info)),
            ["COMMAND", ..] => error("ERR unknown subcommand"),
            _ => text("OK"),
        };
        put(&mut out, &reply);
    }
    Message::Response(out.freeze(), told)
}

fn role(info: &Info) -> Frame {
    let offset = Frame::from(i64::try_from(info.offset).unwrap_or(i64::MAX));
    let Some(master) = info.master else {
        let replica = |addr: &Addr| {
            list([addr.host(), addr.port.to_string(), info.offset.to_string()].map(text).into())
        };
        let replicas = list(info.replicas.iter().map(replica).collect());
        return list(vec![text("master"), offset, replicas]);
    };
    let (port, state) =
        (i64::from(master.port).into(), if info.link_up { "connected" } else { "connect" });
    list(vec![text("slave"), text(master.host()), port, text(state), offset])
}

fn replication(info: &Info) -> String {
    let role = match info.master {
        None => {
            let state = if info.hands_over { "waiting-for-sync" } else { "no-failover" };
            format!("role:master\r\nmaster_failover_state:{state}\r\n")
        }
        Some(master) => format!(
            "role:slave\r\nmaster_host:{}\r\nmaster_port:{}\r\nmaster_link_status:{}\r\n\
             slave_repl_offset:{}\r\nslave_priority:{}\r\n",
            master.host(),
            master.port,
            if info.link_up { "up" } else { "down" },
            info.offset,
            info.priority
        ),
    };
    let second = if info.second_offset < 0 { "0".repeat(40) } else { hex(info.replid2) };
    format!(
        "# Replication\r\n{role}master_replid:{}\r\nmaster_replid2:{second}\r\n\
         master_repl_offset:{}\r\nsecond_repl_offset:{}\r\n",
        hex(info.replid),
        info.offset,
        info.second_offset
    )
}
