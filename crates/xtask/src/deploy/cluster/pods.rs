//! The pods of Deployments, in the worst order that Kubernetes permits: new pods are not ready
//! until somebody waits for them, old ones stay until then, and those that are removed are gone at
//! once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::deploy::network::{connects, has_all};
use crate::deploy::redis_ha_chart::NAMESPACE;
use crate::deploy::together::{REDIS_PORTS, redis_labels};

/// The pods of one Deployment that have the same template.
#[derive(Debug, Clone)]
pub(super) struct Set {
    pub(super) template: Value,
    pub(super) count: u64,
    pub(super) is_ready: bool,
}

/// All pods by the name of their Deployment: those of older templates first.
#[derive(Debug, Default)]
pub(super) struct Pods {
    sets: BTreeMap<String, Vec<Set>>,
    /// Deployments whose pods did not become ready in the time that a client waited.
    late: BTreeSet<String>,
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

impl Pods {
    /// Ready pods by their templates.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Set> {
        self.sets.values().flatten().filter(|set| set.is_ready && set.count > 0)
    }

    /// What becomes of the pods when a Deployment is written.
    pub(super) fn follow(&mut self, deployment: &Value) {
        let wanted = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        let template = &deployment["spec"]["template"];
        self.late.remove(name(deployment));
        let sets = self.sets.entry(name(deployment).to_owned()).or_default();
        sets.retain(|set| set.count > 0);
        for set in sets.iter_mut() {
            set.count = set.count.min(wanted);
        }
        let have =
            sets.iter().filter(|set| set.template == *template).map(|set| set.count).sum::<u64>();
        if have < wanted {
            sets.push(Set { template: template.clone(), count: wanted - have, is_ready: false });
        }
    }

    pub(super) fn remove(&mut self, deployment: &str) {
        self.sets.remove(deployment);
    }

    /// The time passes for which a client waits: pods that reach Redis and the sentinels become
    /// ready and replace the older ones.
    pub(super) fn settle(&mut self, deployments: &[Value], policies: &[Value], only: Option<&str>) {
        let policies: Vec<&Value> = policies.iter().collect();
        for deployment in deployments.iter().filter(|it| only.is_none_or(|only| name(it) == only)) {
            let template = deployment["spec"]["template"].clone();
            let labels = &template["metadata"]["labels"];
            let reaches = |port| connects(&policies, NAMESPACE, labels, &redis_labels(), port);
            if REDIS_PORTS.into_iter().all(reaches) {
                let count = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
                self.sets.insert(
                    name(deployment).to_owned(),
                    vec![Set { template, count, is_ready: true }],
                );
            } else {
                self.late.insert(name(deployment).to_owned());
            }
        }
    }

    /// An object with its status, if it is a Deployment.
    pub(super) fn with_status(&self, object: &Value) -> Value {
        let mut object = object.clone();
        if object["kind"] != "Deployment" {
            return object;
        }
        let wanted = object["spec"]["replicas"].as_u64().unwrap_or(1);
        let sets = self.sets.get(name(&object)).map(Vec::as_slice).unwrap_or_default();
        let ready: u64 = sets.iter().filter(|it| it.is_ready).map(|it| it.count).sum();
        let total: u64 = sets.iter().map(|it| it.count).sum();
        let updated = sets
            .iter()
            .filter(|it| it.template == object["spec"]["template"])
            .map(|it| it.count)
            .sum::<u64>();
        // kubectl ends its wait with an error at the third of these.
        let (status, reason) =
            match (ready == wanted && total == wanted, self.late.contains(name(&object))) {
                (true, _) => ("True", "NewReplicaSetAvailable"),
                (false, false) => ("True", "ReplicaSetUpdated"),
                (false, true) => ("False", "ProgressDeadlineExceeded"),
            };
        object["status"] = json!({
            "observedGeneration": object["metadata"]["generation"], "replicas": total,
            "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": ready,
            "conditions": [
                {"type": "Available", "status": if ready > 0 { "True" } else { "False" }},
                {"type": "Progressing", "status": status, "reason": reason},
            ],
        });
        object
    }

    /// How the pod of `helm test` ends: it asks every pod behind the headless Service that it is
    /// told, ready or not.
    pub(super) fn outcome(&self, pod: &Value, services: &[Value]) -> Value {
        let args = pod["spec"]["containers"][0]["args"].as_array().cloned().unwrap_or_default();
        let host = args
            .last()
            .and_then(Value::as_str)
            .and_then(|it| it.split(':').next())
            .unwrap_or_default();
        let service = services.iter().find(|it| name(it) == host);
        let asked = self.sets.values().flatten().filter(|set| {
            set.count > 0
                && service.is_some_and(|it| {
                    has_all(&it["spec"]["selector"], &set.template["metadata"]["labels"])
                })
        });
        let asked: Vec<&Set> = asked.collect();
        let is_fine = args.iter().any(|it| it == "--ready")
            && !asked.is_empty()
            && asked.iter().all(|it| it.is_ready);
        json!({"phase": if is_fine { "Succeeded" } else { "Failed" }})
    }
}
