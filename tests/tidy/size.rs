//! Lengths of files, functions, lines and test names.
//!
//! One type or one subject per file, up to 900 lines. A lower limit splits types into files that
//! write the same fields.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{fail_on, sources};

const LONGEST_FILE: usize = 900;
const LONGEST_FUNCTION: usize = 70;
const LONGEST_LINE: usize = 100;
const LONGEST_TEST_NAME: usize = 60;

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

#[test]
fn keeps_functions_and_test_names_short() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        Functions { file: &name, breaches: &mut breaches }.visit_file(&file);
    }
    fail_on("functions and test names", &breaches);
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
        literal_lines(text.parse().expect("Rust"), &mut covered);
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
