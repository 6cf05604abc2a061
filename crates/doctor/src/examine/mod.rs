//! The I/O of an examination: resolves names and asks sentinels and nodes, each once, concurrently.
//!
//! Everything is bounded: the number of servers, the concurrency, and the time of each step.
//! Sentinels are asked in two waves: the configured ones, then those that they list and that were
//! not among them.

mod acl;
mod read;
mod tls_ports;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use sentinel::connections::{
    ConnectionError, LinkError, Lookup, ProbeConnection, ProbeError, Protocol, RespConnection,
    Transport, USER_TIMEOUT, describe, hello, is_usable, leads_back, put_command,
};
use sentinel::{
    DiscoverySettings, MyId, NodeAddr, NodeReport, PingReply, ProbeFailure, Resolver, Role, Trust,
    Verify,
};
use tls::{CertificateFacts, Fault, FaultKind};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::read::REPLIES;
use crate::observed::{
    ExamineError, NodeDetails, Observed, ObservedNode, ObservedSentinel, SentinelAnswer,
};

/// Limit of sentinels, and of nodes, that are asked.
const MAX_ASKED: usize = 64;
/// How many are asked concurrently.
const CONCURRENCY: usize = 16;
/// Timeout of a look-up. Longer than one attempt of the usual resolver, shorter than all of them.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a dial, the handshake of TLS included.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of a handshake that the first dial was too short for.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of all answers of one server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The service to examine, with its credentials.
#[derive(Debug)]
pub struct Examination {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// The configured sentinels; names may resolve to several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// How they and the nodes are reached. `verify` says which commands may be sent to a node.
    pub settings: DiscoverySettings,
    /// Our own listeners, if known, which must not be dialled.
    pub own: Vec<SocketAddr>,
}

/// An examination, and how to connect to each kind of server.
struct Asking {
    examination: Examination,
    to_sentinels: Transport,
    to_nodes: Transport,
}

impl Asking {
    fn new(examination: Examination) -> Self {
        let to_sentinels = Transport::new(examination.settings.sentinel_tls.clone());
        let to_nodes = Transport::new(examination.settings.redis_tls.clone());
        Self { examination, to_sentinels, to_nodes }
    }

    fn own_certificates(&self) -> Vec<(&'static str, CertificateFacts)> {
        let all =
            [("service.sentinel_tls", &self.to_sentinels), ("service.redis_tls", &self.to_nodes)];
        all.into_iter().filter_map(|(key, it)| Some((key, it.own_certificate()?))).collect()
    }
}

impl Deref for Asking {
    type Target = Examination;

    fn deref(&self) -> &Examination {
        &self.examination
    }
}

/// Examines every server once. Needs a tokio runtime. Takes some tens of milliseconds if all is
/// well, and less than a minute if up to 16 sentinels and nodes hang in every step.
pub async fn examine(examination: Examination, resolver: &Resolver) -> Observed {
    let examination = Arc::new(Asking::new(examination));
    let (found, unresolved) = seeds(&examination, resolver).await;
    let configured = |addr| (NodeAddr::from(addr), true, BTreeSet::new());
    let wave = found.into_iter().map(configured).collect();
    let mut sentinels = ask_sentinels(wave, &examination, resolver).await;
    if examination.settings.learn {
        let learned = learned(&sentinels, &examination);
        sentinels.extend(ask_sentinels(learned, &examination, resolver).await);
    }
    sentinels.extend(unresolved);
    let mut observed = Observed {
        name: Arc::clone(&examination.name),
        sentinels,
        nodes: Vec::new(),
        own_certificates: examination.own_certificates(),
    };
    let mut named: BTreeMap<NodeAddr, usize> = BTreeMap::new();
    let mut configured = 0;
    for (sentinel, answer, view) in observed.views() {
        let weight = usize::from(sentinel.configured);
        configured += weight;
        let all: BTreeSet<_> =
            view.nodes().filter(|addr| is_reachable(addr, answer.reached, &examination)).collect();
        all.into_iter().for_each(|addr| *named.entry(addr.clone()).or_default() += weight);
    }
    let ask = |addr, trust| ask_node(addr, trust, Arc::clone(&examination), resolver.clone());
    let all = named.into_iter().take(MAX_ASKED);
    let (most, few): (Vec<_>, Vec<_>) = all.partition(|(_, times)| times * 2 > configured);
    let most = most.into_iter().map(|(addr, _)| ask(addr, Trust::Committed));
    observed.nodes = run_concurrently(most).await;
    // The master of a node that most sentinels know is no stranger.
    let followed: BTreeSet<NodeAddr> =
        observed.nodes.iter().filter_map(|it| it.master().cloned()).collect();
    let few = few.into_iter().map(|(addr, _)| {
        let trust = if followed.contains(&addr) { Trust::Vouched } else { Trust::Stranger };
        ask(addr, trust)
    });
    observed.nodes.extend(run_concurrently(few).await);
    observed.nodes.sort_by(|one, other| one.addr.cmp(&other.addr));
    observed
}

