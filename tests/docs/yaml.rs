//! A YAML document as a value, for tests that look into one. Scalars stay text, as they are
//! written.
//!
//! Anchors and tags are not supported; none of our files uses them.

use saphyr_parser::{Event, Parser};
use serde_json::{Map, Value};

/// The documents of a file.
///
/// # Panics
/// On text that is not YAML, on a key that is given twice, and on an alias.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let events = Parser::new_from_str(text).map(|event| event.expect("YAML").0);
    let mut events = events.filter(|event| !matches!(event, Event::Nothing | Event::StreamStart));
    let mut found = Vec::new();
    while let Some(Event::DocumentStart(_)) = events.next() {
        let first = events.next().expect("a node");
        found.push(node(first, &mut events));
        assert!(matches!(events.next(), Some(Event::DocumentEnd)), "one node in a document");
    }
    found
}

/// The only document of a file.
pub(crate) fn document(text: &str) -> Value {
    let mut all = documents(text);
    assert_eq!(all.len(), 1, "documents");
    all.remove(0)
}

fn node<'a>(event: Event<'a>, events: &mut impl Iterator<Item = Event<'a>>) -> Value {
    match event {
        Event::Scalar(text, ..) => Value::String(text.into_owned()),
        Event::SequenceStart(..) => {
            let mut list = Vec::new();
            loop {
                match events.next().expect("the end of a list") {
                    Event::SequenceEnd => return Value::Array(list),
                    event => list.push(node(event, events)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match events.next().expect("the end of a mapping") {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(key, ..) => key.into_owned(),
                    other => panic!("{other:?} as a key"),
                };
                let value = events.next().expect("a value");
                let earlier = map.insert(key.clone(), node(value, events));
                assert!(earlier.is_none(), "{key} is given twice");
            }
        }
        other => panic!("{other:?} is not expected here"),
    }
}

/// The text of a scalar; empty for what is absent.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn reads_lists_mappings_and_text() {
    let value = document("a:\n  - b: 1\n    c: |\n      x\n      y\n  - [d, 'e']\n");
    assert_eq!(value, serde_json::json!({"a": [{"b": "1", "c": "x\ny\n"}, ["d", "e"]]}));
    assert_eq!(documents("a: 1\n---\nb: 2\n").len(), 2);
}
