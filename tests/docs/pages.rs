//! The set of pages: the book's table of contents, the list of decisions, and references in the
//! code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{DECISIONS, SUMMARY, book, compare, fail_on, read, root};

/// A record: its number as text, its file name, its title.
struct Decision {
    number: String,
    file: String,
    title: String,
}

fn decisions() -> Vec<Decision> {
    let mut found = Vec::new();
    for path in book() {
        let Some(file) = path.strip_prefix("docs/decisions/").filter(|file| *file != "README.md")
        else {
            continue;
        };
        let text = read(&path);
        let heading = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let (number, title) = heading
            .and_then(|it| it.split_once(". "))
            .unwrap_or_else(|| panic!("{path}: no `# N. Title`"));
        let (number, title) = (number.to_owned(), title.to_owned());
        found.push(Decision { number, file: file.to_owned(), title });
    }
    found
}

#[test]
fn numbers_decisions_like_their_files() {
    let mut numbers = BTreeSet::new();
    for Decision { number, file, title } in decisions() {
        let stem = file.split('-').next().unwrap_or_default();
        assert_eq!(stem.trim_start_matches('0'), number, "{file}");
        assert!(numbers.insert(number), "{file}: a number is given twice");
        assert!(!title.ends_with('.') && title.len() <= 90, "{file}: {title}");
    }
}

/// The list of decisions and the book's table of contents contain every record in order.
#[test]
fn lists_every_decision() {
    let all = decisions();
    let line =
        |folder: &str, it: &Decision| format!("[{}. {}]({folder}{})", it.number, it.title, it.file);
    let list: String = all.iter().map(|it| format!("- {}\n", line("", it))).collect();
    let text = read(DECISIONS);
    let (begin, end) = ("<!-- decisions -->\n", "<!-- end of decisions -->");
    let (before, rest) = text.split_once(begin).expect("the begin of the list");
    let (_, after) = rest.split_once(end).expect("the end of the list");
    compare(DECISIONS, &format!("{before}{begin}{list}{end}{after}"));
    let summary = read(SUMMARY);
    let nested: String = all.iter().map(|it| format!("  - {}\n", line("decisions/", it))).collect();
    let kept: String =
        summary.lines().filter(|it| !it.starts_with("  - [")).map(|it| format!("{it}\n")).collect();
    let parent = "- [Decisions](decisions/README.md)\n";
    let (before, after) = kept.split_once(parent).expect("the parent of the decisions");
    compare(SUMMARY, &format!("{before}{parent}{nested}{after}"));
}

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

/// Rust sources, shell, YAML and documents, without generated ones.
fn texts(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
        if path.is_dir() && !["target", "corpus", "runs"].contains(&name) && !name.starts_with('.')
        {
            texts(&path, found);
        } else if ["rs", "md", "yaml", "yml", "toml"]
            .iter()
            .any(|it| path.extension().is_some_and(|end| end == *it))
        {
            let name =
                path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            found.insert(name, fs::read_to_string(&path).expect("UTF-8"));
        }
    }
}

/// The numbers in `decision N`, `decisions N` and `DECISIONS N`.
fn references(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let named = words.windows(2).filter(|pair| {
        let word = pair[0].trim_start_matches(['(', '[', '`']).to_ascii_lowercase();
        word == "decision" || word == "decisions"
    });
    let number = |pair: &[&str]| {
        let text = pair[1].trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let text = text.split(']').next().unwrap_or_default();
        text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.to_owned())
    };
    named.filter_map(number).collect()
}

#[test]
fn finds_every_named_decision() {
    let known: BTreeSet<String> = decisions().into_iter().map(|it| it.number).collect();
    let mut all = BTreeMap::new();
    texts(&root(), &mut all);
    let mut faults = Vec::new();
    let mut named = 0;
    for (name, text) in &all {
        for number in references(text) {
            named += 1;
            if !known.contains(&number) {
                faults.push(format!("{name}: decision {number}"));
            }
        }
        if text.contains("crates/DECISIONS.md") && name != "tests/docs/pages.rs" {
            faults.push(format!("{name}: crates/DECISIONS.md is docs/decisions now"));
        }
    }
    assert!(named > 10, "only {named} decisions are named");
    fail_on("decisions that do not exist", &faults);
}

#[test]
fn extracts_references() {
    assert_eq!(
        references("// see decision 12, and (decision\n// 7), [decision 9](x)"),
        ["12", "9"]
    );
    assert_eq!(references("DECISIONS 65: a decision about it; decision 18a."), ["65", "18a"]);
}
