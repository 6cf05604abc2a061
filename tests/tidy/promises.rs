//! Every promise of the documents names the test that holds it, as `file::test`. The file may lack
//! its first folders if that leaves one file with such a test.

use std::fs;

use crate::{fail_on, read, root, sources};

/// The pages whose tests are checked.
fn promises() -> String {
    let pages = ["docs/guarantees.md", "docs/what-happens-when.md", "docs/faults.md"];
    let rules = fs::read_dir(root().join("docs/decisions")).expect("a folder");
    let rules = rules.map(|it| fs::read_to_string(it.expect("an entry").path()).expect("UTF-8"));
    pages.into_iter().map(read).chain(rules).collect()
}

#[test]
fn finds_every_test_that_a_promise_names() {
    let promises = promises();
    let sources = sources();
    let mut named = 0;
    let mut breaches = Vec::new();
    for quoted in promises.split('`').skip(1).step_by(2) {
        let named_test = quoted.split_once("::").filter(|(file, _)| file.ends_with(".rs"));
        let Some((file, test)) = named_test else { continue };
        named += 1;
        let ending = format!("/{file}");
        let files = sources.iter().filter(|(name, _)| *name == file || name.ends_with(&ending));
        let declares = format!("fn {test}(");
        let count = files.filter(|(_, text)| text.contains(&declares)).count();
        if count != 1 {
            breaches.push(format!("{quoted}: {count} files"));
        }
    }
    assert!(named >= 180, "only {named} tests are named");
    fail_on("promises without their test", &breaches);
}

#[test]
fn names_test_for_every_fault() {
    let page = read("docs/faults.md");
    let mut numbers = Vec::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, _, tests, _] = cells[..] else { continue };
        let Ok(number) = number.parse::<u32>() else { continue };
        assert!(tests.contains(".rs::"), "fault {number} has no test");
        numbers.push(number);
    }
    assert_eq!(numbers, (1..=61).collect::<Vec<_>>());
}
