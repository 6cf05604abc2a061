//! The set of pages: the book's table of contents, and pages that the code names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::links::fault;
use crate::{SUMMARY, book, fail_on, read, root};

#[test]
fn lists_every_page_in_the_summary() {
    let summary = read(SUMMARY);
    let pages = book().into_iter().filter(|path| path != SUMMARY);
    let lacking = pages.filter(|path| {
        let link = format!("]({})", path.strip_prefix("docs/").expect("below docs"));
        !summary.contains(&link)
    });
    fail_on("pages that docs/SUMMARY.md does not list", &lacking.collect::<Vec<_>>());
}

/// Rust sources, YAML and the like: texts that name pages without a link.
fn texts(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
        if path.is_dir() && !["target", "corpus", "runs", ".git"].contains(&name) {
            texts(&path, found);
        } else if ["rs", "yaml", "yml", "toml", "json", "tpl"]
            .iter()
            .any(|it| path.extension().is_some_and(|end| end == *it))
        {
            let name =
                path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            found.insert(name, fs::read_to_string(&path).expect("UTF-8"));
        }
    }
}

/// The pages that a text names, as `docs/PAGE.md` or `docs/PAGE.md#heading`.
fn named_pages(text: &str) -> Vec<&str> {
    let starts = text.match_indices("docs/").map(|(at, _)| &text[at..]);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.#".contains(c);
    let words = starts.map(|it| it.split(|c| !is_part(c)).next().unwrap_or_default());
    let words = words.map(|it| it.trim_end_matches('.'));
    words.filter(|it| it.ends_with(".md") || it.contains(".md#")).collect()
}

#[test]
fn finds_every_page_that_the_code_names() {
    let mut all = BTreeMap::new();
    texts(&root(), &mut all);
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, text) in all.iter().filter(|(name, _)| !name.starts_with("tests/docs/")) {
        for page in named_pages(text) {
            count += 1;
            faults.extend(fault("README.md", page).map(|it| format!("{name}: {page} {it}")));
        }
    }
    assert!(count > 100, "only {count} pages are named");
    fail_on("pages that do not exist", &faults);
}

#[test]
fn extracts_named_pages() {
    assert_eq!(
        named_pages("see docs/a/b.md#c-d, (docs/e.md). docs/f.png docs/g.md."),
        ["docs/a/b.md#c-d", "docs/e.md", "docs/g.md"]
    );
}