/// Runs the futures with bounded concurrency and returns the results in order.
async fn run_concurrently<T: Send + 'static>(
    work: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let (turns, mut tasks) = (Arc::new(Semaphore::new(CONCURRENCY)), JoinSet::new());
    for (number, one) in work.enumerate() {
        let turns = Arc::clone(&turns);
        tasks.spawn(async move {
            let _turn = turns.acquire().await;
            (number, one.await)
        });
    }
    let mut done: BTreeMap<usize, T> = BTreeMap::new();
    while let Some(one) = tasks.join_next().await {
        done.extend(one.ok());
    }
    done.into_values().collect()
}

/// The addresses of the configured names, and the names without one.
async fn seeds(
    examination: &Asking,
    resolver: &Resolver,
) -> (BTreeSet<SocketAddr>, Vec<ObservedSentinel>) {
    let names = examination.sentinels.iter().take(MAX_ASKED).cloned().map(|name| {
        let mut lookup = Lookup::new(resolver, &name.host, name.port);
        async move { (name, lookup.addresses(LOOKUP_TIMEOUT).await) }
    });
    let (mut found, mut unresolved) = (BTreeSet::new(), Vec::new());
    for (name, answer) in run_concurrently(names).await {
        match answer {
            Ok(addrs) => {
                addrs.iter().for_each(|addr| examination.to_sentinels.set_name(*addr, &name.host));
                found.extend(addrs);
            }
            Err(error) => {
                let answer = Err(ExamineError::Unresolved(error.to_string()));
                unresolved.push(ObservedSentinel {
                    addr: name,
                    configured: true,
                    answer,
                    certificate: None,
                });
            }
        }
    }
    (found, unresolved)
}

/// A sentinel to ask: its address, whether it is configured, and the MYIDs that were announced
/// there: several if a former one is listed as well. None if any is right.
type SentinelToAsk = (NodeAddr, bool, BTreeSet<MyId>);

/// The sentinels that were listed by others and not reached yet.
fn learned(sentinels: &[ObservedSentinel], examination: &Asking) -> Vec<SentinelToAsk> {
    let observed = Observed {
        name: Arc::clone(&examination.name),
        sentinels: sentinels.to_vec(),
        nodes: Vec::new(),
        own_certificates: Vec::new(),
    };
    let reached: BTreeSet<&MyId> = observed.answered().map(|(_, answer)| &answer.id).collect();
    let asked: BTreeSet<&NodeAddr> = sentinels.iter().map(|it| &it.addr).collect();
    let mut learned: BTreeMap<NodeAddr, BTreeSet<MyId>> = BTreeMap::new();
    for (_, answer, view) in observed.views() {
        for peer in view
            .peers
            .iter()
            .filter(|peer| !peer.id.as_ref().is_some_and(|id| reached.contains(id)))
        {
            let Some(addr) =
                peer.addr.as_ref().filter(|addr| is_reachable(addr, answer.reached, examination))
            else {
                continue;
            };
            if !asked.contains(addr) {
                learned.entry(addr.clone()).or_default().extend(peer.id.clone());
            }
        }
    }
    learned.into_iter().take(MAX_ASKED).map(|(addr, ids)| (addr, false, ids)).collect()
}

