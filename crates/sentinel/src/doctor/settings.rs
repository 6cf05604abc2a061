//! The findings about settings of the sentinels: those that differ among them, and those that do
//! not fit each other or ours.

use std::collections::BTreeMap;
use std::time::Duration;

use super::diagnose::{Context, Findings, Severity};
use super::observed::{Observed, Word};

/// One setting of a sentinel's word.
type Pick = fn(&Word) -> Option<u64>;

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    let name = &observed.name;
    let keys: [(&str, Pick); 3] = [
        ("quorum", |word| word.quorum),
        ("down-after-milliseconds", |word| word.down_after.map(ms)),
        ("failover-timeout", |word| word.failover_timeout.map(ms)),
    ];
    for (key, pick) in keys {
        let values: BTreeMap<u64, String> = observed
            .words()
            .filter_map(|(it, _, word)| Some((pick(word)?, it.addr.to_string())))
            .collect();
        if values.len() > 1 {
            let list = values
                .iter()
                .map(|(value, who)| format!("{value} at {who}"))
                .collect::<Vec<_>>()
                .join(", ");
            let what = format!("sentinels have different values of {key}: {list}");
            let remedy =
                format!("SENTINEL SET {name} {key} on each: the setting is not shared among them");
            findings.add((Severity::Warning, "settings-differ"), name, what, remedy);
        }
    }
    let slowest = observed.words().filter_map(|(_, _, word)| word.down_after).max();
    let quickest = observed.words().filter_map(|(_, _, word)| word.down_after).min();
    if let Some(span) = quickest.filter(|span| *span < Duration::from_secs(2)) {
        let what = format!("down-after-milliseconds is {}", ms(span));
        let remedy = "Sentinel pings once a second: give 2000 at least, or a moment's load becomes a failover";
        findings.add((Severity::Warning, "down-after"), name, what, remedy);
    }
    // A failover takes Sentinel about two seconds after it has found the master down.
    let whole = |span: Duration| span + Duration::from_secs(2);
    if let (Some(span), Some(hold)) = (slowest, context.hold_timeout)
        && whole(span) > hold
    {
        let what = format!(
            "a dead master is replaced after {} s or more (down-after-milliseconds {}), and clients wait for {} s (hold_timeout)",
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
    let tight = |word: &Word| {
        word.failover_timeout.zip(word.down_after).is_some_and(|(timeout, after)| timeout < after)
    };
    if let Some((sentinel, ..)) = observed.words().find(|(_, _, word)| tight(word)) {
        let what = "failover-timeout is below down-after-milliseconds";
        let remedy = "an attempt is given up before a replica's death could be seen; the usual value is 180000, and 10000 is short";
        findings.add((Severity::Warning, "failover-timeout"), &sentinel.addr, what, remedy);
    }
}
