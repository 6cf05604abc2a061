//! A haproxy.cfg taken apart into sections, each with its directives and the defaults that hold for it.
//!
//! haproxy's rule of defaults is followed: a proxy inherits from the section that its `from` names, else from the last `defaults`
//! that stands above it, and a `defaults` may inherit in the same way but only if it says so (haproxy: configuration.txt, 4
//! "Proxies"). A keyword that is not known is no fault here: what is not understood is told in the account and not refused, because
//! the next version of haproxy has more of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::words::{self, Part, Word};
use super::{Fault, Place};

/// One line below the head of a section.
#[derive(Debug, Clone)]
pub(super) struct Directive {
    pub(super) place: Place,
    /// Never empty.
    pub(super) words: Vec<Word>,
}

/// What a section is, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Global,
    Defaults,
    Listen,
    Frontend,
    Backend,
    /// resolvers, peers, userlist and whatever else has no traffic of its own.
    Other,
}

/// A section of the file.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) head: Directive,
    pub(super) directives: Vec<Directive>,
    /// The defaults that hold for it, an index into the list of all sections.
    pub(super) defaults: Option<usize>,
}

const HEADS: &[(&str, Kind)] = &[
    ("global", Kind::Global),
    ("defaults", Kind::Defaults),
    ("listen", Kind::Listen),
    ("frontend", Kind::Frontend),
    ("backend", Kind::Backend),
    ("acme", Kind::Other),
    ("cache", Kind::Other),
    ("crt-store", Kind::Other),
    ("fcgi-app", Kind::Other),
    ("http-errors", Kind::Other),
    ("log-forward", Kind::Other),
    ("log-profile", Kind::Other),
    ("mailers", Kind::Other),
    ("peers", Kind::Other),
    ("program", Kind::Other),
    ("resolvers", Kind::Other),
    ("ring", Kind::Other),
    ("ruleset", Kind::Other),
    ("traces", Kind::Other),
    ("userlist", Kind::Other),
];

impl Directive {
    /// The word at `at`, or an empty one.
    pub(super) fn word(&self, at: usize) -> String {
        self.words.get(at).map(ToString::to_string).unwrap_or_default()
    }

    /// Whether it begins with these words.
    pub(super) fn begins(&self, with: &[&str]) -> bool {
        self.words.len() >= with.len() && with.iter().zip(&self.words).all(|(text, word)| word.is(text))
    }
}

/// Every section of the files, in their order; faults are added to `faults`.
pub(super) fn read(files: &[(String, String)], faults: &mut Vec<Fault>) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for (file, text) in files {
        let file: Arc<str> = Arc::from(file.as_str());
        for (index, line) in text.lines().enumerate() {
            let place = |column| Place { file: file.clone(), line: index + 1, column };
            if line.contains('\0') {
                faults.push(Fault::new(place(1), "the line holds a zero byte", "is this a haproxy.cfg?"));
                continue;
            }
            match words::split(line) {
                Err(open) => {
                    let what = format!("the quote {} is not closed", open.quote);
                    faults.push(Fault::new(place(open.column), what, "close it, or put a backslash before it"));
                }
                Ok(words) => {
                    if let Some(first) = words.first() {
                        let place = place(first.column);
                        add(&mut sections, Directive { place, words }, faults);
                    }
                }
            }
        }
    }
    inherit(&mut sections, faults);
    sections
}

fn add(sections: &mut Vec<Section>, directive: Directive, faults: &mut Vec<Fault>) {
    let first = directive.word(0);
    // A few keywords are both a head and a directive: "log-forward" never, but "peers" and "ring" only with a name at most.
    if let Some((_, kind)) = HEADS.iter().find(|(head, _)| *head == first) {
        let name = match kind {
            Kind::Defaults if directive.word(1) == "from" => String::new(),
            _ => directive.word(1),
        };
        if matches!(kind, Kind::Listen | Kind::Frontend | Kind::Backend) && name.is_empty() {
            let what = format!("the section \"{first}\" has no name");
            faults.push(Fault::new(directive.place.clone(), what, "give it one"));
        }
        sections.push(Section { kind: *kind, name, head: directive, directives: Vec::new(), defaults: None });
    } else if let Some(section) = sections.last_mut() {
        section.directives.push(directive);
    } else if !first.starts_with('.') {
        let what = format!("{:?} stands before the first section", super::account::safe_word(&first));
        faults.push(Fault::new(directive.place, what, "a haproxy.cfg begins with global, defaults, or a proxy"));
    }
}

