//! Tests the status page in a real browser with a real cluster, before, during and after a
//! failover.
//!
//! One browser loads the page once. At each step the page is checked on a wide and a narrow screen
//! in light and dark mode, and a screenshot of each is stored in the folder that the test prints at
//! its end.
//!
//! The page changes every second, so the test freezes it with its own button at the moment when it
//! shows the expected state. The result does not depend on the speed of the machine.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests report failures by a panic"
)]

mod browser;
mod https;
mod sharing;
mod tab;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use browser::Browser;
use harness::{Cluster, Load, Pointsman, Signal, wait_until};
use serde_json::Value;
use tab::{SCREENS, Screen, TIMEOUT, TWO, Tab, axe_source};

/// A realistic, long name.
const LONG: &str = "orders-eu-west-1-production-checkout-cache-primary";

/// Short, but long enough to see the drain: one client stays until its end.
const SHUTDOWN: &str = "[shutdown]\naccept_min = \"500ms\"\naccept_quiet = \"100ms\"\naccept_max = \"2s\"\n\
                        drain_spread = \"100ms\"\ndrain_timeout = \"6s\"";

/// The state that the steps share.
struct PageTest<'a> {
    cluster: &'a Cluster,
    pointsman: &'a Pointsman,
    tab: Tab<'a>,
    axe: String,
    pictures: PathBuf,
}

#[test]
fn shows_failover_on_every_screen_without_reload() {
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&pictures).expect("a folder for the pictures");
    let cluster = Cluster::builder().masters(&[LONG, "sessions"]).start();
    let pointsman =
        Pointsman::builder(env!("CARGO_BIN_EXE_pointsman"), &cluster).lines(SHUTDOWN).start();
    let mut load = Load::to(pointsman.addr()).writers(4).rate(300).start();
    let browser = Browser::start(cluster.folder());
    let tab = Tab::open(&browser, &format!("http://{}/", pointsman.admin()));
    let test =
        PageTest { cluster: &cluster, pointsman: &pointsman, tab, axe: axe_source(), pictures };
    test.tab.eval("window.loadedOnce = true");

    test.healthy();
    test.keyboard();
    let (from, to) = test.failover();
    test.after(&from, &to);
    test.outdated();
    test.rare_states();
    assert_eq!(test.tab.console_errors(), Vec::<String>::new());
    load.stop();
    test.shutdown();
    let origin = format!("http://{}/", pointsman.admin());
    let requests = test.tab.requests();
    assert!(
        requests.len() > 10 && requests.iter().all(|it| it.starts_with(&origin)),
        "{requests:?}"
    );
    assert_eq!(test.tab.eval("window.loadedOnce"), true, "the page was reloaded");
    eprintln!("screenshots of the page: {}", test.pictures.display());
}

/// Returns the names in each section, in the order of the page. The list outside of the sections is
/// sorted: services are ordered by severity there, and on a busy machine one of them may be suspect
/// for a second.
fn by_section(places: &[Value]) -> BTreeMap<&str, Vec<&str>> {
    let mut sections = BTreeMap::<_, Vec<_>>::new();
    for place in places {
        sections
            .entry(place[0].as_str().expect("a section"))
            .or_default()
            .push(place[1].as_str().expect("a name"));
    }
    sections.entry("").or_default().sort_unstable();
    sections
}