/// Whether an announced address is meaningful from this host.
fn is_reachable(addr: &NodeAddr, said_by: SocketAddr, examination: &Asking) -> bool {
    examination.settings.address_map.contains_key(addr)
        || addr.ip().is_none_or(|ip| is_usable(ip, said_by.ip()))
}

async fn ask_sentinels(
    wanted: Vec<SentinelToAsk>,
    examination: &Arc<Asking>,
    resolver: &Resolver,
) -> Vec<ObservedSentinel> {
    let work = wanted.into_iter().take(MAX_ASKED).map(|(addr, configured, ids)| {
        let (examination, resolver) = (Arc::clone(examination), resolver.clone());
        async move {
            let transport = &examination.to_sentinels;
            let dialled = if configured {
                dial(&addr, &examination, transport, &resolver).await
            } else {
                dial_announced(&addr, &examination, transport, &resolver).await
            };
            let (answer, reached, mut certificate) = match dialled {
                Ok((connection, reached)) => {
                    let certificate = connection.certificate();
                    let answer = ask_sentinel(connection, reached, &examination).await;
                    (answer, Some(reached), certificate)
                }
                Err((reached, error)) => (Err(error), reached, None),
            };
            let answer = tls_ports::explain(answer, reached, transport, &mut certificate).await;
            // Another sentinel in that place is not the one that was announced.
            let answer = answer.and_then(|it| {
                if !ids.is_empty() && !ids.contains(&it.id) {
                    Err(ExamineError::OtherSentinel)
                } else {
                    Ok(it)
                }
            });
            ObservedSentinel { addr, configured, answer, certificate }
        }
    });
    run_concurrently(work).await
}

/// Connects to an announced address, or to its entry in the address map. An error comes with the
/// address that was dialled, if there was one.
async fn dial_announced(
    addr: &NodeAddr,
    examination: &Asking,
    transport: &Transport,
    resolver: &Resolver,
) -> Result<(RespConnection, SocketAddr), (Option<SocketAddr>, ExamineError)> {
    if examination.settings.nodes.permits(addr)
        || examination.settings.address_map.contains_key(addr)
    {
        dial(addr, examination, transport, resolver).await
    } else {
        Err((None, ExamineError::OutsideNodes))
    }
}

/// Connects to an address, or to its entry in the address map. An error comes with the address that
/// was dialled, if there was one.
async fn dial(
    addr: &NodeAddr,
    examination: &Asking,
    transport: &Transport,
    resolver: &Resolver,
) -> Result<(RespConnection, SocketAddr), (Option<SocketAddr>, ExamineError)> {
    let to = examination.settings.address_map.get(addr).unwrap_or(addr);
    let looked_up = Lookup::new(resolver, &to.host, to.port).address(LOOKUP_TIMEOUT).await;
    let reached = looked_up.map_err(|error| (None, ExamineError::Unresolved(error.to_string())))?;
    if leads_back(reached, &examination.own) {
        return Err((Some(reached), ExamineError::LeadsBack));
    }
    transport.set_name(reached, &to.host);
    let mut dialled = RespConnection::connect(reached, transport, DIAL_TIMEOUT, USER_TIMEOUT).await;
    // A plain port never answers a handshake. One with TLS is late if its host or this one is busy.
    if let Err(ConnectionError::Tls(Fault { kind: FaultKind::TimedOut, .. })) = dialled {
        if tls_ports::is_plain(reached).await {
            return Err((Some(reached), ExamineError::Tls(Fault::not_tls())));
        }
        dialled =
            RespConnection::connect(reached, transport, HANDSHAKE_TIMEOUT, USER_TIMEOUT).await;
    }
    dialled.map(|connection| (connection, reached)).map_err(|error| (Some(reached), broken(error)))
}

