//! What the stand-in tells clients about itself: its version, its resources, and that it checks
//! fields itself.

use serde_json::{Map, Value, json};

/// Group with version, plural and kind of each resource.
pub(super) const RESOURCES: &[(&str, &str, &str)] = &[
    ("v1", "namespaces", "Namespace"),
    ("v1", "secrets", "Secret"),
    ("v1", "services", "Service"),
    ("v1", "configmaps", "ConfigMap"),
    ("v1", "serviceaccounts", "ServiceAccount"),
    ("v1", "pods", "Pod"),
    ("apps/v1", "deployments", "Deployment"),
    ("apps/v1", "statefulsets", "StatefulSet"),
    ("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    ("rbac.authorization.k8s.io/v1", "roles", "Role"),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
    ("monitoring.coreos.com/v1", "servicemonitors", "ServiceMonitor"),
];

/// What a discovery request gets.
pub(super) fn discovery(path: &str) -> Option<Value> {
    let groups = || RESOURCES.iter().map(|it| it.0).filter(|group| group.contains('/'));
    match path.trim_matches('/') {
        "version" => Some(json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})),
        "api" => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        "apis" => {
            let mut list: Vec<Value> = groups().map(group).collect();
            list.dedup();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list}))
        }
        path if path.starts_with("openapi/v3") => openapi(path),
        path => {
            let version = path.strip_prefix("apis/").or_else(|| path.strip_prefix("api/"))?;
            let resources =
                RESOURCES.iter().filter(|it| it.0 == version).map(|(_, plural, kind)| {
                    json!({
                        "name": plural, "singularName": kind.to_lowercase(), "kind": kind,
                        "namespaced": *plural != "namespaces",
                        "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                    })
                });
            let resources: Vec<Value> = resources.collect();
            let list =
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version});
            let mut list = list;
            list["resources"] = json!(resources);
            (!resources.is_empty()).then_some(list)
        }
    }
}

/// OpenAPI that says no more than that the server checks fields itself, so that its clients need
/// not.
fn openapi(path: &str) -> Option<Value> {
    let of = |group: &str| {
        if group.contains('/') { format!("apis/{group}") } else { format!("api/{group}") }
    };
    let path = path.strip_prefix("openapi/v3")?.trim_matches('/');
    if path.is_empty() {
        let paths = RESOURCES.iter().map(|it| of(it.0));
        let paths =
            paths.map(|it| (it.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{it}")})));
        return Some(json!({"paths": paths.collect::<Map<_, _>>()}));
    }
    let text = json!({"type": "string"});
    let validation = json!({"name": "fieldValidation", "in": "query", "schema": text});
    let resources = RESOURCES.iter().filter(|it| of(it.0) == path).map(|(group, plural, kind)| {
        let (group, version) = group.split_once('/').unwrap_or(("", group));
        let patch = json!({
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
            "parameters": [validation],
            "responses": {},
        });
        (format!("/{plural}/{{name}}"), json!({"patch": patch}))
    });
    let info = json!({"title": "stand-in", "version": "1"});
    Some(json!({"openapi": "3.0.0", "info": info, "paths": resources.collect::<Map<_, _>>()}))
}

fn group(version: &str) -> Value {
    let (name, short) = version.split_once('/').unwrap_or(("", version));
    let version = json!({"groupVersion": version, "version": short});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}
