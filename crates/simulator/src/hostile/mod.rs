//! Hostile sentinels and servers, and what they claim.
//!
//! Outsiders are processes that no configuration names. Their sentinels join through hellos that
//! they publish on a Redis node, as any client with `PUBLISH` can; their servers claim to be the
//! master or a replica. Insiders are configured sentinels that begin to lie to proxies. All of them
//! draw their claims from one conspiracy: any address, epoch, peers and replicas, announced by
//! polls and by events. An undivided conspiracy with one lasting claim also stands for a second
//! cluster with our master's name, whose sentinels have met ours at a reused address.
//!
//! Deliberately absent: an outsider that replicates from the master. Then it has the data, whatever
//! a proxy does.

mod outsider;

use redis_protocol::resp3::types::BytesFrame as Frame;

pub(crate) use outsider::Outsider;

use crate::net::Net;
use crate::resp::{fields, list, text};
use crate::rng::Rng;
use crate::speech::SentinelSpeech;
use crate::wire::{Addr, Micros, NAME, SECOND, SENTINEL, hex};

/// How long a claim is held, unless it is held for the whole attack.
const PERIOD: Micros = 6 * SECOND;

/// What all hostile processes of a run agreed on.
#[derive(Debug, Clone)]
pub(crate) struct Conspiracy {
    seed: u64,
    /// One claim for the whole attack.
    stubborn: bool,
    /// Each speaks for itself.
    divided: bool,
    /// The config-epoch in hellos. Honest sentinels follow one that is higher than theirs.
    pub(crate) hello_epoch: u64,
    /// The first is the master at the start of the attack.
    nodes: Vec<Addr>,
    configured: Vec<(u64, Addr)>,
    sentinels: Vec<(u64, Addr)>,
    servers: Vec<Addr>,
    /// Hellos go to this sentinel only, which takes them from any client.
    whispers_to: Option<Addr>,
}

/// A claim about the master.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) master: Addr,
    epoch: u64,
    flags: &'static str,
    quorum: u64,
    peers: Vec<(u64, Addr)>,
    replicas: Vec<Addr>,
}

impl Conspiracy {
    /// What is agreed on at the start of an attack. The first of the `nodes` is the master.
    pub(crate) fn new(
        seed: u64,
        nodes: Vec<Addr>,
        configured: Vec<(u64, Addr)>,
        outsiders: Vec<(u64, Addr)>,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let whispers_to = Rng::new(!seed).percent(25).then(|| configured[0].1);
        let (sentinels, servers): (Vec<_>, Vec<_>) =
            outsiders.into_iter().partition(|(_, addr)| addr.port == SENTINEL);
        Self {
            seed: rng.next(),
            stubborn: rng.percent(60),
            divided: rng.percent(15),
            hello_epoch: if rng.percent(15) { *rng.pick(&[8, 100]) } else { 0 },
            nodes,
            configured,
            sentinels,
            servers: servers.into_iter().map(|(_, addr)| addr).collect(),
            whispers_to,
        }
    }

    /// The claim of one speaker at this time.
    pub(crate) fn claim(&self, speaker: u64, now: Micros) -> Claim {
        let period = if self.stubborn { 0 } else { 1 + now / PERIOD };
        let own = if self.divided { speaker } else { 0 };
        let mut rng = Rng::new(self.seed ^ period.wrapping_mul(0x9e37_79b9) ^ own);
        let master = match rng.range(0, 10) {
            0..7 => *rng.pick(&self.servers),
            7 => *rng.pick(&self.nodes),
            _ => self.nodes[0],
        };
        let mut peers = self.sentinels.clone();
        if rng.percent(70) {
            peers.extend(&self.configured);
        }
        if rng.percent(30) {
            peers.extend(
                (0..rng.range(1, 5)).map(|at| (rng.next(), self.sentinels[0].1, at)).map(
                    |(id, addr, at)| (id, Addr { ip: addr.ip, port: SENTINEL + 1 + at as u16 }),
                ),
            );
        }
        let mut replicas = self.servers.clone();
        if rng.percent(50) {
            replicas.extend(&self.nodes);
        }
        replicas.retain(|it| *it != master);
        let epoch = *rng.pick(&[0, 1, 2, 7, 8, 9, 50, u64::MAX]);
        let flags = *rng.pick(&["master", "master", "master", "master,s_down,o_down"]);
        Claim { master, epoch, flags, quorum: *rng.pick(&[0, 1, 2, 4, 1000]), peers, replicas }
    }

