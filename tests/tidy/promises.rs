//! Every promise of the documents names the test that holds it, as `file::test`.

use crate::{fail_on, read, sources};

#[test]
fn finds_every_test_that_a_promise_names() {
    let pages = ["docs/guarantees.md", "docs/what-happens-when.md", "docs/faults.md"];
    let promises = pages.map(read).concat();
    let sources = sources();
    let mut named = 0;
    let mut breaches = Vec::new();
    for quoted in promises.split('`').skip(1).step_by(2) {
        let named_test = quoted.split_once("::").filter(|(file, _)| file.ends_with(".rs"));
        let Some((file, test)) = named_test else { continue };
        named += 1;
        if !sources.get(file).is_some_and(|text| text.contains(&format!("fn {test}("))) {
            breaches.push(quoted.to_owned());
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
