//! The sections of a haproxy.cfg, each with its directives and the defaults that apply to it.
//!
//! A proxy inherits from the `defaults` that its `from` names, else from the last `defaults` above
//! it; a `defaults` inherits only if it has a `from` (haproxy: configuration.txt, 4 "Proxies").
//! Unknown keywords are not refused here; the report lists them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::tokenizer::{self, Word};
use crate::{Position, Refusal};

/// One line of a section.
#[derive(Debug, Clone)]
pub(super) struct Directive {
    pub(super) position: Position,
    /// Never empty.
    pub(super) words: Vec<Word>,
}

/// The kind of a section, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionKind {
    Global,
    Defaults,
    Listen,
    Frontend,
    Backend,
    /// resolvers, peers, userlist and everything else without traffic of its own.
    Other,
}

impl SectionKind {
    /// Whether it carries traffic.
    fn is_proxy(self) -> bool {
        matches!(self, Self::Listen | Self::Frontend | Self::Backend)
    }

    /// Whether two proxies of these kinds must not have one name.
    fn excludes(self, other: Self) -> bool {
        !matches!((self, other), (Self::Frontend, Self::Backend) | (Self::Backend, Self::Frontend))
    }
}

/// A section.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) kind: SectionKind,
    pub(super) name: String,
    pub(super) head: Directive,
    pub(super) directives: Vec<Directive>,
    /// The defaults that apply to it, as an index into the list of all sections.
    pub(super) defaults: Option<usize>,
}

const HEADS: &[(SectionKind, &str)] = &[
    (SectionKind::Global, "global"),
    (SectionKind::Defaults, "defaults"),
    (SectionKind::Listen, "listen"),
    (SectionKind::Frontend, "frontend"),
    (SectionKind::Backend, "backend"),
    (
        SectionKind::Other,
        "acme cache crt-store fcgi-app http-errors log-forward log-profile mailers peers program \
         resolvers ring ruleset traces userlist",
    ),
];

impl AsRef<Position> for Directive {
    fn as_ref(&self) -> &Position {
        &self.position
    }
}

impl Directive {
    /// The word at `at`, or an empty one.
    pub(super) fn word(&self, at: usize) -> String {
        self.words.get(at).map(ToString::to_string).unwrap_or_default()
    }

    /// The words from `at` on.
    pub(super) fn rest(&self, at: usize) -> Vec<String> {
        self.words.iter().skip(at).map(ToString::to_string).collect()
    }

    /// Whether it begins with the words of a text.
    pub(super) fn begins(&self, text: &str) -> bool {
        text.split(' ').zip(0..).all(|(word, at)| self.has_at(at, word))
    }

    /// Whether it defines the ACL of this name, which is case-sensitive.
    pub(super) fn is_acl(&self, name: &str) -> bool {
        self.has_at(0, "acl") && self.word(1) == name
    }

    /// Whether a word after the first is this one.
    pub(super) fn has(&self, text: &str) -> bool {
        self.words.iter().skip(1).any(|word| word.is(text))
    }

    /// The word after `key`.
    pub(super) fn value(&self, key: &str) -> Option<String> {
        let at = self.words.iter().position(|word| word.is(key))?;
        self.words.get(at + 1).map(ToString::to_string)
    }

    /// Whether the word at `at` is this one.
    pub(super) fn has_at(&self, at: usize, text: &str) -> bool {
        self.words.get(at).is_some_and(|word| word.is(text))
    }
}

/// Every section of the files, in order.
pub(super) fn read(files: &[(String, String)], refusals: &mut Vec<Refusal>) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for (file, text) in files {
        let file: Arc<str> = Arc::from(file.as_str());
        for (index, line) in text.lines().enumerate() {
            let position = |column| Position { file: file.clone(), line: index + 1, column };
            if line.contains('\0') {
                let remedy = "pass the text of a haproxy.cfg";
                let what = "the line contains a zero byte";
                refusals.push(Refusal::new(&position(1), what, remedy));
                continue;
            }
            match tokenizer::split(line) {
                Err((quote, column)) => {
                    let what = format!("the quote {quote} is not closed");
                    let remedy = "close it, or escape it with a backslash";
                    refusals.push(Refusal::new(&position(column), what, remedy));
                }
                Ok(words) => {
                    if let Some(first) = words.first() {
                        let position = position(first.column);
                        add(&mut sections, Directive { position, words }, refusals);
                    }
                }
            }
        }
    }
    refuse_equal_names(&sections, refusals);
    inherit(&mut sections, refusals);
    sections
}

