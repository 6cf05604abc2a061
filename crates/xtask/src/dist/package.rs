//! The Debian and the rpm package: the installed files are laid out once, and packed by dpkg-deb
//! and by rpmbuild, which every distribution has.
//!
//! The service is installed and neither enabled nor started: it first needs the addresses of the
//! sentinels.

use std::path::{Path, PathBuf};
use std::process::Command;

use setup::{files, root, run};
use tempfile::TempDir;

use super::Dist;

const SUMMARY: &str = "proxy in front of Redis Sentinel that follows the verified master";
const DESCRIPTION: &str = "\
Pointsman listens to the sentinels, verifies the master, and moves every
connection when the master moves. Clients dial one address and need to
know nothing of Sentinel. It takes the place of haproxy in front of Redis.";
const MAINTAINER: &str = "Pointsman maintainers <pointsman@users.noreply.github.com>";

/// Files that are the same in both packages, with their paths.
const ASSETS: &[(&str, &str)] = &[
    ("pointsman.toml", "etc/pointsman/pointsman.toml"),
    ("pointsman.1.gz", "usr/share/man/man1/pointsman.1.gz"),
    ("pointsman.bash", "usr/share/bash-completion/completions/pointsman"),
    ("pointsman.fish", "usr/share/fish/vendor_completions.d/pointsman.fish"),
];

/// Copies a file below `stage`, with the mode of a program or of a file.
fn put(from: &Path, stage: &Path, to: &str) -> Result<(), String> {
    let to = stage.join(to);
    let folder = to.parent().unwrap_or(stage);
    files::make(folder)?;
    files::copy(from, &to)?;
    files::permit(&to, if folder.ends_with("bin") { 0o755 } else { 0o644 })
}

/// A folder beside the packages that is removed however its use ends: what is left there would be
/// taken for a part of the release, for example by the checksums.
fn folder(dist: &Dist) -> Result<TempDir, String> {
    TempDir::new_in(&dist.out).map_err(|error| format!("{}: {error}", dist.out.display()))
}

/// Lays out the common files: the program, its documentation, the user, and the systemd units.
fn lay_out(dist: &Dist) -> Result<TempDir, String> {
    let folder = folder(dist)?;
    let stage = folder.path();
    put(&dist.linked, stage, "usr/bin/pointsman")?;
    for (from, to) in ASSETS {
        put(&dist.assets.join(from), stage, to)?;
    }
    put(&root().join("deploy/package/sysusers.conf"), stage, "usr/lib/sysusers.d/pointsman.conf")?;
    let is_unit = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "service" || ending == "socket")
    };
    for unit in files::list(root().join("deploy/systemd"))?.into_iter().filter(is_unit) {
        let file = unit.file_name().unwrap_or_default().to_string_lossy().into_owned();
        put(&unit, stage, &format!("usr/lib/systemd/system/{file}"))?;
    }
    Ok(folder)
}

/// Builds the Debian package.
pub(super) fn deb(dist: &Dist) -> Result<PathBuf, String> {
    let folder = lay_out(dist)?;
    let stage = folder.path();
    put(&dist.assets.join("_pointsman"), stage, "usr/share/zsh/vendor-completions/_pointsman")?;
    put(&dist.assets.join("changelog.gz"), stage, "usr/share/doc/pointsman/changelog.gz")?;
    let copyright = root().join("deploy/package/copyright");
    put(&copyright, stage, "usr/share/doc/pointsman/copyright")?;
    let indented = DESCRIPTION.replace('\n', "\n ");
    let control = format!(
        "Package: pointsman\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: {}\n\
         Depends: {}procps, systemd | systemd-standalone-sysusers\nSection: net\nPriority: optional\n\
         Description: {SUMMARY}\n {indented}\n",
        env!("CARGO_PKG_VERSION"),
        dist.arch,
        run(Command::new("du").args(["-sk", "--apparent-size"]).arg(stage))?
            .split_whitespace()
            .next()
            .unwrap_or("0"),
        depends(dist)?,
    );
    let meta = stage.join("DEBIAN");
    files::make(&meta)?;
    files::write(meta.join("control"), control)?;
    files::write(meta.join("conffiles"), "/etc/pointsman/pointsman.toml\n")?;
    for name in ["postinst", "prerm", "postrm"] {
        files::copy(root().join("deploy/package").join(name), meta.join(name))?;
    }
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(stage))?;
    let sums = "find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | sort -z | xargs -0 md5sum > DEBIAN/md5sums";
    run(Command::new("sh").args(["-c", sums]).current_dir(stage))?;
    let file = dist.out.join(format!("pointsman_{}_{}.deb", env!("CARGO_PKG_VERSION"), dist.arch));
    run(dist
        .tool("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(stage)
        .arg(&file))?;
    Ok(file)
}

