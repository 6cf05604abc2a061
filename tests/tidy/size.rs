//! Code lines of crates, and lengths of files, functions, lines and test names.
//!
//! A crate may not grow: what is added has to replace something. When a crate has shrunk its cap is
//! lowered, until it is at the size that was planned for it.
//!
//! One type or one subject per file, up to 900 lines. A lower limit splits types into files that
//! write the same fields.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{fail_on, is_test, sources};

const LONGEST_FILE: usize = 900;
const LONGEST_FUNCTION: usize = 70;
const LONGEST_LINE: usize = 100;
const LONGEST_TEST_NAME: usize = 60;

/// The code lines that each crate may have, without comments, blank lines and tests, and those that
/// are planned.
const CRATES: &[(&str, usize, usize)] = &[
    ("admin-http", 1_560, 1_400),
    ("bench", 9_450, 5_000),
    ("doctor", 2_900, 2_000),
    ("drain", 820, 850),
    ("haproxy-import", 3_670, 3_600),
    ("pointsman", 14_300, 14_300),
    ("proxy", 12_980, 12_900),
    ("resp", 5_910, 5_100),
    ("sentinel", 13_400, 10_900),
    ("setup", 500, 300),
    ("simulator", 5_470, 3_700),
    ("target", 1_100, 1_100),
    ("tls", 1_640, 1_650),
    ("xtask", 5_240, 3_200),
];

/// A cap this far above the size of its crate is lowered.
const SLACK: usize = 200;

/// Lines of code, without comments, blank lines and the tests at the end.
fn code_lines(text: &str) -> usize {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// The modules that are only compiled for tests and fuzzing, as paths without `.rs`.
fn test_modules(sources: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, text) in sources {
        let path = name.trim_end_matches(".rs");
        let folder = match path.rsplit_once('/') {
            Some((folder, "lib" | "main" | "mod")) => folder,
            _ => path,
        };
        let mut is_of_tests = false;
        for line in text.lines().map(str::trim) {
            let module = line.strip_suffix(';').and_then(|it| it.rsplit_once("mod "));
            match module {
                _ if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(any(test") => {
                    is_of_tests = true;
                }
                Some((_, module)) if is_of_tests => {
                    found.insert(format!("{folder}/{module}"));
                    is_of_tests = false;
                }
                _ => is_of_tests &= !line.ends_with(['{', '}', ';']),
            }
        }
    }
    found
}

#[test]
fn keeps_crates_below_their_caps() {
    let (mut sizes, sources) = (BTreeMap::<String, usize>::new(), sources());
    let of_tests = test_modules(&sources);
    let is_of_tests = |name: &str| {
        is_test(name)
            || of_tests.iter().any(|it| {
                name.strip_prefix(it.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']))
            })
    };
    for (name, text) in &sources {
        let Some((krate, file)) = name.strip_prefix("crates/").and_then(|it| it.split_once('/'))
        else {
            continue;
        };
        if file.starts_with("src/") && !is_of_tests(name) {
            *sizes.entry(krate.to_owned()).or_default() += code_lines(text);
        }
    }
    let mut breaches = Vec::new();
    for (krate, size) in &sizes {
        match CRATES.iter().find(|(name, ..)| name == krate) {
            Some((_, cap, _)) if size > cap => {
                breaches.push(format!("{krate} has {size} lines, its cap is {cap}"));
            }
            Some((_, cap, planned)) if size + SLACK < *cap && cap > planned => {
                breaches.push(format!("{krate} has {size} lines: lower its cap from {cap}"));
            }
            Some(_) => {}
            None => breaches.push(format!("{krate} has {size} lines and no cap")),
        }
    }
    fail_on("crates", &breaches);
}

#[test]
fn keeps_files_short_and_headed() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            breaches.push(format!("{name} has {lines} lines: it has two subjects"));
        }
        if !text.starts_with("//! ") {
            breaches.push(format!("{name} does not begin with a module header"));
        }
    }
    fail_on("files", &breaches);
}

struct Functions<'a> {
    file: &'a str,
    breaches: &'a mut Vec<String>,
}