/// Refuses two proxies of one name as haproxy does: only a frontend and a backend may share one.
/// Otherwise a `default_backend` would silently lead to the first of them, and clients with it.
fn refuse_equal_names(sections: &[Section], refusals: &mut Vec<Refusal>) {
    let mut known: BTreeMap<&str, Vec<&Section>> = BTreeMap::new();
    for section in sections.iter().filter(|it| it.kind.is_proxy() && !it.name.is_empty()) {
        let namesakes = known.entry(&section.name).or_default();
        if let Some(first) = namesakes.iter().find(|it| it.kind.excludes(section.kind)) {
            let (kind, name) = (section.head.word(0), tokenizer::safe_word(&section.name));
            let (other, at) = (first.head.word(0), &first.head.position);
            let what = format!("{kind} {name} has the same name as {other} {name} at {at}");
            let remedy = "give each section its own name, as haproxy demands";
            refusals.push(Refusal::new(&section.head, what, remedy));
        }
        namesakes.push(section);
    }
}

fn add(sections: &mut Vec<Section>, directive: Directive, refusals: &mut Vec<Refusal>) {
    let first = directive.word(0);
    let is_first = |head: &str| head == first;
    if let Some((kind, _)) = HEADS.iter().find(|(_, heads)| heads.split(' ').any(is_first)) {
        let name = match kind {
            SectionKind::Defaults if directive.word(1) == "from" => String::new(),
            _ => directive.word(1),
        };
        if kind.is_proxy() && name.is_empty() {
            let what = format!("the section \"{first}\" has no name");
            refusals.push(Refusal::new(&directive, what, "give it a name"));
        }
        if kind.is_proxy() && directive.word(2).contains(':') {
            let what = "an address in the head of a section, which haproxy no longer reads";
            refusals.push(Refusal::new(&directive, what, "write it in a `bind` line below"));
        }
        let (kind, directives) = (*kind, Vec::new());
        sections.push(Section { kind, name, head: directive, directives, defaults: None });
    } else if let Some(section) = sections.last_mut() {
        section.directives.push(directive);
    } else if !first.starts_with('.') {
        let what = format!("{:?} precedes the first section", tokenizer::safe_word(&first));
        let remedy = "pass a haproxy.cfg: it begins with a section";
        refusals.push(Refusal::new(&directive, what, remedy));
    }
}

fn inherit(sections: &mut [Section], refusals: &mut Vec<Refusal>) {
    // Of a name that several `defaults` have, there is no section.
    let mut named: BTreeMap<String, Option<usize>> = BTreeMap::new();
    let mut last = None;
    for (index, section) in sections.iter_mut().enumerate() {
        section.defaults = last.filter(|_| section.kind.is_proxy());
        if let Some(name) = section.head.value("from") {
            let found = named.get(&name).copied();
            section.defaults = found.flatten();
            let shown = tokenizer::safe_word(&name);
            let several = format!("several sections above are \"defaults {shown}\"");
            let none = format!("there is no section \"defaults {shown}\" above this line");
            let refusal = match found {
                None => Some((none, "name one that is defined above")),
                Some(None) => Some((several, "give each its own name, as haproxy demands")),
                Some(Some(_)) => None,
            };
            refusals
                .extend(refusal.map(|(what, remedy)| Refusal::new(&section.head, what, remedy)));
        }
        if section.kind == SectionKind::Defaults {
            last = Some(index);
            if !section.name.is_empty() {
                let name = section.name.clone();
                named.entry(name).and_modify(|it| *it = None).or_insert(Some(index));
            }
        }
    }
}
