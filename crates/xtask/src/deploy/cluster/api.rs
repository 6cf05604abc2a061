//! The Kubernetes API as far as helm and kubectl need it to install, upgrade and remove releases:
//! discovery, objects with labels, server-side apply, and watches that report the present state.
//!
//! Ownership is helm's own affair: it writes labels and annotations, and reads them back.
//! It has no schemas, defaults, admission or field managers other than helm, and no controller but
//! that of Deployments (`pods`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::discovery::{RESOURCES, discovery};
use super::http::{Answer, Request};
use super::pods::Pods;
use super::protobuf;

/// Plural and name of an object.
type Key = (String, String);

/// Everything that is stored, and the pods that follow from it.
#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<Key, Value>,
    /// What was last applied to each object: fields that disappear from it disappear from the
    /// object.
    applied: BTreeMap<Key, Value>,
    pub(super) pods: Pods,
    version: u64,
    /// Each write, and what it was, for the check after it.
    pub(super) writes: Vec<String>,
}

/// The parts of a path below a resource.
struct Place<'a> {
    resource: &'static (&'static str, &'static str, &'static str),
    name: Option<&'a str>,
}

fn place(path: &str) -> Option<Place<'_>> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let group = match parts.first() {
        Some(&"api") => parts.drain(..2).nth(1)?.to_owned(),
        Some(&"apis") if parts.len() > 2 => parts.drain(..3).skip(1).collect::<Vec<_>>().join("/"),
        _ => return None,
    };
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    let (plural, name) = (parts.first()?, parts.get(1).copied());
    let resource = RESOURCES.iter().find(|it| it.0 == group && it.1 == *plural)?;
    Some(Place { resource, name })
}

fn failure(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": message, "code": code,
    });
    Answer(code, status.to_string())
}

impl Store {
    /// A store with a namespace.
    pub(super) fn new(namespace: &str) -> Self {
        let mut store = Self::default();
        let object =
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": namespace}});
        store.objects.insert(("namespaces".to_owned(), namespace.to_owned()), object);
        store
    }

    /// Objects of a kind, by the plural of its name.
    pub(super) fn all<'a>(&'a self, plural: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |(key, _)| key.0 == plural).map(|(_, object)| object)
    }

    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        if let Some(found) = discovery(&request.path) {
            return Answer(200, found.to_string());
        }
        let Some(place) = place(&request.path) else {
            return failure(404, "NotFound", "the server could not find the requested resource");
        };
        let secret = || protobuf::secret(&request.body);
        let body =
            serde_json::from_slice(&request.body).ok().or_else(secret).unwrap_or(Value::Null);
        match (request.method.as_str(), place.name) {
            ("GET", None) => self.list(&place, request),
            ("GET", Some(name)) => match self.objects.get(&key(&place, name)) {
                Some(object) => Answer(200, self.pods.with_status(object).to_string()),
                None => missing(&place, name),
            },
            ("POST", None) => self.create(&place, body),
            ("PUT", Some(name)) => self.replace(&place, name, body),
            ("PATCH", Some(name)) => self.patch(&place, name, &body, &request.content_type),
            ("DELETE", Some(name)) => self.delete(&place, name),
            _ => failure(405, "MethodNotAllowed", "this stand-in does not do that"),
        }
    }

    fn list(&mut self, place: &Place<'_>, request: &Request) -> Answer {
        let (version, plural, kind) = *place.resource;
        let labels = request.parameter("labelSelector").unwrap_or_default();
        let fields = request.parameter("fieldSelector").unwrap_or_default();
        let name = fields.strip_prefix("metadata.name=").map(str::to_owned);
        let is_watch = request.parameter("watch").is_some_and(|it| it == "true");
        if is_watch {
            // A client that watches waits until something is ready, so this is the time at which it
            // becomes so.
            let deployments: Vec<Value> = self.all("deployments").cloned().collect();
            let policies: Vec<Value> = self.all("networkpolicies").cloned().collect();
            if plural == "deployments" {
                self.pods.settle(&deployments, &policies, name.as_deref());
            }
        }
        let is_meant = |object: &&Value| {
            name.as_ref().is_none_or(|name| object["metadata"]["name"] == name.as_str())
                && labels.split(',').filter(|it| !it.is_empty()).all(|it| has_label(object, it))
        };
        let found = self.all(plural).filter(is_meant).map(|object| self.pods.with_status(object));
        if is_watch {
            let event = |object| json!({"type": "MODIFIED", "object": object}).to_string() + "\n";
            return Answer(200, found.map(event).collect());
        }
        let items: Vec<Value> = found.collect();
        let metadata = json!({"resourceVersion": self.version.to_string()});
        let kind = format!("{kind}List");
        let list =
            json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items});
        Answer(200, list.to_string())
    }

    fn create(&mut self, place: &Place<'_>, object: Value) -> Answer {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects.contains_key(&key(place, &name)) {
            return failure(
                409,
                "AlreadyExists",
                &format!("{} {name} already exists", place.resource.1),
            );
        }
        self.put(place, &name, object, "create")
    }

    fn replace(&mut self, place: &Place<'_>, name: &str, object: Value) -> Answer {
        if !self.objects.contains_key(&key(place, name)) {
            return missing(place, name);
        }
        self.put(place, name, object, "replace")
    }

    fn patch(
        &mut self,
        place: &Place<'_>,
        name: &str,
        patch: &Value,
        content_type: &str,
    ) -> Answer {
        let key = key(place, name);
        let present = self.objects.get(&key).cloned();
        if content_type == "application/apply-patch+yaml" {
            let before = self.applied.insert(key, patch.clone()).unwrap_or(Value::Null);
            let mut object = present.unwrap_or(Value::Null);
            merge(&mut object, &before, patch);
            return self.put(place, name, object, "apply");
        }
        match present {
            None => missing(place, name),
            Some(mut object)
                if content_type == "application/merge-patch+json"
                    || content_type == "application/strategic-merge-patch+json"
                        // The lists of a NetworkPolicy are replaced, as by a merge patch.
                        && (place.resource.1 == "networkpolicies" || !has_lists(patch)) =>
            {
                merge(&mut object, &Value::Null, patch);
                self.put(place, name, object, "patch")
            }
            Some(_) => failure(415, "UnsupportedMediaType", content_type),
        }
    }

    fn put(&mut self, place: &Place<'_>, name: &str, mut object: Value, what: &str) -> Answer {
        self.version += 1;
        let (version, plural, kind) = *place.resource;
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["uid"] = json!(format!("{plural}-{name}"));
        if object["metadata"]["creationTimestamp"].is_null() {
            object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let generation = self.version;
        object["metadata"]["generation"] = json!(generation);
        if plural == "deployments" {
            self.pods.follow(&object);
        }
        if plural == "pods" {
            let services: Vec<Value> = self.all("services").cloned().collect();
            object["status"] = self.pods.outcome(&object, &services);
        }
        self.objects.insert(key(place, name), object.clone());
        self.writes.push(format!("{what} {kind} {name}"));
        let code = if what == "create" { 201 } else { 200 };
        Answer(code, self.pods.with_status(&object).to_string())
    }

    fn delete(&mut self, place: &Place<'_>, name: &str) -> Answer {
        let key = key(place, name);
        if self.objects.remove(&key).is_none() {
            return missing(place, name);
        }
        self.applied.remove(&key);
        if place.resource.1 == "deployments" {
            self.pods.remove(name);
        }
        self.version += 1;
        self.writes.push(format!("delete {} {name}", place.resource.2));
        Answer(200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string())
    }
}