impl Functions<'_> {
    fn measure(&mut self, attributes: &[syn::Attribute], name: &syn::Ident, block: &syn::Block) {
        let lines = block.span().end().line.saturating_sub(block.span().start().line) + 1;
        if lines > LONGEST_FUNCTION {
            self.breaches.push(format!("{}: fn {name} has {lines} lines", self.file));
        }
        let is_test = attributes
            .iter()
            .any(|it| it.path().segments.last().is_some_and(|it| it.ident == "test"));
        let length = name.to_string().len();
        if is_test && length > LONGEST_TEST_NAME {
            self.breaches.push(format!("{}: {name} has {length} characters", self.file));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.attrs, &function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.attrs, &function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

/// Whether a function may be too long, by the indentation of formatted code: parsing every file
/// takes half a minute.
fn may_have_breaches(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().any(|(at, line)| {
        let Some((before, name)) = line.split_once("fn ") else { return false };
        let indent = before.len() - before.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let length = lines.iter().skip(at).position(|line| *line == end);
        name.find('(').is_some_and(|length| length > LONGEST_TEST_NAME)
            || length.is_some_and(|length| length >= LONGEST_FUNCTION)
    })
}

#[test]
fn keeps_functions_and_test_names_short() {
    let mut breaches = Vec::new();
    for (name, text) in sources().into_iter().filter(|(_, text)| may_have_breaches(text)) {
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        Functions { file: &name, breaches: &mut breaches }.visit_file(&file);
    }
    fail_on("functions and test names", &breaches);
}

/// The functions with a tuple pattern as a parameter, by the form of formatted code: within the
/// parentheses of the parameters, another pair is followed by a type.
fn tuple_parameters(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("fn ") {
        let signature = text.get(at + "fn ".len()..).unwrap_or_default();
        let name = signature.split(['(', '<']).next().unwrap_or_default();
        let generics = signature.get(name.len()..).filter(|it| it.starts_with('<'));
        let start = generics.map_or(name.len(), |it| name.len() + it.find(">(").unwrap_or(0) + 1);
        let parameters = signature.get(start..).unwrap_or_default();
        let (mut depth, mut is_tuple) = (0_u32, false);
        for (at, letter) in parameters.char_indices() {
            match letter {
                '(' => depth += 1,
                ')' => {
                    depth = depth.saturating_sub(1);
                    let after = parameters.get(at..).unwrap_or_default();
                    is_tuple |= depth == 1 && after.starts_with("): ");
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        if is_tuple && name.bytes().all(|it| it == b'_' || it.is_ascii_alphanumeric()) {
            found.push(name);
        }
    }
    found
}

#[test]
fn names_every_parameter() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        let found = tuple_parameters(&text);
        breaches.extend(found.iter().map(|function| format!("{name}: fn {function}")));
    }
    fail_on("tuple patterns as parameters", &breaches);
    let pattern = ["fn", " of<T: Fn()>(&self, (one, two): (u8, u8)) {}"].concat();
    assert_eq!(tuple_parameters(&pattern), ["of"]);
    assert!(tuple_parameters("fn of(one: &impl Fn((u8, u8)), two: (u8, u8)) {}").is_empty());
}

/// The lines that string literals cover: text for people is not broken at a column.
fn literal_lines(tokens: TokenStream, covered: &mut BTreeSet<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => literal_lines(group.stream(), covered),
            TokenTree::Literal(literal) if literal.to_string().contains('"') => {
                covered.extend(literal.span().start().line..=literal.span().end().line);
            }
            _ => {}
        }
    }
}

/// Tables in comments and lines with string literals may be longer.
#[test]
fn keeps_lines_within_100_columns() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        let mut covered = BTreeSet::new();
        if text.lines().any(|line| line.chars().count() > LONGEST_LINE) {
            literal_lines(text.parse().expect("Rust"), &mut covered);
        }
        for (number, line) in (1..).zip(text.lines()) {
            let start = line.trim_start();
            let is_comment = start.starts_with("//");
            let is_table = start.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let length = line.chars().count();
            let may_be_longer = if is_comment { is_table } else { covered.contains(&number) };
            if length > LONGEST_LINE && !may_be_longer {
                breaches.push(format!("{name}:{number} has {length} columns"));
            }
        }
    }
    fail_on("lines", &breaches);
}
