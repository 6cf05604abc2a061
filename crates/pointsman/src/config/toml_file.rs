//! Parses the configuration file from TOML to settings.
//!
//! A syntax error is reported alone, with its position and what to do. In a file without one all
//! faults are reported in one pass: an unknown key, a wrong type or an invalid value is recorded
//! with its position, and the rest is read.

use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::finding::{Finding, nearest};
use super::schema::{self, ConfigSection};
use super::settings::{Origin, Setting, SettingMap};
use super::toml_value;
use super::value::Problem;

/// The content of a configuration file.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    /// The settings of each `[[service]]`, in order.
    pub(super) services: Vec<SettingMap>,
    /// The settings of the sections that apply to the process.
    pub(super) process: SettingMap,
    /// The faults found.
    pub(super) findings: Vec<Finding>,
}

/// Parses the text of a file; `name` is its path as shown in faults.
///
/// # Errors
///
/// The first syntax error. The parser's own rendering is never used, because it quotes the line,
/// which may contain a password.
pub(super) fn read(name: &str, text: &str) -> Result<ParsedFile, Finding> {
    let mut walk = FileWalk::new(name, text);
    let (table, errors) = DeTable::parse_recoverable(text);
    let place = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    if let Some(error) = errors.iter().min_by_key(|error| place(error)) {
        let (offset, problem) = match first_section_of_haproxy(text) {
            Some(offset) => {
                let remedy =
                    format!("convert it: pointsman import haproxy {name} > pointsman.toml");
                let what = "this is the configuration of haproxy, and not TOML";
                (offset, Problem::new(what, remedy))
            }
            None => (place(error), syntax_problem(error.message(), walk.line_text(place(error)))),
        };
        return Err(Finding::of(walk.origin(offset), "syntax", problem));
    }
    let mut parsed = ParsedFile::default();
    for (key, value) in table.get_ref() {
        walk.top_level(key, value, &mut parsed);
    }
    parsed.findings = walk.findings;
    Ok(parsed)
}

/// Where the first section of a haproxy.cfg begins. No line of TOML is a bare word with a name.
fn first_section_of_haproxy(text: &str) -> Option<usize> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("global" | "defaults"), None, None)
            | (Some("defaults" | "frontend" | "backend" | "listen"), Some(_), None)
                if !line.contains(['=', '[', '"']) =>
            {
                return Some(offset);
            }
            _ => offset += line.len(),
        }
    }
    None
}

struct FileWalk<'a> {
    file: Arc<str>,
    text: &'a str,
    /// Byte offsets at which lines begin.
    line_starts: Vec<usize>,
    findings: Vec<Finding>,
}

impl<'a> FileWalk<'a> {
    fn new(name: &str, text: &'a str) -> Self {
        let line_starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { file: name.into(), text, line_starts, findings: Vec::new() }
    }

    /// The line of a byte offset, counted from 1.
    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    fn origin(&self, offset: usize) -> Origin {
        let line = self.line(offset);
        let start =
            line.checked_sub(1).and_then(|at| self.line_starts.get(at)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(1, |before| before.chars().count() + 1);
        Origin::File { file: Arc::clone(&self.file), line, column }
    }

    fn note(&mut self, span: &Range<usize>, key: &str, problem: Problem) {
        self.findings.push(Finding::of(self.origin(span.start), key, problem));
    }

    /// The text of the line of a byte offset.
    fn line_text(&self, offset: usize) -> &'a str {
        self.text.lines().nth(self.line(offset).saturating_sub(1)).unwrap_or_default()
    }

    fn top_level(
        &mut self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        parsed: &mut ParsedFile,
    ) {
        let name: &str = key.get_ref();
        match (schema::section(name), value.get_ref()) {
            (None, _) => self.unknown(&key.span(), "", name),
            (Some(_), DeValue::Array(items))
                if name == "service" && items.iter().all(|item| item.get_ref().is_table()) =>
            {
                for item in items {
                    if let DeValue::Table(table) = item.get_ref() {
                        parsed.services.push(self.service(&item.span(), table));
                    }
                }
            }
            (Some(_), DeValue::Table(table)) if name == "service" => {
                let problem = Problem::new(
                    "services are a list of tables",
                    "write [[service]] with double brackets",
                );
                self.note(&key.span(), name, problem);
                parsed.services.push(self.service(&value.span(), table));
            }
            (Some(section), DeValue::Table(table)) => {
                self.section(section, table, &mut parsed.process);
            }
            (Some(section), _) => {
                let remedy = format!("write {}", section.header());
                self.note(&value.span(), name, Problem::new("expected a section", remedy));
            }
        }
    }