    /// Whether the server at `addr` claims to be the master now.
    pub(crate) fn claims_to_be_master(&self, addr: Addr, now: Micros) -> bool {
        let claims = self.claim(0, now).master == addr;
        claims || Rng::new(self.seed ^ u64::from(addr.ip) ^ (now / PERIOD)).percent(40)
    }

    /// The master at the start of the attack.
    pub(crate) fn true_master(&self) -> Addr {
        self.nodes[0]
    }

    /// Where a hello can be published: some node, or a sentinel.
    pub(crate) fn some_listener(&self, net: &mut Net) -> Addr {
        self.whispers_to.unwrap_or_else(|| *net.rng.pick(&self.nodes))
    }

    /// Puts its claim into the answers of a sentinel, sometimes followed by an event.
    pub(crate) fn lie(&self, speech: &mut SentinelSpeech, commands: &[Vec<&str>], net: &mut Net) {
        let claim = self.claim(speech.id, net.now);
        if SentinelSpeech::needs_round(commands) {
            // Sometimes it knows no such master.
            (speech.tilt, speech.round) = match net.rng.percent(5) {
                true => (false, vec![Frame::Null; 5]),
                false => (net.rng.percent(3), claim.replies()),
            };
        }
        if SentinelSpeech::is_poll(commands) && net.rng.percent(20) {
            speech.event = Some(self.event(&claim, &mut net.rng));
        }
    }

    fn event(&self, claim: &Claim, rng: &mut Rng) -> (&'static str, String) {
        let (old, new) = (self.true_master(), claim.master);
        let master = format!("{NAME} {} {}", old.host(), old.port);
        let replica = format!("slave {new} {} {} @ {master}", new.host(), new.port);
        let (id, addr) = *rng.pick(&self.sentinels);
        let sentinel = format!("sentinel {} {} {} @ {master}", hex(id), addr.host(), addr.port);
        match rng.range(0, 6) {
            0 => ("+switch-master", format!("{master} {} {}", new.host(), new.port)),
            1 => ("+selected-slave", replica),
            2 => ("+failover-state-send-slaveof-noone", replica),
            3 => ("+promoted-slave", replica),
            4 => ("+config-update-from", sentinel),
            _ => ("-failover-abort-no-good-slave", format!("master {master}")),
        }
    }
}

impl Claim {
    /// The replies to a poll.
    fn replies(&self) -> Vec<Frame> {
        let address = || list(vec![text(self.master.host()), text(self.master.port.to_string())]);
        let at = |addr: &Addr| vec![("ip", addr.host()), ("port", addr.port.to_string())];
        let mut master = at(&self.master);
        master.extend([
            ("name", NAME.to_owned()),
            ("runid", hex(self.epoch)),
            ("flags", self.flags.to_owned()),
            ("last-ok-ping-reply", "0".to_owned()),
            ("config-epoch", self.epoch.to_string()),
            ("quorum", self.quorum.to_string()),
        ]);
        let peers = self.peers.iter().map(|(id, addr)| {
            let more = [("runid", hex(*id)), ("flags", "sentinel".to_owned())];
            fields(at(addr).into_iter().chain(more))
        });
        let replica = [("flags", "slave".to_owned())];
        let replicas = self.replicas.iter();
        let replicas = replicas.map(|addr| fields(at(addr).into_iter().chain(replica.clone())));
        let (peers, replicas) = (list(peers.collect()), list(replicas.collect()));
        vec![address(), fields(master), peers, replicas, address()]
    }
}
