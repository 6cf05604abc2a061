//! Architecture and style rules as tests. A rule that exists only in a document is broken by the
//! next change.
//!
//! `layers`: which crate and which folder may use which. `pure`: files without I/O. `size`: lengths
//! of files, functions, lines and test names. `words`: retired names and phrases. `promises`: tests
//! that the documents name exist.
#![allow(clippy::expect_used, clippy::panic, reason = "a test reports by a clear panic")]

mod layers;
mod promises;
mod pure;
mod size;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "corpus") {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// Every Rust source with its path from the root.
fn sources() -> BTreeMap<String, String> {
    let mut found = Vec::new();
    for folder in ["benches", "crates", "fuzz/fuzz_targets", "tests"] {
        walk(&root().join(folder), &mut found);
    }
    let rust = found.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let sources: BTreeMap<String, String> = rust
        .map(|path| {
            let name = path.strip_prefix(root()).expect("a path below the root");
            let name = name.to_string_lossy().into_owned();
            let text = read(&name);
            (name, text)
        })
        .collect();
    assert!(sources.len() > 400, "only {} sources found", sources.len());
    sources
}

/// Whether a file contains only tests.
fn is_test(name: &str) -> bool {
    name.contains("tests/")
        || name.ends_with("tests.rs")
        || name.ends_with("testing.rs")
        || name.contains("testing/")
}

fn fail_on(rule: &str, breaches: &[String]) {
    assert!(
        breaches.is_empty(),
        "{rule}: {} breaches\n  {}",
        breaches.len(),
        breaches.join("\n  ")
    );
}
