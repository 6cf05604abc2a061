//! The rules of the house, as tests: which crate may use which, which files only decide, how long
//! anything may get, and that every promise of the documents names a test that exists. A rule that
//! only stands in a document is broken by the next change.
#![allow(clippy::expect_used, clippy::panic, reason = "tests report by a clear panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const MOST_LINES_A_FILE: usize = 400;
const MOST_LINES_A_FUNCTION: usize = 70;

/// Longer files that have one subject all the same, with the reason.
const LONG_FILES: &[(&str, &str)] = &[
    (
        "crates/pointsman/src/config/options.rs",
        "one table: every configuration key with its documentation",
    ),
    (
        "crates/pointsman/src/config/tests.rs",
        "one subject: the layers of the configuration together",
    ),
    ("crates/pointsman/src/admin/metrics/catalogue.rs", "one table: every metric with its help"),
    (
        "crates/resp/src/ledger/mod.rs",
        "one type: what both directions of a session add to its ledger",
    ),
    (
        "crates/resp/src/replay/recorder.rs",
        "one type: which requests are copied, and what their answers make of them",
    ),
    (
        "crates/simulator/src/proxy/driver.rs",
        "all of the simulator that knows the machine's events and actions",
    ),
    ("crates/sentinel/tests/model/world.rs", "one model: its state, its steps and its account"),
];

/// The crates that each crate may depend on. A crate that is not listed may depend on none.
const ARROWS: &[(&str, &[&str])] = &[
    ("pointsman", &["admin-http", "drain", "haproxy-import", "proxy", "sentinel", "target"]),
    ("sentinel", &["resp", "target"]),
    ("proxy", &["drain", "resp", "target"]),
    ("simulator", &["sentinel", "target"]),
    ("setup", &["harness"]),
    ("bench", &["harness", "setup"]),
    ("xtask", &["bench", "harness", "setup"]),
];

/// Files that decide: no runtime, no socket, no clock of their own, no log.
const PURE: &[&str] = &[
    "crates/drain/src/plan.rs",
    "crates/haproxy-import/src/",
    "crates/proxy/src/listener/accept_errors.rs",
    "crates/proxy/src/session/end_reason.rs",
    "crates/proxy/src/runtime/run_queue.rs",
    "crates/resp/src/",
    "crates/target/src/balance.rs",
    "crates/target/src/look.rs",
    "crates/sentinel/src/doctor/diagnose.rs",
    "crates/sentinel/src/doctor/nodes.rs",
    "crates/sentinel/src/doctor/observed.rs",
    "crates/sentinel/src/doctor/read.rs",
    "crates/sentinel/src/doctor/settings.rs",
    "crates/sentinel/src/discovery/clock_jumps.rs",
    "crates/sentinel/src/machine/",
    "crates/sentinel/src/link/notice.rs",
    "crates/sentinel/src/link/poll.rs",
    "crates/sentinel/src/link/reply.rs",
    "crates/sentinel/src/replicas/eligibility/",
    "crates/sentinel/src/discovery/majority_clock.rs",
    "crates/sentinel/src/switchover/course.rs",
    "crates/sentinel/src/switchover/failover.rs",
    "crates/sentinel/src/switchover/leader.rs",
    "crates/sentinel/src/switchover/pausing.rs",
    "crates/sentinel/src/switchover/phase.rs",
    "crates/sentinel/src/switchover/reason.rs",
    "crates/sentinel/src/switchover/steps.rs",
    "crates/sentinel/src/switchover/weigh.rs",
    "crates/sentinel/src/machine/rules.rs",
    "crates/sentinel/src/types.rs",
];

