//! Which changes of the master the sentinels announced, and their steps. Pure.

use std::net::SocketAddr;

use super::operation::Micros;

/// Sentinels that announce one switch do so within this time.
const ONE_SWITCH: Micros = 60_000_000;
/// A failover follows the first sign of it within this time.
const FOREBODING: Micros = 30_000_000;

/// What one sentinel published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sighting {
    pub(super) at: Micros,
    pub(super) from: SocketAddr,
    pub(super) channel: String,
    pub(super) payload: String,
}

/// A change of the master that a majority of sentinels announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Switch {
    /// The first announcement, and that of a second sentinel.
    pub(super) at: Micros,
    pub(super) majority: Micros,
    /// The first sign of it: a sentinel that found the master down.
    pub(super) from: Micros,
    /// When the successor was selected, which is when a proxy stops to forward requests.
    pub(super) selected: Micros,
    /// When it was asked to become the master.
    pub(super) promoted: Micros,
    pub(super) old: SocketAddr,
    pub(super) new: SocketAddr,
}

/// The changes of the master that at least two sentinels announced, from the first announcement
/// on. A sentinel that comes back announces old changes again; these are not new.
pub(super) fn switches(
    sightings: &[Sighting],
    since: Micros,
    mut master: SocketAddr,
) -> Vec<Switch> {
    let announced: Vec<(&Sighting, SocketAddr, SocketAddr)> = sightings
        .iter()
        .filter(|it| it.channel == "+switch-master" && it.at >= since)
        .filter_map(|it| addresses(&it.payload).map(|(old, new)| (it, old, new)))
        .collect();
    let mut found = Vec::new();
    for (first, old, new) in &announced {
        let again = |(other, from, to): &&(&Sighting, SocketAddr, SocketAddr)| {
            (from, to) == (old, new)
                && other.from != first.from
                && other.at >= first.at
                && other.at.saturating_sub(first.at) < ONE_SWITCH
        };
        let Some((second, ..)) = announced.iter().find(again).filter(|_| *old == master) else {
            continue;
        };
        master = *new;
        let sign = |it: &&Sighting| {
            matches!(it.channel.as_str(), "+sdown" | "+odown")
                && it.payload.starts_with("master ")
                && it.at <= first.at
                && first.at.saturating_sub(it.at) < FOREBODING
        };
        let from = sightings.iter().find(sign).map_or(first.at, |it| it.at);
        let named = format!("slave {new} ");
        // The latest one before the switch: an earlier failover may have been aborted.
        let step = |channel: &str| {
            let mut all = sightings.iter().rev();
            all.find(|it| {
                it.channel == channel
                    && it.payload.starts_with(&named)
                    && it.at <= first.at
                    && first.at.saturating_sub(it.at) < FOREBODING
            })
        };
        let selected = step("+selected-slave").map_or(from, |it| it.at);
        let promoted = step("+failover-state-wait-promotion").map_or(selected, |it| it.at);
        let (at, majority) = (first.at, second.at);
        found.push(Switch { at, majority, from, selected, promoted, old: *old, new: *new });
    }
    found
}

/// `NAME OLD-IP OLD-PORT NEW-IP NEW-PORT`
fn addresses(payload: &str) -> Option<(SocketAddr, SocketAddr)> {
    let words: Vec<&str> = payload.split_whitespace().collect();
    let [_, old, old_port, new, new_port] = words.as_slice() else { return None };
    let addr = |ip: &str, port: &str| format!("{ip}:{port}").parse().ok();
    Some((addr(old, old_port)?, addr(new, new_port)?))
}
