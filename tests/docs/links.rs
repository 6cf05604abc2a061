//! Links: every relative link leads to a file, and its anchor to a heading in it. External links
//! are not followed.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::blocks::outside_of_blocks;
use crate::{book, documents, fail_on, read, root};

/// The targets of `[text](target)` and `![text](target)` outside of code.
fn links(text: &str) -> Vec<String> {
    let prose = outside_of_blocks(text);
    // Every second part is inline code.
    let prose = prose.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let parts = prose.split("](").skip(1);
    parts.filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
}

/// The anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> Vec<String> {
    let prose = outside_of_blocks(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let mut seen = BTreeMap::<String, u32>::new();
    let unique = headings.map(|line| {
        let anchor = anchor(line.trim_start_matches('#').trim());
        let count = seen.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    });
    unique.collect()
}

/// A path without `..`, because a parent folder on the way may be missing.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// The fault of a link in a document, if it has one.
pub(crate) fn fault(document: &str, link: &str) -> Option<String> {
    if let Some(rest) = link.strip_prefix("https://").or_else(|| link.strip_prefix("mailto:")) {
        let sound = rest.contains('.') && !rest.contains(char::is_whitespace);
        return (!sound).then(|| "is no address".to_owned());
    }
    if link.contains(':') {
        return Some("has an unexpected scheme".to_owned());
    }
    let (file, wanted) =
        link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let target = if file.is_empty() {
        PathBuf::from(document)
    } else {
        plain(&Path::new(document).parent().expect("a folder").join(file))
    };
    if !root().join(&target).exists() {
        return Some("leads nowhere".to_owned());
    }
    let wanted = wanted?;
    let found = anchors(&read(&target.to_string_lossy()));
    (!found.iter().any(|it| it == wanted)).then(|| format!("has no heading #{wanted}"))
}

#[test]
fn resolves_every_link() {
    let mut faults = Vec::new();
    let mut count = 0;
    for document in documents() {
        for link in links(&read(&document)) {
            count += 1;
            faults.extend(fault(&document, &link).map(|it| format!("{document}: {link} {it}")));
        }
    }
    assert!(count > 200, "only {count} links");
    fail_on("links", &faults);
}

/// A link from a page of the book to a file outside of it would be dead in the book: such files are
/// named as code instead.
#[test]
fn keeps_links_within_the_book() {
    let mut faults = Vec::new();
    for page in book() {
        for link in links(&read(&page))
            .into_iter()
            .filter(|link| !link.contains(':') && !link.starts_with('#'))
        {
            let target = plain(&Path::new(&page).parent().expect("a folder").join(&link));
            if !target.starts_with("docs") {
                faults.push(format!("{page}: {link}"));
            }
        }
    }
    fail_on("links that leave docs/", &faults);
}

/// Files and folders of the repository that are named as code must exist.
#[test]
fn finds_every_named_path() {
    let folders = ["benches/", "crates/", "deploy/", "docs/", "fuzz/", "tests/"];
    let mut faults = Vec::new();
    let mut count = 0;
    for document in documents() {
        // Generated documents have their own test; the changelog may name what no longer exists.
        if document == "CHANGELOG.md" {
            continue;
        }
        for code in outside_of_blocks(&read(&document)).split('`').skip(1).step_by(2) {
            let path = code.split("::").next().unwrap_or_default();
            let named = folders.iter().any(|folder| path.starts_with(folder))
                && !path.contains(['*', ' ', '…', 'N']);
            if named {
                count += 1;
                if !root().join(path).exists() {
                    faults.push(format!("{document}: {path}"));
                }
            }
        }
    }
    assert!(count > 100, "only {count} paths");
    fail_on("paths that do not exist", &faults);
}

/// Alerts link to an entry of the runbook.
#[test]
fn links_every_alert_to_the_runbook() {
    let alerts = read("deploy/helm/pointsman/files/alerts.yaml");
    let runbooks = alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook: "));
    let mut faults = Vec::new();
    let mut count = 0;
    for runbook in runbooks {
        count += 1;
        faults.extend(fault("README.md", runbook).map(|it| format!("{runbook} {it}")));
    }
    assert!(count > 15, "only {count} runbooks");
    fail_on("runbooks", &faults);
}

#[test]
fn extracts_links_and_anchors() {
    let text = "# A `b_c` (d)\n\n[x](a.md#b) ![y](c.svg), `[no](x)`\n\n```sh\n[no](y)\n# no\n```\n\n## A `b_c` (d)\n";
    assert_eq!(links(text), ["a.md#b", "c.svg"]);
    assert_eq!(anchors(text), ["a-b_c-d", "a-b_c-d-1"]);
    assert_eq!(plain(Path::new("docs/decisions/../x.md")), Path::new("docs/x.md"));
    assert_eq!(
        fault("docs/faq.md", "operations.md#nothing"),
        Some("has no heading #nothing".to_owned())
    );
    assert_eq!(fault("docs/faq.md", "nothing.md"), Some("leads nowhere".to_owned()));
    assert_eq!(fault("docs/faq.md", "operations.md#alerts"), None);
}
