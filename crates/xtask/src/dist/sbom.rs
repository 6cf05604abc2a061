//! The SBOM: a CycloneDX list of the crates that the program links, from `cargo tree`.
//!
//! It contains only linked crates, without dependencies of tests, builds and benchmarks. It has no
//! time and no random number, so that two lists of one commit are equal.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The list, and the number of crates in it. The tree has lines of the form `DEPTH|NAME
/// vVERSION|LICENSE`, in which the dependencies of a package follow it.
///
/// # Errors
/// The lines have another form.
pub(super) fn of(tree: &str) -> Result<(String, usize), String> {
    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    let mut dependencies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut above: Vec<String> = Vec::new();
    for line in tree.lines() {
        let parts: Vec<&str> = line.split(['|', ' ']).collect();
        let [depth, name, version, ..] = parts[..] else { return Err(format!("no crate: {line}")) };
        let version = version.trim_start_matches('v');
        let purl = format!("pkg:cargo/{name}@{version}");
        above.truncate(depth.parse().map_err(|_| format!("no depth: {line}"))?);
        if let Some(parent) = above.last() {
            dependencies.entry(parent.clone()).or_default().insert(purl.clone());
        }
        dependencies.entry(purl.clone()).or_default();
        let kind = if above.is_empty() { "application" } else { "library" };
        let mut component = json!({
            "type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl,
        });
        if let Some((_, license)) = line.rsplit_once('|').filter(|(_, license)| !license.is_empty())
        {
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        components.insert(purl.clone(), component);
        above.push(purl);
    }
    let top = above.first().and_then(|top| components.remove(top)).ok_or("no crates")?;
    let depends = |(purl, on): (&String, _)| json!({ "ref": purl, "dependsOn": on });
    let bom = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": top },
        "components": components.values().collect::<Vec<_>>(),
        "dependencies": dependencies.iter().map(depends).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&bom).map_err(|error| error.to_string())?;
    Ok((text + "\n", components.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_packages_once_with_their_dependencies() {
        let tree = "0|pointsman v1.0.0 (/tree)|Apache-2.0\n1|used v1.0.0|MIT/Apache-2.0\n\
                    2|deep v0.1.0 (proc-macro)|MIT OR Zlib\n1|deep v0.1.0 (proc-macro)|MIT OR Zlib\n";
        let (text, count) = of(tree).unwrap();
        assert_eq!(count, 2);
        let bom: Value = serde_json::from_str(&text).unwrap();
        let names: Vec<_> =
            bom["components"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["deep", "used"]);
        assert_eq!(bom["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bom["components"][0]["licenses"][0]["expression"], "MIT OR Zlib");
        assert_eq!(bom["metadata"]["component"]["purl"], "pkg:cargo/pointsman@1.0.0");
        let on: Vec<_> = bom["dependencies"].as_array().unwrap().iter().collect();
        assert_eq!(on[1]["ref"], "pkg:cargo/pointsman@1.0.0");
        assert_eq!(on[1]["dependsOn"].as_array().unwrap().len(), 2);
        assert_eq!(on[2]["dependsOn"], json!(["pkg:cargo/deep@0.1.0"]));
        assert!(of("").is_err() && of("nothing").is_err());
    }
}
