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
use std::sync::Arc;
use std::time::Duration;

use sentinel::connections::{
    ConnectionError, LinkError, Lookup, ProbeConnection, ProbeError, Protocol, RespConnection,
    Transport, USER_TIMEOUT, describe, hello, is_usable, leads_back,
};
use sentinel::{
    Denied, DiscoverySettings, MyId, NodeAddr, NodeReport, ProbeFailure, Resolver, Trust, Verify,
};
use tls::{CertificateFacts, Fault, FaultKind};
use tokio::sync::Semaphore;

use crate::observed::{
    ExamineError, NodeDetails, Observed, ObservedNode, ObservedPeer, ObservedSentinel,
    SentinelAnswer,
};

/// Limit of sentinels, and of nodes, that are asked.
const MAX_ASKED: usize = 64;
/// How many are asked concurrently.
const CONCURRENCY: usize = 16;
/// How many addresses of a name are dialled, until one accepts.
const MAX_ADDRESSES: usize = 4;
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
    resolver: Resolver,
    to_sentinels: Transport,
    to_nodes: Transport,
}

/// Examines every server once. Needs a tokio runtime. Takes some tens of milliseconds if all is
/// well, and less than a minute if up to 16 sentinels and nodes hang in every step.
pub async fn examine(examination: Examination, resolver: &Resolver) -> Observed {
    let asking = Arc::new(Asking {
        to_sentinels: Transport::new(examination.settings.sentinel_tls.clone()),
        to_nodes: Transport::new(examination.settings.redis_tls.clone()),
        resolver: resolver.clone(),
        examination,
    });
    let own_certificates =
        [("service.sentinel_tls", &asking.to_sentinels), ("service.redis_tls", &asking.to_nodes)];
    let own_certificates =
        own_certificates.into_iter().filter_map(|(key, it)| Some((key, it.own_certificate()?)));
    let (found, unresolved) = seeds(&asking).await;
    let configured = |addr| (NodeAddr::from(addr), true, BTreeSet::new());
    let mut observed = Observed {
        name: Arc::clone(&asking.examination.name),
        sentinels: ask_sentinels(found.into_iter().map(configured), true, &asking).await,
        nodes: Vec::new(),
        own_certificates: own_certificates.collect(),
    };
    if asking.examination.settings.learn {
        let learned = learned(&observed, &asking);
        // As in discovery: anybody who may publish may have announced them.
        let shares = asking.to_sentinels.is_tls() || observed.depends_on_learned();
        observed.sentinels.extend(ask_sentinels(learned.into_iter(), shares, &asking).await);
    }
    observed.sentinels.extend(unresolved);
    ask_nodes(&mut observed, &asking).await;
    observed
}

/// Asks the nodes that the sentinels name, first those that most configured sentinels know.
async fn ask_nodes(observed: &mut Observed, asking: &Arc<Asking>) {
    let mut named: BTreeMap<NodeAddr, usize> = BTreeMap::new();
    let mut configured = 0;
    for (sentinel, answer, view) in observed.views() {
        let weight = usize::from(sentinel.configured);
        configured += weight;
        let all = view.nodes().filter(|addr| is_reachable(addr, answer.reached, asking));
        let all: BTreeSet<_> = all.collect();
        all.into_iter().for_each(|addr| *named.entry(addr.clone()).or_default() += weight);
    }
    let all = named.into_iter().take(MAX_ASKED);
    let (most, few): (Vec<_>, Vec<_>) = all.partition(|(_, times)| times * 2 > configured);
    let most = most.into_iter().map(|(addr, _)| ask_node(addr, Trust::Committed, asking.clone()));
    observed.nodes = run_concurrently(most).await;
    // The master of a node that most sentinels know is no stranger.
    let followed: BTreeSet<NodeAddr> =
        observed.nodes.iter().filter_map(|it| it.master().cloned()).collect();
    let few = few.into_iter().map(|(addr, _)| {
        let trust = if followed.contains(&addr) { Trust::Vouched } else { Trust::Stranger };
        ask_node(addr, trust, asking.clone())
    });
    observed.nodes.extend(run_concurrently(few).await);
    observed.nodes.sort_by(|one, other| one.addr.cmp(&other.addr));
}

/// Runs the futures with bounded concurrency and returns the results in order.
async fn run_concurrently<T: Send + 'static>(
    work: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let turns = Arc::new(Semaphore::new(CONCURRENCY));
    let start = |one| {
        let turns = Arc::clone(&turns);
        tokio::spawn(async move {
            let _turn = turns.acquire().await;
            one.await
        })
    };
    let (tasks, mut done) = (work.map(start).collect::<Vec<_>>(), Vec::new());
    for task in tasks {
        done.extend(task.await.ok());
    }
    done
}

