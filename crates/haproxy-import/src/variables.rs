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
    /// Those that the file sets, except `presetenv` of those that the environment has. The process
    /// that replaces haproxy does not get them.
    pub(super) set: BTreeMap<String, String>,
}

impl<'a> Variables<'a> {
    /// Collects `setenv` and `presetenv` of the global sections.
    pub(super) fn new(sections: &[Section], env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let mut variables = Self { env, set: BTreeMap::new() };
        let global = sections.iter().filter(|section| section.kind == SectionKind::Global);
        for directive in global.flat_map(|section| &section.directives) {
            let name = directive.word(1);
            let sets = directive.begins("setenv")
                || directive.begins("presetenv") && variables.get(&name).is_none();
            let value = directive.words.get(2).filter(|_| sets);
            let value = value.and_then(|word| variables.expand(word).ok());
            variables.set.extend(value.map(|value| (name, value)));
        }
        variables
    }

    /// The value that haproxy would use here.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.set.get(name).cloned().or_else(|| (self.env)(name))
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
