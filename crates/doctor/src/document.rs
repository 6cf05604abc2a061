//! The result of an examination as JSON, for scripts.

use std::time::Duration;

use sentinel::{PingReply, Role};
use serde_json::{Value as Json, json};

use crate::diagnose::Severity;
use crate::listeners::{self, ExaminedListeners};
use crate::observed::{ExamineError, MasterAnswer, ObservedMaster};
use crate::report::{ExaminedService, Report, is_healthy};

/// Version of the document.
const SCHEMA: u32 = 1;

impl Report {
    /// The report for scripts.
    #[must_use]
    pub fn json(&self) -> String {
        let services: Vec<Json> = self.services.iter().map(|it| service(it, self.now)).collect();
        let healthy = self.worst() == Severity::Note;
        let mut document = json!({ "schema": SCHEMA, "healthy": healthy, "services": services });
        if let (Some(examined), Some(fields)) = (&self.admin, document.as_object_mut()) {
            fields.insert("admin".to_owned(), admin(examined, self.now));
        }
        format!("{document:#}\n")
    }
}

/// The part of one service.
pub(crate) fn service(examined: &ExaminedService, now: Option<Duration>) -> Json {
    let ExaminedService { name, observed, certificates, findings } = examined;
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
    json!({
        "name": name,
        "master_name": &*observed.name,
        "healthy": is_healthy(findings),
        "sentinels": sentinels.collect::<Vec<_>>(),
        "nodes": nodes.collect::<Vec<_>>(),
        "certificates": listeners::document(certificates, now),
        "findings": findings,
    })
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

/// The part of the admin server.
fn admin(examined: &ExaminedListeners, now: Option<Duration>) -> Json {
    json!({
        "healthy": is_healthy(&examined.findings),
        "certificates": listeners::document(&examined.certificates, now),
        "findings": examined.findings,
    })
}
