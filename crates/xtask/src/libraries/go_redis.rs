//! go-redis: Debian's package has its tests, except for the examples. They are built with Debian's
//! Go and Ginkgo in GOPATH mode, which needs no module proxy.
//!
//! Few lines of the tests are replaced: the names of the two test libraries, which Debian has under
//! their original names, and the options of the client, which get a pause.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use setup::{files, go, must};

use super::catalogue::Library;
use super::outcomes::{Outcome, Outcomes};

/// Libraries that it and its tests use.
const LIBRARIES: [&str; 4] = [
    "golang-github-onsi-ginkgo-v2-dev",
    "golang-gomega-dev",
    "golang-github-cespare-xxhash-dev",
    "golang-github-dgryski-go-rendezvous-dev",
];
const IMPORT: &str = "github.com/redis/go-redis/v9";
pub(super) const PAUSE: &str = include_str!("pause_test.go");
/// Replaced words: the file, the words, and the replacement.
const REPLACED: [(&str, &str, &str); 3] = [
    ("", "github.com/bsm/ginkgo/v2", "github.com/onsi/ginkgo/v2"),
    ("", "github.com/bsm/gomega", "github.com/onsi/gomega"),
    ("main_test.go", "Addr: redisAddr,", "Addr: redisAddr, OnConnect: pauseAfterHandshake,"),
];
/// The order of the tests.
const SEED: &str = "--ginkgo.seed=1";

/// Downloads the library and its tools into a folder, and builds its tests.
///
/// # Errors
/// A message for people, with the command that failed.
pub(super) fn fetch(library: &Library, folder: &Path) -> Result<(), String> {
    go::fetch(folder, &LIBRARIES)?;
    let sum = Some(library.sha256.as_str());
    let place = go::fetch_library(folder, &library.origin, IMPORT, sum).map_err(|why| {
        format!("{why}\n    If the suite has another version now, list it in libraries.json.")
    })?;
    adapt(&place)?;
    build(folder)
}

/// Replaces what has to be replaced in the tests, and adds the pause.
fn adapt(place: &Path) -> Result<(), String> {
    let mut missing: Vec<&str> = REPLACED.iter().map(|(_, words, _)| *words).collect();
    for path in files::list(place)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with("_test.go") {
            continue;
        }
        let text = files::read(&path)?;
        let mut adapted = text.clone();
        for (file, words, instead) in REPLACED {
            if (file.is_empty() || file == name) && adapted.contains(words) {
                missing.retain(|it| *it != words);
                adapted = adapted.replace(words, instead);
            }
        }
        if adapted != text {
            files::write(&path, adapted)?;
        }
    }
    files::write(place.join("pause_test.go"), PAUSE)?;
    if missing.is_empty() { Ok(()) } else { Err(format!("no test has {}", missing.join(", "))) }
}

fn build(folder: &Path) -> Result<(), String> {
    let mut command = go::command(folder)?;
    command.current_dir(source(folder)).args(["test", "-c", "-vet=off", "-o"]).arg(program(folder));
    must(&mut command)
}

/// The command that runs the tests and writes their outcomes into a file.
pub(super) fn command(library: &Library, folder: &Path, outcomes: &Path) -> Command {
    let mut command = Command::new(program(folder));
    command.current_dir(source(folder));
    command.args(["-test.run", "^TestGinkgoSuite$", "--ginkgo.v", "--ginkgo.no-color", SEED]);
    for name in library.left_out() {
        let kind = if name.ends_with(".go") { "skip-file" } else { "skip" };
        command.arg(format!("--ginkgo.{kind}={name}"));
    }
    let mut report = OsString::from("--ginkgo.json-report=");
    report.push(outcomes);
    // With this variable the tests start and expect no other servers.
    command.arg(report).env("RE_CLUSTER", "true").env("REDIS_VERSION", "8.2");
    command
}

/// What Ginkgo reported. Specifications of files that are left out count for nothing.
///
/// # Errors
/// If the report has another form.
pub(super) fn outcomes(text: &str) -> Result<Outcomes, String> {
    let report: Value =
        serde_json::from_str(text).map_err(|error| format!("no report: {error}"))?;
    let suites = report.as_array().into_iter().flatten();
    let specs = suites.filter_map(|suite| suite.get("SpecReports")?.as_array()).flatten();
    let mut outcomes = Outcomes::default();
    for spec in specs.filter(|spec| word(spec, "LeafNodeType") == "It") {
        let outcome = match word(spec, "State") {
            "passed" => Outcome::Passed,
            "skipped" | "pending" => Outcome::Skipped,
            _ => Outcome::Failed,
        };
        let containers = spec.get("ContainerHierarchyTexts").and_then(Value::as_array);
        let containers = containers.into_iter().flatten().filter_map(Value::as_str);
        let words: Vec<&str> = containers.chain([word(spec, "LeafNodeText")]).collect();
        let name = words.join(" ");
        // Some names are given twice.
        let numbered = (2..).map(|number| format!("{name} #{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        if let Some(name) = names.find(|name| !outcomes.has(name)) {
            outcomes.add(&name, outcome);
        }
    }
    Ok(outcomes)
}

fn word<'a>(of: &'a Value, key: &str) -> &'a str {
    of.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Where Go looks for it.
fn source(folder: &Path) -> PathBuf {
    folder.join("gopath/src").join(IMPORT)
}

fn program(folder: &Path) -> PathBuf {
    folder.join("go-redis.test")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_report_with_equal_names() {
        let spec = |state: &str| {
            format!(
                r#"{{"ContainerHierarchyTexts": ["Commands", "server"], "LeafNodeType": "It",
                    "LeafNodeText": "pings", "State": "{state}"}}"#
            )
        };
        let suite = r#"{"ContainerHierarchyTexts": null, "LeafNodeType": "BeforeSuite"}"#;
        let specs = [suite.to_owned(), spec("passed"), spec("panicked"), spec("skipped")];
        let text = format!(r#"[{{"SpecReports": [{}]}}]"#, specs.join(","));
        let found = outcomes(&text).expect("a report");
        let names =
            ["Commands server pings", "Commands server pings #2", "Commands server pings #3"];
        assert_eq!(names.map(|name| found.word(name)), ["passed", "failed", "skipped"]);
        assert!(outcomes("").is_err());
    }

    #[test]
    fn adapts_tests_and_misses_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let main = folder.path().join("main_test.go");
        let text = "import \"github.com/bsm/ginkgo/v2\"\n&Options{Addr: redisAddr, DB: 0}\n";
        fs::write(&main, text).expect("a file");
        let missing = adapt(folder.path()).expect_err("no gomega");
        assert_eq!(missing, "no test has github.com/bsm/gomega");
        fs::write(&main, format!("{text}import \"github.com/bsm/gomega\"\n")).expect("a file");
        adapt(folder.path()).expect("all of them");
        let adapted = fs::read_to_string(&main).expect("the file");
        assert!(adapted.contains("onsi/gomega") && adapted.contains("pauseAfterHandshake, DB: 0"));
        assert!(folder.path().join("pause_test.go").is_file());
    }
}