impl PageTest<'_> {
    /// Checks the page on some screens: layout, accessibility, screenshot.
    #[track_caller]
    fn check(&self, name: &str, screens: &[Screen]) {
        for screen in screens {
            self.fits(name, *screen);
            let faults = self.tab.accessibility_violations(&self.axe);
            assert!(faults.is_empty(), "{name} on {screen:?}:\n{}", faults.join("\n"));
        }
    }

    /// Shows the page on a screen, checks that nothing is wider, and takes a screenshot.
    #[track_caller]
    fn fits(&self, name: &str, screen: Screen) {
        self.tab.show_on(screen);
        // A phone zooms out if content is too wide, and then reports a wider window, too.
        let wide = self.tab.eval("document.documentElement.scrollWidth");
        assert!(
            wide.as_u64() <= Some(u64::from(screen.width)),
            "{name}: {wide} pixels are too wide for {screen:?}"
        );
        self.tab.picture(&self.pictures, name, screen);
    }

    /// Makes the page freeze itself as soon as the text of an element matches.
    fn freeze_at(&self, id: &str, pattern: &str) {
        self.tab.eval(&format!(
            "new MutationObserver((_, watch) => {{
                if (!/{pattern}/.test(document.getElementById({id:?}).textContent)) return;
                watch.disconnect();
                document.getElementById('freeze').click();
            }}).observe(document.body, {{ subtree: true, childList: true, characterData: true }}); true"
        ));
    }

    #[track_caller]
    fn wait_frozen(&self, what: &str) {
        self.tab.wait(
            what,
            "document.getElementById('freeze').getAttribute('aria-pressed') === 'true'",
        );
    }

    fn press_freeze(&self) {
        self.tab.eval("document.getElementById('freeze').click()");
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.pointsman.get("/status").expect("the status").1).expect("JSON")
    }

    fn healthy(&self) {
        let tab = &self.tab;
        tab.wait_text("#verdict", "All 2 services have a master");
        tab.wait_text(
            "section:first-of-type > p",
            &format!("Master: {}", self.cluster.master().addr()),
        );
        tab.wait(
            "five plots with data",
            "document.querySelectorAll('section:first-of-type .plots .curve').length === 5",
        );
        for sentinel in self.cluster.sentinel_addrs() {
            tab.wait_text("section", &sentinel.to_string());
        }
        tab.wait_text("#age", "live");
        // Sessions that a failover would close are visible before it.
        let mut pinned = self.pointsman.client();
        assert!(pinned.cmd(&["MULTI"]).expect("an answer").is_ok());
        tab.wait_text("section:first-of-type", "Would close at a failover");
        tab.wait_text("section:first-of-type", "1 transaction");
        self.check("healthy", &SCREENS);
        // Totals by network are requested only while their section is open.
        assert!(!self.tab.requests().iter().any(|it| it.ends_with("/networks")));
        tab.eval("document.getElementById('networks').open = true");
        tab.wait_text("#networks-live", "sessions from 1 network");
        tab.wait_text("#networks-live table", "127.");
        self.check("networks", &SCREENS);
        tab.eval("document.getElementById('networks').open = false");
    }

    /// The Tab key reaches every control in the order of the page, each with a visible frame, and
    /// Space presses the button.
    fn keyboard(&self) {
        let tab = &self.tab;
        tab.show_on(SCREENS[0]);
        tab.wait_text("#verdict", "All 2 services have a master");
        tab.eval("document.activeElement.blur(); window.getSelection().removeAllRanges(); true");
        // Each with its section.
        let name = "(e => [e.closest('section')?.querySelector('h2').id ?? '', e.getAttribute('aria-label') || e.textContent])";
        let all = tab.eval(&format!(
            "[...document.querySelectorAll('a[href], button, summary, .scroll')].map({name})"
        ));
        let all = all.as_array().expect("a list");
        assert!(all.len() > 10, "{all:?}");
        let mut seen = Vec::new();
        for _ in all {
            tab.press("Tab", 9);
            let at = tab.eval(&format!(
                "(e => {{ const s = getComputedStyle(e), r = e.getBoundingClientRect();
                    return [{name}(e), s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2, r.width > 0 && r.bottom > 0 && r.top < innerHeight]; }})
                 (document.activeElement)"
            ));
            assert!(at[1] == true && at[2] == true, "no visible frame around {at}");
            seen.push(at[0].clone());
        }
        assert_eq!(by_section(&seen), by_section(all));
        tab.eval("document.getElementById('freeze').focus()");
        tab.press(" ", 32);
        self.wait_frozen("Space to freeze the page");
        tab.wait_text("#age", "frozen at");
        tab.press(" ", 32);
        tab.wait_text("#age", "live");
    }

    /// Kills the master. Returns the old and the new master.
    fn failover(&self) -> (String, String) {
        let old = self.cluster.master();
        let from = old.addr().to_string();
        self.freeze_at("verdict", "is unreachable|does not answer|Traffic held");
        old.kill();
        self.wait_frozen("the page to show the failure");
        let shown_text = self.tab.text("#verdict");
        // A second later than usual, no node answers as a master.
        let sign =
            if shown_text.contains("no node can be verified as the master") { '✕' } else { '!' };
        assert!(shown_text.contains(LONG) && shown_text.starts_with(sign), "{shown_text}");
        self.check("during", &SCREENS);
        let to = wait_until("the switch", TIMEOUT, || {
            let target = &self.status()["services"][0]["target"]["name"];
            target.as_str().filter(|to| *to != from).map(str::to_owned)
        });
        self.press_freeze();
        (from, to)
    }

    fn after(&self, from: &str, to: &str) {
        let tab = &self.tab;
        tab.wait_text("section:first-of-type > p", &format!("Master: {to}"));
        tab.wait_text("section:first-of-type .failovers", &format!("{from} → {to}"));
        tab.wait(
            "the switch in the plots",
            "document.querySelector('section:first-of-type .plots .switch') !== null",
        );
        tab.wait(
            "the first session",
            "!document.querySelector('section:first-of-type .failovers')\
              .innerText.includes('none yet')",
        );
        self.check("after", &SCREENS);
        // The page shows the figures of the status.
        let status = self.status();
        let last = status["services"][0]["failovers"]
            .as_array()
            .and_then(|all| all.last())
            .expect("a failover");
        let shown_text =
            tab.text("section:first-of-type .failovers > li:first-child").replace('\n', " ");
        for (name, key) in [
            ("Traffic held", "held_ms"),
            ("Verified in", "verified_ms"),
            ("First session", "first_session_ms"),
            ("Duration", "duration_ms"),
            ("Switched", "switched_ms"),
        ] {
            let shown =
                tab.eval(&format!("millis({})", last[key])).as_str().expect("a time").to_owned();
            assert!(
                last[key].is_null() || shown_text.contains(&format!("{name} {shown}")),
                "{key} {shown}: {shown_text}"
            );
        }
        assert!(last["held_ms"].is_number() && last["first_session_ms"].is_number(), "{last}");
        for (name, key) in [("Epoch", "epoch"), ("Generation", "generation")] {
            assert!(shown_text.contains(&format!("{name} {}", last[key])), "{key}: {shown_text}");
        }
        assert_eq!((last["from"].as_str(), last["to"].as_str()), (Some(from), Some(to)));
        // The dead master was tried again and again.
        let nodes = status["services"][0]["nodes"].as_array().expect("nodes");
        let failed = |addr: &str, what: &str| {
            let node = nodes.iter().find(|it| it["addr"] == addr).expect("the node");
            node[what].as_u64()
        };
        assert!(failed(from, "failed_probes") > Some(0), "{nodes:?}");
        assert_eq!(failed(to, "failed_connects"), Some(0), "{nodes:?}");
    }

    /// States that are too short or too rare: the page gets a modified copy of the real status.
    fn rare_states(&self) {
        let tab = &self.tab;
        let stopped = "document.getElementById('freeze').getAttribute('aria-pressed') === 'true'";
        assert_eq!(tab.eval(stopped), false);
        // Frozen, so that no real update interferes.
        self.press_freeze();
        tab.eval("window.real = answers");
        let cases = [
            (
                "held",
                "v.gate = 'closed'; v.state = 'armed'; v.held_s = 1.2; v.traffic.sessions_waiting = 4; v.candidate = v.nodes.find(n => n.pong && n.addr !== v.target.name).addr; judge('warning', 'Traffic held for 1.2 s: armed.')",
                "! ",
                "document.querySelector('.box.odd + text + .small').textContent.startsWith('replica, failover candidate')",
            ),
            (
                "readers",
                "v.readers = { eligible: 1, traffic: v.traffic }; for (const n of v.nodes) if (n.role === 'replica') { n.sessions = 3; v.replicas.push({ addr: n.addr, state: 'eligible', lag_bytes: 7, lag_s: 0 }); } s.services.length = 1; judge('ok', 'Fine.')",
                "✓ ",
                "document.querySelectorAll('.track.reads').length === v.replicas.length && v.replicas.length > 0 && document.querySelector('section > p').hidden",
            ),
            (
                "names",
                "v.nodes[0].addr = 'redis-node-0.redis-headless.production-eu-west-1.svc.cluster.local:6379'; v.sentinels[0].problem = 'it requires a password: set service.sentinel_auth to what requirepass says there'; judge('warning', 'Odd.')",
                "! ",
                "[...document.querySelectorAll('section:first-of-type svg text')].every(e => !e.textContent.includes('…'))",
            ),
            (
                "lost",
                "v.target = null; v.state = 'no_master'; v.gate = 'closed'; judge('fault', 'No master.')",
                "✕ ",
                "document.querySelector('section:first-of-type .track') === null",
            ),
            (
                "no-sentinel",
                "v.sentinels.forEach(n => { n.up = false; n.problem = 'connection refused' }); judge('warning', 'No sentinel.')",
                "! ",
                "document.querySelectorAll('section:first-of-type .box.off').length >= v.sentinels.length",
            ),
            (
                "many",
                "for (let i = 0; i < 200; i++) s.services.push({ ...structuredClone(v), name: v.name + i, verdict: { severity: i % 2 ? 'fault' : 'ok', text: i % 2 ? 'No master.' : `Master: ${i}.` } }); v = s.services[6]; judge('warning', 'Suspect.')",
                "! ",
                "document.getElementById('overview').innerText.includes('and 99 more') && document.querySelector('#overview button').textContent.startsWith('Show all 202 services') && [...document.querySelectorAll('section')].every(e => e.hidden || e.checkVisibility() === false)",
            ),
        ];
        for (name, change, sign, shown) in cases {
            tab.show_on(SCREENS[0]);
            let shown = tab.eval(&format!("{{ answers = structuredClone(real); const [s] = answers; let v = s.services[0];
                const judge = (severity, text) => {{ v.verdict = {{ severity, text }}; s.verdict = {{ severity, text: `${{v.name}}: ${{text}}` }}; }};
                {change}; show(...answers); {shown} }}"));
            assert_eq!(shown, true, "{name}");
            assert!(tab.text("#verdict").starts_with(sign), "{name}");
            for screen in TWO {
                self.fits(name, screen);
            }
        }
        tab.eval("answers = real; true");
        self.press_freeze();
    }

    /// The process is stopped: old data must be marked as outdated.
    fn outdated(&self) {
        self.pointsman.process().signal(Signal::STOP);
        self.tab.wait_text("#verdict", "No answer from the process since");
        self.check("silent", &TWO);
        self.pointsman.process().signal(Signal::CONT);
        self.tab.wait_text("#age", "live");
        // The old master is still dead.
        self.tab.wait_text("#verdict", "1 of 3 nodes does not answer");
    }

    /// The proxy shuts down.
    fn shutdown(&self) {
        let mut waiting = self.pointsman.client();
        waiting.send(&harness::encode(&["BLPOP", "nothing", "0"])).expect("a client that waits");
        wait_until("the client to be there", TIMEOUT, || {
            self.status()["services"][0]["traffic"]["sessions_open"].as_u64() == Some(1)
        });
        self.freeze_at("verdict", "draining");
        self.pointsman.sigterm();
        self.wait_frozen("the page to show the drain");
        self.tab.wait_text("#verdict", "Shutting down (draining): 1 session is open");
        self.check("draining", &TWO);
        self.press_freeze();
        assert!(self.pointsman.wait_exit(Duration::from_secs(30)).success());
        self.tab.wait_text("#verdict", "No answer from the process");
        self.check("gone", &TWO);
    }
}
