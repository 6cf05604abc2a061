//! What a run prints: the timeline of a violation, reduced to what matters, and the summary.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::checker::{Change, Verdict, Violation, check};
use super::eras::{Cause, Era, seconds};
use super::operation::{Micros, Object, Operation, Outcome, State};
use super::switches::Sighting;

/// Histories tried to make a violation shorter.
const ATTEMPTS: usize = 400;
/// Operations that are printed, beside those about values in question.
const SHOWN: usize = 24;
/// Lines of the timeline.
const LINES: usize = 160;
/// What is printed before the first operation.
const BEFORE: Micros = 500_000;

/// Everything that happened in an epoch, for its timeline.
pub(super) struct Epoch<'a> {
    pub(super) eras: &'a [Era],
    pub(super) notes: &'a [(Micros, String)],
    pub(super) sightings: &'a [Sighting],
    pub(super) durable: bool,
}

impl Epoch<'_> {
    pub(super) fn changes(&self) -> Vec<Change> {
        self.eras.iter().filter_map(|it| it.excuse).collect()
    }

    /// The timeline of a history that is not linearizable.
    pub(super) fn explain(&self, object: Object, history: &[Operation]) -> Option<String> {
        let (operations, found) = self.shorten(history)?;
        let last = operations.get(found.at)?;
        let suspects = suspects(last, &found.before);
        let mut text = format!(
            "{}, epoch {}, object {}: no order of its operations explains this reply:\n  {}\n",
            object.kind.name(),
            object.epoch,
            object.number,
            line(last)
        );
        for state in found.before.iter().take(6) {
            let _ = writeln!(text, "  possible before it: {}", state.show(object.kind));
        }
        for value in &suspects {
            let writes = |it: &&Operation| it.value() == Some(*value);
            let writer = history.iter().find(writes).map_or("nobody wrote it".to_owned(), line);
            let _ = writeln!(text, "  value {value}: {writer}");
        }
        text.push_str(&self.lines(&operations, found.at, &suspects).join("\n"));
        Some(text)
    }

    /// Leaves out reads and what came later, as long as no order explains the rest. A write cannot
    /// be left out: others would then look wrong.
    fn shorten(&self, history: &[Operation]) -> Option<(Vec<Operation>, Violation)> {
        let changes = self.changes();
        let violated = |operations: &[Operation]| match check(operations, &changes, self.durable) {
            Verdict::Violated(found) => Some(found),
            _ => None,
        };
        let mut found = violated(history)?;
        let end = history.get(found.at)?.ended;
        let mut kept: Vec<Operation> =
            history.iter().filter(|it| it.invoked <= end && !it.is_refused()).cloned().collect();
        found = violated(&kept)?;
        let mut at = 0;
        for _ in 0..ATTEMPTS {
            let Some(next) = kept.iter().skip(at).position(Operation::changes_nothing) else {
                break;
            };
            at += next;
            let mut shorter = kept.clone();
            shorter.remove(at);
            match violated(&shorter) {
                Some(again) => (kept, found) = (shorter, again),
                None => at += 1,
            }
        }
        Some((kept, found))
    }

    fn lines(
        &self,
        operations: &[Operation],
        last: usize,
        suspects: &BTreeSet<u64>,
    ) -> Vec<String> {
        let is_about = |it: &Operation| {
            it.value().is_some_and(|value| suspects.contains(&value))
                || it.named().iter().any(|value| suspects.contains(value))
        };
        let near = operations.len().saturating_sub(SHOWN);
        let shown: Vec<&Operation> = operations
            .iter()
            .enumerate()
            .filter(|(at, it)| *at >= near || *at == last || is_about(it))
            .map(|(_, it)| it)
            .collect();
        let from = shown.iter().map(|it| it.invoked).min().unwrap_or(0).saturating_sub(BEFORE);
        let to = shown.iter().map(|it| it.ended).max().unwrap_or(0);
        let mut lines: Vec<(Micros, String)> =
            shown.iter().map(|it| (it.invoked, line(it))).collect();
        let plain =
            |at: Micros, what: &str| (at, format!("{:>9.3}            {what}", seconds(at)));
        lines.extend(self.notes.iter().map(|(at, what)| plain(*at, what)));
        lines.extend(self.eras.iter().map(|it| plain(it.at, &it.line())));
        lines.extend(self.sightings.iter().map(|it| {
            plain(it.at, &format!("sentinel {}: {} {}", it.from, it.channel, it.payload))
        }));
        lines.retain(|(at, _)| (from..=to).contains(at));
        lines.sort();
        let skipped = lines.len().saturating_sub(LINES);
        lines.into_iter().skip(skipped).map(|(_, text)| text).collect()
    }
}

fn line(it: &Operation) -> String {
    let (from, to) = (seconds(it.invoked), seconds(it.ended));
    format!("{from:>9.3} to {to:>8.3} client {:>2} by proxy {}: {it}", it.client, it.proxy)
}