/// The packages of the libraries that the program is linked to, as Debian's tool determines them.
fn depends(dist: &Dist) -> Result<String, String> {
    if !dist.is_native() {
        return Ok("libc6 (>= 2.35), libgcc-s1 (>= 4.2), ".to_owned());
    }
    // The tool requires a source package.
    let temp = files::temporary()?;
    files::make(temp.path().join("debian"))?;
    files::write(temp.path().join("debian/control"), "Source: x\n")?;
    let said =
        run(Command::new("dpkg-shlibdeps").arg("-O").arg(&dist.linked).current_dir(temp.path()))?;
    // A static program has no dependencies.
    let found = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(found.map(|found| format!("{found}, ")).unwrap_or_default())
}

/// Builds the rpm package.
pub(super) fn rpm(dist: &Dist) -> Result<PathBuf, String> {
    let folder = lay_out(dist)?;
    let stage = folder.path();
    put(&dist.assets.join("_pointsman"), stage, "usr/share/zsh/site-functions/_pointsman")?;
    put(&root().join("LICENSE"), stage, "usr/share/licenses/pointsman/LICENSE")?;
    let arch = if dist.arch == "amd64" { "x86_64" } else { "aarch64" };
    // The configuration has a line of its own in the spec. rpmbuild sorts the files.
    let list = ["usr", "-type", "f", "-printf", "/%p\\n"];
    let files = run(Command::new("find").args(list).current_dir(stage))?;
    let date = run(Command::new("date")
        .args(["-u", "-d", &format!("@{}", dist.epoch), "+%a %b %d %Y"])
        .env("LC_ALL", "C"))?;
    let spec = format!(
        include_str!("../../../../deploy/package/pointsman.spec"),
        version = env!("CARGO_PKG_VERSION"),
        summary = SUMMARY.replacen('p', "P", 1),
        maintainer = MAINTAINER,
        description = DESCRIPTION,
        stage = stage.display(),
        files = files,
        date = date.trim(),
    );
    let file = dist.assets.join("pointsman.spec");
    files::write(&file, spec)?;
    let mut build = dist.tool("rpmbuild");
    build.args(["-bb", "--quiet", "--target", arch]);
    let copy = self::folder(dist)?;
    build.arg("--define").arg(format!("_topdir {}", copy.path().display()));
    build
        .arg("--define")
        .arg(format!("_rpmdir {}", dist.out.display()))
        .args(["--define", "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm"]);
    run(build.arg(&file))?;
    Ok(dist.out.join(format!("pointsman-{}-1.{arch}.rpm", env!("CARGO_PKG_VERSION"))))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Whether there is an rpmbuild or not: only files are left for the checksums.
    #[test]
    fn leaves_no_folder_of_a_package() {
        let temp = tempfile::tempdir().unwrap();
        let (out, assets) = (temp.path().join("out"), temp.path().join("assets"));
        let program = temp.path().join("pointsman");
        for (from, _) in ASSETS.iter().chain([&("_pointsman", "")]) {
            let path = assets.join(from);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        fs::create_dir(&out).unwrap();
        fs::write(&program, "#!/bin/sh\n").unwrap();
        let dist = Dist {
            out,
            assets,
            target: "x86_64-unknown-linux-gnu".to_owned(),
            arch: "amd64",
            epoch: "1700000000".to_owned(),
            linked: program.clone(),
            standing_alone: program,
        };
        let made = rpm(&dist);
        fs::remove_file(&dist.linked).unwrap();
        let missing = lay_out(&dist).err();
        assert!(missing.is_some());
        let left = fs::read_dir(&dist.out).unwrap().map(|it| it.unwrap().path());
        let folders: Vec<PathBuf> = left.filter(|path| path.is_dir()).collect();
        assert!(folders.is_empty(), "{folders:?} after {made:?}");
    }
}
