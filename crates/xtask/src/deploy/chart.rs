//! The chart: each example rendered and looked at.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::redis_ha;
use super::tools::{Tools, root, run};

/// Minor versions of Kubernetes that are supported; the schemas of all of them are there.
const VERSIONS: std::ops::RangeInclusive<u32> = 27..=37;
/// Objects of the Prometheus operator, whose schemas are not among Kubernetes' own.
const OPERATOR: &str = "monitoring.coreos.com/v1";

fn chart() -> String {
    root().join("deploy/helm/pointsman").to_string_lossy().into_owned()
}

/// The examples by their names, in order.
fn examples() -> Result<Vec<(String, PathBuf)>, String> {
    let folder = root().join("deploy/helm/pointsman/examples");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut all: Vec<(String, PathBuf)> =
        paths.map(|path| (path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), path)).collect();
    all.sort();
    if all.len() < 4 { Err(format!("only {} examples", all.len())) } else { Ok(all) }
}

fn template(tools: &Tools, values: &str, more: &[&str]) -> Result<String, String> {
    let chart = chart();
    let base = ["template", "proxy", &chart, "--namespace", "ns", "--values", values];
    tools.helm(base.iter().chain(more))
}

fn objects(tools: &Tools, example: &Path) -> Result<Vec<Value>, String> {
    tools.documents(&template(tools, &example.to_string_lossy(), &[])?)
}

pub(super) fn lint(tools: &Tools) -> Result<String, String> {
    let all = examples()?;
    for (_, path) in &all {
        tools.helm(["lint", "--strict", &chart(), "--values", &path.to_string_lossy()])?;
    }
    Ok(format!("{} examples", all.len()))
}

pub(super) fn schemas(tools: &Tools) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut count = 0;
    for minor in VERSIONS {
        let version = format!("1.{minor}");
        let mut files = Vec::new();
        for (name, path) in examples()? {
            let text = template(tools, &path.to_string_lossy(), &["--kube-version", &version])?;
            for (at, object) in tools.documents(&text)?.iter().enumerate() {
                if object["apiVersion"] == OPERATOR {
                    continue;
                }
                let file = folder.path().join(format!("{name}-{at}.yaml"));
                std::fs::write(&file, object.to_string()).map_err(|error| error.to_string())?;
                files.push(file);
            }
        }
        count += files.len();
        tools.validate(&version, &files).map_err(|why| format!("Kubernetes {version}: {why}"))?;
    }
    Ok(format!("{count} objects, 1.{} to 1.{}", VERSIONS.start(), VERSIONS.end()))
}

/// What has to be refused, and a part of what is said about it.
const REFUSED: &[(&str, &str)] = &[
    ("terminationGracePeriodSeconds=36", "need 37"),
    ("shutdown.drainTimeout=soon", "drainTimeout"),
    ("replicaCount=2", "replicaCount"),
    ("masters[0].port=0", "port"),
    ("service.publishNotReadyAddresses=true", "publishNotReadyAddresses"),
];
/// The same for the values of the redis-ha chart.
const REFUSED_OF_REDIS_HA: &[(&str, &str)] = &[
    ("customConfig=x", "pointsman import haproxy"),
    ("extraConfig=x", "is for haproxy"),
    ("tls.enabled=true", "not taken over"),
    ("additionalPorts[0].name=x", "additionalPorts"),
];

pub(super) fn refusals(tools: &Tools) -> Result<String, String> {
    let default = root().join("deploy/helm/pointsman/examples/default.yaml").to_string_lossy().into_owned();
    let ours = REFUSED.iter().map(|(set, part)| ((*set).to_owned(), "compat.redisHa.enabled=false", *part));
    let theirs = REFUSED_OF_REDIS_HA
        .iter()
        .map(|(set, part)| (format!("compat.redisHa.values.haproxy.{set}"), "compat.redisHa.enabled=true", *part));
    let all: Vec<_> = ours.chain(theirs).collect();
    for (set, mode, part) in &all {
        match template(tools, &default, &["--set", set, "--set", mode]) {
            Ok(_) => return Err(format!("{set} was accepted")),
            Err(why) if why.contains(part) => {}
            Err(why) => return Err(format!("{set} was refused without a word on {part:?}: {why}")),
        }
    }
    Ok(format!("{} values", all.len()))
}

