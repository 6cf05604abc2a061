//! The report: the outcome of every line of the haproxy.cfg, with the reason.
//!
//! Planning notes the lines that it used; [`Notes::complete`] looks up all others in [`keywords`].
//! No line is left out, and a keyword that is not in the table is reported as unknown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::config_file::{ConfigFile, Directive, SectionKind};
use crate::{Position, Refusal, keywords, redact};

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineOutcome {
    /// It is in the new configuration, but by a guess that a person has to confirm.
    Assumed,
    /// It is in the new configuration.
    Mapped,
    /// Pointsman has no use for it.
    Unneeded,
    /// Pointsman has no counterpart.
    Unmatched,
}

impl fmt::Display for LineOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Mapped => "mapped",
            Self::Assumed => "ASSUMED",
            Self::Unneeded => "not needed",
            Self::Unmatched => "NO COUNTERPART",
        })
    }
}

/// A line of the file and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineReport {
    /// Where the line is.
    pub position: Position,
    /// The line without secrets.
    pub line: String,
    /// What became of the line.
    pub outcome: LineOutcome,
    /// The key that it was mapped to, or the reason why it was not.
    pub note: String,
}

/// How much of a report is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Assumptions and lines without counterpart.
    Warnings,
    /// Every line.
    Everything,
}

/// The outcome of every line, in the order of the files.
#[derive(Debug, Default)]
pub struct ImportReport {
    /// One entry per line.
    pub lines: Vec<LineReport>,
}

impl ImportReport {
    /// The number of lines with this outcome.
    #[must_use]
    pub fn count(&self, outcome: LineOutcome) -> usize {
        self.lines.iter().filter(|line| line.outcome == outcome).count()
    }

    /// The report as text. Lines with the same outcome and note are one group, and equal lines of a
    /// group are shown once with all their line numbers.
    #[must_use]
    pub fn render(&self, detail: Detail) -> String {
        use LineOutcome::{Assumed, Mapped, Unmatched, Unneeded};
        let order = [Unmatched, Assumed, Mapped, Unneeded];
        let shown = if detail == Detail::Everything { &order[..] } else { &order[..2] };
        let mut text = String::new();
        for outcome in shown {
            let lines = self.lines.iter().filter(|line| line.outcome == *outcome);
            for (note, lines) in grouped(lines, |line| &line.note) {
                let _ = writeln!(text, "{outcome}: {note}");
                for (line, equal) in grouped(lines.into_iter(), |line| &line.line) {
                    let _ = writeln!(text, "    {}  {line}", positions(&equal));
                }
            }
        }
        text
    }

    /// The counts of all outcomes on one line.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "{} lines: {} mapped, {} not needed, {} without counterpart, {} assumed",
            self.lines.len(),
            self.count(LineOutcome::Mapped),
            self.count(LineOutcome::Unneeded),
            self.count(LineOutcome::Unmatched),
            self.count(LineOutcome::Assumed),
        )
    }

    /// Why `--strict` refuses this import, if it does.
    pub(super) fn strict_refusal(&self) -> Option<Refusal> {
        let (assumed, unmatched) =
            (self.count(LineOutcome::Assumed), self.count(LineOutcome::Unmatched));
        let message =
            format!("--strict: {assumed} lines ASSUMED, {unmatched} lines with NO COUNTERPART");
        let remedy =
            "name what is assumed, remove what has no counterpart, or import without --strict";
        (assumed + unmatched > 0).then(|| Refusal::general(message, remedy))
    }
}

/// Lines with equal keys together, in the order of their first lines.
fn grouped<'a>(
    lines: impl Iterator<Item = &'a LineReport>,
    key: impl Fn(&'a LineReport) -> &'a str,
) -> Vec<(&'a str, Vec<&'a LineReport>)> {
    let mut index: BTreeMap<&str, usize> = BTreeMap::new();
    let mut groups: Vec<(&str, Vec<&LineReport>)> = Vec::new();
    for line in lines {
        let at = *index.entry(key(line)).or_insert(groups.len());
        if at == groups.len() {
            groups.push((key(line), Vec::new()));
        }
        if let Some((_, group)) = groups.get_mut(at) {
            group.push(line);
        }
    }
    groups
}

