//! The thin driver of an examination: names are looked up, sentinels and nodes are asked, each
//! once, side by side.
//!
//! Bounded in every way: so many of each, so many at a time, and a deadline on each step. Two waves
//! of sentinels: those of the configuration, then those that they tell of and that were not among
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Patient;
use super::observed::{NoAnswer, Observed, ObservedNode, ObservedSentinel};
use super::read::{self, REPLIES};
use crate::link::conn::{Conn, ConnError, Protocol, USER_TIMEOUT};
use crate::link::links::describe;
use crate::link::{LinkError, hello};
use crate::net::loop_guard::leads_back;
use crate::net::resolve::{Lookup, Resolver, is_usable};
use crate::prober::probe_connection::{ProbeConnection, Trouble};
use crate::{MyId, NodeAddr, NodeReport, ProbeFailure, Role, Verify};

/// The most sentinels, and the most nodes, that are asked.
const MOST: usize = 64;
/// How many are asked at a time.
const AT_A_TIME: usize = 16;
/// Of a look-up. Longer than one attempt of the usual resolver, shorter than all of them.
const LOOKUP: Duration = Duration::from_secs(3);
/// Of a dial.
const DIAL: Duration = Duration::from_secs(1);
/// Of all answers of one peer.
const ANSWERS: Duration = Duration::from_secs(2);

/// Asks everybody. Takes some tens of milliseconds where all is well, and less than half a minute
/// whatever is wrong.
pub(super) async fn examine(patient: Arc<Patient>, resolver: &Resolver) -> Observed {
    let (found, unresolved) = seeds(&patient, resolver).await;
    let wave = found.into_iter().map(|addr| (NodeAddr::from(addr), true, None)).collect();
    let mut sentinels = ask_sentinels(wave, &patient, resolver).await;
    if patient.learn {
        let told = told(&sentinels, &patient);
        sentinels.extend(ask_sentinels(told, &patient, resolver).await);
    }
    sentinels.extend(unresolved);
    let mut observed = Observed { name: Arc::clone(&patient.name), sentinels, nodes: Vec::new() };
    let mut named: BTreeSet<NodeAddr> = BTreeSet::new();
    for (_, account, word) in observed.words() {
        let all = std::iter::once(&word.addr).chain(word.replicas.iter().map(|it| &it.addr));
        named.extend(all.filter(|addr| is_reachable(addr, account.reached, &patient)).cloned());
    }
    let nodes = named
        .into_iter()
        .take(MOST)
        .map(|addr| ask_node(addr, Arc::clone(&patient), resolver.clone()));
    observed.nodes = side_by_side(nodes).await;
    observed
}

/// Runs them all, some at a time, and gives what they brought, in their order.
async fn side_by_side<T: Send + 'static>(
    work: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let (turns, mut tasks) = (Arc::new(Semaphore::new(AT_A_TIME)), JoinSet::new());
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

/// The addresses behind the configured names, and the names without one.
async fn seeds(
    patient: &Patient,
    resolver: &Resolver,
) -> (BTreeSet<SocketAddr>, Vec<ObservedSentinel>) {
    let names = patient.sentinels.iter().take(MOST).cloned().map(|name| {
        let mut lookup = Lookup::new(resolver, &name.host, name.port);
        async move { (name, lookup.addresses(LOOKUP).await) }
    });
    let (mut found, mut unresolved) = (BTreeSet::new(), Vec::new());
    for (name, answer) in side_by_side(names).await {
        match answer {
            Ok(addrs) => found.extend(addrs),
            Err(error) => {
                let answer = Err(NoAnswer::Unresolved(error.to_string()));
                unresolved.push(ObservedSentinel { addr: name, configured: true, answer });
            }
        }
    }
    (found, unresolved)
}

/// A sentinel to ask: where, whether the configuration names it, and who it is said to be.
type Wanted = (NodeAddr, bool, Option<MyId>);

/// The sentinels that were told of and not reached yet.
fn told(sentinels: &[ObservedSentinel], patient: &Patient) -> Vec<Wanted> {
    let observed = Observed {
        name: Arc::clone(&patient.name),
        sentinels: sentinels.to_vec(),
        nodes: Vec::new(),
    };
    let reached: BTreeSet<&MyId> = observed.accounts().map(|(_, account)| &account.id).collect();
    let asked: BTreeSet<&NodeAddr> = sentinels.iter().map(|it| &it.addr).collect();
    let mut told: BTreeMap<NodeAddr, Option<MyId>> = BTreeMap::new();
    for (_, account, word) in observed.words() {
        for peer in word
            .peers
            .iter()
            .filter(|peer| !peer.id.as_ref().is_some_and(|id| reached.contains(id)))
        {
            let Some(addr) =
                peer.addr.as_ref().filter(|addr| is_reachable(addr, account.reached, patient))
            else {
                continue;
            };
            if !asked.contains(addr) {
                told.insert(addr.clone(), peer.id.clone());
            }
        }
    }
    told.into_iter().take(MOST).map(|(addr, id)| (addr, false, id)).collect()
}

