//! The chart: each example rendered and held against the schemas, against what must be refused, and
//! against pointsman itself. What its pods have to be like is in `pods`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::tools::{Tools, root, run};

/// Minor versions of Kubernetes that are supported; the schemas of all of them are there.
const VERSIONS: std::ops::RangeInclusive<u32> = 27..=37;
/// Objects of the Prometheus operator, whose schemas are not among Kubernetes' own.
const OPERATOR: &str = "monitoring.coreos.com/v1";

fn chart() -> String {
    root().join("deploy/helm/pointsman").to_string_lossy().into_owned()
}

/// The examples by their names, in order.
pub(super) fn examples() -> Result<Vec<(String, PathBuf)>, String> {
    let folder = root().join("deploy/helm/pointsman/examples");
    let entries =
        std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut all: Vec<(String, PathBuf)> = paths
        .map(|path| (path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), path))
        .collect();
    all.sort();
    if all.len() < 4 { Err(format!("only {} examples", all.len())) } else { Ok(all) }
}

pub(super) fn template(tools: &Tools, values: &str, more: &[&str]) -> Result<String, String> {
    let chart = chart();
    let base = ["template", "proxy", &chart, "--namespace", "ns", "--values", values];
    tools.helm(base.iter().chain(more))
}

pub(super) fn objects(tools: &Tools, example: &Path) -> Result<Vec<Value>, String> {
    tools.documents(&template(tools, &example.to_string_lossy(), &[])?)
}

/// The values of an example.
pub(super) fn example(name: &str) -> PathBuf {
    root().join("deploy/helm/pointsman/examples").join(format!("{name}.yaml"))
}

pub(super) fn lint(tools: &Tools) -> Result<String, String> {
    let all = examples()?;
    for (_, path) in &all {
        tools.helm(["lint", "--strict", &chart(), "--values", &path.to_string_lossy()])?;
    }
    Ok(format!("{} examples", all.len()))
}

pub(super) fn schemas(tools: &Tools) -> Result<String, String> {
    let temp = tempfile::tempdir().map_err(|error| error.to_string())?;
    let all = examples()?;
    for minor in VERSIONS {
        let version = format!("1.{minor}");
        let folder = temp.path().join(&version);
        std::fs::create_dir(&folder).map_err(|error| error.to_string())?;
        for (name, path) in &all {
            let text = template(tools, &path.to_string_lossy(), &["--kube-version", &version])?;
            std::fs::write(folder.join(format!("{name}.yaml")), text)
                .map_err(|error| error.to_string())?;
        }
    }
    let count = tools.schemas(temp.path())?;
    Ok(format!("{count} objects, 1.{} to 1.{}", VERSIONS.start(), VERSIONS.end()))
}

pub(super) fn operator(tools: &Tools) -> Result<String, String> {
    let mut found = Vec::new();
    for (_, path) in examples()? {
        found.extend(objects(tools, &path)?.into_iter().filter(|it| it["apiVersion"] == OPERATOR));
    }
    for kind in ["PodMonitor", "PrometheusRule", "ServiceMonitor"] {
        if !found.iter().any(|it| it["kind"] == kind) {
            return Err(format!("no example has a {kind}"));
        }
    }
    let count = found.len();
    tools.operator(&Value::Array(found))?;
    Ok(format!("{count} objects"))
}

/// What has to be refused, and a part of what is said about it.
const REFUSED: &[(&str, &str)] = &[
    ("terminationGracePeriodSeconds=36", "need 37"),
    ("shutdown.drainTimeout=soon", "drainTimeout"),
    ("replicaCount=2", "replicaCount"),
    ("masters[0].port=0", "port"),
    ("service.publishNotReadyAddresses=true", "publishNotReadyAddresses"),
];

pub(super) fn refusals(tools: &Tools) -> Result<String, String> {
    let default = example("default").to_string_lossy().into_owned();
    for (set, part) in REFUSED {
        match template(tools, &default, &["--set", set]) {
            Ok(_) => return Err(format!("{set} was accepted")),
            Err(why) if why.contains(part) => {}
            Err(why) => return Err(format!("{set} was refused without a word on {part:?}: {why}")),
        }
    }
    Ok(format!("{} values", REFUSED.len()))
}

/// The configuration in every ConfigMap, with a password's file that exists, as pointsman itself
/// reads it.
pub(super) fn configurations(tools: &Tools) -> Result<String, String> {
    let program = setup::build::pointsman()?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a password").map_err(|error| error.to_string())?;
    let all = examples()?;
    for (name, path) in &all {
        let objects = objects(tools, path)?;
        let mut texts = objects.iter().filter_map(|it| it["data"]["pointsman.toml"].as_str());
        let text = texts.next().ok_or_else(|| format!("{name}: no configuration"))?;
        let secret = format!("password_file = {:?}", secret.to_string_lossy());
        let lines = text
            .lines()
            .map(|line| if line.starts_with("password_file = ") { secret.as_str() } else { line });
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n"))
            .map_err(|error| error.to_string())?;
        run(Command::new(&program).args(["check", "--config"]).arg(&file))
            .map_err(|why| format!("{name}: {why}\n{text}"))?;
    }
    Ok(format!("{} examples", all.len()))
}

/// What the notes say of memory, from the limit and by hand.
pub(super) fn notes(tools: &Tools) -> Result<String, String> {
    let values = example("default").to_string_lossy().into_owned();
    let render = |set: &[&str]| {
        let chart = chart();
        let base = [
            "install",
            "proxy",
            &chart,
            "--dry-run=client",
            "--values",
            &values,
            "--set",
            "tests.enabled=false",
        ];
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
    // Readers count beside the writers, and a number of one's own in the place of 10,000.
    let plenty = "resources.limits.memory=4Gi";
    for (set, wanted) in [
        ("masters[0].replicaPort=6380", "up to 20000 connections"),
        ("masters[0].settings.max_connections=3000", "up to 3000 connections"),
    ] {
        let said = render(&["--set", plenty, "--set", set])?;
        if !said.contains(wanted) {
            return Err(format!("no word of {wanted:?} with {set} in:\n{said}"));
        }
    }
    Ok("connections, memory and grace".to_owned())
}
