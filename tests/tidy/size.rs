//! Lengths of files, functions, lines and test names.
//!
//! 400 lines are where to ask whether a file has two subjects. A longer file with one subject is
//! listed with the reason.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{fail_on, sources};

const LONGEST_FILE: usize = 400;
const LONGEST_FUNCTION: usize = 70;
const LONGEST_LINE: usize = 100;
const LONGEST_TEST_NAME: usize = 60;

/// Longer files with one subject, and why they are not split.
const LONG_FILES: &[(&str, &str)] = &[
    ("crates/pointsman/src/admin/metrics/catalogue.rs", "one table: every metric with its help"),
    ("crates/pointsman/src/cli/args.rs", "one table: every command with its flags"),
    ("crates/pointsman/src/config/options.rs", "one table: every configuration key"),
    ("crates/pointsman/src/config/tests.rs", "one subject: the layers of the configuration"),
    ("crates/proxy/src/io/flow.rs", "one type: a direction, and its usual and general move"),
    ("crates/proxy/src/io/tls_stream.rs", "one type: a stream of records over a socket"),
    ("crates/proxy/src/runtime/tasks.rs", "one scheduler: tasks, their wakers, and rounds"),
    ("crates/resp/src/commands/table.rs", "one table: the class of every command, with its tests"),
    ("crates/resp/src/ledger/affinity_tests.rs", "one subject: state that only one server has"),
    ("crates/resp/src/ledger/ledger_tests.rs", "one test per rule of the ledger"),
    ("crates/resp/src/ledger/matcher.rs", "one state machine: replies matched to requests"),
    ("crates/proxy/src/io/shared/connection.rs", "one connection: its turns, writes and replies"),
    ("crates/resp/src/ledger/mod.rs", "one type: what both directions add to the ledger"),
    ("crates/resp/src/ledger/recorder.rs", "one type: what is recorded of requests and replies"),
    ("crates/resp/src/scan/reply.rs", "one state machine: the frames of the server"),
    ("crates/sentinel/src/doctor/tests.rs", "one test per finding and its commands"),
    ("crates/sentinel/src/machine/tests/oracle.rs", "one independent oracle with its records"),
    ("crates/sentinel/src/machine/tests/rig.rs", "one scenario language"),
    ("crates/sentinel/src/prober/mod.rs", "one prober"),
    ("crates/sentinel/src/replicas/eligibility/tests.rs", "one test per rule of eligibility"),
    ("crates/sentinel/src/switchover/state_machine.rs", "one state machine"),
    ("crates/sentinel/src/switchover/state_machine/tests.rs", "the scenarios of one state machine"),
    ("crates/sentinel/tests/model/world.rs", "one model: its state, steps and books"),
    ("crates/simulator/src/oracle.rs", "one oracle: every invariant"),
    ("crates/simulator/src/proxy/driver.rs", "all that knows the machine's events and actions"),
    ("crates/simulator/src/proxy/prober.rs", "one prober, step by step as the product's"),
    ("tests/cli.rs", "one list: independent checks of one program"),
    ("tests/e2e/import.rs", "one subject: every sample against a real cluster"),
    ("tests/e2e/replicas.rs", "one subject: the listener for readers"),
    ("tests/import/model.rs", "one model, its writer and its comparison"),
];

#[test]
fn keeps_files_short_and_headed() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        let listed = LONG_FILES.iter().any(|(file, _)| *file == name);
        if lines > LONGEST_FILE && !listed {
            breaches.push(format!("{name} has {lines} lines: two subjects, or list it with why"));
        }
        if lines <= LONGEST_FILE && listed {
            breaches.push(format!("{name} has {lines} lines and needs no exception"));
        }
        if !text.starts_with("//! ") {
            breaches.push(format!("{name} does not begin with a module header"));
        }
    }
    for (file, _) in LONG_FILES {
        if !sources().contains_key(*file) {
            breaches.push(format!("{file} does not exist"));
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
