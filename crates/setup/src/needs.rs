//! The packages that commands need, and what a person is told who has to install them.

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

/// What a person is told who has to install `missing`, with apt or without.
pub(crate) fn advice(missing: &[Need], apt: bool) -> String {
    let join = |of: fn(&Need) -> &str, separator| -> String {
        missing.iter().map(of).collect::<Vec<_>>().join(separator)
    };
    let whats = join(|need| need.what, " and ");
    let lacking = format!("This needs {whats}, which this machine lacks.");
    if apt {
        let packages = join(|need| need.package, " ");
        return format!(
            "{lacking} Please run:\n\n    sudo apt-get update && sudo apt-get install -y --no-install-recommends {packages}\n"
        );
    }
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
    let packages = join(|need| need.package, ", ");
    format!("{lacking}\nDebian and Ubuntu have it in: {packages}. {}", elsewhere.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_exact_command_for_other_users() {
        assert!(advice(&[REDIS], true).contains(
            "sudo apt-get update && sudo apt-get install -y --no-install-recommends redis-tools\n"
        ));
        let text = advice(&[REDIS, NPM], false);
        assert!(text.contains("redis-tools, npm") && !text.contains("apt-get"));
    }
}
