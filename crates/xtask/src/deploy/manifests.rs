//! The plain manifest and the kustomize base: what the chart renders with its defaults, without the
//! marks of helm; and the page about the redis-ha chart. Written by `cargo xtask manifests`; `cargo
//! xtask deploy-check` finds them out of step.

use std::path::PathBuf;

use super::redis_ha;
use super::tools::{Tools, root};

const KUSTOMIZATION: &str = "\
# Made by `cargo xtask manifests` from deploy/helm/pointsman. In an overlay: namespace, images, replicas, and a patch of the
# ConfigMap with your sentinels.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - pointsman.yaml
";

/// Each file with its text.
pub(super) fn rendered(tools: &Tools) -> Result<Vec<(PathBuf, String)>, String> {
    let chart = root().join("deploy/helm/pointsman");
    let chart = chart.to_string_lossy();
    let text =
        tools.helm(["template", "pointsman", &chart, "--namespace", "default", "--skip-tests"])?;
    let marks = ["# Source: ", "    helm.sh/chart: ", "    app.kubernetes.io/managed-by: "];
    let kept = text.lines().filter(|line| {
        !marks.iter().any(|mark| line.starts_with(mark)) && *line != "  namespace: default"
    });
    let body: String = kept.map(|line| format!("{}\n", line.trim_end())).collect();
    let body = body.trim_start_matches("---\n").replace("\n\n---", "\n---");
    let head = "# Made by `cargo xtask manifests` from deploy/helm/pointsman with its defaults. Change the sentinels in the ConfigMap.\n";
    let text = format!("{head}{body}");
    Ok(vec![
        (root().join("deploy/manifests/pointsman.yaml"), text.clone()),
        (root().join("deploy/kustomize/base/pointsman.yaml"), text),
        (root().join("deploy/kustomize/base/kustomization.yaml"), KUSTOMIZATION.to_owned()),
        redis_ha::page(),
    ])
}

/// Writes them.
pub(super) fn write(tools: &Tools) -> Result<(), String> {
    for (path, text) in rendered(tools)? {
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Whether they are what the chart renders now, and whether kustomize makes the same objects of
/// them.
pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let all = rendered(tools)?;
    for (path, text) in &all {
        let found = std::fs::read_to_string(path).unwrap_or_default();
        if found != *text {
            return Err(format!("{} is out of step: run cargo xtask manifests", path.display()));
        }
    }
    let plain = all.first().map(|(_, text)| text.as_str()).unwrap_or_default();
    let built = tools.kustomize(&root().join("deploy/kustomize/base"))?;
    let (mut ours, mut theirs) = (tools.documents(plain)?, tools.documents(&built)?);
    [&mut ours, &mut theirs]
        .into_iter()
        .for_each(|list| list.sort_by_key(|it| it["kind"].to_string()));
    if ours != theirs {
        return Err(format!("kustomize builds other objects:\n{built}"));
    }
    Ok(format!("{} objects", ours.len()))
}
