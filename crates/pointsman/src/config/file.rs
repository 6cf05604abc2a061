//! The file: TOML to values, all faults in one walk.
//!
//! The parser recovers from errors of syntax and goes on, and so does the walk over what it found:
//! an unknown key, a wrong type or a bad value is noted with its place and the rest is read. What
//! lies on a damaged line is not judged a second time, and after a bracket that never closes
//! nothing is, because from there on the tree is the parser's guess.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::finding::Finding;
use super::nearest::nearest;
use super::schema::{self, Section};
use super::toml_value;
use super::value::Problem;
use super::values::{Origin, Setting, Values};

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// One for each `[[service]]`, in order.
    pub(super) services: Vec<Values>,
    /// The sections of the process.
    pub(super) process: Values,
    /// Faults.
    pub(super) findings: Vec<Finding>,
    /// Whether syntax hid a part of it, so that nothing can be called missing.
    pub(super) damaged: bool,
}

/// Reads a file's text; `name` is how its path is shown.
pub(super) fn read(name: &str, text: &str) -> Reading {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut walk = Walk::new(name, text);
    walk.note_syntax(&errors);
    let mut reading = Reading { damaged: !errors.is_empty(), ..Reading::default() };
    for (key, value) in table.get_ref() {
        walk.top_level(key, value, &mut reading);
    }
    // A fault of syntax may make two faults of one character; the first on a line tells enough.
    reading.findings = walk.findings;
    reading
}

struct Walk<'a> {
    file: Arc<str>,
    text: &'a str,
    /// Byte offsets at which lines begin.
    starts: Vec<usize>,
    /// Lines with a fault of syntax.
    damaged: BTreeSet<usize>,
    /// The first line of which nothing is known, after a bracket that never closes.
    horizon: usize,
    findings: Vec<Finding>,
}

impl<'a> Walk<'a> {
    fn new(name: &str, text: &'a str) -> Self {
        let starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self {
            file: name.into(),
            text,
            starts,
            damaged: BTreeSet::new(),
            horizon: usize::MAX,
            findings: Vec::new(),
        }
    }