/// What every Deployment has to say, by JSON pointer.
fn rules() -> Vec<(&'static str, Value)> {
    vec![
        ("/spec/strategy/rollingUpdate/maxUnavailable", json!(0)),
        ("/spec/minReadySeconds", json!(5)),
        ("/spec/template/spec/automountServiceAccountToken", json!(false)),
        ("/spec/template/spec/securityContext/runAsNonRoot", json!(true)),
        ("/spec/template/spec/securityContext/seccompProfile/type", json!("RuntimeDefault")),
        ("/spec/template/spec/containers/0/securityContext/allowPrivilegeEscalation", json!(false)),
        ("/spec/template/spec/containers/0/securityContext/readOnlyRootFilesystem", json!(true)),
        ("/spec/template/spec/containers/0/securityContext/capabilities/drop", json!(["ALL"])),
        ("/spec/template/spec/containers/0/livenessProbe/httpGet/path", json!("/alive")),
        ("/spec/template/spec/containers/0/readinessProbe/httpGet/path", json!("/ready")),
        ("/spec/template/spec/containers/0/startupProbe/httpGet/path", json!("/startup")),
        ("/spec/template/spec/topologySpreadConstraints/0/whenUnsatisfiable", json!("ScheduleAnyway")),
    ]
}

pub(super) fn pods(tools: &Tools) -> Result<String, String> {
    let all = examples()?;
    for (name, path) in &all {
        let objects = objects(tools, path)?;
        let deployment =
            objects.iter().find(|it| it["kind"] == "Deployment").ok_or_else(|| format!("{name}: no Deployment"))?;
        for (pointer, wanted) in rules() {
            let found = deployment.pointer(pointer);
            if found != Some(&wanted) {
                return Err(format!("{name}: {pointer} is {found:?}, not {wanted}"));
            }
        }
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        if container.get("lifecycle").is_some() || pod.get("initContainers").is_some() {
            return Err(format!("{name}: neither a hook nor an init container is needed"));
        }
        let grace = &pod["terminationGracePeriodSeconds"];
        let wanted = if name == "full" { 200 } else { 37 };
        if *grace != wanted {
            return Err(format!("{name}: terminationGracePeriodSeconds is {grace}, not {wanted}"));
        }
        // A Service must select the very pods that the Deployment makes.
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        for object in objects.iter().filter(|it| it["kind"] == "Service") {
            let selector = object["spec"]["selector"].as_object().cloned().unwrap_or_default();
            if selector.is_empty() || selector.iter().any(|(key, value)| labels.get(key) != Some(value)) {
                return Err(format!("{name}: the Service does not select the pods"));
            }
        }
    }
    Ok(format!("{} examples", all.len()))
}

/// The configuration in every ConfigMap, with a password's file that exists, as pointsman itself reads it.
pub(super) fn configurations(tools: &Tools) -> Result<String, String> {
    let program = crate::build::pointsman()?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a password").map_err(|error| error.to_string())?;
    let all = examples()?;
    for (name, path) in &all {
        let objects = objects(tools, path)?;
        let mut texts = objects.iter().filter_map(|it| it["data"]["pointsman.toml"].as_str());
        let text = texts.next().ok_or_else(|| format!("{name}: no configuration"))?;
        let secret = format!("password_file = {:?}", secret.to_string_lossy());
        let lines = text.lines().map(|line| if line.starts_with("password_file = ") { secret.as_str() } else { line });
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).map_err(|error| error.to_string())?;
        run(Command::new(&program).args(["check", "--config"]).arg(&file))
            .map_err(|why| format!("{name}: {why}\n{text}"))?;
    }
    Ok(format!("{} examples", all.len()))
}

/// What the notes say of memory, from the limit and by hand.
pub(super) fn notes(tools: &Tools) -> Result<String, String> {
    let render = |set: &[&str]| {
        let chart = chart();
        let base = ["install", "proxy", &chart, "--dry-run=client", "--set", "tests.enabled=false"];
        tools.helm(base.iter().chain(set))
    };
    let said = render(&[])?;
    for part in ["up to 5376 connections", "256Mi carries", "takes up to 37 s"] {
        if !said.contains(part) {
            return Err(format!("no word of {part:?} in:\n{said}"));
        }
    }
    let warned = render(&["--set", "maxConnections=6000"])?;
    if !warned.contains("WARNING: that is not enough") {
        return Err(format!("no warning of too little memory in:\n{warned}"));
    }
    Ok("connections, memory and grace".to_owned())
}

pub(super) fn redis_ha(tools: &Tools) -> Result<String, String> {
    let example = root().join("deploy/helm/pointsman/examples/redis-ha.yaml");
    redis_ha::compare(&objects(tools, &example)?)
}