/// The addresses of the configured names, and the names without one.
async fn seeds(asking: &Asking) -> (BTreeSet<SocketAddr>, Vec<ObservedSentinel>) {
    let names = asking.examination.sentinels.iter().take(MAX_ASKED).cloned().map(|name| {
        let mut lookup = Lookup::new(&asking.resolver, &name.host, name.port);
        async move { (name, lookup.addresses(LOOKUP_TIMEOUT).await) }
    });
    let (mut found, mut unresolved) = (BTreeSet::new(), Vec::new());
    for (addr, answer) in run_concurrently(names).await {
        match answer {
            Ok(addrs) => {
                addrs.iter().for_each(|it| asking.to_sentinels.set_name(*it, &addr.host));
                found.extend(addrs);
            }
            Err(error) => {
                let answer = Err(ExamineError::Unresolved(error.to_string()));
                let (configured, certificate) = (true, None);
                unresolved.push(ObservedSentinel { addr, configured, answer, certificate });
            }
        }
    }
    (found, unresolved)
}

/// A sentinel to ask: its address, whether it is configured, and the MYIDs that were announced
/// there: several if a former one is listed as well. None if any is right.
type SentinelToAsk = (NodeAddr, bool, BTreeSet<MyId>);

/// The sentinels that were listed by others and not reached yet.
fn learned(observed: &Observed, asking: &Asking) -> Vec<SentinelToAsk> {
    let asked: BTreeSet<&NodeAddr> = observed.sentinels.iter().map(|it| &it.addr).collect();
    let mut learned: BTreeMap<&NodeAddr, BTreeSet<MyId>> = BTreeMap::new();
    for (_, answer, view) in observed.views() {
        let is_new = |it: &&ObservedPeer| !it.id.as_ref().is_some_and(|id| observed.answers(id));
        for peer in view.peers.iter().filter(is_new) {
            let addr = peer.addr.as_ref().filter(|addr| !asked.contains(addr));
            if let Some(addr) = addr.filter(|addr| is_reachable(addr, answer.reached, asking)) {
                learned.entry(addr).or_default().extend(peer.id.clone());
            }
        }
    }
    learned.into_iter().map(|(addr, ids)| (addr.clone(), false, ids)).collect()
}

/// Whether an announced address is meaningful from this host.
fn is_reachable(addr: &NodeAddr, said_by: SocketAddr, asking: &Asking) -> bool {
    asking.examination.settings.address_map.contains_key(addr)
        || addr.ip().is_none_or(|ip| is_usable(ip, said_by.ip()))
}

/// Asks sentinels; `shares`: those that require the password get it.
async fn ask_sentinels(
    wanted: impl Iterator<Item = SentinelToAsk>,
    shares: bool,
    asking: &Arc<Asking>,
) -> Vec<ObservedSentinel> {
    let work = wanted.take(MAX_ASKED).map(|(addr, configured, ids)| {
        let asking = Arc::clone(asking);
        async move {
            let ask = async |connection, at| ask_sentinel(connection, at, shares, &asking).await;
            let visit = visit(&addr, configured, &asking, &asking.to_sentinels, ask).await;
            // Another sentinel in that place is not the one that was announced.
            let is_announced = |id: &MyId| ids.is_empty() || ids.contains(id);
            let answer = match visit.answer {
                Ok(answer) if !is_announced(&answer.id) => Err(ExamineError::OtherSentinel),
                answer => answer,
            };
            ObservedSentinel { addr, configured, answer, certificate: visit.certificate }
        }
    });
    run_concurrently(work).await
}

/// What came of asking one server.
struct Visit<T> {
    dialled: Option<SocketAddr>,
    answer: Result<T, ExamineError>,
    certificate: Option<CertificateFacts>,
}

/// Connects to a server, or to its entry in the address map, asks it, and finds out why it does not
/// answer. An announced address is dialled if the configuration permits it.
async fn visit<T>(
    addr: &NodeAddr,
    configured: bool,
    asking: &Asking,
    transport: &Transport,
    ask: impl AsyncFnOnce(RespConnection, SocketAddr) -> Result<T, ExamineError>,
) -> Visit<T> {
    let (settings, mut dialled, mut certificate) = (&asking.examination.settings, None, None);
    let conversation = async {
        let mapped = settings.address_map.get(addr);
        if !configured && mapped.is_none() && !settings.nodes.permits(addr) {
            return Err(ExamineError::OutsideNodes);
        }
        let to = mapped.unwrap_or(addr);
        let found =
            Lookup::new(&asking.resolver, &to.host, to.port).addresses(LOOKUP_TIMEOUT).await;
        let found = found.map_err(|error| ExamineError::Unresolved(error.to_string()))?;
        let mut last = Err(ExamineError::Unresponsive);
        for reached in found.into_iter().take(MAX_ADDRESSES) {
            dialled = Some(reached);
            if leads_back(reached, &asking.examination.own) {
                return Err(ExamineError::LeadsBack);
            }
            transport.set_name(reached, &to.host);
            last = dial(reached, transport).await.map(|connection| (connection, reached));
            if !matches!(last, Err(ExamineError::Unreachable(_))) {
                break;
            }
        }
        let (connection, reached) = last?;
        certificate = connection.certificate();
        ask(connection, reached).await
    };
    let answer = conversation.await;
    let answer = tls_ports::explain(answer, dialled, transport, &mut certificate).await;
    Visit { dialled, answer, certificate }
}

