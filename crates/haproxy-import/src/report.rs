//! The report: the outcome of every line of the haproxy.cfg, with the reason.
//!
//! Planning notes the lines that it used; [`Notes::complete`] looks up all others in [`keywords`].
//! No line is left out, and a keyword that is not in the table is reported as unknown.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::config_file::ConfigFile;
use crate::sections::SectionKind;
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

    /// The report as text: every line, or only assumptions and lines without counterpart. Lines
    /// with equal outcome and note are one group, and equal lines of a group are shown once with
    /// all their line numbers.
    #[must_use]
    pub fn render(&self, every_line: bool) -> String {
        use LineOutcome::{Assumed, Mapped, Unmatched, Unneeded};
        let order = [Unmatched, Assumed, Mapped, Unneeded];
        let shown = if every_line { &order[..] } else { &order[..2] };
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
    entries: BTreeMap<Position, (LineOutcome, String)>,
}

impl Notes {
    /// Adds a note. A stronger outcome (assumed, mapped, unneeded, unmatched, in this order)
    /// replaces a weaker one; the notes of mapped lines are kept.
    pub(super) fn add(&mut self, line: &impl AsRef<Position>, outcome: LineOutcome, note: &str) {
        let entry = self.entries.entry(line.as_ref().clone());
        let (known, text) = entry.or_insert_with(|| (outcome, String::new()));
        if outcome < *known {
            if *known != LineOutcome::Mapped {
                text.clear();
            }
            *known = outcome;
        }
        let counts = outcome == *known || outcome == LineOutcome::Mapped;
        if counts && !text.split("; ").any(|known| known == note) {
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}{note}");
        }
    }

    /// Adds a note in place of all earlier ones.
    pub(super) fn replace(&mut self, line: &Position, outcome: LineOutcome, note: &str) {
        self.entries.remove(line);
        self.add(line, outcome, note);
    }

    /// Adds a loss, in place of what the line was mapped to; what is assumed stays.
    pub(super) fn lose(&mut self, line: &Position, note: &str) {
        let earlier = self.entries.remove(line);
        self.add(line, LineOutcome::Unmatched, note);
        let kept = [LineOutcome::Assumed, LineOutcome::Unmatched];
        if let Some((_, earlier)) = earlier.filter(|(outcome, _)| kept.contains(outcome)) {
            self.add(line, LineOutcome::Unmatched, &earlier);
        }
    }

    /// The full report: lines without a note get that of their keyword.
    pub(super) fn complete(&self, config: &ConfigFile, secrets: &[String]) -> ImportReport {
        let hide = |text: &str| {
            let secrets = secrets.iter().filter(|secret| !secret.is_empty());
            secrets.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "…"))
        };
        let mut lines = BTreeMap::new();
        for section in &config.sections {
            let of_section = keywords::section(section.kind, &section.head.word(0));
            let is_other = section.kind == SectionKind::Other;
            for directive in std::iter::once(&section.head).chain(&section.directives) {
                let is_head = directive.position == section.head.position;
                let found = self.entries.get(&directive.position);
                let (outcome, note) = match found {
                    Some((outcome, note)) => (*outcome, note.as_str()),
                    None if is_head || is_other => of_section,
                    None => keywords::directive(directive),
                };
                let is_hidden = is_other && !is_head && found.is_none();
                let show = if is_hidden { redact::keyword_only } else { redact::line };
                let (line, note) = (hide(&show(directive)), hide(note));
                let position = directive.position.clone();
                lines.insert(position.clone(), LineReport { position, line, outcome, note });
            }
        }
        ImportReport { lines: lines.into_values().collect() }
    }
}