    fn service(&mut self, span: &Range<usize>, table: &DeTable<'_>) -> SettingMap {
        let mut values =
            SettingMap { service_origin: Some(self.origin(span.start)), ..SettingMap::default() };
        if let Some(section) = schema::section("service") {
            self.section(section, table, &mut values);
        }
        values
    }

    fn section(
        &mut self,
        section: &'static ConfigSection,
        table: &DeTable<'_>,
        values: &mut SettingMap,
    ) {
        for (key, value) in table {
            let path = section.path_of(key.get_ref());
            if let Some(option) = section.option(key.get_ref()) {
                let (read, problems) = toml_value::read(option.kind, value);
                match read {
                    Some(read) => {
                        let origin = self.origin(key.span().start);
                        values.settings.insert(path.clone(), Setting { value: read, origin });
                    }
                    None => {
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

    /// Records an unknown key or section, with the most similar valid one, or with the section to
    /// which this key belongs. A key that resembles none is not shown.
    fn unknown(&mut self, span: &Range<usize>, section: &str, key: &str) {
        let children = schema::SECTIONS.iter().filter_map(|one| match one.path.rsplit_once('.') {
            Some((parent, name)) => (parent == section).then_some(name),
            None => section.is_empty().then_some(one.path),
        });
        let keys = schema::section(section).map(|section| section.options).unwrap_or_default();
        let known: Vec<&str> = keys.iter().map(|option| option.key).chain(children).collect();
        let elsewhere = schema::options()
            .find(|(_, option)| option.key == key)
            .map(|(section, _)| section.path);
        let near = nearest(key, known.iter().copied());
        let parts = [section, if near.or(elsewhere).is_some() { key } else { "" }];
        let here = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        let remedy = match (near, elsewhere) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some("service")) => "it belongs in [[service]]".to_owned(),
            (None, Some(path)) => format!("it belongs in [{path}]"),
            (None, None) => format!("known here: {}", known.join(", ")),
        };
        let what = if section.is_empty() { "unknown section or key" } else { "unknown key" };
        self.note(span, &here, Problem::new(what, remedy));
    }
}

/// A syntax error in the words of this program. `line` is examined and never repeated, because it
/// may contain a password; only the names of known sections are.
fn syntax_problem(message: &str, line: &str) -> Problem {
    let line = line.trim();
    if message.starts_with("unclosed table") || message.starts_with("unclosed array table") {
        let name = line.trim_matches(['[', ']']).trim();
        let remedy = match schema::section(name) {
            Some(section) => format!("write {}", section.header()),
            None => "close it with ], or ]] if it begins with [[".to_owned(),
        };
        return Problem::new("the section header is not closed", remedy);
    }
    let is_key = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-. ".contains(c))
    };
    if message.starts_with("invalid unquoted key")
        && line.split_once(':').is_some_and(|(key, _)| is_key(key))
    {
        return Problem::new("a key is followed by `=`, not by `:`", "write KEY = VALUE");
    }
    let remedy = if message.contains("expected `=`") && line.ends_with(']') {
        "write KEY = VALUE, or begin the section header with ["
    } else if message.contains("expected `=`") {
        "write KEY = VALUE"
    } else if message.starts_with("invalid unquoted key") {
        "use only letters, digits, `_` and `-` in a key"
    } else if message.contains("quoted") {
        "put it in double quotes"
    } else if message.contains("duplicate") {
        "keep one of them"
    } else if message.contains("comma") || message.starts_with("unclosed array") {
        "separate the elements by commas and close the list with ]"
    } else if message.contains("basic string") {
        "close the string with a double quote"
    } else {
        "correct the TOML syntax here"
    };
    Problem::new(message, remedy)
}
