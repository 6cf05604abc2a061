//! The result of an examination as JSON, for scripts.

use std::time::Duration;

use sentinel::{PingReply, Role};
use serde_json::{Map, Value as Json, json};

use crate::diagnose::Severity;
use crate::listeners;
use crate::observed::{ExamineError, MasterAnswer, Observed, ObservedMaster};
use crate::report::{Examined, Report, is_healthy};

/// Version of the document.
const SCHEMA: u32 = 1;

impl Report {
    /// The report for scripts.
    #[must_use]
    pub fn json(&self) -> String {
        let services: Vec<Json> = self.services.iter().map(|it| part(it, self.now)).collect();
        let healthy = self.worst() == Severity::Note;
        let mut document = json!({ "schema": SCHEMA, "healthy": healthy, "services": services });
        if let (Some(examined), Some(fields)) = (&self.admin, document.as_object_mut()) {
            fields.insert("admin".to_owned(), part(examined, self.now));
        }
        format!("{document:#}\n")
    }
}

/// A service or the admin server.
pub(crate) fn part(examined: &Examined, now: Option<Duration>) -> Json {
    let mut part = Map::new();
    let mut add = |key: &str, value| drop(part.insert(key.to_owned(), value));
    add("healthy", json!(is_healthy(&examined.findings)));
    add("certificates", json!(listeners::document(&examined.certificates, now)));
    add("findings", json!(examined.findings));
    if let Some((name, observed)) = &examined.service {
        add("name", json!(name));
        add("master_name", json!(&*observed.name));
        add("sentinels", sentinels(observed));
        add("nodes", nodes(observed));
    }
    part.into()
}

fn sentinels(observed: &Observed) -> Json {
    let sentinels = observed.sentinels.iter().map(|it| {
        let (answer, trouble) = (it.answer.as_ref().ok(), it.answer.as_ref().err());
        json!({
            "addr": it.addr.to_string(),
            "configured": it.configured,
            "state": trouble.map_or("up", ExamineError::label),
            "problem": trouble.map(ToString::to_string),
            "id": answer.map(|it| it.id.as_str()),
            "tilt": answer.map(|it| it.tilt),
            "resp3": answer.map(|it| it.resp3),
            "watches": answer.map(|it| it.watched.iter().map(|it| &*it.name).collect::<Vec<_>>()),
            "view": answer.and_then(|it| match &it.master {
                MasterAnswer::Known(view) => Some(view_json(view)),
                _ => None,
            }),
        })
    });
    sentinels.collect()
}

fn nodes(observed: &Observed) -> Json {
    let nodes = observed.nodes.iter().map(|it| {
        let (report, trouble) = (it.answer.as_ref().ok(), it.answer.as_ref().err());
        let (role, follows) = match report.map(|it| &it.role) {
            Some(Role::Replica { master, connected }) => {
                (Some("replica"), Some((master, connected)))
            }
            Some(Role::Master) => (Some("master"), None),
            Some(Role::Unknown) => (Some("unknown"), None),
            None => (None, None),
        };
        json!({
            "addr": it.addr.to_string(),
            "dialled": it.dialled.map(|at| at.to_string()),
            "state": trouble.map_or("up", ExamineError::label),
            "problem": trouble.map(ToString::to_string),
            "role": role,
            "follows": follows.map(|(master, _)| master.to_string()),
            "linked": follows.map(|(_, connected)| connected),
            "pong": report.map(|it| it.ping == PingReply::Pong),
            "ping": report.map(|it| it.ping.label()),
        })
    });
    nodes.collect()
}

fn view_json(view: &ObservedMaster) -> Json {
    let millis = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
    json!({
        "master": view.addr.to_string(),
        "epoch": view.epoch,
        "down": view.down,
        "failing_over": view.failing_over,
        "quorum": view.quorum,
        "down_after_ms": view.down_after.map(millis),
        "failover_timeout_ms": view.failover_timeout.map(millis),
        "peers": view.peers.iter().map(|it| json!({
            "id": it.id.as_ref().map(sentinel::MyId::as_str),
            "addr": it.addr.as_ref().map(ToString::to_string),
            "up": it.up,
        })).collect::<Vec<_>>(),
        "replicas": view.replicas.iter().map(|it| json!({
            "addr": it.addr.to_string(),
            "down": it.down,
            "linked": it.linked,
            "priority": it.priority,
        })).collect::<Vec<_>>(),
        "failover_possible": view.ckquorum.as_ref().map(Result::is_ok),
    })
}
