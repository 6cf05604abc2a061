//! Controls a headless Chromium by the DevTools protocol over a pipe.
//!
//! The protocol is JSON with a NUL after each message; `--remote-debugging-pipe` uses two
//! descriptors, so there is no port, no WebSocket and no driver. The browser exits when the pipe
//! closes, and therefore with the test in any case.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// Timeout of one response on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The pending calls, and the events received.
#[derive(Debug, Default)]
struct Inbox {
    waiting: HashMap<u64, Sender<Value>>,
    events: Vec<Value>,
}

/// A running browser. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Browser {
    child: Child,
    /// The number of the next message, and the pipe to the browser.
    out: Mutex<(u64, Option<ChildStdin>)>,
    inbox: Arc<Mutex<Inbox>>,
}

/// Returns the path of the browser: `CHROMIUM`, or a usual name.
fn program() -> PathBuf {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let usual = || harness::BROWSERS.iter().find_map(|name| harness::find_in_path(name));
    named
        .or_else(usual)
        .expect("chromium is missing: `cargo xtask test` brings it; CHROMIUM names another one")
}

impl Browser {
    /// Starts the browser with a profile of its own in `folder`.
    pub(crate) fn start(folder: &Path) -> Self {
        // The shell redirects its standard input and output to the two descriptors that the browser
        // expects, and then executes it.
        let log = std::fs::File::create(folder.join("browser.log")).expect("a log for the browser");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2"]).arg(program());
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
        ]);
        command.args([
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
        ]);
        // /dev/shm is small in containers, and root has no sandbox; the only page is our own.
        command.args(["--disable-dev-shm-usage", "--no-sandbox"]);
        command
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .arg("about:blank");
        // Its caches go into the folder, too.
        command.env("HOME", folder).env("XDG_CONFIG_HOME", folder).env("XDG_CACHE_HOME", folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the browser starts");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("its pipe"));
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let reading = Arc::clone(&inbox);
        std::thread::spawn(move || {
            for message in BufReader::new(stdout).split(0).map_while(Result::ok) {
                let message: Value =
                    serde_json::from_slice(&message).expect("the browser speaks JSON");
                let mut inbox = reading.lock().expect("the inbox");
                match message["id"].as_u64().and_then(|id| inbox.waiting.remove(&id)) {
                    Some(sender) => drop(sender.send(message)),
                    None => inbox.events.push(message),
                }
            }
            // Pending calls fail.
            reading.lock().expect("the inbox").waiting.clear();
        });
        Self { child, out: Mutex::new((0, stdin)), inbox }
    }

    /// Calls a method, and waits for the response.
    #[track_caller]
    pub(crate) fn call(&self, session: Option<&str>, method: &str, params: &Value) -> Value {
        let answer = self.send(session, method, params).recv_timeout(TIMEOUT);
        let answer = answer.unwrap_or_else(|error| panic!("no answer to {method}: {error}"));
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    fn send(&self, session: Option<&str>, method: &str, params: &Value) -> Receiver<Value> {
        let (sender, answer) = channel();
        let mut out = self.out.lock().expect("the pipe");
        out.0 += 1;
        let mut message = json!({ "id": out.0, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        self.inbox.lock().expect("the inbox").waiting.insert(out.0, sender);
        let wire = [message.to_string().as_bytes(), b"\0"].concat();
        out.1.as_mut().expect("an open pipe").write_all(&wire).expect("the browser reads");
        answer
    }

    /// Returns the parameters of all events of a kind since the start.
    pub(crate) fn events(&self, method: &str) -> Vec<Value> {
        let inbox = self.inbox.lock().expect("the inbox");
        inbox
            .events
            .iter()
            .filter(|it| it["method"] == method)
            .map(|it| it["params"].clone())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser exits with its pipe, and ends its child processes.
        drop(self.out.get_mut().map(|out| out.1.take()));
        let _ = self.child.wait();
    }
}
