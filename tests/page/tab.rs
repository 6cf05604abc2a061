//! One page in the browser: its contents, screenshots, input, requests and errors.

use std::path::Path;
use std::time::Duration;

use harness::wait_until;
use serde_json::{Value, json};

use crate::browser::Browser;

/// Timeout of conditions on the page.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A kind of screen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    /// In CSS pixels.
    pub(crate) width: u32,
    /// `light` or `dark`.
    pub(crate) scheme: &'static str,
}

/// A wide and a narrow screen, in light and dark mode.
pub(crate) const SCREENS: [Screen; 4] = [
    Screen { width: 1440, scheme: "light" },
    Screen { width: 1440, scheme: "dark" },
    Screen { width: 360, scheme: "dark" },
    Screen { width: 360, scheme: "light" },
];

/// One of each, where all four would only take longer.
pub(crate) const TWO: [Screen; 2] = [SCREENS[0], SCREENS[2]];

/// An open page.
#[derive(Debug)]
pub(crate) struct Tab<'a> {
    browser: &'a Browser,
    session: String,
}

impl<'a> Tab<'a> {
    /// Opens an address, and records requests and errors of the page from then on.
    pub(crate) fn open(browser: &'a Browser, url: &str) -> Self {
        let target = browser.call(None, "Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call(None, "Target.attachToTarget", &attach)["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        let tab = Self { browser, session };
        for domain in ["Page", "Runtime", "Network", "Log"] {
            tab.call(&format!("{domain}.enable"), &json!({}));
        }
        if url.starts_with("https:") {
            // The browser does not know the authority of the test.
            tab.call("Security.setIgnoreCertificateErrors", &json!({ "ignore": true }));
        }
        tab.call("Page.navigate", &json!({ "url": url }));
        tab.wait("the page to be loaded", "document.readyState === 'complete'");
        tab
    }

    #[track_caller]
    fn call(&self, method: &str, params: &Value) -> Value {
        self.browser.call(Some(&self.session), method, params)
    }

    /// Evaluates an expression; a promise is awaited.
    #[track_caller]
    pub(crate) fn eval(&self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let done = self.call("Runtime.evaluate", &params);
        assert!(done["exceptionDetails"].is_null(), "{}", done["exceptionDetails"]);
        done["result"]["value"].clone()
    }

    /// Returns the visible text.
    #[track_caller]
    pub(crate) fn text(&self, selector: &str) -> String {
        let text = self.eval(&format!(
            "[...document.querySelectorAll({selector:?})].map(e => e.innerText).join('\\n')"
        ));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true; a failure prints the last text of the page.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, expression: &str) {
        wait_until(what, TIMEOUT, || {
            if self.eval(expression) == true { Ok(()) } else { Err(self.describe()) }
        });
    }

    /// Waits until an element contains the text.
    #[track_caller]
    pub(crate) fn wait_text(&self, selector: &str, text: &str) {
        wait_until(&format!("{text:?} in {selector}"), TIMEOUT, || {
            let seen = self.text(selector);
            if seen.contains(text) { Ok(()) } else { Err(self.describe()) }
        });
    }

    /// The text of the page and its console, for failure messages.
    fn describe(&self) -> String {
        format!("{}\nconsole: {:?}", self.text("main"), self.console_errors())
    }

    /// Returns the serious and critical findings of axe-core on the current page as text.
    #[track_caller]
    pub(crate) fn accessibility_violations(&self, source: &str) -> Vec<String> {
        self.eval(&format!("if (!window.axe) {{ {source}\n }} true"));
        let found = self.eval(
            "axe.run(document, { resultTypes: ['violations'] }).then(r => ({ passes: r.passes.length, faults: r.violations
                .filter(v => v.impact === 'serious' || v.impact === 'critical')
                .map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html + ' ' + n.failureSummary).join(' | ')}`) }))",
        );
        // A run without checks proves nothing.
        assert!(found["passes"].as_u64() > Some(10), "{found}");
        found["faults"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    }

    /// Emulates another screen.
    #[track_caller]
    pub(crate) fn show_on(&self, screen: Screen) {
        let Screen { width, scheme } = screen;
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &features);
        // After two frames it is laid out and painted.
        self.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))");
    }

    /// Takes a screenshot of the whole page, as `NAME-WIDTH-SCHEME.png`.
    #[track_caller]
    pub(crate) fn picture(&self, folder: &Path, name: &str, screen: Screen) {
        let params =
            json!({ "format": "png", "captureBeyondViewport": true, "optimizeForSpeed": true });
        let data = self.call("Page.captureScreenshot", &params);
        let png = base64(data["data"].as_str().expect("a picture"));
        let width =
            png.get(16..20).map(|it| u32::from_be_bytes(it.try_into().expect("four bytes")));
        assert_eq!(width, Some(screen.width), "{name}");
        let file = folder.join(format!("{name}-{}-{}.png", screen.width, screen.scheme));
        std::fs::write(&file, png).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Presses a key that produces no character.
    #[track_caller]
    pub(crate) fn press(&self, key: &str, code: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let params =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", &params);
        }
    }

    /// Returns every address that was requested over the network.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = self.browser.events("Network.requestWillBeSent");
        let urls = sent.iter().filter_map(|it| it["request"]["url"].as_str().map(str::to_owned));
        urls.filter(|url| !url.starts_with("data:")).collect()
    }

    /// Returns all errors and warnings of the console.
    pub(crate) fn console_errors(&self) -> Vec<String> {
        let bad = |it: &&Value| {
            ["error", "warning", "assert"]
                .iter()
                .any(|level| it["type"] == *level || it["entry"]["level"] == *level)
        };
        let logged = [
            self.browser.events("Runtime.consoleAPICalled"),
            self.browser.events("Log.entryAdded"),
        ]
        .concat();
        let thrown = self.browser.events("Runtime.exceptionThrown");
        logged.iter().filter(bad).chain(&thrown).map(Value::to_string).collect()
    }
}

/// Returns the source of axe-core, an accessibility checker, installed from npm if it is missing.
pub(crate) fn axe_source() -> String {
    let file = harness::axe_core().unwrap_or_else(|error| panic!("axe-core: {error}"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Decodes base64.
fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let six: Vec<u32> = text.bytes().filter_map(value).map(u32::from).collect();
    let bytes = six.chunks(4).flat_map(|four| {
        let all = four.iter().enumerate().fold(0, |all, (place, it)| all | it << (18 - 6 * place));
        let [_, bytes @ ..] = all.to_be_bytes();
        bytes.into_iter().take(four.len() * 6 / 8)
    });
    bytes.collect()
}

#[test]
fn decodes_base64() {
    assert_eq!(base64("aGVsbG8="), b"hello");
    assert_eq!(base64("iVBORw0K"), b"\x89PNG\r\n");
}
