//! `cargo xtask simulate`: failovers with faults, from seeds; and whether the simulator still finds
//! known faults.
//!
//! The simulator is built optimised, so that thousands of seeds run in a minute or two. With
//! `--mutations` each known fault is put back, one at a time, into a copy of the tree, and the
//! simulator has to find it.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use setup::{files, root, seconds};

/// The folder of the patches, from the workspace's root.
const MUTATIONS: &str = "crates/simulator/mutations";

/// The parts of the tree that a build of the simulator reads.
const COPIED: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "clippy.toml",
    "benches",
    "crates",
    "tests",
];

#[derive(Debug, clap::Args)]
pub(crate) struct SimulateOptions {
    /// Put every known fault back, one at a time, and check that it is found.
    #[arg(long, conflicts_with = "args")]
    mutations: bool,
    /// With --mutations: only those whose name contains this text.
    #[arg(long, requires = "mutations")]
    only: Option<String>,
    /// Arguments of the simulator, such as `--seeds 3000`, `--seed S` or `--with KINDS`; `--
    /// --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// A fault that is put back, and the rule that it has to violate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mutation {
    name: String,
    rule: String,
    first: u64,
    seeds: u64,
    /// Only seeds with these kinds of faults; empty for all.
    with: String,
}

/// Runs the command.
pub(crate) fn run(options: &SimulateOptions) -> Result<ExitCode, String> {
    if options.mutations {
        return mutations(options.only.as_deref());
    }
    let status = simulator(&root(), &options.args)
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn simulator(tree: &Path, args: &[String]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tree);
    command
        .args(["run", "--quiet", "--profile", "simulate", "--package", "pointsman-simulator", "--"])
        .args(args);
    command
}

/// Parses the list: each line has a name, the violated rule, the first seed, the number of seeds
/// and the kinds of faults.
fn parse(list: &str) -> Result<Vec<Mutation>, String> {
    let mut found = Vec::new();
    for line in list
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|it| !it.is_empty())
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, rule, first, seeds, with] = words.as_slice() else {
            return Err(format!("five words are needed: {line}"));
        };
        let number = |word: &str| word.parse().map_err(|_| format!("no number in: {line}"));
        let (first, seeds) = (number(first)?, number(seeds)?);
        let with = if *with == "-" { String::new() } else { (*with).to_owned() };
        found.push(Mutation {
            name: (*name).to_owned(),
            rule: (*rule).to_owned(),
            first,
            seeds,
            with,
        });
    }
    Ok(found)
}

fn mutations(only: Option<&str>) -> Result<ExitCode, String> {
    let folder = root().join(MUTATIONS);
    let list = fs::read_to_string(folder.join("list.txt"))
        .map_err(|error| format!("list.txt: {error}"))?;
    let (tree, started) = (root().join("target/mutations/tree"), Instant::now());
    let mut failed = Vec::new();
    let list = parse(&list)?;
    for mutation in list.iter().filter(|it| only.is_none_or(|part| it.name.contains(part))) {
        let patch = folder.join(format!("{}.patch", mutation.name));
        let outcome = copy(&root(), &tree)
            .and_then(|()| apply(&patch, &tree))
            .and_then(|()| find(mutation, &tree));
        match outcome {
            Ok(()) => println!("── {} is found", mutation.name),
            Err(problem) => {
                println!("── {}: {problem}", mutation.name);
                failed.push(mutation.name.as_str());
            }
        }
    }
    let took = seconds(started.elapsed());
    if failed.is_empty() {
        println!("Every mutation is found, in {took}.");
        return Ok(ExitCode::SUCCESS);
    }
    Err(format!("Not found, after {took}: {}.", failed.join(", ")))
}

fn find(mutation: &Mutation, tree: &Path) -> Result<(), String> {
    let Mutation { rule, first, seeds, with, .. } = mutation;
    let args = ["--seed", &first.to_string(), "--seeds", &seeds.to_string(), "--expect", rule]
        .map(str::to_owned);
    let mut args = args.to_vec();
    if !with.is_empty() {
        args.extend(["--with".to_owned(), with.clone()]);
    }
    let mut command = simulator(tree, &args);
    command.env("CARGO_TARGET_DIR", root().join("target/mutations/build"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!(
            "{rule} was not broken by {seeds} seeds from {first} on, or it does not build"
        )),
        Err(error) => Err(format!("cargo could not be started: {error}")),
    }
}

