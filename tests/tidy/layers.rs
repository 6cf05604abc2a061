//! Which crate may depend on which, and that the folders of a crate use each other in one
//! direction.

use std::collections::{BTreeMap, BTreeSet};

use crate::{fail_on, is_test, read, root, sources};

/// The crates that each crate may depend on. A crate that is not listed may depend on none.
const CRATES: &[(&str, &[&str])] = &[
    (
        "pointsman",
        &["admin-http", "doctor", "drain", "haproxy-import", "proxy", "sentinel", "target", "tls"],
    ),
    ("admin-http", &["tls"]),
    ("doctor", &["sentinel", "tls"]),
    ("sentinel", &["resp", "target", "tls"]),
    ("proxy", &["drain", "resp", "target", "tls"]),
    ("simulator", &["sentinel", "target"]),
    ("setup", &["harness"]),
    ("bench", &["harness", "setup"]),
    ("xtask", &["bench", "harness", "setup"]),
];

/// Circles between the top-level modules of a crate that remain, and why.
const CIRCLES: &[(&str, &[&str], &str)] = &[(
    "proxy",
    &["session", "shared"],
    "a shared connection is dialled and replayed as that of a session, which in turn uses it",
)];

#[test]
fn keeps_crates_in_layers() {
    let mut manifests = vec![("pointsman".to_owned(), root().join("Cargo.toml"))];
    for (name, _) in sources() {
        let name = name.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/src/lib.rs"));
        let Some(name) = name else { continue };
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        if manifest.exists() {
            manifests.push((name.to_owned(), manifest));
        }
    }
    assert!(manifests.len() >= 10, "only {} manifests", manifests.len());
    let mut breaches = Vec::new();
    for (name, manifest) in &manifests {
        let text = std::fs::read_to_string(manifest).expect("a manifest");
        let manifest: toml::Table = text.parse().expect("TOML");
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let dependencies = dependencies.cloned().unwrap_or_default();
        let allowed = CRATES.iter().find(|(from, _)| from == name).map_or(&[][..], |(_, to)| to);
        for dependency in dependencies.keys() {
            let is_ours = manifests.iter().any(|(other, _)| other == dependency);
            if is_ours && !allowed.contains(&dependency.as_str()) {
                breaches.push(format!("{name} depends on {dependency}"));
            }
        }
    }
    fail_on("dependencies that docs/architecture.md does not have", &breaches);
}

/// The top-level modules that a file names by `crate::`, in `use` declarations and in paths.
fn uses(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code: Vec<&str> =
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = BTreeSet::new();
    for part in code.split("crate::").skip(1) {
        if let Some(list) = part.strip_prefix('{') {
            let list = list.split(';').next().unwrap_or(list);
            let mut depth = 0_usize;
            for item in list.split_inclusive([',', '{', '}']) {
                if depth == 0 {
                    found.insert(first_segment(item));
                }
                depth += usize::from(item.ends_with('{'));
                depth = depth.saturating_sub(usize::from(item.ends_with('}')));
            }
        } else {
            found.insert(first_segment(part));
        }
    }
    found
}

fn first_segment(path: &str) -> String {
    let path = path.trim_start();
    path.chars()
        .take_while(|it| it.is_ascii_lowercase() || *it == '_' || it.is_ascii_digit())
        .collect()
}

/// The modules that can be reached from `from`, without `from` itself unless by a circle.
fn reach<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if reached.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    reached
}

#[test]
fn keeps_folders_of_a_crate_in_layers() {
    let mut crates: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (name, text) in sources() {
        let parts: Vec<&str> = name.split('/').collect();
        let ["crates", krate, "src", module, ..] = parts[..] else { continue };
        let module = module.trim_end_matches(".rs");
        if is_test(&name) || ["lib", "main"].contains(&module) {
            continue;
        }
        let modules = crates.entry(krate.to_owned()).or_default();
        // In a file at the top of the crate, `super::` is the same as `crate::`.
        let text = if parts.len() == 4 { text.replace("super::", "crate::") } else { text };
        modules.entry(module.to_owned()).or_default().extend(uses(&text));
    }
    let mut breaches = Vec::new();
    for (krate, graph) in &crates {
        let in_circle: Vec<&str> =
            graph.keys().map(String::as_str).filter(|it| reach(graph, it).contains(it)).collect();
        let circle: Vec<&str> = in_circle
            .into_iter()
            .filter(|it| {
                graph.keys().any(|other| {
                    other != it
                        && reach(graph, it).contains(other.as_str())
                        && reach(graph, other).contains(it)
                })
            })
            .collect();
        let listed = CIRCLES.iter().find(|(listed, ..)| listed == krate).map_or(&[][..], |it| it.1);
        if circle != listed {
            breaches.push(format!("{krate}: {circle:?}, listed are {listed:?}"));
        }
    }
    fail_on("circles between the modules of a crate", &breaches);
}

#[test]
fn names_every_crate_in_the_architecture_document() {
    let document = read("docs/architecture.md");
    let breaches: Vec<String> = sources()
        .keys()
        .filter_map(|name| name.strip_prefix("crates/")?.split_once('/'))
        .map(|(krate, _)| krate.to_owned())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .filter(|krate| !document.contains(&format!("| `{krate}` |")))
        .collect();
    fail_on("crates that docs/architecture.md does not describe", &breaches);
}