async fn ask_sentinel(
    mut connection: RespConnection,
    reached: SocketAddr,
    examination: &Asking,
) -> Result<SentinelAnswer, ExamineError> {
    let asking = async {
        hello(&mut connection, examination.settings.sentinel_auth.as_ref()).await?;
        let mut commands = BytesMut::new();
        read::put_questions(&mut commands, &examination.name);
        connection.send(&commands).await?;
        let mut replies = Vec::new();
        while replies.len() < REPLIES {
            replies.push(connection.next().await?);
        }
        Ok(replies)
    };
    let answered: Result<Vec<_>, LinkError> =
        match tokio::time::timeout(ANSWER_TIMEOUT, asking).await {
            Ok(answered) => answered,
            Err(_) => return Err(ExamineError::Unresponsive),
        };
    match answered {
        Ok(replies) => read::read(&replies, reached, connection.protocol == Protocol::Resp3),
        Err(LinkError::Denied(denied)) => Err(ExamineError::Denied(denied)),
        Err(LinkError::Connection(error)) => Err(broken(error)),
        Err(LinkError::Tls(fault)) => Err(ExamineError::Tls(fault)),
        Err(error) => Err(ExamineError::Unreachable(describe(&error))),
    }
}

async fn ask_node(
    addr: NodeAddr,
    trust: Trust,
    examination: Arc<Asking>,
    resolver: Resolver,
) -> ObservedNode {
    let transport = &examination.to_nodes;
    let dialled = dial_announced(&addr, &examination, transport, &resolver).await;
    let (connection, reached) = match dialled {
        Ok(connected) => connected,
        Err((dialled, error)) => {
            let mut certificate = None;
            let answer = Err(error);
            let answer = tls_ports::explain(answer, dialled, transport, &mut certificate).await;
            let details = NodeDetails::default();
            return ObservedNode { addr, dialled, answer, details, certificate };
        }
    };
    let mut certificate = connection.certificate();
    let mut details = NodeDetails::default();
    let answer = if examination.settings.rules.verify == Verify::Tcp {
        Ok(NodeReport {
            dialled: reached,
            role: Role::Unknown,
            ping: PingReply::Other,
            offset: None,
            lineage: None,
            replicas: None,
        })
    } else {
        let credentials = examination.settings.auth.clone();
        let mut connection = ProbeConnection::with_credentials(connection, reached, credentials);
        let probing = connection.probe(examination.settings.rules.verify, trust);
        match tokio::time::timeout(ANSWER_TIMEOUT, probing).await {
            Err(_) => Err(ExamineError::Unresponsive),
            Ok(Err(error)) => Err(match connection.rejection() {
                Some((_, denied)) => ExamineError::Denied(denied),
                None => broken(error),
            }),
            Ok(Ok((_, answer))) => {
                let answer = answer.map_err(error);
                if answer.is_ok() {
                    details = ask_details(connection, examination.settings.rules.verify).await;
                }
                answer
            }
        }
    };
    let answer = tls_ports::explain(answer, Some(reached), transport, &mut certificate).await;
    ObservedNode { addr, dialled: Some(reached), answer, details, certificate }
}

/// Asks a node that has answered a probe. What it does not answer in time stays unknown.
async fn ask_details(connection: ProbeConnection, verify: Verify) -> NodeDetails {
    let Some(mut connection) = connection.into_connection() else { return NodeDetails::default() };
    let (questions, mut replies) = (read::node_questions(verify), Vec::new());
    let asking = async {
        let mut commands = BytesMut::new();
        questions.iter().for_each(|command| put_command(&mut commands, command));
        connection.send(&commands).await.ok()?;
        while replies.len() < questions.len() {
            replies.push(connection.next().await.ok()?);
        }
        Some(())
    };
    let _ = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
    read::read_details(&replies)
}

fn error(error: ProbeError) -> ExamineError {
    match error {
        ProbeError::Denied(denied) => ExamineError::Denied(denied),
        ProbeError::Failed(ProbeFailure::Unresponsive | ProbeFailure::Busy) => {
            ExamineError::Unresponsive
        }
        ProbeError::Tls(fault) => ExamineError::Tls(fault),
        ProbeError::Failed(_) | ProbeError::DialTimedOut => ExamineError::UnexpectedServer,
    }
}

/// What the end of a connection means.
fn broken(error: ConnectionError) -> ExamineError {
    match error {
        ConnectionError::Malformed(_) => ExamineError::UnexpectedServer,
        ConnectionError::Tls(fault) => ExamineError::Tls(fault),
        ConnectionError::Connect(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            ExamineError::OutOfPorts
        }
        error => ExamineError::Unreachable(describe(&error)),
    }
}