/// What gives a file that does more than decide away.
const IMPURE: &[&str] = &[
    "tokio::",
    "tracing::",
    "Instant::now",
    "SystemTime",
    "std::fs",
    "std::thread",
    "std::env",
    "TcpStream",
    "UdpSocket",
    "fastrand",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("a folder's entry").path();
        if path.is_dir() {
            if path != root().join("target")
                && path.file_name().is_some_and(|name| name != "corpus")
            {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// Every Rust source, by its path from the root, with its text.
fn sources() -> BTreeMap<String, String> {
    let mut found = Vec::new();
    for folder in ["crates", "tests", "benches"] {
        walk(&root().join(folder), &mut found);
    }
    let rust =
        found.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let sources: BTreeMap<String, String> = rust
        .map(|path| {
            let name =
                path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, text)
        })
        .collect();
    assert!(sources.len() > 50, "the walk found only {} sources", sources.len());
    sources
}

fn fail_on(what: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{what}:\n  {}", breaches.join("\n  "));
}

/// Whether a file holds tests only.
fn is_test(name: &str) -> bool {
    name.contains("tests/") || name.ends_with("tests.rs") || name.ends_with("testing.rs")
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let mut breaches = Vec::new();
    let mut manifests = vec![("pointsman".to_owned(), root().join("Cargo.toml"))];
    for (name, _) in sources() {
        if let Some(name) =
            name.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/src/lib.rs"))
        {
            let manifest = root().join("crates").join(name).join("Cargo.toml");
            if manifest.exists() {
                manifests.push((name.to_owned(), manifest));
            }
        }
    }
    assert!(manifests.len() >= 7, "only {} manifests", manifests.len());
    let rooms: Vec<String> = manifests.iter().map(|(name, _)| name.clone()).collect();
    for (name, manifest) in &manifests {
        let text = fs::read_to_string(manifest).expect("a manifest");
        let manifest: toml::Table = text.parse().expect("TOML");
        let dependencies = manifest
            .get("dependencies")
            .and_then(toml::Value::as_table)
            .cloned()
            .unwrap_or_default();
        let allowed = ARROWS.iter().find(|(from, _)| from == name).map_or(&[][..], |(_, to)| to);
        for dependency in dependencies.keys().filter(|dependency| rooms.contains(dependency)) {
            if !allowed.contains(&dependency.as_str()) {
                breaches.push(format!("{name} uses {dependency}"));
            }
        }
    }
    fail_on("arrows that are not in the picture (docs/architecture.md)", &breaches);
}

#[test]
fn deciding_files_are_pure() {
    let mut breaches = Vec::new();
    let sources = sources();
    for rule in PURE {
        assert!(sources.keys().any(|name| name.starts_with(rule)), "no file is meant by {rule}");
    }
    for (name, text) in &sources {
        if is_test(name) || !PURE.iter().any(|rule| name.starts_with(rule)) {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        for (number, line) in
            code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                breaches.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    fail_on("files that should only decide", &breaches);
}

#[test]
fn files_are_short_and_begin_with_a_header() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        let listed = LONG_FILES.iter().any(|(file, _)| *file == name);
        if lines > MOST_LINES_A_FILE && !listed {
            breaches.push(format!(
                "{name} has {lines} lines, more than {MOST_LINES_A_FILE}: are there two subjects?"
            ));
        }
        if lines <= MOST_LINES_A_FILE && listed {
            breaches.push(format!("{name} has {lines} lines and needs no exception"));
        }
        if !text.starts_with("//! ") {
            breaches.push(format!("{name} does not begin with a module header"));
        }
    }
    fail_on("files", &breaches);
}

struct LongFunctions<'a> {
    file: &'a str,
    breaches: &'a mut Vec<String>,
}

impl LongFunctions<'_> {
    fn measure(&mut self, name: &syn::Ident, block: &syn::Block) {
        let lines = block.span().end().line.saturating_sub(block.span().start().line) + 1;
        if lines > MOST_LINES_A_FUNCTION {
            self.breaches.push(format!("{}: fn {name} has {lines} lines", self.file));
        }
    }
}

impl<'ast> Visit<'ast> for LongFunctions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

#[test]
fn functions_fit_on_a_screen() {
    let mut breaches = Vec::new();
    for (name, text) in sources() {
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        LongFunctions { file: &name, breaches: &mut breaches }.visit_file(&file);
    }
    fail_on("functions longer than a screen", &breaches);
}

/// Tests named in the guarantees and in the table of faults, as `file::test`.
#[test]
fn every_promise_names_a_test_that_exists() {
    let read = |file: &str| {
        fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    let promises = read("docs/guarantees.md") + &read("docs/what-happens-when.md");
    let sources = sources();
    let mut named = 0;
    let mut breaches = Vec::new();
    for quoted in promises.split('`').skip(1).step_by(2) {
        let Some((file, test)) = quoted.split_once("::").filter(|(file, _)| file.ends_with(".rs"))
        else {
            continue;
        };
        named += 1;
        let there = sources.get(file).is_some_and(|text| text.contains(&format!("fn {test}(")));
        if !there {
            breaches.push(quoted.to_owned());
        }
    }
    assert!(named >= 80, "only {named} tests are named");
    fail_on("promises without their test", &breaches);
}
