//! The chart: each example is rendered and validated by Kubernetes' schemas and by pointsman
//! itself. Single values are in `cases`, the pods in `pods`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use setup::{files, root, run};

use super::cases::cases;
use super::cluster::Cluster;
use super::tools::Tools;

/// Minor versions of Kubernetes that are supported; the schemas of all of them are there.
const VERSIONS: std::ops::RangeInclusive<u32> = 27..=37;
/// Objects of the Prometheus operator, whose schemas are not among Kubernetes' own.
const OPERATOR: &str = "monitoring.coreos.com/v1";

fn chart() -> String {
    root().join("deploy/helm/pointsman").to_string_lossy().into_owned()
}

/// The examples by their names, in order.
pub(super) fn examples() -> Result<Vec<(String, PathBuf)>, String> {
    let named =
        |path: PathBuf| (path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), path);
    let paths = files::list(root().join("deploy/helm/pointsman/examples"))?;
    let all: Vec<(String, PathBuf)> = paths.into_iter().map(named).collect();
    if all.len() < 5 { Err(format!("only {} examples", all.len())) } else { Ok(all) }
}

pub(super) fn template(tools: &Tools, values: &str, more: &[&str]) -> Result<String, String> {
    let chart = chart();
    let base = ["template", "proxy", &chart, "--namespace", "ns", "--values", values];
    tools.helm(base.iter().chain(more))
}

/// Like [`template`], with values that are in no file.
pub(super) fn template_with(
    tools: &Tools,
    values: &Value,
    more: &[&str],
) -> Result<String, String> {
    let file = files::temporary_with(&values.to_string())?;
    template(tools, &file.path().to_string_lossy(), more)
}

pub(super) fn objects(tools: &Tools, example: &Path) -> Result<Vec<Value>, String> {
    tools.documents(&template(tools, &example.to_string_lossy(), &[])?)
}

/// The values of an example.
pub(super) fn example(name: &str) -> PathBuf {
    root().join("deploy/helm/pointsman/examples").join(format!("{name}.yaml"))
}

pub(super) fn lint(tools: &Tools) -> Result<String, String> {
    let all = examples()?;
    for (_, path) in &all {
        tools.helm(["lint", "--strict", &chart(), "--values", &path.to_string_lossy()])?;
    }
    Ok(format!("{} examples", all.len()))
}

pub(super) fn schemas(tools: &Tools) -> Result<String, String> {
    let temp = files::temporary()?;
    let all = examples()?;
    for minor in VERSIONS {
        let version = format!("1.{minor}");
        let folder = temp.path().join(&version);
        files::make(&folder)?;
        for (name, path) in &all {
            let text = template(tools, &path.to_string_lossy(), &["--kube-version", &version])?;
            files::write(folder.join(format!("{name}.yaml")), text)?;
        }
    }
    let count = tools.schemas(temp.path())?;
    Ok(format!("{count} objects, 1.{} to 1.{}", VERSIONS.start(), VERSIONS.end()))
}

pub(super) fn operator(tools: &Tools) -> Result<String, String> {
    let mut found = Vec::new();
    for (_, path) in examples()? {
        found.extend(objects(tools, &path)?.into_iter().filter(|it| it["apiVersion"] == OPERATOR));
    }
    for kind in ["PodMonitor", "PrometheusRule", "ServiceMonitor"] {
        if !found.iter().any(|it| it["kind"] == kind) {
            return Err(format!("no example has a {kind}"));
        }
    }
    let count = found.len();
    tools.operator(&Value::Array(found))?;
    Ok(format!("{count} objects"))
}

