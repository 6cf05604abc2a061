//! docs/compatibility.md. Its tables hold the results of the last run of each server, so a run of
//! some servers keeps the rows of all others.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::origins::{Catalogue, Missing, Note, Server, Upgrade};
use super::suite::Outcome;

const HEAD: &str = include_str!("page_of_servers.md");
const UPGRADES: &str = include_str!("page_of_upgrades.md");

/// The rows of earlier runs, by the name in their first cell.
pub(super) fn earlier(page: &str) -> BTreeMap<String, String> {
    let named = |line: &str| {
        let name = line.strip_prefix("| `")?.split('`').next()?;
        Some((name.to_owned(), line.to_owned()))
    };
    page.lines().filter(|line| !line.contains("| not run |")).filter_map(named).collect()
}

/// The row of a server without its notes, which may change later.
pub(super) fn row(server: &Server, outcome: &Outcome, date: &str) -> String {
    format!(
        "| `{}` | {} | {} | {date} | {} | {} |",
        server.name,
        server.title(),
        server.package(),
        outcome.passed,
        failures(outcome)
    )
}

/// The row of an upgrade.
pub(super) fn upgrade_row(
    upgrade: &Upgrade,
    all: &Catalogue,
    outcome: &Outcome,
    date: &str,
) -> String {
    let cells = upgrade_cells(upgrade, all);
    format!("{cells} {date} | {} | {} |", outcome.passed, failures(outcome))
}

fn upgrade_cells(upgrade: &Upgrade, all: &Catalogue) -> String {
    let title = |name: &str| all.server(name).map(Server::title).unwrap_or_default();
    format!("| `{}` | {} | {} |", upgrade.name(), title(&upgrade.from), title(&upgrade.to))
}

fn failures(outcome: &Outcome) -> String {
    let broken = outcome.broken.as_ref().map(|why| format!("; incomplete: {why}"));
    let names: Vec<String> = outcome.failed.iter().map(|name| format!("`{name}`")).collect();
    let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    format!("{}{names}{}", outcome.failed.len(), broken.unwrap_or_default())
}

/// The whole page. `rows` has the row of each server and upgrade that was ever run.
pub(super) fn page(all: &Catalogue, parts: &[&str], rows: &BTreeMap<String, String>) -> String {
    let mut page = HEAD.replace("PARTS", &parts.join(", "));
    for server in &all.servers {
        let never = format!("| `{}` | {} | {} |", server.name, server.title(), server.package());
        let _ = match rows.get(&server.name) {
            Some(row) => writeln!(page, "{} {} |", cells(row, 6), notes_of(&all.notes, server)),
            None => writeln!(page, "{never} not run | | | {} |", notes_of(&all.notes, server)),
        };
    }
    page.push('\n');
    for (number, note) in all.notes.iter().enumerate() {
        let _ = writeln!(page, "{}. {}", number + 1, note.text);
    }
    if !all.missing.is_empty() {
        page.push_str("\nNot tested, because no package with the server was found:\n\n");
    }
    for Missing { server, tried } in &all.missing {
        let _ = writeln!(page, "- **{server}**: {tried}");
    }
    page.push('\n');
    page.push_str(UPGRADES);
    for upgrade in &all.upgrades {
        let never = || format!("{} not run | | |", upgrade_cells(upgrade, all));
        let _ = writeln!(page, "{}", rows.get(&upgrade.name()).cloned().unwrap_or_else(never));
    }
    page
}

/// The first cells of a row, up to the bar after them.
fn cells(row: &str, count: usize) -> &str {
    row.match_indices('|').nth(count).map_or(row, |(at, bar)| &row[..at + bar.len()])
}

/// The numbers of the notes about a server.
fn notes_of(notes: &[Note], server: &Server) -> String {
    let numbers: Vec<String> = notes
        .iter()
        .enumerate()
        .filter(|(_, note)| note.servers.contains(&server.name))
        .map(|(number, _)| (number + 1).to_string())
        .collect();
    numbers.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_rows_of_other_runs() {
        let all = Catalogue::own().expect("a sound file");
        let good = Outcome { passed: 7, ..Outcome::default() };
        let bad = Outcome { failed: vec!["carry::one".to_owned()], ..good.clone() };
        let (first, upgrade) = (&all.servers[0], &all.upgrades[0]);
        let mut rows = BTreeMap::from([
            (first.name.clone(), row(first, &bad, "2026-01-01")),
            (upgrade.name(), upgrade_row(upgrade, &all, &good, "2026-01-02")),
        ]);
        let page_once = page(&all, &["carry"], &rows);
        assert!(page_once.contains("| 2026-01-01 | 7 | 1: `carry::one` | "), "{page_once}");
        assert!(page_once.contains("| 2026-01-02 | 7 | 0 |\n"), "{page_once}");
        assert!(page_once.contains("not run"), "{page_once}");
        rows = earlier(&page_once);
        assert_eq!(page(&all, &["carry"], &rows), page_once);
        let second = &all.servers[1];
        rows.insert(second.name.clone(), row(second, &good, "2026-01-03"));
        let page_twice = page(&all, &["carry"], &rows);
        assert!(page_twice.contains("2026-01-01") && page_twice.contains("2026-01-03"));
    }

    #[test]
    fn reports_incomplete_runs() {
        let broken = Outcome { broken: Some("ended early".to_owned()), ..Outcome::default() };
        assert_eq!(failures(&broken), "0; incomplete: ended early");
    }

    #[test]
    fn describes_the_listed_servers_only() {
        // The page is written by hand nowhere: only rows of the list, and all of them.
        let all = Catalogue::own().expect("a sound file");
        let own = include_str!("../../../../docs/compatibility.md");
        let rows = earlier(own);
        assert_eq!(page(&all, &super::super::suite::PARTS, &rows), own);
    }
}
