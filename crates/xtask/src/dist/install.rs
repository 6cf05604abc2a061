//! Installs the Debian package into a minimal Debian in a folder, by dpkg and with the package's
//! scripts, checks the result, and purges it. That Debian's systemd, which is older than most,
//! reads the units.
//!
//! No systemd is booted; the end-to-end tests check what the units do at run time.

use std::path::{Path, PathBuf};
use std::process::Command;

use setup::{files, root, run};

use crate::deploy::units::{SECURITY, UNITS, score};

/// The oldest Debian that the package is for.
const SUITE: &str = "bookworm";
const CONFIG: &str = "etc/pointsman/pointsman.toml";

/// Installs the package and checks the result; returns a summary.
///
/// # Errors
/// What is wrong with the package, or with the folder.
pub(super) fn deb(file: &Path) -> Result<String, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok("not installed: that takes root".to_owned());
    }
    let debian = Debian::ready()?;
    files::copy(file, debian.folder.join("tmp/pointsman.deb"))?;
    // A leftover of an earlier run.
    debian.run("dpkg --purge pointsman")?;
    debian.run("dpkg --install /tmp/pointsman.deb")?;
    let seen = looked_at(&debian);
    let purged = debian.run("dpkg --purge pointsman");
    let score = seen?;
    purged?;
    for path in ["usr/bin/pointsman", "etc/pointsman", "usr/lib/systemd/system/pointsman.service"] {
        if debian.folder.join(path).exists() {
            return Err(format!("{path} is left after a purge"));
        }
    }
    Ok(format!("installed, looked at and purged in Debian {SUITE}; {score}"))
}

/// Checks the installed files; returns the security score of the service.
fn looked_at(debian: &Debian) -> Result<String, String> {
    let different = debian.run("dpkg --verify pointsman")?;
    if !different.is_empty() {
        return Err(format!("files differ from the package's own list: {different}"));
    }
    let user = debian.run("getent passwd pointsman")?;
    if !user.trim_end().ends_with("nologin") {
        return Err(format!("the user is {user}"));
    }
    let folder = debian.run("stat --format='%U:%G %a' /etc/pointsman")?;
    if folder.trim() != "root:pointsman 750" {
        return Err(format!("/etc/pointsman is {folder}"));
    }
    // As the service's user, which must be able to read it.
    debian.run(&format!("runuser -u pointsman -- /usr/bin/pointsman check --config /{CONFIG}"))?;
    // A configuration file that was edited survives a reinstallation.
    let path = debian.folder.join(CONFIG);
    let text = files::read(&path)? + "# mine\n";
    files::write(&path, text)?;
    debian.run("dpkg --force-confold --install /tmp/pointsman.deb")?;
    if !std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with("# mine\n")) {
        return Err("the configuration was overwritten".to_owned());
    }
    // It prints its findings on standard error and succeeds all the same.
    let units = UNITS.join(" ");
    let found = debian.run(&format!("systemd-analyze verify --man=no {units} 2>&1"))?;
    if !found.trim().is_empty() {
        return Err(format!("systemd-analyze verify: {found}"));
    }
    score(&debian.run(&format!("systemd-analyze {SECURITY} {}", UNITS[0]))?)
}

struct Debian {
    folder: PathBuf,
}

impl Debian {
    /// A minimal Debian with systemd in a folder that is kept for later runs.
    fn ready() -> Result<Self, String> {
        let folder = root().join("target/dist-debian").join(SUITE);
        if !["usr/bin/systemd-analyze", "bin/kill"].iter().all(|path| folder.join(path).exists()) {
            let _ = std::fs::remove_dir_all(&folder);
            println!("Getting Debian {SUITE} into {}", folder.display());
            let mut get = Command::new("debootstrap");
            run(get.args(["--variant=minbase", "--include=procps,systemd", SUITE]).arg(&folder))?;
        }
        Ok(Self { folder })
    }

    /// Runs a command of a shell there.
    fn run(&self, words: &str) -> Result<String, String> {
        let mut command = Command::new("/usr/sbin/chroot");
        command.arg(&self.folder).args(["sh", "-c", words]).env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("SYSTEMD_COLORS", "0")
            .env("LC_ALL", "C.UTF-8");
        run(&mut command)
    }
}