/// The configuration in every ConfigMap, with secrets that exist, as pointsman itself reads it.
pub(super) fn configurations(tools: &Tools) -> Result<String, String> {
    let program = setup::build::of_tests("deploy", "pointsman")?;
    let folder = files::temporary()?;
    let write = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        files::write(&path, text)?;
        Ok::<_, String>(path.to_string_lossy().into_owned())
    };
    let secret = write("secret", b"a password, or a token")?;
    let certificates = harness::Certificates::new(folder.path());
    let issued = certificates.issue("issued", &["redis.example.com"]);
    let read = |path: &Path| std::fs::read(path).map_err(|error| error.to_string());
    let bundle = write("bundle", &[read(&issued.certificate)?, read(&issued.key)?].concat())?;
    let authority = certificates.ca_file().to_string_lossy().into_owned();
    let all = examples()?;
    for (name, path) in &all {
        let objects = objects(tools, path)?;
        let mut texts = objects.iter().filter_map(|it| it["data"]["pointsman.toml"].as_str());
        let text = texts.next().ok_or_else(|| format!("{name}: no configuration"))?;
        let lines = text.lines().map(|line| match line.split_once(" = ") {
            Some((key @ ("certificate_files" | "key_files"), _)) => format!("{key} = [{bundle:?}]"),
            Some((key @ ("certificate_file" | "key_file"), _)) => format!("{key} = {bundle:?}"),
            Some((key @ ("ca_file" | "client_ca_file"), _)) => format!("{key} = {authority:?}"),
            Some((key, _)) if key.ends_with("_file") => format!("{key} = {secret:?}"),
            _ => line.to_owned(),
        });
        let file = folder.path().join(format!("{name}.toml"));
        files::write(&file, lines.collect::<Vec<_>>().join("\n"))?;
        run(Command::new(&program).args(["check", "--config"]).arg(&file))
            .map_err(|why| format!("{name}: {why}\n{text}"))?;
    }
    Ok(format!("{} examples", all.len()))
}

/// What the notes say about memory, from the limit and by hand.
pub(super) fn notes(tools: &Tools) -> Result<String, String> {
    let values = example("default");
    // Helm 3 asks for the version of the cluster even in a dry run.
    let cluster = Cluster::start(tools)?;
    let (chart, values) = (chart(), values.display());
    let more = "--dry-run=client --set tests.enabled=false";
    let all = cases("notes")?;
    for case in &all {
        let set = case["set"].as_str().unwrap_or_default();
        let command = format!("helm install proxy '{chart}' --values '{values}' {more} {set}");
        let said = cluster.run(&command)?;
        if !case["says"].as_str().is_some_and(|wanted| said.contains(wanted)) {
            return Err(format!("{case}: it says\n{said}"));
        }
    }
    Ok(format!("{} cases", all.len()))
}

/// Values and their schema know the same keys, so that a new value is not forgotten in one of them.
pub(super) fn schema(tools: &Tools) -> Result<String, String> {
    let folder = root().join("deploy/helm/pointsman");
    let schema = files::read(folder.join("values.schema.json"))?;
    let schema: Value = serde_json::from_str(&schema).map_err(|error| error.to_string())?;
    let values = tools.documents(&files::read(folder.join("values.yaml"))?)?;
    let mut faults = Vec::new();
    let count = known(values.first().unwrap_or(&Value::Null), &schema, "", &mut faults);
    if faults.is_empty() { Ok(format!("{count} keys")) } else { Err(faults.join("\n")) }
}

/// Compares the keys of a value with those of its schema, as far as the schema closes them; how
/// many there are.
fn known(value: &Value, schema: &Value, path: &str, faults: &mut Vec<String>) -> usize {
    if let (Some(first), true) = (value.get(0), schema["items"].is_object()) {
        return known(first, &schema["items"], &format!("{path}[]"), faults);
    }
    let (Some(value), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    else {
        return 1;
    };
    let is_closed = schema["additionalProperties"] == false;
    let is_free = path.ends_with("Probe") || path == ".extraConfig";
    for key in properties.keys().filter(|key| !value.contains_key(*key) && is_closed && !is_free) {
        faults.push(format!("values.yaml has no {path}.{key}"));
    }
    let mut count = 0;
    for (key, value) in value {
        match properties.get(key) {
            Some(schema) => count += known(value, schema, &format!("{path}.{key}"), faults),
            None => faults.push(format!("values.schema.json has no {path}.{key}")),
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_of_values_and_schema_are_compared() {
        let inner = json!({"properties": {"c": {}}});
        let schema = json!({"properties": {"a": {}, "b": inner}, "additionalProperties": false});
        let check = |value: &Value| {
            let mut faults = Vec::new();
            known(value, &schema, "", &mut faults);
            faults
        };
        assert_eq!(check(&json!({"a": 1, "b": {"c": 2}})), Vec::<String>::new());
        assert_eq!(check(&json!({"a": 1})), ["values.yaml has no .b"]);
        assert_eq!(check(&json!({"a": 1, "b": {"d": 2}})), ["values.schema.json has no .b.d"]);
    }
}