pub(crate) fn apply(patch: &Path, tree: &Path) -> Result<(), String> {
    if !patch.exists() {
        return Err(format!("there is no {}", patch.display()));
    }
    let mut command = Command::new("patch");
    command
        .args(["--strip=1", "--batch", "--silent", "--no-backup-if-mismatch", "--directory"])
        .arg(tree);
    match command.arg("--input").arg(patch).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("the patch does not apply".to_owned()),
        Err(error) => Err(format!("patch could not be started: {error}")),
    }
}

/// Makes `to` equal to the tree at `from` and writes only files that differ, so that builds there
/// stay incremental.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    files::make(to)?;
    for part in COPIED {
        mirror(&from.join(part), &to.join(part)).map_err(|error| format!("{part}: {error}"))?;
    }
    Ok(())
}

fn mirror(from: &Path, to: &Path) -> std::io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(to)? {
            let entry = entry?.path();
            let Some(name) = entry.file_name() else { continue };
            if !from.join(name).exists() {
                if entry.is_dir() { fs::remove_dir_all(&entry)? } else { fs::remove_file(&entry)? }
            }
        }
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            // What cargo builds has this file; a crate may be named target.
            if !from.join(&name).join("CACHEDIR.TAG").exists() {
                mirror(&from.join(&name), &to.join(&name))?;
            }
        }
        return Ok(());
    }
    let content = fs::read(from)?;
    if fs::read(to).is_ok_and(|known| known == content) { Ok(()) } else { fs::write(to, content) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_list_of_mutations() {
        let list = "# a comment\n\nseen-before LateMajority 1 500 Failover,CutSets # why\n";
        let (name, rule, with) =
            ("seen-before".into(), "LateMajority".into(), "Failover,CutSets".into());
        assert_eq!(parse(list), Ok(vec![Mutation { name, rule, first: 1, seeds: 500, with }]));
        assert!(parse("one two three").is_err() && parse("a B c 4 -").is_err());
    }

    /// Every patch is listed and applies; a listed name without a patch waits for the fix that it
    /// removes.
    #[test]
    fn applies_every_listed_mutation() {
        let folder = root().join(MUTATIONS);
        let listed = parse(&fs::read_to_string(folder.join("list.txt")).unwrap()).unwrap();
        let names: Vec<&str> = listed.iter().map(|it| it.name.as_str()).collect();
        let mut patches = 0;
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|it| it != "patch") {
                continue;
            }
            patches += 1;
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(names.contains(&&*name), "{name} is not on the list");
            let text = fs::read_to_string(&path).unwrap();
            let folder = tempfile::tempdir().unwrap();
            for file in text.lines().filter_map(|line| line.strip_prefix("+++ b/")) {
                let file = file.split('\t').next().unwrap();
                let to = folder.path().join(file);
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(root().join(file), to).unwrap();
            }
            assert_eq!(apply(&path, folder.path()), Ok(()), "{name}");
        }
        assert!(patches > 0);
    }

    #[test]
    fn copies_changed_and_removes_deleted_files() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |folder: &Path, name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(from.path(), "src/kept.rs", "same");
        write(from.path(), "src/changed.rs", "new");
        write(from.path(), "target/src/lib.rs", "a crate");
        write(from.path(), "crates/one/target/CACHEDIR.TAG", "built");
        write(from.path(), "crates/one/target/debug", "never");
        write(to.path(), "src/kept.rs", "same");
        write(to.path(), "src/changed.rs", "old");
        write(to.path(), "src/gone/away.rs", "old");
        let untouched = fs::metadata(to.path().join("src/kept.rs")).unwrap().modified().unwrap();
        mirror(from.path(), to.path()).unwrap();
        let read = |name: &str| fs::read_to_string(to.path().join(name)).ok();
        assert_eq!(read("src/changed.rs").as_deref(), Some("new"));
        assert_eq!(read("target/src/lib.rs").as_deref(), Some("a crate"));
        assert!(read("src/gone/away.rs").is_none() && read("crates/one/target/debug").is_none());
        let kept = fs::metadata(to.path().join("src/kept.rs")).unwrap().modified().unwrap();
        assert_eq!(kept, untouched);
    }
}
