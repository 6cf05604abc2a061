//! Findings about the sentinels' settings: those that differ between sentinels, and those that do
//! not fit each other or Pointsman's configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Context, Findings, Severity};
use crate::observed::{Observed, ObservedMaster};

/// Reads one setting of a sentinel's view.
type GetSetting = fn(&ObservedMaster) -> Option<u64>;

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    let name = &observed.name;
    let keys: [(&str, GetSetting); 3] = [
        ("quorum", |view| view.quorum),
        ("down-after-milliseconds", |view| view.down_after.map(ms)),
        ("failover-timeout", |view| view.failover_timeout.map(ms)),
    ];
    for (key, get) in keys {
        let values: BTreeMap<u64, String> = observed
            .views()
            .filter_map(|(it, _, view)| Some((get(view)?, it.addr.to_string())))
            .collect();
        if values.len() > 1 {
            let list = values
                .iter()
                .map(|(value, who)| format!("{value} at {who}"))
                .collect::<Vec<_>>()
                .join(", ");
            let what = format!("{key} differs between sentinels: {list}");
            let remedy = format!(
                "set it on each of them with SENTINEL SET {name} {key}: sentinels do not share \
                 this setting"
            );
            findings.add((Severity::Warning, "settings-differ"), name, what, remedy);
        }
    }
    let slowest = observed.views().filter_map(|(_, _, view)| view.down_after).max();
    let quickest = observed.views().filter_map(|(_, _, view)| view.down_after).min();
    if let Some(span) = quickest.filter(|span| *span < Duration::from_secs(2)) {
        let what = format!("down-after-milliseconds is {}", ms(span));
        let remedy = "Sentinel sends PING once per second: set at least 2000, or a short load \
                      peak causes a failover";
        findings.add((Severity::Warning, "down-after"), name, what, remedy);
    }
    // After it has found the master down, a failover takes Sentinel about two seconds.
    let whole = |span: Duration| span + Duration::from_secs(2);
    if let (Some(span), Some(hold)) = (slowest, context.hold_timeout)
        && whole(span) > hold
    {
        let what = format!(
            "a dead master is replaced after at least {} s (down-after-milliseconds {}), and \
             clients wait for {} s (hold_timeout)",
            whole(span).as_secs(),
            ms(span),
            hold.as_secs()
        );
        findings.add(
            (Severity::Warning, "down-after"),
            name,
            what,
            "lower down-after-milliseconds (5000 is common), or raise hold_timeout",
        );
    }
    let tight = |view: &ObservedMaster| {
        view.failover_timeout.zip(view.down_after).is_some_and(|(timeout, after)| timeout < after)
    };
    if let Some((sentinel, ..)) = observed.views().find(|(_, _, view)| tight(view)) {
        let what = "failover-timeout is below down-after-milliseconds";
        let remedy = "a failover is abandoned before the death of a replica could be detected; \
                      180000 is the default, 10000 is short";
        findings.add((Severity::Warning, "failover-timeout"), &sentinel.addr, what, remedy);
    }
}
