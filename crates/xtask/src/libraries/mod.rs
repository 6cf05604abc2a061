//! `cargo xtask test --libraries`: the own tests of client libraries and of Redis, three times:
//! with Redis directly, through Pointsman with dedicated connections, and through Pointsman with
//! shared ones.
//!
//! A test has to have the same outcome in all three ways, unless `libraries.json` lists it with the
//! reason ([`catalogue`]). [`redis_py`], [`go_redis`], [`redis_units`] and [`redis_sentinel`] fetch
//! tests and run them, [`stage`] starts the servers, and [`outcomes`] compares.
//!
//! A test that differs is not tried again. One whose outcome depends on chance is left out, by the
//! list.

mod catalogue;
mod go_redis;
mod outcomes;
mod redis_py;
mod redis_sentinel;
mod redis_units;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bench::space;
use harness::{in_private_namespace, loopback_up};
use setup::{build, files, root, seconds};

use catalogue::{Catalogue, Library};
use outcomes::{Outcome, Outcomes, Way};
use stage::{COUNTED, Stage};

use crate::limited::{ends_within, logged};
use crate::servers::{self, Programs};

/// How long the tests of one library may take.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// The pause after the handshake of a connection, in ms. A session that was verified shares a
/// connection 50 ms later.
const PAUSE_MS: &str = "70";

