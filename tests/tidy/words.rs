//! Retired names and phrases do not come back. `docs/glossary.md` has the terms to use.

use crate::{fail_on, sources};

/// Names of an earlier version, as parts of identifiers or as words, with the term to use.
const RETIRED: &[(&str, &str)] = &[
    ("aviary", "prober set"),
    ("canary", "node prober"),
    ("canaries", "node probers"),
    ("chronicle", "failover history"),
    ("luggage", "carry state"),
    ("perch", "probe connection"),
    ("roster", "replica eligibility"),
    ("tidings", "majority clock"),
    ("the yard", "replica publisher"),
    ("passenger", "migrating session"),
    ("the points ", "the target"),
    ("told of", "received, informed about"),
    ("told by", "read from, reported by"),
    ("whoever", "any session that, any process that"),
    ("at the most", "at most"),
    ("at the least", "at least"),
];

#[test]
fn avoids_retired_words() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        if name == "tests/tidy/words.rs" {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for (word, instead) in RETIRED.iter().filter(|(word, _)| lower.contains(word)) {
                breaches.push(format!("{name}:{}: `{word}`: say {instead}", number + 1));
            }
        }
    }
    fail_on("retired words", &breaches);
}
