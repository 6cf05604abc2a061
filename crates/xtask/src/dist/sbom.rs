//! The SBOM: a CycloneDX list of the crates that the program links, from cargo's metadata.
//!
//! It contains only linked crates, without dependencies of tests, builds and benchmarks. It has no
//! time and no random number, so that two lists of one commit are equal.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The list, and the number of crates in it.
///
/// # Errors
/// The metadata is not in cargo's format.
pub(super) fn of(metadata: &str) -> Result<(String, usize), String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|it| (text(&it["id"]), it)).collect();
    let nodes: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), linked(node)))
        .collect();
    let top = packages
        .iter()
        .find(|(_, it)| it["name"] == "pointsman")
        .map(|(id, _)| id.clone())
        .ok_or("no package pointsman")?;
    let mut seen = BTreeSet::from([top.clone()]);
    let mut ahead = vec![top.clone()];
    while let Some(id) = ahead.pop() {
        for next in nodes.get(&id).into_iter().flatten() {
            if seen.insert(next.clone()) {
                ahead.push(next.clone());
            }
        }
    }
    let reference = |id: &String| packages.get(id).map(purl).unwrap_or_default();
    let component = |id: &String| {
        let it = packages.get(id)?;
        let kind = if *id == top { "application" } else { "library" };
        let mut component = json!({
            "type": kind, "bom-ref": purl(it), "name": it["name"], "version": it["version"], "purl": purl(it),
        });
        if let Some(license) = it["license"].as_str() {
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        Some(component)
    };
    let components: Vec<Value> =
        seen.iter().filter(|id| **id != top).filter_map(component).collect();
    let dependencies: Vec<Value> = seen
        .iter()
        .map(|id| {
            let on: BTreeSet<String> = nodes.get(id).into_iter().flatten().map(reference).collect();
            json!({ "ref": reference(id), "dependsOn": on })
        })
        .collect();
    let bom = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": component(&top) },
        "components": components,
        "dependencies": dependencies,
    });
    let text = serde_json::to_string_pretty(&bom).map_err(|error| error.to_string())?;
    Ok((text + "\n", components.len()))
}

/// The packages that a node links: its normal dependencies.
fn linked(node: &Value) -> Vec<String> {
    let ordinary = |dep: &&Value| {
        dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|it| it["kind"].is_null()))
    };
    let all = node["deps"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(ordinary).filter_map(|dep| dep["pkg"].as_str().map(str::to_owned)).collect()
}

fn purl(package: &Value) -> String {
    let part = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", part("name"), part("version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_only_linked_packages() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let dep = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("pointsman"), package("used"), package("deep"), package("tester"), package("stray")],
            "resolve": {"nodes": [
                {"id": "pointsman", "deps": [dep("used", Value::Null), dep("tester", json!("dev"))]},
                {"id": "used", "deps": [dep("deep", Value::Null)]},
                {"id": "tester", "deps": [dep("stray", Value::Null)]},
                {"id": "deep", "deps": []},
            ]},
        });
        let (text, count) = of(&metadata.to_string()).unwrap();
        assert_eq!(count, 2);
        let bom: Value = serde_json::from_str(&text).unwrap();
        let names: Vec<_> = bom["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["deep", "used"]);
        assert_eq!(bom["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bom["metadata"]["component"]["purl"], "pkg:cargo/pointsman@1.0.0");
        assert!(of("{}").is_err());
    }
}
