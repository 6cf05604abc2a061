//! A stand-in for the redis-ha chart, made of facts about it: the names, labels, selectors and
//! ports of its objects, each with the values that it depends on. The facts are in
//! `redis_ha_facts.json`; the chart's own source is not part of this project.
//!
//! With `deploy-check --redis-ha FOLDER` the real chart takes its place, and the facts are compared
//! with it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use setup::files;

use super::tools::Tools;

/// Release and namespace that the facts are written for.
pub(super) const RELEASE: &str = "shop";
pub(super) const NAMESPACE: &str = "ns";

/// Stands in a list for the user's rules.
const RULES: &str = "@rules@";

const FACTS: &str = include_str!("redis_ha_facts.json");

/// A folder with a chart, which is removed with it unless it is the real one.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) folder: PathBuf,
    _temp: Option<tempfile::TempDir>,
}

/// The facts as they are in the file.
pub(super) fn facts() -> Result<Value, String> {
    serde_json::from_str(FACTS).map_err(|error| format!("redis_ha_facts.json: {error}"))
}

fn objects(facts: &Value) -> impl Iterator<Item = &Value> {
    facts["objects"].as_array().into_iter().flatten()
}

/// The version that the facts are of.
pub(super) fn version() -> Result<String, String> {
    Ok(facts()?["version"].as_str().unwrap_or_default().to_owned())
}

impl Chart {
    /// The real chart if its folder is given, else the stand-in.
    pub(super) fn get(tools: &Tools) -> Result<Self, String> {
        match &tools.redis_ha {
            Some(folder) => Ok(Self { folder: folder.clone(), _temp: None }),
            None => Self::stand_in(),
        }
    }

    pub(super) fn stand_in() -> Result<Self, String> {
        let temp = files::temporary()?;
        write(temp.path(), &facts()?)?;
        Ok(Self { folder: temp.path().to_owned(), _temp: Some(temp) })
    }

    /// Its objects with these values.
    pub(super) fn render(&self, tools: &Tools, values: &Value) -> Result<Vec<Value>, String> {
        render(tools, &self.folder, values)
    }
}

/// The objects of a release of a chart in a folder, without those of `helm test`.
pub(super) fn render(tools: &Tools, folder: &Path, values: &Value) -> Result<Vec<Value>, String> {
    let file = files::temporary_with(&values.to_string())?;
    let (folder, file) = (folder.to_string_lossy(), file.path().to_string_lossy());
    let names = ["template", RELEASE, &folder, "--namespace", NAMESPACE, "--skip-tests"];
    let more = ["--values", &file, "--api-versions", "monitoring.coreos.com/v1"];
    tools.documents(&tools.helm(names.into_iter().chain(more))?)
}

fn write(folder: &Path, facts: &Value) -> Result<(), String> {
    let meta = json!({"apiVersion": "v2", "name": facts["chart"], "version": facts["version"]});
    files::write(folder.join("Chart.yaml"), meta.to_string())?;
    files::write(folder.join("values.yaml"), facts["values"].to_string())?;
    files::make(folder.join("templates"))?;
    for (at, object) in objects(facts).enumerate() {
        files::write(folder.join(format!("templates/{at}.yaml")), template(object))?;
    }
    Ok(())
}

