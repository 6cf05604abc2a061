//! Which libraries are tested, with which server, what is left out, and which differences are
//! known: the data of `libraries.json`.

use serde::Deserialize;

use super::outcomes::Way;

/// A library whose own tests are run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Library {
    /// Its name on the command line and its folder.
    pub(super) name: String,
    pub(super) version: String,
    /// The name of its server in servers.json.
    pub(super) server: String,
    /// The package with its tests, as its package manager wants it.
    pub(super) origin: String,
    /// The suite of Debian that has the source of the package, if the tests come from a source.
    #[serde(default)]
    pub(super) suite: String,
    /// Of that package.
    pub(super) sha256: String,
    #[serde(default)]
    left_out: Vec<LeftOut>,
}

/// Tests that are run in no way: files, folders, or the beginnings of names.
#[derive(Debug, Deserialize)]
struct LeftOut {
    #[serde(rename = "reason")]
    _reason: String,
    tests: Vec<String>,
}

/// Tests that pass or fail otherwise than directly, and why that is no fault.
#[derive(Debug, Deserialize)]
struct Difference {
    library: String,
    #[serde(rename = "reason")]
    _reason: String,
    ways: Vec<String>,
    tests: Vec<String>,
}

/// All that the file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Catalogue {
    #[serde(default)]
    pub(super) libraries: Vec<Library>,
    #[serde(default)]
    differences: Vec<Difference>,
}

impl Library {
    /// Tests that are run in no way.
    pub(super) fn left_out(&self) -> impl Iterator<Item = &String> {
        self.left_out.iter().flat_map(|group| &group.tests)
    }
}

impl Catalogue {
    /// The one of this repository.
    ///
    /// # Errors
    /// If the file does not have the expected form.
    pub(super) fn own() -> Result<Self, String> {
        parse(include_str!("libraries.json"))
    }

    /// Whether a test of a library is known to differ this way. A listed name stands for all its
    /// parameters, which redis-py's tests have in brackets.
    pub(super) fn explains(&self, library: &str, way: Way, test: &str) -> bool {
        let is_test = |name: &String| {
            test.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        };
        self.differences.iter().any(|it| {
            it.library == library
                && it.ways.iter().any(|name| name == way.name())
                && it.tests.iter().any(is_test)
        })
    }
}

fn parse(text: &str) -> Result<Catalogue, String> {
    serde_json::from_str(text).map_err(|error| format!("libraries.json: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refers_to_listed_libraries_and_ways_only() {
        let own = Catalogue::own().expect("a sound file");
        assert_eq!(own.libraries.len(), 6);
        for library in &own.libraries {
            assert!(library.sha256.len() == 64, "{}", library.name);
            // The sum of the archive alone says which version of Redis it is.
            assert!(library.origin.contains(&library.version) || library.origin == "redis");
        }
        for it in &own.differences {
            assert!(own.libraries.iter().any(|library| library.name == it.library), "{it:?}");
            assert!(!it.tests.is_empty() && !it.ways.is_empty(), "{it:?}");
            for way in &it.ways {
                let is_proxied = |it: &&Way| it.name() == way && **it != Way::Direct;
                assert!(Way::ALL.iter().any(|it| is_proxied(&it)), "{way}");
            }
        }
    }

    #[test]
    fn demands_reasons() {
        let text = |reason: &str| {
            format!(
                r#"{{"differences": [
                    {{"library": "l", "ways": ["shared"], "tests": ["t"]{reason}}}]}}"#
            )
        };
        let known = parse(&text(r#", "reason": "r""#)).expect("a reason");
        assert!(known.explains("l", Way::Shared, "t") && known.explains("l", Way::Shared, "t[a]"));
        assert!(!known.explains("l", Way::Shared, "to") && !known.explains("l", Way::Shared, ""));
        assert!(!known.explains("l", Way::Dedicated, "t"));
        assert!(!known.explains("other", Way::Shared, "t"));
        assert!(parse(&text("")).is_err());
    }
}
