//! Known faults that are put into a copy of the tree, one at a time, to show that a tool finds
//! each.
//!
//! A folder has a patch for each fault, and `list.txt` with its name and what the tool wants to
//! know about it. The copy has everything that git does not ignore. It stays, so that builds in it
//! are incremental.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use setup::{files, root, run};

/// A copy of the tree with a fault.
pub(crate) struct Mutated {
    tree: PathBuf,
}

impl Mutated {
    /// A cargo command in the copy.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = setup::cargo();
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", Self::build());
        command
    }

    /// Where cargo builds.
    pub(crate) fn build() -> PathBuf {
        root().join("target/mutations/build")
    }
}

/// Puts in every fault whose name contains `only`. `find` gets the words of its line after the
/// name, and says how it was found, or why not.
///
/// # Errors
/// A message for people: the list cannot be read, or which faults were not found.
pub(crate) fn check(
    folder: &str,
    only: Option<&str>,
    find: impl Fn(&[&str], &Mutated) -> Result<String, String>,
) -> Result<ExitCode, String> {
    let folder = root().join(folder);
    let mutated = Mutated { tree: root().join("target/mutations/tree") };
    let mut missed = Vec::new();
    for line in list(&folder, only.unwrap_or_default())? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, words)) = words.split_first() else { continue };
        let found = copy(&mutated.tree)
            .and_then(|()| apply(&folder.join(format!("{name}.patch")), &mutated.tree))
            .and_then(|()| find(words, &mutated));
        match found {
            Ok(how) => println!("── {name} is found {how}"),
            Err(why) => {
                println!("── {name}: {why}");
                missed.push((*name).to_owned());
            }
        }
    }
    if missed.is_empty() {
        println!("Every mutation is found.");
        return Ok(ExitCode::SUCCESS);
    }
    Err(format!("Not found: {}.", missed.join(", ")))
}

/// The lines of the list whose name contains `part`, without comments.
fn list(folder: &Path, part: &str) -> Result<Vec<String>, String> {
    let file = folder.join("list.txt");
    let text = files::read(&file)?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let is_chosen = |line: &&str| line.split(' ').next().is_some_and(|name| name.contains(part));
    let chosen: Vec<String> =
        lines.filter(|line| !line.is_empty()).filter(is_chosen).map(str::to_owned).collect();
    if chosen.is_empty() {
        return Err(format!("No name in {} contains {part:?}.", file.display()));
    }
    Ok(chosen)
}

fn apply(patch: &Path, tree: &Path) -> Result<(), String> {
    let mut command = Command::new("patch");
    command.args(["--strip=1", "--batch", "--silent", "--no-backup-if-mismatch", "--directory"]);
    run(command.arg(tree).arg("--input").arg(patch)).map(drop)
}

/// Makes `to` equal to the tree of this repository, without the fault of the last run. git writes
/// only files that differ.
fn copy(to: &Path) -> Result<(), String> {
    files::make(to)?;
    let git = |words: &[&str], index: &str| {
        let mut git = Command::new("git");
        git.current_dir(root()).args(words).env("GIT_INDEX_FILE", to.with_file_name(index));
        git
    };
    run(&mut git(&["add", "--all"], "index-of-tree"))?;
    let tree = run(&mut git(&["write-tree"], "index-of-tree"))?;
    let mut write = git(&["read-tree", "--reset", "-u", tree.trim()], "index-of-copy");
    run(write.env("GIT_WORK_TREE", to)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every patch is listed, and every listed one applies.
    #[test]
    fn applies_every_listed_mutation() {
        for (folder, words) in [(crate::simulate::MUTATIONS, 5), (crate::verify::MUTATIONS, 3)] {
            let folder = root().join(folder);
            let listed = list(&folder, "").unwrap();
            assert!(list(&folder, "no such name").is_err());
            let patches = files::list(&folder).unwrap().into_iter();
            let patches = patches.filter(|path| path.extension().is_some_and(|it| it == "patch"));
            assert_eq!(patches.count(), listed.len());
            for line in &listed {
                assert_eq!(line.split_whitespace().count(), words, "{line}");
                let name = line.split_whitespace().next().unwrap();
                let patch = folder.join(format!("{name}.patch"));
                let text = files::read(&patch).unwrap();
                let tree = files::temporary().unwrap();
                for file in text.lines().filter_map(|line| line.strip_prefix("+++ b/")) {
                    let file = file.split('\t').next().unwrap();
                    let to = tree.path().join(file);
                    files::make(to.parent().unwrap()).unwrap();
                    files::copy(root().join(file), to).unwrap();
                }
                assert_eq!(apply(&patch, tree.path()), Ok(()), "{name}");
            }
        }
    }
}