/// Whether an announced address can mean what it should from here.
fn is_reachable(addr: &NodeAddr, said_by: SocketAddr, patient: &Patient) -> bool {
    patient.address_map.contains_key(addr) || addr.ip().is_none_or(|ip| is_usable(ip, said_by.ip()))
}

async fn ask_sentinels(
    wanted: Vec<Wanted>,
    patient: &Arc<Patient>,
    resolver: &Resolver,
) -> Vec<ObservedSentinel> {
    let work = wanted.into_iter().take(MOST).map(|(addr, configured, id)| {
        let (patient, resolver) = (Arc::clone(patient), resolver.clone());
        async move {
            let answer = match dial(&addr, &patient, &resolver).await {
                Ok((conn, reached)) => ask_sentinel(conn, reached, &patient).await,
                Err((_, why)) => Err(why),
            };
            // Who answers in the place of somebody else is not the one that was told of.
            let answer = answer.and_then(|it| {
                if id.is_some_and(|id| id != it.id) { Err(NoAnswer::Other) } else { Ok(it) }
            });
            ObservedSentinel { addr, configured, answer }
        }
    });
    side_by_side(work).await
}

/// Connects to an announced address, or to what stands for it. An error comes with the address that
/// was dialled, if there was one.
async fn dial(
    addr: &NodeAddr,
    patient: &Patient,
    resolver: &Resolver,
) -> Result<(Conn, SocketAddr), (Option<SocketAddr>, NoAnswer)> {
    let to = patient.address_map.get(addr).unwrap_or(addr);
    let looked_up = Lookup::new(resolver, &to.host, to.port).address(LOOKUP).await;
    let reached = looked_up.map_err(|error| (None, NoAnswer::Unresolved(error.to_string())))?;
    if leads_back(reached, &patient.own) {
        return Err((Some(reached), NoAnswer::LeadsBack));
    }
    let dialled = Conn::connect(reached, DIAL, USER_TIMEOUT).await;
    dialled
        .map(|conn| (conn, reached))
        .map_err(|error| (Some(reached), NoAnswer::Unreachable(describe(&error))))
}

async fn ask_sentinel(
    mut conn: Conn,
    reached: SocketAddr,
    patient: &Patient,
) -> Result<super::Account, NoAnswer> {
    let asking = async {
        hello(&mut conn, patient.sentinel_auth.as_ref()).await?;
        let mut commands = BytesMut::new();
        read::put_questions(&mut commands, &patient.name);
        conn.send(&commands).await?;
        let mut replies = Vec::new();
        while replies.len() < REPLIES {
            replies.push(conn.next().await?);
        }
        Ok(replies)
    };
    let answered: Result<Vec<_>, LinkError> = match tokio::time::timeout(ANSWERS, asking).await {
        Ok(answered) => answered,
        Err(_) => return Err(NoAnswer::Silent),
    };
    match answered {
        Ok(replies) => read::read(&replies, reached, conn.protocol == Protocol::Resp3),
        Err(LinkError::Denied(denied)) => Err(NoAnswer::Denied(denied)),
        Err(LinkError::Conn(ConnError::Malformed(_))) => Err(NoAnswer::Stranger),
        Err(error) => Err(NoAnswer::Unreachable(describe(&error))),
    }
}

async fn ask_node(addr: NodeAddr, patient: Arc<Patient>, resolver: Resolver) -> ObservedNode {
    let (conn, reached) = match dial(&addr, &patient, &resolver).await {
        Ok(connected) => connected,
        Err((dialled, why)) => return ObservedNode { addr, dialled, answer: Err(why) },
    };
    let answer = if patient.verify == Verify::Tcp {
        Ok(NodeReport {
            dialled: reached,
            role: Role::Unknown,
            pong: false,
            offset: None,
            lineage: None,
        })
    } else {
        let mut perch = ProbeConnection::new(conn, reached);
        match tokio::time::timeout(ANSWERS, perch.ask(patient.verify, patient.auth.as_ref())).await
        {
            Err(_) => Err(NoAnswer::Silent),
            Ok(Err(ConnError::Malformed(_))) => Err(NoAnswer::Stranger),
            Ok(Err(error)) => Err(match perch.turned_away() {
                Some((_, denied)) => NoAnswer::Denied(denied),
                None => NoAnswer::Unreachable(describe(&error)),
            }),
            Ok(Ok(())) => perch.judge(patient.verify).1.map_err(why),
        }
    };
    ObservedNode { addr, dialled: Some(reached), answer }
}

fn why(trouble: Trouble) -> NoAnswer {
    match trouble {
        Trouble::Denied(denied) => NoAnswer::Denied(denied),
        Trouble::Failed(ProbeFailure::Silent) => NoAnswer::Silent,
        Trouble::Failed(_) | Trouble::DialTimedOut => NoAnswer::Stranger,
    }
}
