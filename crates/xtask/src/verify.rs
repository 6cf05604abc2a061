//! `cargo xtask verify`: the comparison of `bench::verify`, with the installed server or with one
//! of those that `cargo xtask test --servers --list` names; and whether it still finds planted
//! faults.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use setup::root;

use crate::servers;
use crate::simulate::{apply, copy};

/// The folder of the patches, from the workspace's root.
const MUTATIONS: &str = "crates/bench/mutations";

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyCommand {
    /// Compare with this server instead of the installed one; `cargo xtask test --servers --list`
    /// lists them.
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Put in every known fault, one at a time, and check that it is found.
    #[arg(long)]
    mutations: bool,
    /// With --mutations: only those whose name contains this text.
    #[arg(long, requires = "mutations")]
    only: Option<String>,
    #[command(flatten)]
    options: bench::verify::VerifyOptions,
}

/// Runs the command.
///
/// # Errors
/// A message for people, if it cannot start.
pub(crate) fn run(options: &VerifyCommand) -> Result<ExitCode, String> {
    if options.mutations {
        return mutations(options.only.as_deref().unwrap_or_default());
    }
    let Some(name) = &options.server else { return bench::verify::run(&options.options) };
    let (server, sentinel) = (harness::Binary::Server, harness::Binary::Sentinel);
    if std::env::var_os(server.variable()).is_some() {
        return bench::verify::run(&options.options);
    }
    // The programs are named by the environment, which a process cannot safely change for itself.
    let programs = servers::programs(name)?;
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let status = Command::new(own)
        .args(std::env::args_os().skip(1))
        .env(server.variable(), &programs.server)
        .env(sentinel.variable(), &programs.sentinel)
        .status()
        .map_err(|error| format!("this program again: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A fault that is put in, and how many conversations may be needed to find it.
#[derive(Debug, PartialEq, Eq)]
struct Mutation {
    name: String,
    is_shared: bool,
    is_carried: bool,
    conversations: u64,
}

/// Parses the list: each line has a name, the mode and the number of conversations.
fn parse(list: &str) -> Result<Vec<Mutation>, String> {
    let lines = list.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let one = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, mode @ ("shared" | "dedicated" | "carried"), conversations] = words.as_slice()
        else {
            return Err(format!("a name, a mode and a number are needed: {line}"));
        };
        Ok(Mutation {
            name: (*name).to_owned(),
            is_shared: *mode == "shared",
            is_carried: *mode == "carried",
            conversations: conversations.parse().map_err(|_| format!("no number in: {line}"))?,
        })
    };
    lines.filter(|line| !line.is_empty()).map(one).collect()
}

fn mutations(only: &str) -> Result<ExitCode, String> {
    let folder = root().join(MUTATIONS);
    let list = std::fs::read_to_string(folder.join("list.txt"))
        .map_err(|error| format!("list.txt: {error}"))?;
    let mut missed = 0;
    for mutation in parse(&list)?.iter().filter(|it| it.name.contains(only)) {
        let program = mutated(&folder.join(format!("{}.patch", mutation.name)))?;
        let Mutation { name, is_shared, is_carried, conversations } = mutation;
        let seeds = 1..conversations + 1;
        match bench::verify::first_difference(&program, *is_shared, *is_carried, seeds)? {
            Some((after, _)) => println!("── {name} is found after {after} conversations"),
            None => {
                missed += 1;
                println!("── {name} is NOT found by {conversations} conversations");
            }
        }
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the program with a fault, in a copy of the tree.
fn mutated(patch: &Path) -> Result<PathBuf, String> {
    let (tree, build) =
        (root().join("target/mutations/tree"), root().join("target/mutations/build"));
    copy(&root(), &tree)?;
    apply(patch, &tree)?;
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--package", "pointsman", "--bin", "pointsman"])
        .current_dir(&tree)
        .env("CARGO_TARGET_DIR", &build)
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !status.success() {
        return Err(format!("it does not build with {}", patch.display()));
    }
    Ok(build.join("debug/pointsman"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every patch is listed, and every listed one applies.
    #[test]
    fn applies_every_listed_mutation() {
        let folder = root().join(MUTATIONS);
        let list = std::fs::read_to_string(folder.join("list.txt")).unwrap();
        let listed = parse(&list).unwrap();
        let is_patch = |entry: &std::fs::DirEntry| {
            entry.path().extension().is_some_and(|extension| extension == "patch")
        };
        let patches = std::fs::read_dir(&folder).unwrap().map(Result::unwrap).filter(is_patch);
        assert_eq!(patches.count(), listed.len());
        for mutation in &listed {
            let path = folder.join(format!("{}.patch", mutation.name));
            let text = std::fs::read_to_string(&path).unwrap();
            let tree = tempfile::tempdir().unwrap();
            for file in text.lines().filter_map(|line| line.strip_prefix("+++ b/")) {
                let to = tree.path().join(file);
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                std::fs::copy(root().join(file), to).unwrap();
            }
            assert_eq!(apply(&path, tree.path()), Ok(()), "{}", mutation.name);
        }
        assert!(parse("a shared").is_err() && parse("a b 3").is_err());
    }
}
