//! Both charts as dependencies of one parent chart: `pointsman.enabled` is the condition, the
//! release of redis-ha is the parent's own, and the switch is made by three upgrades of one
//! release.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use setup::{files, root};

use super::redis_ha_chart::{Chart, name, render, version};
use super::switch::{before_with, fails};
use super::together::{faults_beside, merged, values};
use super::tools::Tools;

/// Makes the parent in a folder.
fn write(folder: &Path, redis_ha: &Path) -> Result<(), String> {
    let dependency = |name: &str, version: &str| json!({"name": name, "version": version, "condition": format!("{name}.enabled")});
    let all = [dependency("redis-ha", &version()?), dependency("pointsman", "*")];
    let meta = json!({"apiVersion": "v2", "name": "shop", "version": "1.0.0", "dependencies": all});
    files::write(folder.join("Chart.yaml"), meta.to_string())?;
    files::make(folder.join("charts"))?;
    symlink(redis_ha, folder.join("charts/redis-ha"))
        .and_then(|()| {
            symlink(root().join("deploy/helm/pointsman"), folder.join("charts/pointsman"))
        })
        .map_err(|error| format!("parent chart: {error}"))
}

/// The values of the parent.
fn of_parent(redis_ha: &Value, is_on: bool) -> Value {
    json!({"redis-ha": redis_ha, "pointsman": {
        "enabled": is_on,
        "image": {"repository": "registry.example.com/pointsman"},
        "compat": {"redisHa": {"enabled": true, "values": redis_ha}},
    }})
}

pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let chart = Chart::get(tools)?;
    let folder = files::temporary()?;
    write(folder.path(), &chart.folder)?;
    let redis_ha = values(tools)?;
    let render = |is_on| render(tools, folder.path(), &of_parent(&redis_ha, is_on));
    let (without, with) = (render(false)?, render(true)?);
    let names: BTreeSet<String> = with.iter().map(name).collect();
    if names.len() < with.len() {
        return Err("two objects of one release have the same name".to_owned());
    }
    let (theirs, ours): (Vec<Value>, Vec<Value>) =
        with.into_iter().partition(|object| without.iter().any(|it| name(it) == name(object)));
    if without.len() != theirs.len() || ours.iter().any(|it| !name(it).contains("pointsman")) {
        return Err(
            "the condition pointsman.enabled does not decide on our objects alone".to_owned()
        );
    }
    faults_beside(&theirs, &ours)?;
    let writes = play(tools, folder.path(), &redis_ha)?;
    Ok(format!("{} objects of ours, {writes} writes, clients served after each", ours.len()))
}

/// The switch and the way back, as commits to the values of one release.
fn play(tools: &Tools, parent: &Path, redis_ha: &Value) -> Result<usize, String> {
    let mut gone = redis_ha.clone();
    merged(&mut gone, &json!({"haproxy": {"replicas": 0}}));
    let cluster = before_with(tools, parent, &of_parent(redis_ha, false), "")?;
    let upgrade = |values: &Value, waits_for: &str| {
        let (parent, file) = (parent.display(), cluster.values(values)?);
        let wait = format!("kubectl rollout status deployment/{waits_for} --timeout=30s");
        cluster.run(&format!("helm upgrade shop {parent} --values {file}\n{wait}"))
    };
    upgrade(&of_parent(redis_ha, true), "shop-pointsman")?;
    upgrade(&of_parent(&gone, true), "shop-pointsman")?;
    upgrade(&of_parent(redis_ha, true), "shop-redis-ha-haproxy")?;
    upgrade(&of_parent(redis_ha, false), "shop-redis-ha-haproxy")?;
    // All at once would leave clients without a ready pod.
    let at_once = cluster.values(&of_parent(&gone, true))?;
    let command = format!("helm upgrade shop {} --values {at_once}", parent.display());
    let writes = cluster.writes();
    fails(&cluster, &command, "no ready pod is behind")?;
    Ok(writes)
}