/// Runs the tests of the libraries with these names, or of all, with a program or a build.
///
/// # Errors
/// A message for people: an unknown name, a package that cannot be fetched, no network namespace.
pub(crate) fn run(names: &[String], program: Option<&Path>) -> Result<ExitCode, String> {
    let all = Catalogue::own()?;
    let known: Vec<&str> = all.libraries.iter().map(|it| it.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no library is named {name}; there are {}.", known.join(", ")));
    }
    let wanted = |it: &&Library| names.is_empty() || names.contains(&it.name);
    let libraries: Vec<&Library> = all.libraries.iter().filter(wanted).collect();
    for library in &libraries {
        servers::programs(&library.server)?;
        fetch(library)?;
    }
    let Some(program) = space::entered() else {
        let program = build::pointsman_or(program)?;
        return Err(format!("no network namespace: {}", space::enter(&program)));
    };
    if !in_private_namespace() {
        return Err("the tests need a network namespace of their own".to_owned());
    }
    loopback_up()?;
    let mut explained = true;
    for library in libraries {
        let redis = servers::programs(&library.server)?;
        explained &= compare(library, &all, &redis, &program)?;
    }
    println!("{}", if explained { "No unexplained difference." } else { "FAILED: see above." });
    Ok(if explained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The library below target/, fetched if it is missing.
fn fetch(library: &Library) -> Result<(), String> {
    let folder = folder(library);
    let needs = match library.name.as_str() {
        "redis-py" => redis_py::REQUIREMENTS,
        "go-redis" => go_redis::PAUSE,
        _ => "",
    };
    let identity = format!("{} {}\n{needs}", library.origin, library.sha256);
    files::fill_once(&folder, &identity, || {
        println!("Fetching {} {} into {}", library.name, library.version, folder.display());
        match library.name.as_str() {
            "redis-py" => redis_py::fetch(library, &folder),
            "go-redis" => go_redis::fetch(library, &folder),
            _ => redis_units::fetch(library, &folder),
        }
    })
}

/// Runs the tests of a library in all ways and prints what they gave. Whether every difference is
/// explained.
fn compare(
    library: &Library,
    all: &Catalogue,
    redis: &Programs,
    program: &Path,
) -> Result<bool, String> {
    println!("── {} {} with {}", library.name, library.version, library.server);
    let mut direct = Outcomes::default();
    let mut explained = true;
    for way in Way::ALL {
        let start = Instant::now();
        let Run { outcomes: run, figures, sharing } = run_tests(library, way, redis, program)?;
        if way == Way::Direct {
            direct = run.clone();
        }
        let is_known = |name: &&str| all.explains(&library.name, way, name);
        let (known, new): (Vec<&str>, Vec<&str>) =
            run.unlike(&direct).into_iter().partition(is_known);
        println!("{}", line(way, &run, [known.len(), new.len()], start.elapsed()));
        for (list, word) in [(&known, "explained"), (&new, "NOT EXPLAINED")] {
            for name in list {
                println!("    {word}: {name} {}, directly {}", run.word(name), direct.word(name));
            }
        }
        figures.iter().for_each(|line| println!("    {line}"));
        for (name, count) in COUNTED.iter().zip(sharing.into_iter().flatten()) {
            println!("    {count} {name} of shared connections");
            explained &= *name != "desyncs" || count == 0;
        }
        explained &= new.is_empty() && run.count(Outcome::Passed) > 0;
    }
    println!("  failed directly:");
    direct.failed().for_each(|name| println!("    {name}"));
    Ok(explained)
}

/// What a run of the tests of a library gave.
struct Run {
    outcomes: Outcomes,
    /// What the tests of Sentinel counted, for people.
    figures: Vec<String>,
    /// Of [`COUNTED`], with shared connections.
    sharing: Option<[u64; 3]>,
}

/// Runs all tests of a library in one way. The output stays below target/.
fn run_tests(library: &Library, way: Way, redis: &Programs, program: &Path) -> Result<Run, String> {
    let home = folder(library);
    let log = home.join(format!("{}.log", way.name()));
    let file = home.join(format!("{}.outcomes", way.name()));
    let _ = fs::remove_file(&file);
    let stage = if redis_sentinel::is_it(library) {
        Stage::ahead(way, program, &redis_sentinel::SENTINELS)?
    } else {
        Stage::start(way, redis, program)?
    };
    let mut command = match library.name.as_str() {
        "redis-py" => redis_py::command(library, &home, &file)?,
        "go-redis" => go_redis::command(library, &home, &file),
        "redis" => redis_units::command(library, &home, &file)?,
        _ => redis_sentinel::command(&home, &file, way, redis)?,
    };
    let errors = logged(&mut command, &log)?;
    command.env("PAUSE_MS", PAUSE_MS).stderr(errors);
    let within = ends_within(LIMIT, &mut command)?;
    let sharing = stage.sharing()?;
    let read = || {
        if !within {
            return Err(format!("the tests took longer than {}", seconds(LIMIT)));
        }
        let text = fs::read_to_string(&file).map_err(|error| format!("no outcomes: {error}"))?;
        let outcomes = match library.name.as_str() {
            "redis-py" => redis_py::outcomes(&text)?,
            "go-redis" => go_redis::outcomes(&text)?,
            _ => redis_units::outcomes(&text)?,
        };
        let figures = redis_sentinel::figures(&text).map(str::to_owned).collect();
        Ok(Run { outcomes, figures, sharing })
    };
    read().map_err(|why| {
        format!("{} {}: {why}; the output is in {}", library.name, way.name(), log.display())
    })
}

fn folder(library: &Library) -> PathBuf {
    root().join("target/libraries").join(&library.name)
}

fn line(way: Way, run: &Outcomes, [known, new]: [usize; 2], took: Duration) -> String {
    let [passed, failed, skipped] =
        [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|it| run.count(it));
    let differing = match (way, known + new) {
        (Way::Direct, _) => String::new(),
        (_, 0) => ", as directly".to_owned(),
        (_, all) => format!(", {all} differ, {new} of them not explained"),
    };
    format!(
        "  {:<10} {passed:>5} passed {failed:>3} failed {skipped:>4} skipped {:>9}{differing}",
        way.name(),
        seconds(took)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_differences_by_way() {
        let mut run = Outcomes::default();
        run.add("a", Outcome::Passed);
        run.add("b", Outcome::Failed);
        let took = Duration::from_secs(2);
        let direct = line(Way::Direct, &run, [0, 0], took);
        assert!(direct.ends_with("1 passed   1 failed    0 skipped     2.0 s"), "{direct}");
        assert!(line(Way::Dedicated, &run, [0, 0], took).ends_with("2.0 s, as directly"));
        let shared = line(Way::Shared, &run, [2, 1], took);
        assert!(shared.ends_with("2.0 s, 3 differ, 1 of them not explained"), "{shared}");
    }
}