/// The values by which a reply differs from what was possible.
fn suspects(last: &Operation, before: &[State]) -> BTreeSet<u64> {
    if matches!(last.outcome, Outcome::Wrong(_)) {
        return last.value().into_iter().collect();
    }
    let named: BTreeSet<u64> = last.named().into_iter().chain(last.value()).collect();
    let differs = |state: &State| -> BTreeSet<u64> {
        let own: BTreeSet<u64> = state.values().into_iter().collect();
        own.symmetric_difference(&named).copied().filter(|it| *it > 0).collect()
    };
    let closest = before.iter().map(differs).min_by_key(BTreeSet::len);
    closest.unwrap_or(named).into_iter().take(6).collect()
}

/// Figures of a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) objects: u64,
    pub(super) undecided: u64,
    pub(super) operations: u64,
    pub(super) unknown: u64,
    pub(super) refused: u64,
    /// Elements whose write was acknowledged and which the last readers did not find.
    pub(super) lost: u64,
    /// Changes of the master by cause: with nothing to be lost, and with excuses.
    pub(super) eras: BTreeMap<Cause, (u64, u64)>,
}

impl Tally {
    /// What makes the run say too little: more than a tenth of its histories are undecided, and
    /// more than five.
    pub(super) fn doubt(&self) -> Option<String> {
        let is_doubtful = self.undecided * 10 > self.objects.max(50);
        is_doubtful.then(|| "more than a tenth of the histories are undecided".to_owned())
    }

    pub(super) fn count(&mut self, history: &[Operation]) {
        self.objects += 1;
        self.operations += history.len() as u64;
        self.unknown += history.iter().filter(|it| it.is_unknown()).count() as u64;
        self.refused += history.iter().filter(|it| it.is_refused()).count() as u64;
        let Some(Outcome::Lists(last)) = history.last().map(|it| &it.outcome) else { return };
        let left: BTreeSet<u64> = last.concat().into_iter().collect();
        let is_lost = |it: &&Operation| {
            matches!(it.outcome, Outcome::Number(1..) | Outcome::Lists(_))
                && !history.iter().any(|other| other != *it && other.value() == it.value())
                && it.value().is_some_and(|value| !left.contains(&value))
        };
        self.lost += history.iter().filter(is_lost).count() as u64;
    }

    pub(super) fn change(&mut self, era: &Era) {
        let (strict, lenient) = self.eras.entry(era.cause).or_default();
        *(if era.excuse.is_none() { strict } else { lenient }) += 1;
    }

    pub(super) fn text(&self) -> String {
        let Self { steps, objects, undecided, operations, unknown, refused, lost, .. } = self;
        let mut text = format!(
            "  {steps} steps; {operations} operations on {objects} objects, {unknown} without a \
             known outcome, {refused} refused; {undecided} objects undecided\n  {lost} \
             acknowledged elements lost in changes that excuse it; changes of the master:\n"
        );
        for (cause, (strict, lenient)) in &self.eras {
            let _ = writeln!(
                text,
                "    {cause:?}: {strict} where nothing may be lost, {lenient} with excuses"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::{Action, Kind};
    use super::*;

    #[test]
    fn doubts_runs_with_many_undecided_histories() {
        let doubt =
            |objects, undecided| Tally { objects, undecided, ..Tally::default() }.doubt().is_some();
        assert!(doubt(100, 11) && doubt(6, 6));
        assert!(!doubt(100, 10) && !doubt(6, 5));
    }

    #[test]
    fn explains_lost_write_in_few_lines() {
        let object = Object { epoch: 1, kind: Kind::Lists, number: 1 };
        let op = |client, action, outcome, invoked| Operation {
            client,
            proxy: client % 2,
            object,
            action,
            way: "",
            outcome,
            invoked,
            ended: invoked + 500,
        };
        let mut history = Vec::new();
        for value in 1..=40 {
            let append = Action::Append { list: 0, value };
            history.push(op(1, append, Outcome::Number(value), value * 10_000));
            let seen = Outcome::Lists(vec![(1..=value).collect()]);
            history.push(op(2, Action::Range(0), seen, value * 10_000 + 1_000));
        }
        let short = Outcome::Lists(vec![(1..40).collect()]);
        history.push(op(3, Action::Range(0), short, 500_000));
        let notes = [(450_000, "begin of: SENTINEL FAILOVER".to_owned())];
        let epoch = Epoch { eras: &[], notes: &notes, sightings: &[], durable: false };
        let text = epoch.explain(object, &history).expect("a violation");
        for part in ["value 40: ", "client  3", "begin of: SENTINEL FAILOVER", "RPUSH a 40 -> 40"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("client  2") && text.lines().count() < 40, "{text}");
        assert_eq!(epoch.explain(object, &history[..80]), None);
        let mut tally = Tally::default();
        tally.count(&history);
        assert_eq!(tally.lost, 1);
    }
}
