//! A stand-in for a Kubernetes cluster that helm and kubectl can be used with: it stores what they
//! write, and after each write checks that clients are served.
//!
//! It listens on a loopback address only. Pods are modelled in `pods`; the real programs decide
//! everything else.

mod api;
mod discovery;
mod http;
mod pods;
mod protobuf;

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use setup::{files, root, run};

use self::api::Store;
use super::network::connects;
use super::redis_ha_chart::NAMESPACE;
use super::together::{REDIS_PORTS, SERVICE, leads, redis_labels};
use super::tools::Tools;

/// The cluster, with a folder for what the programs keep.
pub(super) struct Cluster {
    state: Arc<Mutex<State>>,
    home: tempfile::TempDir,
    path: String,
}

#[derive(Debug)]
struct State {
    store: Store,
    /// Whether clients have to be served.
    is_armed: bool,
    faults: Vec<String>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// An empty one.
    pub(super) fn start(tools: &Tools) -> Result<Self, String> {
        let store = Store::new(NAMESPACE);
        let state = Arc::new(Mutex::new(State { store, is_armed: false, faults: Vec::new() }));
        let shared = Arc::clone(&state);
        let addr = http::start(move |request| {
            let mut state = lock(&shared);
            let answer = state.store.answer(request);
            state.check();
            answer
        });
        let addr = addr.map_err(|error| format!("stand-in for the Kubernetes API: {error}"))?;
        let home = files::temporary()?;
        let context = json!({"cluster": "c", "user": "u", "namespace": NAMESPACE});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{addr}")}}],
            "contexts": [{"name": "c", "context": context}],
            "users": [{"name": "u", "user": {"token": "none"}}],
        });
        let file = home.path().join("config");
        files::write(&file, config.to_string())?;
        // Helm warns of others who can read it.
        files::permit(&file, 0o600)?;
        let path = tools.folders()?;
        Ok(Self { state, home, path })
    }

    /// From now on clients have to be served.
    pub(super) fn arm(&self) {
        lock(&self.state).is_armed = true;
    }

    /// How many writes there were.
    pub(super) fn writes(&self) -> usize {
        lock(&self.state).store.writes.len()
    }

    /// Whether an object was written by server-side apply.
    pub(super) fn has_applied(&self) -> bool {
        let state = lock(&self.state);
        state.store.writes.iter().any(|write| write.starts_with("apply "))
    }

    /// Runs commands in a shell, with helm and kubectl that know only this cluster.
    ///
    /// # Errors
    ///
    /// What a command said that failed, or when clients were not served.
    pub(super) fn run(&self, commands: &str) -> Result<String, String> {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", commands]).current_dir(root());
        shell.env_clear().env("PATH", &self.path).env("HOME", self.home.path());
        shell.env("KUBECONFIG", self.home.path().join("config")).env("HELM_NAMESPACE", NAMESPACE);
        // They list objects first instead of having a watch begin with all of them.
        shell.env("KUBE_FEATURE_WatchListClient", "false");
        let done = run(&mut shell);
        let faults = std::mem::take(&mut lock(&self.state).faults);
        match (faults.first(), done) {
            (Some(fault), _) => Err(fault.clone()),
            (None, done) => done.map_err(|why| format!("{commands}\n{why}")),
        }
    }

    /// Writes values into a file for commands; its path.
    pub(super) fn values(&self, values: &Value) -> Result<String, String> {
        let file = self.home.path().join("values.yaml");
        files::write(&file, values.to_string())?;
        Ok(file.to_string_lossy().into_owned())
    }
}

impl State {
    fn check(&mut self) {
        if self.is_armed
            && let Err(why) = self.served()
        {
            let last = self.store.writes.last().map_or("the start", String::as_str);
            self.faults.push(format!("after {last}: {why}"));
        }
    }

    /// Whether there is a Service with a ready pod, and all ready pods behind it reach Redis and
    /// are reached by clients.
    fn served(&self) -> Result<(), String> {
        let service = self.store.all("services").find(|it| it["metadata"]["name"] == SERVICE);
        let service = service.ok_or_else(|| format!("there is no Service {SERVICE}"))?;
        let ready: Vec<&Value> = self.store.pods.ready().map(|set| &set.template).collect();
        let behind: Vec<&&Value> = ready.iter().filter(|it| leads(service, it).is_ok()).collect();
        if behind.is_empty() {
            return Err(format!("no ready pod is behind the Service {SERVICE}"));
        }
        let policies: Vec<&Value> = self.store.all("networkpolicies").collect();
        let client = json!({"app": "client"});
        for pod in behind {
            let labels = &pod["metadata"]["labels"];
            if !REDIS_PORTS
                .into_iter()
                .all(|port| connects(&policies, NAMESPACE, labels, &redis_labels(), port))
            {
                return Err(format!("a NetworkPolicy cuts ready pods off from Redis: {labels}"));
            }
            if !connects(&policies, NAMESPACE, &client, labels, 6379) {
                return Err(format!("a NetworkPolicy cuts clients off from ready pods: {labels}"));
            }
        }
        Ok(())
    }
}