/// `a.cfg:3, 7-9; b.cfg:1`.
fn positions(lines: &[&LineReport]) -> String {
    let all: Vec<&Position> = lines.iter().map(|line| &line.position).collect();
    let mut text = String::new();
    let mut file = None;
    let mut rest = all.as_slice();
    while let [first, tail @ ..] = rest {
        let follows = |(at, it): &(usize, &&Position)| {
            it.file == first.file && it.line == first.line + at + 1
        };
        let count = tail.iter().enumerate().take_while(follows).count();
        if file == Some(&first.file) {
            text.push_str(", ");
        } else {
            let separator = if file.is_none() { "" } else { "; " };
            let _ = write!(text, "{separator}{}:", first.file);
            file = Some(&first.file);
        }
        let _ = match count {
            0 => write!(text, "{}", first.line),
            count => write!(text, "{}-{}", first.line, first.line + count),
        };
        rest = tail.get(count..).unwrap_or_default();
    }
    text
}

/// What planning found out about lines; at most one entry per line.
#[derive(Debug, Default)]
pub(super) struct Notes {
    entries: BTreeMap<Position, LineReport>,
}

impl Notes {
    /// Adds a note. A stronger outcome (assumed, mapped, unneeded, unmatched, in this order)
    /// replaces a weaker one; the notes of mapped lines are kept.
    pub(super) fn add(&mut self, directive: &Directive, outcome: LineOutcome, note: &str) {
        let entry = self.entries.entry(directive.position.clone()).or_insert_with(|| LineReport {
            position: directive.position.clone(),
            line: redact::line(directive),
            outcome,
            note: String::new(),
        });
        if outcome < entry.outcome {
            if entry.outcome != LineOutcome::Mapped {
                entry.note.clear();
            }
            entry.outcome = outcome;
        }
        let counts = outcome == entry.outcome || outcome == LineOutcome::Mapped;
        if counts && !entry.note.split("; ").any(|known| known == note) {
            let separator = if entry.note.is_empty() { "" } else { "; " };
            let _ = write!(entry.note, "{separator}{note}");
        }
    }

    /// Adds a note in place of all earlier ones.
    pub(super) fn replace(&mut self, directive: &Directive, outcome: LineOutcome, note: &str) {
        self.entries.remove(&directive.position);
        self.add(directive, outcome, note);
    }

    /// Adds a loss, in place of what the line was mapped to; what is assumed stays.
    pub(super) fn lose(&mut self, directive: &Directive, note: &str) {
        let earlier = self.entries.remove(&directive.position);
        self.add(directive, LineOutcome::Unmatched, note);
        let kept = [LineOutcome::Assumed, LineOutcome::Unmatched];
        if let Some(earlier) = earlier.filter(|it| kept.contains(&it.outcome)) {
            self.add(directive, LineOutcome::Unmatched, &earlier.note);
        }
    }

    /// The full report: lines without a note get that of their keyword.
    pub(super) fn complete(mut self, config: &ConfigFile, secrets: &[String]) -> ImportReport {
        for section in &config.sections {
            let keyword = section.head.word(0);
            let (outcome, note) = keywords::section(section.kind, &keyword);
            self.fill(&section.head, outcome, note);
            for directive in &section.directives {
                if section.kind != SectionKind::Other {
                    let (outcome, note) = keywords::directive(directive);
                    self.fill(directive, outcome, note);
                } else if !self.entries.contains_key(&directive.position) {
                    self.fill(directive, outcome, note);
                    if let Some(entry) = self.entries.get_mut(&directive.position) {
                        entry.line = redact::keyword_only(directive);
                    }
                }
            }
        }
        let mut lines: Vec<LineReport> = self.entries.into_values().collect();
        for line in &mut lines {
            for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
                line.line = line.line.replace(secret.as_str(), "…");
                line.note = line.note.replace(secret.as_str(), "…");
            }
        }
        ImportReport { lines }
    }

    fn fill(&mut self, directive: &Directive, outcome: LineOutcome, note: &str) {
        if !self.entries.contains_key(&directive.position) {
            self.add(directive, outcome, note);
        }
    }
}
