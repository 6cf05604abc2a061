//! Fetches the programs of the peers into a folder, without installing them, or builds them there.

use std::fs;
use std::path::{Path, PathBuf};

use setup::{cargo, files, go, must, packages};

use super::{Program, Source};
use crate::raw::benches;

/// What is built from Go, below the root.
const PROGRAM: &str = "program";
/// A file with the reason why a folder could not be filled.
const WHY: &str = ".why";

/// Fetches a program unless it is present; prints progress and errors.
pub(super) fn get(cache: &Path, source: Source) {
    let folder = folder(cache, source);
    let outcome = files::fill_once(&folder, &text(source), || {
        let (name, folder_name) = (name(source), folder.display());
        println!("Fetching {name} into {folder_name} (nothing is installed on the system)");
        fill(&folder, source)
    });
    // It is read in a network namespace, where nothing can be fetched.
    if let Err(why) = outcome
        && let Err(error) = files::write(folder.join(WHY), &why)
    {
        println!("  {why}; {error}");
    }
}

/// A program that was fetched before.
pub(super) fn find(cache: &Path, source: Source) -> Result<Program, String> {
    let folder = folder(cache, source);
    if !files::is_filled(&folder, &text(source)) {
        return Err(fs::read_to_string(folder.join(WHY))
            .unwrap_or_else(|_| "it was not fetched".to_owned()));
    }
    let root = folder.join("root");
    match source {
        Source::Wheel { program, .. } | Source::Npm { program, .. } => {
            Ok(Program { words: vec![root.join(program).into_os_string()], root })
        }
        Source::Debian { program, .. } => {
            let mut words = packages::loader(&root)?;
            words.push(root.join(program).into_os_string());
            Ok(Program { words, root })
        }
        Source::Go { .. } => Ok(Program { words: vec![root.join(PROGRAM).into_os_string()], root }),
        Source::Cargo { program, .. } => {
            let program = folder.join("target/debug").join(program);
            Ok(Program { words: vec![program.into_os_string()], root: folder })
        }
    }
}

fn folder(cache: &Path, source: Source) -> PathBuf {
    cache.join(match source {
        Source::Debian { suite, packages, .. } => {
            format!("{suite}-{}", packages.first().unwrap_or(&"nothing"))
        }
        Source::Wheel { package, .. } | Source::Npm { package, .. } => package.to_owned(),
        Source::Go { folder, .. } | Source::Cargo { folder, .. } => folder.to_owned(),
    })
}

fn name(source: Source) -> String {
    match source {
        Source::Debian { suite, packages, .. } => {
            format!("{} of Debian's {suite}", packages.join(" and "))
        }
        Source::Wheel { package, .. } => format!("{package} from the Python package index"),
        Source::Npm { package, .. } => format!("{package} from npm"),
        Source::Go { folder, .. } | Source::Cargo { folder, .. } => {
            format!("{folder} of benches/clients and its library")
        }
    }
}

/// The source files of what is built here, one after the other; else nothing.
fn text(source: Source) -> String {
    match source {
        Source::Go { folder, .. } | Source::Cargo { folder, .. } => {
            let files = files(folder).unwrap_or_default();
            files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect()
        }
        _ => String::new(),
    }
}

/// The files of a folder of benches/clients, in order.
fn files(folder: &str) -> Result<Vec<PathBuf>, String> {
    files::list(benches().join("clients").join(folder))
}

fn fill(folder: &Path, source: Source) -> Result<(), String> {
    let root = folder.join("root");
    let program = match source {
        Source::Wheel { package, program } => {
            packages::install_wheel(&root, package)?;
            program
        }
        Source::Npm { package, program } => {
            packages::install_npm(&root, package)?;
            program
        }
        Source::Debian { suite, packages, program } => {
            packages::unpack(&packages::debian(folder, &[suite], packages)?, &root)?;
            packages::discard_downloads(folder)?;
            program
        }
        Source::Go { folder: name, package, import, needs } => {
            go::fetch(folder, needs)?;
            go::fetch_library(folder, package, import, None)?;
            return build_go(folder, name);
        }
        Source::Cargo { folder: name, .. } => return build_with_cargo(folder, name),
    };
    // Some installers of wheels drop the permission to execute.
    files::permit(root.join(program), 0o755)
}

fn build_go(folder: &Path, name: &str) -> Result<(), String> {
    let mut command = go::command(folder)?;
    command.current_dir(benches().join("clients").join(name));
    must(command.args(["build", "-o"]).arg(folder.join("root").join(PROGRAM)).arg("."))
}

/// Builds a copy, so that neither its target folder nor its lock file is in benches/.
fn build_with_cargo(folder: &Path, name: &str) -> Result<(), String> {
    for file in files(name)? {
        let copy = folder.join(file.file_name().unwrap_or_default());
        files::copy(&file, copy)?;
    }
    let mut cargo = cargo();
    must(cargo.current_dir(folder).env("CARGO_TARGET_DIR", "target").args(["build", "--quiet"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_why_a_peer_is_missing() {
        let kept = tempfile::tempdir().expect("a folder");
        let folder = kept.path().to_owned();
        let source = Source::Wheel { package: "some-wheel", program: "bin/some" };
        assert!(find(&folder, source).expect_err("nothing is there").contains("not fetched"));
        fs::create_dir_all(folder.join("some-wheel")).expect("a folder");
        fs::write(folder.join("some-wheel").join(WHY), "no network").expect("a file");
        assert_eq!(find(&folder, source).expect_err("still nothing"), "no network");
        files::fill_once(&folder.join("some-wheel"), "", || Ok(())).expect("a file");
        assert!(
            find(&folder, source).expect("it is there").words[0]
                .to_string_lossy()
                .ends_with("root/bin/some")
        );
    }
}
