//! Validates a document against its JSON schema, with the part of the language that ours uses, and
//! one rule more: a key that the schema does not know is a fault, because it is undocumented.

use serde_json::{Value, json};

/// The faults of `value`, each with its place. `root` is the whole schema, `schema` the part for
/// this value.
pub(crate) fn faults(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let Some(part) = name.strip_prefix('#').and_then(|path| root.pointer(path)) else {
            return vec![format!("{at}: the schema has no {name}")];
        };
        return faults(root, part, value, at);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let each: Vec<_> = choices.iter().map(|choice| faults(root, choice, value, at)).collect();
        return if each.iter().any(Vec::is_empty) { Vec::new() } else { each.concat() };
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    };
    if !types.iter().any(|kind| is_a(kind, value)) {
        return vec![format!("{at}: {value} is no {types:?}")];
    }
    if !schema["const"].is_null() && schema["const"] != *value {
        return vec![format!("{at}: {value} is not {}", schema["const"])];
    }
    let below = |minimum: f64| value.as_f64().is_some_and(|number| number < minimum);
    if schema["minimum"].as_f64().is_some_and(below) {
        return vec![format!("{at}: {value} is too small")];
    }
    match value {
        Value::Array(items) => {
            let each = items.iter().enumerate();
            each.flat_map(|(number, item)| {
                faults(root, &schema["items"], item, &format!("{at}/{number}"))
            })
            .collect()
        }
        Value::Object(map) => {
            let required =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let missing = required
                .filter(|key| !map.contains_key(*key))
                .map(|key| format!("{at}: {key} is missing"));
            let inside = map.iter().flat_map(|(key, value)| {
                let at = format!("{at}/{key}");
                match [&schema["properties"][key], &schema["additionalProperties"]]
                    .into_iter()
                    .find(|it| it.is_object())
                {
                    Some(known) => faults(root, known, value, &at),
                    None => vec![format!("{at}: nobody documented this key")],
                }
            });
            missing.chain(inside).collect()
        }
        _ => Vec::new(),
    }
}

fn is_a(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        _ => false,
    }
}

#[test]
fn finds_every_kind_of_fault() {
    let schema = json!({
        "type": "object", "required": ["a"],
        "properties": {
            "a": { "type": "integer", "minimum": 0 },
            "b": { "type": ["string", "null"] }, "f": { "type": "integer", "const": 1 },
            "c": { "type": "array", "items": { "$ref": "#/$defs/c" } },
            "d": { "anyOf": [{ "$ref": "#/$defs/c" }, { "type": "null" }] },
            "e": { "type": "object", "additionalProperties": { "type": "integer" } },
        },
        "$defs": { "c": { "type": "object", "properties": { "x": { "type": "number" } } } },
    });
    let found = |value: &Value| faults(&schema, &schema, value, "").join("; ");
    let good = json!({ "a": 1, "b": null, "c": [{ "x": 1.5 }, {}], "d": null, "e": { "any": 3 } });
    assert_eq!(found(&good), "");
    for (bad, fault) in [
        (json!({}), "a is missing"),
        (json!({ "a": -1 }), "/a: -1 is too small"),
        (json!({ "a": 1.5 }), "/a: 1.5 is no"),
        (json!({ "a": 1, "b": 2 }), "/b: 2 is no"),
        (json!({ "a": 1, "f": 2 }), "/f: 2 is not 1"),
        (json!({ "a": 1, "c": [{ "y": 1 }] }), "/c/0/y: nobody documented"),
        (json!({ "a": 1, "d": { "x": "1" } }), "/d/x: \"1\" is no"),
        (json!({ "a": 1, "e": { "any": "3" } }), "/e/any"),
        (json!({ "a": 1, "news": 1 }), "/news: nobody documented"),
    ] {
        assert!(found(&bad).contains(fault), "{bad}: {}", found(&bad));
    }
}
