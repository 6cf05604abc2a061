//! Every promise of the documents names the test that holds it, as `file::test`. The file may lack
//! its first folders if that leaves one file with such a test; `::test` is in the file before it.

use std::fs;

use crate::{fail_on, read, root, sources};

const GUARANTEES: &str = "docs/guarantees.md";
const SECURITY: &str = "SECURITY.md";

/// The tests that a page names, with their files.
fn named_tests(page: &str) -> Vec<(&str, &str)> {
    let mut file = "";
    let quoted = page.split('`').skip(1).step_by(2);
    let named = quoted.filter_map(|it| it.split_once("::")).filter_map(|(before, test)| {
        if !before.is_empty() {
            file = before;
        }
        file.ends_with(".rs").then_some((file, test))
    });
    named.collect()
}

#[test]
fn finds_every_test_that_a_promise_names() {
    let rules = fs::read_dir(root().join("docs/decisions")).expect("a folder");
    let rules = rules.map(|it| fs::read_to_string(it.expect("an entry").path()).expect("UTF-8"));
    let pages: Vec<String> = rules.chain([read(GUARANTEES), read(SECURITY)]).collect();
    let sources = sources();
    let mut named = 0;
    let mut breaches = Vec::new();
    for (file, test) in pages.iter().flat_map(|page| named_tests(page)) {
        named += 1;
        let ending = format!("/{file}");
        let files = sources.iter().filter(|(name, _)| *name == file || name.ends_with(&ending));
        let declared = format!("fn {test}(");
        let count = files.filter(|(_, text)| text.contains(&declared)).count();
        if count != 1 {
            breaches.push(format!("{file}::{test}: {count} files"));
        }
    }
    assert!(named >= 400, "only {named} tests are named");
    fail_on("promises without their test", &breaches);
}

/// Each row of a table with a column of tests.
#[test]
fn names_test_for_every_row() {
    let page = read(GUARANTEES);
    let mut rows = 0;
    let mut breaches = Vec::new();
    for table in page.split("\n\n").filter(|it| it.starts_with("| ")) {
        let mut lines = table.lines();
        if !lines.next().is_some_and(|header| header.ends_with("| Test |")) {
            continue;
        }
        for row in lines.skip(1) {
            rows += 1;
            let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
            if !tests.contains(".rs::") && !tests.contains("`cargo xtask ") {
                breaches.push(row.to_owned());
            }
        }
    }
    assert!(rows >= 150, "only {rows} rows");
    fail_on("promises without a test", &breaches);
}
