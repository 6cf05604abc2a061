//! Checks the documentation: links resolve, pages are listed, examples work, generated pages are
//! current.
//!
//! Examples are run as far as one machine allows. A TOML block is a configuration that `pointsman
//! check` accepts. A command line of pointsman is parsed by the program. YAML is parsed. A block
//! that cannot be run is marked `ignore` and listed here.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests report by a clear panic"
)]

mod blocks;
mod links;
mod pages;
mod recipes;
mod reference;
mod workflows;
mod yaml;

use std::fs;
use std::path::PathBuf;

const SUMMARY: &str = "docs/SUMMARY.md";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every Markdown file below `docs/`, by its path from the root.
fn book() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["docs", "docs/decisions"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name in UTF-8");
            if name.ends_with(".md") {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    found.sort();
    assert!(found.len() > 25, "only {} pages", found.len());
    found
}

/// Every document for people: the book and the files in the root.
fn documents() -> Vec<String> {
    let around = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benches/README.md",
        "deploy/README.md",
        "deploy/compose/README.md",
        "deploy/helm/charts.md",
        "deploy/helm/from-redis-ha.md",
        "deploy/helm/gitops.md",
        "deploy/image/README.md",
        "deploy/keepalived/README.md",
        "deploy/nomad/README.md",
        "deploy/redis-ha.md",
        "deploy/systemd/cutover.md",
    ];
    around.iter().map(|path| (*path).to_owned()).chain(book()).collect()
}

fn fail_on(what: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{what}:\n  {}", faults.join("\n  "));
}

/// Compares a generated file with its expected text, or writes it if UPDATE is set.
fn compare(path: &str, made: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(root().join(path), made).expect(path);
    }
    assert!(read(path) == made, "{path} is not current: UPDATE=1 cargo test --test docs writes it");
}

#[test]
fn keeps_the_readme_short() {
    let length = read("README.md").chars().count();
    assert!(length <= 7000, "README.md has {length} characters");
}

/// Every clone of the repository contains all versions of them.
#[test]
fn keeps_pictures_small() {
    let folder = root().join("docs/images");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let size = entry.metadata().expect("a size").len();
        assert!(size < 200_000, "{} has {size} bytes", entry.path().display());
        count += 1;
    }
    assert!(count >= 2, "only {count} pictures");
}