/// The template of one object, in YAML's flow style, which permits the comma after the last item of
/// a list.
fn template(fact: &Value) -> String {
    let namespace = json!(NAMESPACE);
    let metadata = json!({"name": fact["name"], "namespace": namespace, "labels": fact["labels"]});
    let mut object =
        json!({"apiVersion": fact["apiVersion"], "kind": fact["kind"], "metadata": metadata});
    if !fact["spec"].is_null() {
        object["spec"] = fact["spec"].clone();
    }
    let rules = fact["ingressRules"].as_str().map(rules);
    let list = object.pointer_mut("/spec/ingress").and_then(Value::as_array_mut);
    if let Some(list) = list.filter(|_| rules.is_some()) {
        list.push(json!(RULES));
    }
    let text = flow(&object).replace(&format!("{}, ", json!(RULES)), &rules.unwrap_or_default());
    match fact["when"].as_str() {
        Some(when) => format!("{{{{- if {when} }}}}\n{text}\n{{{{- end }}}}\n"),
        None => format!("{text}\n"),
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let items = map.iter().filter(|(key, _)| *key != "when");
            let items: Vec<String> =
                items.map(|(key, value)| format!("{}: {}", json!(key), flow(value))).collect();
            format!("{{ {} }}", items.join(", "))
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| match item["when"].as_str() {
                Some(when) => format!("{{{{ if {when} }}}}{},{{{{ end }}}} ", flow(item)),
                None => format!("{}, ", flow(item)),
            });
            format!("[ {}]", items.collect::<String>())
        }
        Value::String(text) => {
            match text.strip_prefix("<<").and_then(|text| text.strip_suffix(">>")) {
                Some(expression) => format!("{{{{ {expression} }}}}"),
                None => value.to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// The user's rules at a path of the values. Redis's policy gives a rule the ports of Redis if it
/// has none of its own, haproxy's adds them.
fn rules(path: &str) -> String {
    let defaults = r#"{ "port": 6379, "protocol": "TCP" }, { "port": 26379, "protocol": "TCP" }"#;
    let own = "{{ range .ports }}{{ toJson . }}, {{ end }}";
    let ports = if path.starts_with("haproxy.") {
        format!("[ {own}{defaults} ]")
    } else {
        format!("[ {{{{ if .ports }}}}{own}{{{{ else }}}}{defaults}{{{{ end }}}} ]")
    };
    let rule = format!("{{ \"from\": {{{{ tpl (toJson .selectors) $ }}}}, \"ports\": {ports} }}, ");
    format!("{{{{ range .Values.{path} }}}}{rule}{{{{ end }}}}")
}

/// Compares the facts with the real chart for some values: every fact holds there, and nothing
/// about haproxy is missing here.
pub(super) fn compare(tools: &Tools, values: &Value) -> Result<usize, String> {
    let ours = Chart::stand_in()?.render(tools, values)?;
    let theirs = Chart::get(tools)?.render(tools, values)?;
    let mut faults = Vec::new();
    for fact in &ours {
        match theirs.iter().find(|it| is_same(it, fact)) {
            None => faults.push(format!("{} is not in the chart", name(fact))),
            Some(found) => {
                if let Some(at) = differs(fact, found, "") {
                    faults.push(format!("{}{at}", name(fact)));
                }
            }
        }
    }
    let concerned = |it: &&Value| name(it).contains("haproxy") || it["kind"] == "NetworkPolicy";
    for found in theirs.iter().filter(concerned) {
        if !ours.iter().any(|it| is_same(it, found)) {
            faults.push(format!("{} is not among the facts", name(found)));
        }
    }
    if faults.is_empty() { Ok(ours.len()) } else { Err(faults.join("\n")) }
}

pub(super) fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

fn is_same(one: &Value, other: &Value) -> bool {
    one["kind"] == other["kind"] && one["metadata"]["name"] == other["metadata"]["name"]
}

/// The first place where what is known is not what was found. Lists have the same length.
fn differs(known: &Value, found: &Value, at: &str) -> Option<String> {
    match (known, found) {
        (Value::Object(known), Value::Object(found)) => known.iter().find_map(|(key, value)| {
            differs(value, found.get(key).unwrap_or(&Value::Null), &format!("{at} {key}"))
        }),
        (Value::Array(known), Value::Array(found)) if known.len() == found.len() => known
            .iter()
            .zip(found)
            .enumerate()
            .find_map(|(index, (known, found))| differs(known, found, &format!("{at} {index}"))),
        _ if known == found => None,
        _ => Some(format!("{at}: known as {known}, found {found}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_conditions_values_and_rules() {
        let fact = json!({
            "apiVersion": "v1", "kind": "K", "name": "n", "labels": {"a": "b"}, "when": ".Values.on",
            "spec": {"replicas": "<<.Values.count>>", "ports": [{"when": ".Values.x", "port": 1}], "ingress": [1]},
            "ingressRules": "haproxy.rules",
        });
        let text = template(&fact);
        for part in [
            "{{- if .Values.on }}",
            "\"replicas\": {{ .Values.count }}",
            "{{ if .Values.x }}{ \"port\": 1 },{{ end }}",
            "\"ingress\": [ 1, {{ range .Values.haproxy.rules }}",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(!text.contains("\"when\""));
    }

    #[test]
    fn a_difference_is_found_and_extra_fields_are_not_one() {
        let known = json!({"a": {"b": [1, {"c": 2}]}});
        assert_eq!(differs(&known, &json!({"a": {"b": [1, {"c": 2, "d": 3}], "e": 4}}), ""), None);
        let found = json!({"a": {"b": [1, {"c": 3}]}});
        assert_eq!(differs(&known, &found, "").unwrap(), " a b 1 c: known as 2, found 3");
        assert!(differs(&known, &json!({"a": {"b": [1]}}), "").is_some());
    }
}
