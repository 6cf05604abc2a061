//! Environment variables as haproxy resolves them: `setenv`, the environment, `presetenv`.
//!
//! Only directives with addresses, names, durations and counts are expanded. What checks send
//! stays as it is, since a variable in `AUTH` has to keep its name.

use std::collections::BTreeMap;

use crate::sections::{Section, SectionKind};
use crate::tokenizer::{Fragment, Word};

/// Directives that are expanded.
const EXPANDED: &str = "bind, clitcpka-idle, contimeout, default-server, default_backend, \
                        hard-stop-after, maxconn, mode, nbthread, server, server-template, \
                        tcp-check connect, timeout, use_backend";

/// All variables that the files may refer to.
pub(super) struct Variables<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    set: BTreeMap<String, String>,
    preset: BTreeMap<String, String>,
}

impl<'a> Variables<'a> {
    /// Collects `setenv` and `presetenv` of the global sections.
    pub(super) fn new(sections: &[Section], env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let mut variables = Self { env, set: BTreeMap::new(), preset: BTreeMap::new() };
        let global = sections.iter().filter(|section| section.kind == SectionKind::Global);
        for directive in global.flat_map(|section| &section.directives) {
            let (preset, set) = (directive.begins("presetenv"), directive.begins("setenv"));
            let Some(word) = directive.words.get(2).filter(|_| preset || set) else { continue };
            let Ok(value) = variables.expand(word) else { continue };
            if set {
                variables.set.insert(directive.word(1), value);
            } else {
                variables.preset.entry(directive.word(1)).or_insert(value);
            }
        }
        variables
    }

    /// The value that haproxy would use here.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let set = self.set.get(name).cloned();
        set.or_else(|| (self.env)(name)).or_else(|| self.preset.get(name).cloned())
    }

    /// The value that the file itself gives. The process that replaces haproxy does not get it.
    pub(super) fn in_file(&self, name: &str) -> Option<&String> {
        self.set.get(name).or_else(|| self.preset.get(name))
    }

    /// A word with its variables expanded.
    ///
    /// # Errors
    /// The name of a variable that is unset and has no default.
    pub(super) fn expand(&self, word: &Word) -> Result<String, String> {
        word.expand(&|name| self.get(name))
    }

    /// Expands what can be expanded; an unset variable stays as `${NAME}`.
    pub(super) fn expand_all(&self, sections: &mut [Section]) {
        for section in sections {
            let directives = section.directives.iter_mut();
            let expanded = directives.filter(|it| EXPANDED.split(", ").any(|text| it.begins(text)));
            for word in expanded.flat_map(|it| &mut it.words) {
                if let Ok(text) = self.expand(word) {
                    word.fragments = vec![Fragment::Text(text)];
                }
            }
        }
    }
}
