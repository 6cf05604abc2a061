//! Decides how missing packages are installed. Pure: the caller looks at the machine and runs the
//! commands.

/// A program that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// Its name, for people.
    pub(crate) what: &'static str,
    /// The Debian package that contains it. `redis-tools` contains the whole server under another
    /// name and starts no daemon.
    pub(crate) package: &'static str,
}

/// redis-server and redis-sentinel.
pub(crate) const REDIS: Need =
    Need { what: "redis-server and redis-sentinel", package: "redis-tools" };

/// haproxy, the peer that Pointsman is compared with.
pub(crate) const HAPROXY: Need = Need { what: "haproxy", package: "haproxy" };
/// `nft`, for network partitions.
pub(crate) const NFTABLES: Need = Need { what: "nft", package: "nftables" };
/// `ip`, for network namespaces.
pub(crate) const IPROUTE: Need = Need { what: "ip", package: "iproute2" };

/// openssl, a TLS client that shares no code with ours.
pub(crate) const OPENSSL: Need = Need { what: "openssl", package: "openssl" };

/// A browser, for the test of the status page.
pub(crate) const BROWSER: Need = Need { what: "a Chromium", package: "chromium" };
/// `npm`, which fetches axe-core for the accessibility test of the status page.
pub(crate) const NPM: Need = Need { what: "npm", package: "npm" };

/// Valgrind, which counts instructions.
pub(crate) const VALGRIND: Need = Need { what: "valgrind", package: "valgrind" };

/// The tools that build, read and try out the release packages and the image.
pub(crate) const DIST: [Need; 6] = [
    Need { what: "buildah", package: "buildah" },
    Need { what: "debootstrap", package: "debootstrap" },
    Need { what: "dpkg-shlibdeps", package: "dpkg-dev" },
    Need { what: "lintian", package: "lintian" },
    Need { what: "rpmbuild", package: "rpm" },
    Need { what: "rpmlint", package: "rpmlint" },
];

/// What is known about package management on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) root: bool,
    pub(crate) apt: bool,
    /// Whether apt knows the packages. If not, its lists are fetched first.
    pub(crate) lists: bool,
}

/// The steps to take for the missing packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing is missing.
    Nothing,
    /// Run these commands in order, each a list of arguments.
    Install(Vec<Vec<String>>),
    /// Print this text and stop: the user has to decide.
    Tell(String),
}

/// Decides how to get `missing`.
pub(crate) fn plan(missing: &[Need], machine: Machine) -> Plan {
    if missing.is_empty() {
        return Plan::Nothing;
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    let whats: Vec<&str> = missing.iter().map(|need| need.what).collect();
    let lacking = format!("This needs {}, which this machine lacks.", whats.join(" and "));
    if !machine.apt {
        let names = missing.iter().map(|need| need.package).collect::<Vec<_>>().join(", ");
        let elsewhere = |need: &Need| match *need {
            REDIS => {
                "Elsewhere install Redis 7 or newer, or Valkey, and set REDIS_SERVER and REDIS_SENTINEL to its programs\n\
                      if they are called otherwise.\n"
            }
            BROWSER => {
                "Elsewhere install Chromium or Chrome, and set CHROMIUM to its program if it is called otherwise.\n"
            }
            _ => "",
        };
        let elsewhere: String = missing.iter().map(elsewhere).collect();
        return Plan::Tell(format!(
            "{lacking}\nDebian and Ubuntu have it in: {names}. {}",
            elsewhere.trim_end()
        ));
    }
    let install = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    if !machine.root {
        return Plan::Tell(format!(
            "{lacking} Please run:\n\n    sudo apt-get update && sudo {install}\n"
        ));
    }
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let update = words("apt-get update -qq");
    let install = words(&install.replacen("install", "install -qq", 1));
    Plan::Install(if machine.lists { vec![install] } else { vec![update, install] })
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Machine = Machine { root: true, apt: true, lists: true };

    fn commands(plan: Plan) -> Vec<String> {
        match plan {
            Plan::Install(commands) => commands.iter().map(|words| words.join(" ")).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn does_nothing_if_nothing_is_missing() {
        assert_eq!(plan(&[], Machine { root: false, apt: false, lists: false }), Plan::Nothing);
    }

    #[test]
    fn fetches_lists_only_if_missing() {
        let install = "apt-get install -qq -y --no-install-recommends redis-tools";
        assert_eq!(commands(plan(&[REDIS], READY)), [install]);
        assert_eq!(
            commands(plan(&[REDIS], Machine { lists: false, ..READY })),
            ["apt-get update -qq", install]
        );
    }

    #[test]
    fn prints_exact_command_for_other_users() {
        let Plan::Tell(text) = plan(&[REDIS], Machine { root: false, ..READY }) else {
            panic!("only root installs")
        };
        assert!(text.contains(
            "sudo apt-get update && sudo apt-get install -y --no-install-recommends redis-tools\n"
        ));
        let Plan::Tell(text) = plan(&[REDIS], Machine { apt: false, ..READY }) else {
            panic!("no apt, no install")
        };
        assert!(text.contains("redis-tools") && !text.contains("apt-get"));
    }
}