    /// The line (from 1) of a byte offset.
    fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset)
    }

    fn origin(&self, offset: usize) -> Origin {
        let line = self.line(offset);
        let start = line.checked_sub(1).and_then(|at| self.starts.get(at)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(1, |before| before.chars().count() + 1);
        Origin::File { file: Arc::clone(&self.file), line, column }
    }

    /// Whether a span lies where the tree cannot be trusted.
    fn is_damaged(&self, span: &Range<usize>) -> bool {
        let (first, last) = (self.line(span.start), self.line(span.end));
        last >= self.horizon || self.damaged.range(first..=last).next().is_some()
    }

    fn note(&mut self, span: &Range<usize>, key: &str, problem: Problem) {
        if !self.is_damaged(span) {
            self.findings.push(Finding::of(self.origin(span.start), key, problem));
        }
    }

    /// Notes the first error of each line. The parser's own rendering is never used: it quotes the
    /// line, and the line may hold a password.
    fn note_syntax(&mut self, errors: &[toml::de::Error]) {
        let mut places: Vec<(usize, &str)> = errors
            .iter()
            .map(|error| (error.span().map_or(0, |span| span.start), error.message()))
            .collect();
        places.sort_unstable();
        if places.iter().any(|(_, message)| message.starts_with("unclosed")) {
            places.truncate(1);
            self.horizon = places.first().map_or(1, |(offset, _)| self.line(*offset));
        }
        for (offset, message) in places {
            if self.damaged.insert(self.line(offset)) {
                let problem = Problem::new(message, syntax_remedy(message));
                self.findings.push(Finding::of(self.origin(offset), self.key_at(offset), problem));
            }
        }
    }

    /// The key on the line of a fault of syntax, by its looks, since there is no tree to ask.
    fn key_at(&self, offset: usize) -> String {
        let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let (mut section, mut key) = ("", "");
        for line in self.text.lines().take(self.line(offset)) {
            let (trimmed, header) = (line.trim(), line.trim().trim_matches(['[', ']']));
            key = trimmed.split_once('=').map_or("", |(key, _)| key.trim());
            if trimmed.starts_with('[') && !header.is_empty() && header.chars().all(is_path) {
                section = header;
            }
        }
        let parts =
            [section, key].into_iter().filter(|part| !part.is_empty() && part.chars().all(is_path));
        let path = parts.collect::<Vec<_>>().join(".");
        if path.is_empty() { "syntax".to_owned() } else { path }
    }

    fn top_level(
        &mut self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        reading: &mut Reading,
    ) {
        let name: &str = key.get_ref();
        match (name, value.get_ref()) {
            ("service", DeValue::Array(items))
                if items.iter().all(|item| item.get_ref().is_table()) =>
            {
                for item in items {
                    if let DeValue::Table(table) = item.get_ref() {
                        reading.services.push(self.service(&item.span(), table));
                    }
                }
            }
            ("service", DeValue::Table(table)) => {
                let problem = Problem::new(
                    "a service is one of a list",
                    "write [[service]] with double brackets",
                );
                self.note(&key.span(), name, problem);
                reading.services.push(self.service(&value.span(), table));
            }
            (_, DeValue::Table(table)) if schema::section(name).is_some() => {
                if let Some(section) = schema::section(name) {
                    self.section(section, table, &mut reading.process);
                }
            }
            ("service", _) => self.note(
                &value.span(),
                name,
                Problem::new("expected a section", "write [[service]]"),
            ),
            _ if schema::section(name).is_some() => {
                self.note(
                    &value.span(),
                    name,
                    Problem::new("expected a section", format!("write [{name}]")),
                );
            }
            _ => self.unknown(&key.span(), "", name),
        }
    }

    fn service(&mut self, span: &Range<usize>, table: &DeTable<'_>) -> Values {
        let mut values = Values { place: Some(self.origin(span.start)), ..Values::default() };
        if let Some(section) = schema::section("service") {
            self.section(section, table, &mut values);
        }
        values
    }

    fn section(&mut self, section: &'static Section, table: &DeTable<'_>, values: &mut Values) {
        for (key, value) in table {
            let path = section.path_of(key.get_ref());
            if let Some(option) = section.option(key.get_ref()) {
                let (read, problems) = toml_value::read(option.kind, value);
                match read {
                    Some(read) if !self.is_damaged(&value.span()) => {
                        let origin = self.origin(key.span().start);
                        values.settings.insert(path.clone(), Setting { value: read, origin });
                    }
                    _ => {
                        values.broken.insert(path.clone());
                    }
                }
                for (span, problem) in problems {
                    self.note(&span, &path, problem);
                }
            } else if let Some(inner) = schema::section(&path) {
                match value.get_ref() {
                    DeValue::Table(table) => self.section(inner, table, values),
                    _ => {
                        let problem = Problem::new(
                            "expected a section",
                            format!("write [{path}] with single brackets"),
                        );
                        self.note(&value.span(), &path, problem);
                    }
                }
            } else {
                self.unknown(&key.span(), section.path, key.get_ref());
            }
        }
    }

    /// An unknown key or section: with the nearest one that would stand here, or where else this
    /// very key belongs.
    fn unknown(&mut self, span: &Range<usize>, section: &str, key: &str) {
        let here = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
        let children = schema::SECTIONS.iter().filter_map(|one| match one.path.rsplit_once('.') {
            Some((parent, name)) => (parent == section).then_some(name),
            None => section.is_empty().then_some(one.path),
        });
        let keys = schema::section(section).map(|section| section.options).unwrap_or_default();
        let known: Vec<&str> = keys.iter().map(|option| option.key).chain(children).collect();
        let elsewhere = schema::options()
            .find(|(_, option)| option.key == key)
            .map(|(section, _)| section.path);
        let remedy = match (nearest(key, known.iter().copied()), elsewhere) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some("service")) => "it belongs in [[service]]".to_owned(),
            (None, Some(path)) => format!("it belongs in [{path}]"),
            (None, None) => format!("known here: {}", known.join(", ")),
        };
        let what = if section.is_empty() { "unknown section or key" } else { "unknown key" };
        self.note(span, &here, Problem::new(what, remedy));
    }
}

fn syntax_remedy(message: &str) -> &'static str {
    if message.contains("quoted") {
        "put it in double quotes"
    } else if message.contains("duplicate") {
        "keep one of them"
    } else if message.contains("comma") || message.starts_with("unclosed array") {
        "separate the elements by commas and close the list with ]"
    } else if message.contains("basic string") {
        "close the string with a double quote"
    } else {
        "correct the TOML here"
    }
}
