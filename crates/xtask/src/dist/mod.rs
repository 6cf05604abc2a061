//! `cargo xtask dist`: the files of a release, in target/dist: a static program in an archive, the
//! chart, packages for Debian and rpm, an image, an SBOM and the checksums. The release workflow
//! calls only this, so that anyone can produce the same files.
//!
//! Two builds: the packages contain a program linked to the system's C library, which alone knows
//! all ways in which the machine resolves names; the archive and the image contain a static
//! program, which needs nothing from the system. File times are those of the last commit, and build
//! paths are removed, so that two builds of one commit by one toolchain are equal.
//!
//! Signing and uploading need keys of the workflow, and are done there.
#![allow(
    clippy::indexing_slicing,
    reason = "JSON indexed by what it lacks gives null and no panic"
)]

mod install;
mod package;
mod prove;
mod sbom;
mod version;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Args;
use setup::{files, must, root, run, seconds};

/// Options of `cargo xtask dist`.
#[derive(Debug, Args)]
pub(crate) struct DistOptions {
    /// The target triple to build for
    #[arg(long, default_value = env!("XTASK_HOST"))]
    target: String,
    /// Use this static program everywhere and build none, to test the packaging
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Only check that this git tag, Cargo.toml and the chart have the same version
    #[arg(long, value_name = "TAG")]
    check_version: Option<String>,
}

struct Dist {
    /// target/dist.
    out: PathBuf,
    /// What the packages contain besides the program.
    assets: PathBuf,
    target: String,
    /// Debian's name of the architecture.
    arch: &'static str,
    /// Seconds since 1970 of the last commit.
    epoch: String,
    /// The program linked to the system's C library.
    linked: PathBuf,
    /// The static program.
    standing_alone: PathBuf,
}

/// A step: its title, and a function that returns a summary.
type Step = (&'static str, fn(&Dist) -> Result<String, String>);

const STEPS: &[Step] = &[
    ("assets", assets_of),
    ("archive", archive),
    ("chart", chart),
    ("deb", deb),
    ("rpm", rpm),
    ("image", image),
    ("sbom", sbom_of),
    ("checksums", checksums),
];

/// Produces all files.
///
/// # Errors
/// What could not be produced, and why.
pub(crate) fn dist(options: &DistOptions) -> Result<ExitCode, String> {
    if let Some(tag) = &options.check_version {
        println!("{}", version::check(tag)?);
        return Ok(ExitCode::SUCCESS);
    }
    let arch = match options.target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        _ => return Err(format!("{}: neither x86_64 nor aarch64", options.target)),
    };
    setup::install::for_dist()?;
    let out = root().join("target/dist");
    let assets = out.join("assets");
    // Leftovers of an earlier run would get into the checksums.
    files::remove(&out)?;
    files::make(&assets)?;
    let epoch = run(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()))?;
    // Each is built once, so that all files contain the same one.
    let (linked, standing_alone) = match &options.program {
        Some(program) => {
            let program = setup::build::pointsman_or(Some(program))?;
            (program.clone(), program)
        }
        None => (build(&options.target, false)?, build(&options.target, true)?),
    };
    let (target, epoch) = (options.target.clone(), epoch.trim().to_owned());
    let dist = Dist { out, assets, target, arch, epoch, linked, standing_alone };
    for (title, step) in STEPS {
        let start = Instant::now();
        let what = step(&dist).map_err(|why| format!("{title}: {why}"))?;
        println!("  made    {title}: {what} ({})", seconds(start.elapsed()));
    }
    println!("All of it is in {}.", dist.out.display());
    Ok(ExitCode::SUCCESS)
}

impl Dist {
    /// Packs `folder/what` into an archive that is the same at every time and for every user.
    fn packed(&self, file: &str, folder: &Path, what: &str) -> Result<(), String> {
        let mut tar = self.tool("tar");
        tar.args([
            "--create",
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=u+rw,go+r,go-w",
        ]);
        // gzip writes the current time by default.
        tar.args(["--use-compress-program", "gzip --no-name --best"])
            .arg(format!("--mtime=@{}", self.epoch));
        run(tar.arg("--file").arg(self.out.join(file)).arg("--directory").arg(folder).arg(what))
            .map(drop)
    }

    /// A command in the package's folder, with the time of the last commit in its environment.
    fn tool(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(root()).env("SOURCE_DATE_EPOCH", &self.epoch);
        command
    }

    /// Whether the built program can be started here.
    fn is_native(&self) -> bool {
        self.target == env!("XTASK_HOST")
    }

    fn name(&self) -> String {
        format!("pointsman-{}-{}", env!("CARGO_PKG_VERSION"), self.target)
    }
}

/// Builds the program, static or linked to the system's C library.
fn build(target: &str, is_static: bool) -> Result<PathBuf, String> {
    let folder = root().join("target").join(if is_static { "dist-static" } else { "dist-dynamic" });
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut flags = format!("--remap-path-prefix={}=/pointsman", root().display());
    if let Ok(home) = home {
        flags.push_str(&format!(" --remap-path-prefix={home}=/cargo"));
    }
    if is_static {
        flags.push_str(" -C target-feature=+crt-static");
    }
    let mut cargo = setup::cargo();
    cargo.args(["build", "--release", "--locked", "--package", "pointsman", "--target", target]);
    cargo
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", flags)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    if target.starts_with("aarch64") && !cfg!(target_arch = "aarch64") {
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    }
    must(&mut cargo)?;
    Ok(folder.join(target).join("release/pointsman"))
}

