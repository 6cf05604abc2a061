//! The units of systemd, as systemd itself reads them: nothing to object to, and locked up as
//! tightly as they were.

use std::process::Command;

use setup::{files, root, run};

use super::tools::Tools;

/// How `systemd-analyze` judges the service. The worst score that passes is in tenths: 0 is locked
/// up, 100 is wide open.
pub(crate) const SECURITY: &str = "security --offline=true --no-pager --threshold 13";
/// What is verified.
pub(crate) const UNITS: [&str; 3] =
    ["pointsman.service", "pointsman.socket", "pointsman-tls.socket"];

pub(super) fn check(_: &Tools) -> Result<String, String> {
    if harness::find_in_path("systemd-analyze").is_none() {
        return Err("systemd-analyze is not here: it is in Debian's systemd".to_owned());
    }
    let program = setup::build::of_tests("deploy", "pointsman")?;
    let temp = files::temporary()?;
    for unit in UNITS {
        let text = files::read(root().join("deploy/systemd").join(unit))?;
        // The program is installed nowhere, and a unit whose program is missing is objected to.
        let text = text.replace("=/usr/bin/pointsman ", &format!("={} ", program.display()));
        files::write(temp.path().join(unit), text)?;
    }
    let analyze = |args: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("systemd-analyze {args} 2>&1")]).env("SYSTEMD_COLORS", "0");
        run(command.current_dir(temp.path()))
    };
    // It ends well whatever it finds in files around them; what it says of ours has their names.
    let own = UNITS.map(|unit| format!("./{unit}"));
    let said = analyze(&format!("verify --man=no {}", own.join(" ")))?;
    let is_ours = |line: &&str| UNITS.iter().any(|unit| line.contains(unit));
    if let Some(line) = said.lines().find(is_ours) {
        return Err(format!("systemd-analyze verify: {line}"));
    }
    score(&analyze(&format!("{SECURITY} {}", own[0]))?)
}

/// The last line of `systemd-analyze security`, or all of it where that is missing.
pub(crate) fn score(said: &str) -> Result<String, String> {
    let overall = said
        .lines()
        .find_map(|line| line.split_once("Overall exposure level for pointsman.service: "));
    overall.map(|(_, score)| format!("exposure {}", score.trim())).ok_or_else(|| said.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_found_or_everything_is_told() {
        assert_eq!(
            score("x\n→ Overall exposure level for pointsman.service: 1.2 OK\n").unwrap(),
            "exposure 1.2 OK"
        );
        assert_eq!(score("Failed").unwrap_err(), "Failed");
    }
}
