//! Whether a release carries one version: the git tag, Cargo's version, and the chart's `version`
//! and `appVersion`.
//!
//! The release workflow asks before it builds anything, because nothing of a release can be taken
//! back: a tag `v0.2.0` on a commit that still says 0.1.0 would push an image under the wrong name.

use setup::{files, root};

const CHART: &str = "deploy/helm/pointsman/Chart.yaml";

/// Compares a git tag with what this checkout says.
///
/// # Errors
/// Every disagreement, one per line.
pub(super) fn check(tag: &str) -> Result<String, String> {
    let path = root().join(CHART);
    let chart = files::read(&path)?;
    agree(tag, env!("CARGO_PKG_VERSION"), &chart)?;
    Ok(format!("{tag} is the version of Cargo.toml and of the chart."))
}

fn agree(tag: &str, cargo: &str, chart: &str) -> Result<(), String> {
    // An OCI tag cannot contain the `+` of build metadata. Cargo refuses what is no version.
    let Some(wanted) = tag.strip_prefix('v').filter(|it| !it.contains('+')) else {
        return Err(format!("the tag {tag:?} is not `v` and a version, such as v0.1.0"));
    };
    let mut faults = Vec::new();
    let mut compare = |what: &str, found: Option<&str>| match found {
        Some(found) if found == wanted => {}
        Some(found) => faults.push(format!("{what} is {found}, the tag says {wanted}")),
        None => faults.push(format!("{what} is missing, the tag says {wanted}")),
    };
    compare("version in Cargo.toml", Some(cargo));
    for key in ["version", "appVersion"] {
        compare(&format!("{key} in {CHART}"), top_level(chart, key));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// The value of a key at the left margin of a YAML file, without quotes and comment.
fn top_level<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    Some(value.trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: &str =
        "apiVersion: v2\nname: x\nversion: 1.2.3 # of the chart\nappVersion: \"1.2.3\"\n";

    #[test]
    fn accepts_one_version_everywhere() {
        assert_eq!(agree("v1.2.3", "1.2.3", SAME), Ok(()));
        let pre = SAME.replace("1.2.3", "1.2.3-rc.1");
        assert_eq!(agree("v1.2.3-rc.1", "1.2.3-rc.1", &pre), Ok(()));
    }

    #[test]
    fn names_every_file_that_disagrees() {
        let said = agree("v1.3.0", "1.2.3", SAME).unwrap_err();
        assert_eq!(said.lines().count(), 3, "{said}");
        assert!(said.contains("version in Cargo.toml is 1.2.3, the tag says 1.3.0"), "{said}");
        for (from, to, what) in [
            ("version: 1.2.3 ", "version: 1.2.4 ", "version in"),
            ("appVersion: \"1.2.3\"", "appVersion: 1.2.4", "appVersion in"),
            ("appVersion: \"1.2.3\"", "", "appVersion in"),
        ] {
            let said = agree("v1.2.3", "1.2.3", &SAME.replace(from, to)).unwrap_err();
            assert!(said.starts_with(what) && said.lines().count() == 1, "{said}");
        }
    }

    #[test]
    fn refuses_tags_that_are_no_version() {
        for tag in ["1.2.3", "1.2.3+build", "v1.2.3+build", "next", ""] {
            let said = agree(tag, "1.2.3", SAME).unwrap_err();
            assert!(said.contains("is not `v` and a version"), "{tag}: {said}");
        }
        for tag in ["v1.2", "v1.2.3.4", "v01.2.3", "v1.2.3-", "v", "vnext"] {
            let said = agree(tag, "1.2.3", SAME).unwrap_err();
            assert!(said.starts_with("version in Cargo.toml is 1.2.3, the tag says"), "{said}");
        }
    }

    /// A key of the same name further inside belongs to a dependency.
    #[test]
    fn reads_keys_at_the_margin_only() {
        let text = "dependencies:\n  - name: a\n    version: 9.9.9\nversion: '1.2.3'\n";
        assert_eq!(top_level(text, "version"), Some("1.2.3"));
        assert_eq!(top_level(text, "appVersion"), None);
    }

    #[test]
    fn this_checkout_has_one_version() {
        check(concat!("v", env!("CARGO_PKG_VERSION"))).unwrap();
        assert!(check("v99.0.0").is_err());
    }
}
