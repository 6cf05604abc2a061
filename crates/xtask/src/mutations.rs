//! Known faults that are put into a copy of the tree, one at a time, to show that a tool finds
//! each.
//!
//! A folder has a patch for each fault, and `list.txt` with its name and what the tool wants to
//! know about it. The copy stays, so that builds in it are incremental.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use setup::{files, root, run};

/// The parts of the tree that a build reads.
const COPIED: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "clippy.toml",
    "benches",
    "crates",
    "tests",
];

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
    for line in list(&folder)? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, words)) = words.split_first() else { continue };
        if only.is_some_and(|part| !name.contains(part)) {
            continue;
        }
        let found = copy(&root(), &mutated.tree)
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

/// The lines of the list without comments.
fn list(folder: &Path) -> Result<Vec<String>, String> {
    let text = files::read(folder.join("list.txt"))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

fn apply(patch: &Path, tree: &Path) -> Result<(), String> {
    let mut command = Command::new("patch");
    command.args(["--strip=1", "--batch", "--silent", "--no-backup-if-mismatch", "--directory"]);
    run(command.arg(tree).arg("--input").arg(patch)).map(drop)
}

/// Makes `to` equal to the tree at `from` and writes only files that differ, so that builds there
/// stay incremental.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
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

    /// Every patch is listed, and every listed one applies.
    #[test]
    fn applies_every_listed_mutation() {
        for (folder, words) in [(crate::simulate::MUTATIONS, 5), (crate::verify::MUTATIONS, 3)] {
            let folder = root().join(folder);
            let listed = list(&folder).unwrap();
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
