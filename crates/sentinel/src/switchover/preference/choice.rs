//! Which replica a sentinel would promote, from what it reports.

use std::time::Duration;

use crate::NodeAddr;
use crate::switchover::leader::LeaderView;

/// Whether a failover by this sentinel would promote the requested replica; if not, why.
pub(super) fn first_choice(
    view: &LeaderView,
    requested: &NodeAddr,
    wanted: u64,
) -> Result<(), String> {
    let own = view.replicas.iter().find(|it| it.addr == *requested);
    let own = own.ok_or_else(|| format!("it does not list {requested}"))?;
    if let Some(unfit) = own.unfit {
        return Err(format!("it would not promote {requested}: {unfit}"));
    }
    let age = |age: Option<Duration>| {
        age.map_or(String::new(), |age| {
            format!("; it asks every ten seconds, last {:.1} s ago", age.as_secs_f64())
        })
    };
    if own.priority != wanted {
        let (priority, age) = (own.priority, age(own.info_age));
        return Err(format!("it reports priority {priority} for {requested}, not {wanted}{age}"));
    }
    let rival = view.replicas.iter().find(|it| {
        it.addr != *requested && it.unfit.is_none() && it.priority > 0 && it.priority <= wanted
    });
    rival.map_or(Ok(()), |rival| {
        let (node, priority, age) = (&rival.addr, rival.priority, age(rival.info_age));
        Err(format!("it reports priority {priority} for {node}, not above {wanted}{age}"))
    })
}