/// Manual page, completions, the example configuration and Debian's changelog, generated by a
/// program for this machine.
fn assets_of(dist: &Dist) -> Result<String, String> {
    let native = dist.is_native().then_some(dist.linked.as_path());
    let program = setup::build::pointsman_or(native)?;
    let say = |args: &[&str]| run(Command::new(&program).args(args).env_clear());
    let write = |name: &str, text: &str| files::write(dist.assets.join(name), text);
    write("pointsman.1", &say(&["man"])?)?;
    for (shell, name) in
        [("bash", "pointsman.bash"), ("zsh", "_pointsman"), ("fish", "pointsman.fish")]
    {
        write(name, &say(&["completions", shell])?)?;
    }
    write(
        "pointsman.toml",
        &say(&["config", "--service", "mymaster", "--sentinel", "127.0.0.1:26379"])?,
    )?;
    let date = run(Command::new("date").args(["-u", "-R", "-d", &format!("@{}", dist.epoch)]))?;
    let entry = format!(
        "pointsman ({}) unstable; urgency=medium\n\n  * See CHANGELOG.md of the release.\n\n \
         -- Pointsman maintainers <pointsman@users.noreply.github.com>  {}\n",
        env!("CARGO_PKG_VERSION"),
        date.trim(),
    );
    write("changelog", &entry)?;
    for name in ["pointsman.1", "changelog"] {
        run(dist
            .tool("gzip")
            .args(["--best", "--no-name", "--force"])
            .arg(dist.assets.join(name)))?;
    }
    Ok("manual page, completions, example configuration".to_owned())
}

fn archive(dist: &Dist) -> Result<String, String> {
    let program = &dist.standing_alone;
    let size = std::fs::metadata(program).map_err(|error| error.to_string())?.len();
    let folder = dist.out.join(dist.name());
    files::make(&folder)?;
    let copy = |from: &Path, name: &str| files::copy(from, folder.join(name));
    copy(program, "pointsman")?;
    for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
        copy(&root().join(name), name)?;
    }
    for name in
        ["pointsman.1.gz", "pointsman.bash", "_pointsman", "pointsman.fish", "pointsman.toml"]
    {
        copy(&dist.assets.join(name), name)?;
    }
    dist.packed(&format!("{}.tar.gz", dist.name()), &dist.out, &dist.name())?;
    files::remove(&folder)?;
    Ok(format!("{}.tar.gz, the static program has {} KiB", dist.name(), size / 1024))
}

/// The chart as a helm package; the same for every target.
fn chart(dist: &Dist) -> Result<String, String> {
    let name = format!("pointsman-chart-{}.tgz", env!("CARGO_PKG_VERSION"));
    dist.packed(&name, &root().join("deploy/helm"), "pointsman")?;
    made(&dist.out.join(name))
}

fn deb(dist: &Dist) -> Result<String, String> {
    let file = package::deb(dist)?;
    let installed = if dist.is_native() {
        install::deb(&file)?
    } else {
        "not installed: another architecture".to_owned()
    };
    Ok(format!("{}; {}; {installed}", made(&file)?, prove::deb(dist, &file)?))
}

fn rpm(dist: &Dist) -> Result<String, String> {
    let file = package::rpm(dist)?;
    Ok(format!("{}; {}", made(&file)?, prove::rpm(&file)?))
}

/// The name and size of a file.
fn made(file: &Path) -> Result<String, String> {
    let size =
        std::fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.len();
    Ok(format!("{}, {} KiB", file.file_name().unwrap_or_default().to_string_lossy(), size / 1024))
}

fn image(dist: &Dist) -> Result<String, String> {
    let file =
        dist.out.join(format!("pointsman-{}-{}-image.tar", env!("CARGO_PKG_VERSION"), dist.arch));
    let again = dist.assets.join("again.tar");
    for archive in [&file, &again] {
        let mut script = dist.tool("deploy/image/build");
        script.arg(&dist.standing_alone).args([dist.arch, env!("CARGO_PKG_VERSION")]);
        run(script.arg(archive))?;
    }
    run(Command::new("cmp").args([&file, &again]))
        .map_err(|why| format!("made twice from one program, and different: {why}"))?;
    Ok(format!("{}, twice the same; {}", made(&file)?, prove::image(dist, &file)?))
}

fn sbom_of(dist: &Dist) -> Result<String, String> {
    let mut cargo = setup::cargo();
    cargo.args(["tree", "--locked", "--package", "pointsman", "--edges", "normal", "--no-dedupe"]);
    cargo.args(["--prefix", "depth", "--format", "|{p}|{l}", "--target", &dist.target]);
    let (text, count) = sbom::of(&run(&mut cargo)?)?;
    let path = dist.out.join(format!("{}.cdx.json", dist.name()));
    files::write(&path, text)?;
    Ok(format!("{count} components"))
}

fn checksums(dist: &Dist) -> Result<String, String> {
    files::remove(&dist.assets)?;
    let paths = files::list(&dist.out)?;
    let names: Vec<_> = paths.iter().filter_map(|path| path.file_name()).collect();
    let sums = run(dist.tool("sha256sum").args(&names).current_dir(&dist.out))?;
    // One file per target, so that those of several can be in one folder.
    let path = dist.out.join(format!("SHA256SUMS-{}", dist.arch));
    files::write(&path, sums)?;
    Ok(format!("{} files", names.len()))
}