async fn dial(reached: SocketAddr, transport: &Transport) -> Result<RespConnection, ExamineError> {
    let connect = |timeout| RespConnection::connect(reached, transport, timeout, USER_TIMEOUT);
    let mut dialled = connect(DIAL_TIMEOUT).await;
    // A plain port never answers a handshake. One with TLS is late if its host or this one is busy.
    if let Err(ConnectionError::Tls(Fault { kind: FaultKind::TimedOut, .. })) = dialled {
        if tls_ports::is_plain(reached).await {
            return Err(ExamineError::Tls(Fault::not_tls()));
        }
        dialled = connect(HANDSHAKE_TIMEOUT).await;
    }
    dialled.map_err(broken)
}

async fn ask_sentinel(
    mut connection: RespConnection,
    reached: SocketAddr,
    shares: bool,
    asking: &Asking,
) -> Result<SentinelAnswer, ExamineError> {
    let (auth, mut replies) = (asking.examination.settings.sentinel_auth.as_ref(), Vec::new());
    let conversation = async {
        hello(&mut connection, auth.filter(|_| shares)).await?;
        Ok(connection.ask(&read::questions(&asking.examination.name), &mut replies).await?)
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, conversation).await {
        Err(_) => Err(ExamineError::Unresponsive),
        Ok(Ok(())) => read::read(&replies, reached, connection.protocol == Protocol::Resp3),
        Ok(Err(LinkError::Denied(Denied::PasswordMissing { .. }))) if auth.is_some() => {
            Err(ExamineError::Denied(Denied::PasswordWithheld))
        }
        Ok(Err(LinkError::Denied(denied))) => Err(ExamineError::Denied(denied)),
        Ok(Err(LinkError::Connection(error))) => Err(broken(error)),
        Ok(Err(LinkError::Tls(fault))) => Err(ExamineError::Tls(fault)),
        Ok(Err(error)) => Err(ExamineError::Unreachable(describe(&error))),
    }
}

async fn ask_node(addr: NodeAddr, trust: Trust, asking: Arc<Asking>) -> ObservedNode {
    let mut details = NodeDetails::default();
    let ask = async |connection, reached| {
        let verify = asking.examination.settings.rules.verify;
        if verify == Verify::Tcp {
            return Ok(NodeReport::not_asked(reached));
        }
        let credentials = asking.examination.settings.auth.clone();
        let mut connection = ProbeConnection::with_credentials(connection, reached, credentials);
        let probing = connection.probe(verify, trust);
        let probed = tokio::time::timeout(ANSWER_TIMEOUT, probing).await;
        let (_, answer) = probed.map_err(|_| ExamineError::Unresponsive)?.map_err(|error| {
            let rejected = connection.rejection().map(|(_, it)| ExamineError::Denied(it));
            rejected.unwrap_or_else(|| broken(error))
        })?;
        let report = answer.map_err(error)?;
        details = ask_details(connection, verify).await;
        Ok(report)
    };
    let visit = visit(&addr, false, &asking, &asking.to_nodes, ask).await;
    let Visit { dialled, answer, certificate } = visit;
    ObservedNode { addr, dialled, answer, details, certificate }
}

/// Asks a node that has answered a probe. What it does not answer in time stays unknown.
async fn ask_details(connection: ProbeConnection, verify: Verify) -> NodeDetails {
    let Some(mut connection) = connection.into_connection() else { return NodeDetails::default() };
    let mut replies = Vec::new();
    let asking = connection.ask(read::node_questions(verify), &mut replies);
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// As a name of both families where one has no route.
    #[tokio::test]
    async fn dials_next_address_of_a_name_where_one_is_dead() {
        // Addresses are dialled in their order.
        let dead = TcpListener::bind("127.0.0.1:0").expect("a port");
        let alive = TcpListener::bind("127.0.0.2:0").expect("a port");
        let both = [&dead, &alive].map(|it| it.local_addr().expect("an address"));
        drop(dead);
        let asking = Asking {
            examination: Examination {
                name: "mymaster".into(),
                sentinels: Vec::new(),
                settings: DiscoverySettings::default(),
                own: Vec::new(),
            },
            resolver: Resolver::new(move |_, _| Ok(both.to_vec())),
            to_sentinels: Transport::new(None),
            to_nodes: Transport::new(None),
        };
        let name = NodeAddr::parse("both.example", "6379").expect("a name");
        let visit = visit(&name, true, &asking, &asking.to_nodes, async |_, at| Ok(at)).await;
        assert_eq!((visit.answer, visit.dialled), (Ok(both[1]), Some(both[1])));
    }
}
