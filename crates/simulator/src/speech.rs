//! What sentinels and Redis nodes answer to the commands of a proxy, honest or not.

use sentinel::simulation::Reply;

use crate::resp::{put, put_error, put_ok};
use crate::wire::{Addr, Info, NODE_SECRET, hex, text};

/// A proxy's connection to a sentinel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listener {
    pub(crate) resp3: bool,
    channels: Vec<String>,
}

impl Listener {
    /// The bytes of an event, if it is subscribed to.
    pub(crate) fn event(&self, channel: &str, payload: &str) -> Option<Vec<u8>> {
        if !self.channels.iter().any(|it| it == channel) {
            return None;
        }
        let mut out = Vec::new();
        let items = vec![text("message"), text(channel), text(payload)];
        self.put_push(&mut out, items);
        Some(out)
    }

    fn put_push(&self, out: &mut Vec<u8>, items: Vec<Reply>) {
        put(out, &if self.resp3 { Reply::Push(items) } else { Reply::List(items) });
    }
}

/// A sentinel in the moment in which it answers.
#[derive(Debug)]
pub(crate) struct SentinelSpeech {
    pub(crate) id: u64,
    pub(crate) tilt: bool,
    pub(crate) connections: u32,
    /// It can lead a coordinated failover, as Valkey's sentinels since 9.0.
    pub(crate) coordinates: bool,
    /// The replies to a poll.
    pub(crate) round: Vec<Reply>,
}

/// Whether the commands contain a poll.
pub(crate) fn is_poll(commands: &[Vec<&str>]) -> bool {
    commands.iter().any(|words| words[0] == "SENTINEL" && words[1] == "sentinels")
}

impl SentinelSpeech {
    /// Answers a command. `false`: it is an order to fail over.
    pub(crate) fn answer(
        &self,
        words: &[&str],
        listener: &mut Listener,
        out: &mut Vec<u8>,
    ) -> bool {
        match words {
            ["HELLO", ..] => {
                listener.resp3 = true;
                out.extend_from_slice(b"%1\r\n$5\r\nproto\r\n:3\r\n");
            }
            ["PING"] => out.extend_from_slice(b"+PONG\r\n"),
            ["INFO", section @ ..] => {
                let count = self.connections;
                let clients = if section.is_empty() && count > 0 {
                    format!("# Clients\r\nconnected_clients:{count}\r\n")
                } else {
                    String::new()
                };
                let tilt = u8::from(self.tilt);
                put(out, &text(format!("{clients}# Sentinel\r\nsentinel_tilt:{tilt}\r\n")));
            }
            ["SUBSCRIBE", channels @ ..] => {
                for channel in channels {
                    listener.channels.push((*channel).to_owned());
                    let count = Reply::Number(listener.channels.len() as i64);
                    listener.put_push(out, vec![text("subscribe"), text(*channel), count]);
                }
            }
            ["SENTINEL", "MYID"] => put(out, &text(hex(self.id))),
            ["SENTINEL", "FAILOVER", _] => return false,
            ["SENTINEL", "FAILOVER", _, "COORDINATED"] if self.coordinates => return false,
            ["SENTINEL", "FAILOVER", ..] => {
                let command = "'sentinel|failover' command";
                put_error(out, &format!("ERR wrong number of arguments for {command}"));
            }
            ["SENTINEL", subcommand, _] => {
                let at = match subcommand.to_ascii_lowercase().as_str() {
                    "master" => 1,
                    "sentinels" => 2,
                    "replicas" => 3,
                    _ => 0,
                };
                put(out, &self.round[at]);
            }
            _ => put_ok(out),
        }
        true
    }

    /// Whether the answer to `SENTINEL MASTER` or `REPLICAS` is needed.
    pub(crate) fn needs_round(commands: &[Vec<&str>]) -> bool {
        commands.iter().any(|words| words[0] == "SENTINEL" && words.len() == 3)
    }
}

/// Answers a command as a node with this state.
pub(crate) fn answer_as_node(words: &[&str], info: &Info, out: &mut Vec<u8>) {
    match words {
        ["PING"] => out.extend_from_slice(b"+PONG\r\n"),
        ["ROLE"] => put(out, &role(info)),
        ["INFO", "server"] => {
            put(out, &text(format!("# Server\r\nrun_id:{}\r\n", hex(info.run_id))));
        }
        ["INFO", ..] => put(out, &text(replication(info))),
        ["COMMAND", ..] => put_error(out, "ERR unknown subcommand"),
        _ => put_ok(out),
    }
}

/// Whether this is the right password.
pub(crate) fn is_authenticated_by(words: &[&str]) -> bool {
    words[0] == "AUTH" && words.last() == Some(&NODE_SECRET)
}

fn number(offset: u64) -> Reply {
    Reply::Number(i64::try_from(offset).unwrap_or(i64::MAX))
}

fn role(info: &Info) -> Reply {
    let Some(master) = info.master else {
        let replica = |addr: &Addr| {
            let (port, offset) = (addr.port.to_string(), info.offset.to_string());
            Reply::List(vec![text(addr.host()), text(port), text(offset)])
        };
        let replicas = Reply::List(info.replicas.iter().map(replica).collect());
        return Reply::List(vec![text("master"), number(info.offset), replicas]);
    };
    let (port, state) =
        (Reply::Number(master.port.into()), if info.link_up { "connected" } else { "connect" });
    Reply::List(vec![text("slave"), text(master.host()), port, text(state), number(info.offset)])
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
