//! Every value of the redis-ha chart's haproxy, and what it does here: translated, without effect
//! for a reason, or refused. The table is tested with our chart: a translated value shows in what
//! is rendered, one without effect changes nothing, a refused one fails with a message that helps.
//! With the real chart at hand the table is compared with its values.

use serde::Deserialize;
use serde_json::{Value, json};

use super::chart::template_with;
use super::redis_ha_chart::facts;
use super::together::{beside, merged};
use super::tools::Tools;

/// A value below `haproxy`, and what becomes of it. A path stands for what is below it, too.
#[derive(Debug, Deserialize)]
struct Row {
    path: String,
    /// A value to try.
    #[serde(rename = "try", default)]
    value: Value,
    fate: Fate,
    /// What shows it in what is rendered, why it has no effect, or the refusal.
    text: String,
}

/// What becomes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fate {
    Translated,
    /// Translated, and tested alone because it excludes other values.
    Alone,
    /// It concerns the Service or the monitor, which stay in that release. With haproxy off the
    /// Service is ours.
    Service,
    None,
    Refused,
}

fn table_of_values() -> Result<Vec<Row>, String> {
    let rows = facts()?["haproxyValues"].take();
    serde_json::from_value(rows).map_err(|error| format!("redis_ha_facts.json: {error}"))
}

/// Tests every row with our chart.
pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let all = table_of_values()?;
    let rendered = |is_on, is_meant: &dyn Fn(&Row) -> bool| {
        rendered(tools, is_on, all.iter().filter(|row| is_meant(row)))
    };
    let plain = rendered(true, &|_| false)?;
    let plain_off = rendered(false, &|_| false)?;
    // A port of the node needs a type of its own, so it is tested apart from the other values of
    // the Service.
    let is_node = |row: &Row| row.path == "service.nodePort";
    let mapped = rendered(true, &|row| row.fate == Fate::Translated)?;
    let alone = rendered(true, &|row| row.fate == Fate::Alone)?;
    let service = rendered(false, &|row| {
        row.path == "metrics.enabled" || row.fate == Fate::Service && !is_node(row)
    })?;
    let node = rendered(false, &is_node)?;
    for row in &all {
        let (with, without) = match row.fate {
            Fate::Translated => (&mapped, &plain),
            Fate::Alone => (&alone, &plain),
            Fate::Service if is_node(row) => (&node, &plain_off),
            Fate::Service => (&service, &plain_off),
            Fate::None => continue,
            Fate::Refused => {
                refused(row, rendered(true, &|it| std::ptr::eq(it, row)))?;
                continue;
            }
        };
        let (with, without) = (with.contains(&row.text), without.contains(&row.text));
        if !with || without {
            return Err(format!(
                "haproxy.{}: {:?} does not show it (with it {with}, without {without})",
                row.path, row.text
            ));
        }
    }
    if rendered(true, &|row| matches!(row.fate, Fate::None | Fate::Service))? != plain {
        return Err("a value that should have no effect has one".to_owned());
    }
    Ok(format!("{} values", all.len()))
}

fn refused(row: &Row, outcome: Result<String, String>) -> Result<(), String> {
    let Row { path, text, .. } = row;
    match outcome {
        Ok(_) => Err(format!("haproxy.{path} was accepted")),
        Err(why) if why.contains(text) => Ok(()),
        Err(why) => Err(format!("haproxy.{path} was refused without {text:?}: {why}")),
    }
}

/// Our chart with some of the values, and haproxy on or off in that release.
fn rendered<'a>(
    tools: &Tools,
    is_on: bool,
    rows: impl Iterator<Item = &'a Row>,
) -> Result<String, String> {
    let mut haproxy = json!({"enabled": is_on});
    for row in rows {
        put(&mut haproxy, &row.path, row.value.clone());
    }
    if !is_on && haproxy["service"]["nodePort"].is_number() {
        put(&mut haproxy, "service.type", json!("NodePort"));
    }
    template_with(tools, &beside(&json!({"haproxy": haproxy})), &[])
}

/// Sets what is at a path, and makes the way there.
fn put(object: &mut Value, path: &str, value: Value) {
    merged(object, &path.rsplit('.').fold(value, |value, key| json!({ key: value })));
}

/// Holds the table against the values that the real chart has: neither may know one that the other
/// does not.
pub(super) fn compare(theirs: &Value) -> Result<String, String> {
    let (mut leaves, all) = (Vec::new(), table_of_values()?);
    leaves_of(&theirs["haproxy"], "", &mut leaves);
    let covers = |path: &str, leaf: &str| leaf == path || leaf.starts_with(&format!("{path}."));
    let unknown: Vec<&String> = leaves
        .iter()
        .filter(|leaf| *leaf != "enabled" && !all.iter().any(|row| covers(&row.path, leaf)))
        .collect();
    let gone: Vec<&str> = all
        .iter()
        .map(|row| row.path.as_str())
        .filter(|path| !leaves.iter().any(|leaf| covers(path, leaf)))
        .collect();
    if unknown.is_empty() && gone.is_empty() {
        Ok(format!("{} values of its haproxy", leaves.len()))
    } else {
        Err(format!(
            "values that the table lacks: {unknown:?}; values that the chart lacks: {gone:?}"
        ))
    }
}

fn leaves_of(value: &Value, path: &str, leaves: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => {
            for (key, value) in map {
                leaves_of(
                    value,
                    &if path.is_empty() { key.clone() } else { format!("{path}.{key}") },
                    leaves,
                );
            }
        }
        None => leaves.push(path.to_owned()),
    }
}

/// The table, for people.
pub(super) fn table() -> Result<String, String> {
    let mut text = "| Value of `haproxy` | Effect |\n|---|---|\n".to_owned();
    for row in table_of_values()? {
        let fate = match row.fate {
            Fate::Translated | Fate::Alone => "translated".to_owned(),
            Fate::Service => {
                "stays with the Service in that release; translated if haproxy is off there"
                    .to_owned()
            }
            Fate::None => format!("none: {}", row.text),
            Fate::Refused => "refused".to_owned(),
        };
        text.push_str(&format!("| `{}` | {fate} |\n", row.path));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_where_their_path_leads() {
        let mut object = json!({"a": 1});
        put(&mut object, "b.c.d", json!([2]));
        put(&mut object, "b.c.e", json!(3));
        put(&mut object, "a", json!(4));
        assert_eq!(object, json!({"a": 4, "b": {"c": {"d": [2], "e": 3}}}));
    }

    #[test]
    fn a_value_that_one_of_the_two_lacks_is_told() {
        let mut theirs = json!({"haproxy": {"enabled": true}});
        for row in table_of_values().unwrap() {
            put(&mut theirs["haproxy"], &row.path, json!({}));
        }
        assert!(compare(&theirs).is_ok());
        put(&mut theirs["haproxy"], "service.brandNew", Value::Null);
        assert!(compare(&theirs).unwrap_err().contains("\"service.brandNew\"]; values"));
        theirs["haproxy"].as_object_mut().unwrap().remove("checkFall");
        assert!(compare(&theirs).unwrap_err().ends_with("[\"checkFall\"]"));
    }
}