fn inherit(sections: &mut [Section], faults: &mut Vec<Fault>) {
    let mut named: BTreeMap<String, usize> = BTreeMap::new();
    let mut last = None;
    for (index, section) in sections.iter_mut().enumerate() {
        let from = section.head.words.iter().position(|word| word.is("from")).map(|at| section.head.word(at + 1));
        section.defaults = match (&from, section.kind) {
            (Some(name), _) => {
                let found = named.get(name).copied();
                if found.is_none() {
                    let what = format!("no section \"defaults {}\" stands above", super::account::safe_word(name));
                    faults.push(Fault::new(section.head.place.clone(), what, "name one that does"));
                }
                found
            }
            (None, Kind::Listen | Kind::Frontend | Kind::Backend) => last,
            (None, _) => None,
        };
        if section.kind == Kind::Defaults {
            last = Some(index);
            if !section.name.is_empty() {
                named.insert(section.name.clone(), index);
            }
        }
    }
}

/// Directives in which variables are filled in: addresses, names, times and counts, but nothing that may hold a password.
const EXPANDED: &[&str] = &[
    "bind",
    "clitcpka-idle",
    "default-server",
    "default_backend",
    "grace",
    "hard-stop-after",
    "maxconn",
    "nbthread",
    "server",
    "server-template",
    "timeout",
    "use_backend",
];

/// Fills in the variables that are set, where that is of use. What is not set stays, as `${NAME}`.
pub(super) fn expand(sections: &mut [Section], env: &dyn Fn(&str) -> Option<String>) {
    let directives = sections.iter_mut().flat_map(|section| &mut section.directives);
    for directive in directives.filter(|it| EXPANDED.iter().any(|keyword| it.begins(&[keyword]))) {
        for word in &mut directive.words {
            if let Ok(text) = word.expand(env) {
                word.parts = vec![Part::Text(text)];
            }
        }
    }
}

/// The sections with quick ways to what holds in one of them.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) sections: Vec<Section>,
    by_name: BTreeMap<String, Vec<usize>>,
    /// The section, and the directive in it.
    by_place: BTreeMap<Place, (usize, usize)>,
}

/// The deepest chain of defaults that is followed.
const DEEPEST: usize = 16;

impl Book {
    pub(super) fn new(sections: Vec<Section>) -> Self {
        let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, section) in sections.iter().enumerate() {
            if matches!(section.kind, Kind::Listen | Kind::Backend) {
                by_name.entry(section.name.clone()).or_default().push(index);
            }
        }
        let places = sections.iter().enumerate().flat_map(|(at, section)| {
            let own = section.directives.iter().enumerate();
            own.map(move |(number, directive)| (directive.place.clone(), (at, number)))
        });
        let by_place = places.collect();
        Self { sections, by_name, by_place }
    }

    /// The directive at a place.
    pub(super) fn at(&self, place: &Place) -> Option<&Directive> {
        let (section, number) = *self.by_place.get(place)?;
        self.sections.get(section)?.directives.get(number)
    }

    /// The backend or listen of this name.
    pub(super) fn backend(&self, name: &str) -> Option<usize> {
        self.by_name.get(name)?.first().copied()
    }

    /// The directives that hold in a section: its own, then those of its defaults.
    pub(super) fn effective(&self, section: usize) -> impl Iterator<Item = &Directive> {
        let chain = std::iter::successors(Some(section), |at| self.sections.get(*at)?.defaults);
        chain.take(DEEPEST).filter_map(|at| self.sections.get(at)).flat_map(|section| &section.directives)
    }

    /// The directive with these first words that holds in a section: the last of its own, else of its defaults.
    pub(super) fn setting(&self, section: usize, words: &[&str]) -> Option<&Directive> {
        let chain = std::iter::successors(Some(section), |at| self.sections.get(*at)?.defaults);
        chain
            .take(DEEPEST)
            .filter_map(|at| self.sections.get(at))
            .find_map(|section| section.directives.iter().rev().find(|directive| directive.begins(words)))
    }
}
