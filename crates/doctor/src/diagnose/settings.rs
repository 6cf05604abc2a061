//! Findings about the sentinels' settings: those that differ between sentinels, and those that do
//! not fit each other or Pointsman's configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use sentinel::NodeAddr;

use super::Severity::Warning;
use super::{Case, Findings, join};

pub(super) fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn diagnose(found: &mut Findings, case: &Case<'_>) {
    let name = &case.name;
    let mut all: BTreeMap<_, BTreeMap<u64, Vec<&NodeAddr>>> = BTreeMap::new();
    for (sentinel, _, view) in case.views() {
        for (key, value) in [
            ("quorum", view.quorum),
            ("down-after-milliseconds", view.down_after.map(ms)),
            ("failover-timeout", view.failover_timeout.map(ms)),
        ] {
            if let Some(value) = value {
                all.entry(key).or_default().entry(value).or_default().push(&sentinel.addr);
            }
        }
    }
    for (key, values) in all {
        if values.len() > 1 {
            let list = values.iter().map(|(value, who)| format!("{value} at {}", join(who)));
            let what =
                format!("{key} differs between sentinels: {}", list.collect::<Vec<_>>().join("; "));
            let remedy = format!(
                "set it on each of them with SENTINEL SET {name} {key}: sentinels do not share \
                 this setting"
            );
            found.add(Warning, "settings-differ", name, what, remedy);
        }
    }
    let slowest = case.views().filter_map(|(.., view)| view.down_after).max();
    let quickest = case.views().filter_map(|(.., view)| view.down_after).min();
    if let Some(span) = quickest.filter(|span| *span < Duration::from_secs(2)) {
        let what = format!("down-after-milliseconds is {}", ms(span));
        let remedy = "Sentinel sends PING once per second: set at least 2000, or a short load \
                      peak causes a failover";
        found.add(Warning, "down-after", name, what, remedy);
    }
    // After it has found the master down, a failover takes Sentinel about two seconds.
    let whole = |span: Duration| span + Duration::from_secs(2);
    if let (Some(span), Some(hold)) = (slowest, case.context.hold_timeout)
        && whole(span) > hold
    {
        let (whole, span, hold) = (whole(span).as_secs(), ms(span), hold.as_secs());
        let what = format!(
            "a dead master is replaced after at least {whole} s (down-after-milliseconds {span}), \
             and clients wait for {hold} s (hold_timeout)"
        );
        let remedy = "lower down-after-milliseconds (5000 is common), or raise hold_timeout";
        found.add(Warning, "down-after", name, what, remedy);
    }
    let tight = case.views().find(|(.., view)| {
        view.failover_timeout.zip(view.down_after).is_some_and(|(timeout, after)| timeout < after)
    });
    if let Some((sentinel, ..)) = tight {
        let what = "failover-timeout is below down-after-milliseconds";
        let remedy = "a failover is abandoned before the death of a replica could be detected; \
                      180000 is the default, 10000 is short";
        found.add(Warning, "failover-timeout", &sentinel.addr, what, remedy);
    }
}