fn key(place: &Place<'_>, name: &str) -> Key {
    (place.resource.1.to_owned(), name.to_owned())
}

fn missing(place: &Place<'_>, name: &str) -> Answer {
    failure(404, "NotFound", &format!("{} {name:?} not found", place.resource.1))
}

fn has_label(object: &Value, term: &str) -> bool {
    let labels = &object["metadata"]["labels"];
    match term.split_once("!=") {
        Some((key, value)) => labels[key] != value,
        None => {
            let (key, value) = term.split_once('=').unwrap_or((term, ""));
            labels[key] == value.trim_start_matches('=')
        }
    }
}

/// Server-side apply with one manager: what was applied before and is not any more goes away, the
/// rest is set. With nothing applied before, this is a merge patch (RFC 7396). Lists are replaced,
/// and null stands for nothing.
fn merge(object: &mut Value, before: &Value, now: &Value) {
    let Some(now) = now.as_object() else {
        *object = now.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(object) = object.as_object_mut() else { return };
    for key in before.as_object().into_iter().flatten().map(|(key, _)| key) {
        if !now.contains_key(key) {
            object.remove(key);
        }
    }
    for (key, value) in now {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key.clone()).or_insert(Value::Null), &before[key], value);
        }
    }
}

/// Whether a strategic merge patch says something of lists, which are merged by rules that are not
/// known here.
fn has_lists(patch: &Value) -> bool {
    match patch {
        Value::Array(_) => true,
        Value::Object(map) => {
            map.iter().any(|(key, value)| key.starts_with('$') || has_lists(value))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_removes_what_is_applied_no_more_and_keeps_the_rest() {
        let mut object = json!({"a": 1, "b": {"c": 2, "other": 3}, "list": [1, 2]});
        let before = json!({"a": 1, "b": {"c": 2}, "list": [1, 2]});
        merge(&mut object, &before, &json!({"b": {"d": 4}, "list": [3]}));
        assert_eq!(object, json!({"b": {"other": 3, "d": 4}, "list": [3]}));
    }

    #[test]
    fn paths_lead_to_resources() {
        let at = |path| place(path).map(|it| (it.resource.2, it.name));
        assert_eq!(at("/api/v1/namespaces/ns"), Some(("Namespace", Some("ns"))));
        assert_eq!(at("/api/v1/namespaces/ns/secrets"), Some(("Secret", None)));
        assert_eq!(
            at("/apis/apps/v1/namespaces/ns/deployments/x"),
            Some(("Deployment", Some("x")))
        );
        assert_eq!(at("/apis/apps/v1/deployments"), Some(("Deployment", None)));
        assert_eq!(at("/openapi/v3"), None);
    }
}
