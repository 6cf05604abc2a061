//! Single values of the chart, from `cases.json`: what each changes in what is rendered, and which
//! are refused with which message.

use serde_json::{Value, json};
use setup::files;

use super::chart::{example, template};
use super::tools::Tools;

const CASES: &str = include_str!("cases.json");

/// A list of the file.
pub(super) fn cases(list: &str) -> Result<Vec<Value>, String> {
    let all: Value = serde_json::from_str(CASES).map_err(|error| format!("cases.json: {error}"))?;
    let list = all[list].as_array().cloned().unwrap_or_default();
    if list.is_empty() { Err("cases.json has an empty list".to_owned()) } else { Ok(list) }
}

/// The documents of the chart with an example and values on top of it.
pub(super) fn rendered(tools: &Tools, name: &str, values: &Value) -> Result<Vec<Value>, String> {
    let file = files::temporary_with(&values.to_string())?;
    let (example, file) = (example(name), file.path().to_string_lossy());
    tools.documents(&template(tools, &example.to_string_lossy(), &["--values", &file])?)
}

pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let mut faults = Vec::new();
    let mut count = 0;
    for name in ["default", "redis-ha"] {
        for case in cases(name)? {
            count += 1;
            let values = match name {
                "redis-ha" => json!({"compat": {"redisHa": {"values": case["values"]}}}),
                _ => case["values"].clone(),
            };
            match rendered(tools, name, &values).map(|objects| found(&objects, &case)) {
                Ok(found) if found == case["is"] => {}
                Ok(found) => faults.push(format!("{case}: it is {found}")),
                Err(why) => faults.push(format!("{case}: {why}")),
            }
        }
    }
    if faults.is_empty() { Ok(format!("{count} values")) } else { Err(faults.join("\n")) }
}

/// What is at the place that a case names; null if nothing is.
fn found(objects: &[Value], case: &Value) -> Value {
    let (kind, place) = (case["kind"].as_str(), case["at"].as_str());
    let (kind, place) = (kind.unwrap_or_default(), place.unwrap_or_default());
    let at = |kind: &str, pointer: &str| {
        let object = objects.iter().find(|object| is_meant(object, kind));
        object.and_then(|it| it.pointer(pointer)).cloned().unwrap_or(Value::Null)
    };
    match kind {
        "toml" => {
            let config = at("ConfigMap", "/data/pointsman.toml");
            let lines = config.as_str().unwrap_or_default().lines();
            // Several tables may have the key; one of them must have the value.
            let mut values = lines.filter_map(|line| line.strip_prefix(place));
            json!(values.find(|value| case["is"] == **value))
        }
        "pod" => at("Deployment", &format!("/spec/template/spec{place}")),
        kind => at(kind, place),
    }
}

/// Whether an object has this kind, or kind and name. Those of `helm test` are never meant.
fn is_meant(object: &Value, kind: &str) -> bool {
    let (kind, name) = kind.split_once(' ').map_or((kind, None), |(kind, name)| (kind, Some(name)));
    object["kind"] == kind
        && object["metadata"]["annotations"]["helm.sh/hook"].is_null()
        && name.is_none_or(|name| object["metadata"]["name"] == name)
}

pub(super) fn refusals(tools: &Tools) -> Result<String, String> {
    let all = cases("refused")?;
    for case in &all {
        let part = case["message"].as_str().unwrap_or_default();
        match rendered(tools, "default", &case["values"]) {
            Ok(_) => return Err(format!("{case} was accepted")),
            Err(why) if why.contains(part) => {}
            Err(why) => return Err(format!("{case} was refused with another message: {why}")),
        }
    }
    Ok(format!("{} values", all.len()))
}
