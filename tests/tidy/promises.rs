//! Every promise of the documents names the test that holds it, as `file::test`.

use crate::{fail_on, read, sources};

#[test]
fn finds_every_test_that_a_promise_names() {
    let promises = read("docs/guarantees.md") + &read("docs/what-happens-when.md");
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
    assert!(named >= 80, "only {named} tests are named");
    fail_on("promises without their test", &breaches);
}
