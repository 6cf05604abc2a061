//! The status page in a real browser, in front of a real cluster, before, during and after a
//! failover.
//!
//! One browser, one page that is never loaded again, one story. At each station the page is looked
//! at on a telephone and on a desk, by day and by night, and a picture of each is left in the
//! folder that the test names at its end.
//!
//! A page that changes every second is photographed by its own button: the test has it pressed at
//! the moment when it shows what is wanted, so that nothing depends on how fast the machine is.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests report by a clear panic"
)]

mod axe;
mod browser;
mod tab;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use browser::Browser;
use harness::{Cluster, Load, Pointsman, Signal, wait_until};
use serde_json::Value;
use tab::{PATIENCE, SCREENS, Screen, TWO, Tab};

/// A name as people give them.
const LONG: &str = "orders-eu-west-1-production-checkout-cache-primary";

/// Short, and long enough for the drain to be seen: one client stays to its end.
const SHUTDOWN: &str = "[shutdown]\naccept_min = \"500ms\"\naccept_quiet = \"100ms\"\naccept_max = \"2s\"\n\
                        drain_spread = \"100ms\"\ndrain_timeout = \"6s\"";

/// Everything that the stations of the story need.
struct Scene<'a> {
    cluster: &'a Cluster,
    pointsman: &'a Pointsman,
    tab: Tab<'a>,
    axe: String,
    pictures: PathBuf,
}

#[test]
fn the_page_tells_a_failover_on_every_screen_without_being_loaded_again() {
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&pictures).expect("a folder for the pictures");
    let cluster = Cluster::builder().masters(&[LONG, "sessions"]).start();
    let pointsman =
        Pointsman::builder(env!("CARGO_BIN_EXE_pointsman"), &cluster).lines(SHUTDOWN).start();
    let mut load = Load::to(pointsman.addr()).writers(4).rate(300).start();
    let browser = Browser::start(cluster.folder());
    let tab = Tab::open(&browser, &format!("http://{}/", pointsman.admin()));
    let scene =
        Scene { cluster: &cluster, pointsman: &pointsman, tab, axe: axe::source(), pictures };
    scene.tab.eval("window.loadedOnce = true");

    scene.calm();
    scene.keyboard();
    let (from, to) = scene.failover();
    scene.after(&from, &to);
    scene.silent();
    scene.what_real_servers_will_not_do_to_order();
    assert_eq!(scene.tab.complaints(), Vec::<String>::new());
    load.stop();
    scene.end();
    let origin = format!("http://{}/", pointsman.admin());
    let requests = scene.tab.requests();
    assert!(
        requests.len() > 10 && requests.iter().all(|it| it.starts_with(&origin)),
        "{requests:?}"
    );
    assert_eq!(scene.tab.eval("window.loadedOnce"), true, "the page was loaded again");
    eprintln!("the page, as it was: {}", scene.pictures.display());
}

/// The names in each section, in the order of the page. Outside of the sections the order is left
/// out: the services there stand by how they are, and on a busy machine one of them is in doubt for
/// a second now and then.
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

impl Scene<'_> {
    /// Looks at the page on some screens: fits, offends nobody, is photographed.
    #[track_caller]
    fn look(&self, name: &str, screens: &[Screen]) {
        for screen in screens {
            self.fits(name, *screen);
            let faults = axe::faults(&self.tab, &self.axe);
            assert!(faults.is_empty(), "{name} on {screen:?}:\n{}", faults.join("\n"));
        }
    }

    /// Shows the page on a screen, where nothing may be wider than that, and takes a picture.
    #[track_caller]
    fn fits(&self, name: &str, screen: Screen) {
        self.tab.show_on(screen);
        // A telephone zooms out of what is too wide, and then says that its window is wider, too.
        let wide = self.tab.eval("document.documentElement.scrollWidth");
        assert!(
            wide.as_u64() <= Some(u64::from(screen.width)),
            "{name}: {wide} pixels are too wide for {screen:?}"
        );
        self.tab.picture(&self.pictures, name, screen);
    }

    /// From now on the page freezes itself as soon as the text of an element matches.
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

    fn calm(&self) {
        let tab = &self.tab;
        tab.wait_text("#verdict", "All 2 services lead to their masters");
        tab.wait_text(
            "section:first-of-type > p",
            &format!("Leads to {}", self.cluster.master().addr()),
        );
        tab.wait(
            "four plots with data",
            "document.querySelectorAll('section:first-of-type .plots .curve').length === 4",
        );
        for sentinel in self.cluster.sentinel_addrs() {
            tab.wait_text("section", &sentinel.to_string());
        }
        tab.wait_text("#age", "live");
        // Which sessions a failover would close is seen before it comes.
        let mut pinned = self.pointsman.client();
        assert!(pinned.cmd(&["MULTI"]).expect("an answer").is_ok());
        tab.wait_text("section:first-of-type", "Closed at a failover");
        tab.wait_text("section:first-of-type", "1 transaction");
        self.look("calm", &SCREENS);
    }

    /// Tab goes through everything that can be used, in the order of the page, each with a frame
    /// that is seen; the button obeys.
    fn keyboard(&self) {
        let tab = &self.tab;
        tab.show_on(SCREENS[0]);
        tab.wait_text("#verdict", "All 2 services lead to their masters");
        tab.eval("document.activeElement.blur(); window.getSelection().removeAllRanges(); true");
        // Each with the section that it is in.
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
            assert!(at[1] == true && at[2] == true, "no frame is seen around {at}");
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

    /// The master dies. Returns where the points led before and lead after.
    fn failover(&self) -> (String, String) {
        let old = self.cluster.master();
        let from = old.addr().to_string();
        self.freeze_at("verdict", "cannot be reached|does not answer|Held");
        old.kill();
        self.wait_frozen("the page to show that the master is gone");
        let told = self.tab.text("#verdict");
        // Seen a second later than usual, nobody answers as the master any more.
        let sign = if told.contains("no node can be verified as the master") { '✕' } else { '!' };
        assert!(told.contains(LONG) && told.starts_with(sign), "{told}");
        self.look("during", &SCREENS);
        let to = wait_until("the points to move", PATIENCE, || {
            let target = &self.status()["services"][0]["target"]["name"];
            target.as_str().filter(|to| *to != from).map(str::to_owned)
        });
        self.press_freeze();
        (from, to)
    }

    fn after(&self, from: &str, to: &str) {
        let tab = &self.tab;
        tab.wait_text("section:first-of-type > p", &format!("Leads to {to}"));
        tab.wait_text("section:first-of-type .story", &format!("{from} → {to}"));
        tab.wait(
            "the move in the plots",
            "document.querySelector('section:first-of-type .plots .moved') !== null",
        );
        tab.wait(
            "the first session",
            "!document.querySelector('section:first-of-type .story').innerText.includes('none yet')",
        );
        self.look("after", &SCREENS);
        // What is told of the move is what the status says of it.
        let status = self.status();
        let last = status["services"][0]["failovers"]
            .as_array()
            .and_then(|all| all.last())
            .expect("a move");
        let told = tab.text("section:first-of-type .story > li:first-child").replace('\n', " ");
        for (name, key) in [
            ("Held for", "held_ms"),
            ("Verified in", "verified_ms"),
            ("First session", "first_session_ms"),
            ("First sign", "suspected_ms"),
            ("Moved", "switched_ms"),
        ] {
            let shown =
                tab.eval(&format!("millis({})", last[key])).as_str().expect("a time").to_owned();
            assert!(
                last[key].is_null() || told.contains(&format!("{name} {shown}")),
                "{key} {shown}: {told}"
            );
        }
        assert!(last["held_ms"].is_number() && last["first_session_ms"].is_number(), "{last}");
        for (name, key) in [("Epoch", "epoch"), ("Generation", "generation")] {
            assert!(told.contains(&format!("{name} {}", last[key])), "{key}: {told}");
        }
        assert_eq!((last["from"].as_str(), last["to"].as_str()), (Some(from), Some(to)));
    }

    /// States that last too short, or need a worse day: the page is given a status that is made of
    /// the real one.
    fn what_real_servers_will_not_do_to_order(&self) {
        let tab = &self.tab;
        let stopped = "document.getElementById('freeze').getAttribute('aria-pressed') === 'true'";
        assert_eq!(tab.eval(stopped), false);
        // Frozen: nothing real comes in between.
        self.press_freeze();
        tab.eval("window.real = answers");
        let cases = [
            (
                "held",
                "v.gate = 'shut'; v.state = 'armed'; v.held_s = 1.2; v.traffic.sessions_waiting = 4",
                "! ",
                "Held for 1.2 s: a failover is under way; 4 clients wait",
            ),
            (
                "paused",
                "v.gate = 'shut'; v.state = 'stable'; v.held_s = 30",
                "! ",
                "by an operator's order",
            ),
            ("lost", "v.target = null; v.state = 'no_master'; v.gate = 'shut'", "✕ ", "No master"),
            ("minority", "v.minority = true", "! ", "a minority"),
            (
                "deaf",
                "v.sentinels.forEach(n => { n.up = false; n.problem = 'connection refused' })",
                "! ",
                "no sentinel is heard",
            ),
            (
                "crowd",
                "for (let i = 0; i < 9; i++) s.services.push({ ...structuredClone(v), name: v.name + i, state: i === 4 ? 'suspect' : v.state })",
                "! ",
                "primary4: Something may be wrong",
            ),
        ];
        for (name, change, sign, words) in cases {
            tab.eval(&format!("{{ answers = structuredClone(real); const [s] = answers, v = s.services[0]; {change}; show(...answers); }} true"));
            let told = tab.text("#verdict");
            assert!(told.starts_with(sign) && told.contains(words), "{name}: {told}");
            for screen in TWO {
                self.fits(name, screen);
            }
        }
        tab.eval("answers = real; true");
        self.press_freeze();
    }

    /// The process is stopped: what is shown must not be taken for the present.
    fn silent(&self) {
        self.pointsman.process().signal(Signal::STOP);
        self.tab.wait_text("#verdict", "No answer from the process since");
        self.look("silent", &TWO);
        self.pointsman.process().signal(Signal::CONT);
        self.tab.wait_text("#age", "live");
        self.tab.wait_text("#verdict", "All 2 services lead to their masters");
    }

    /// The proxy is told to go, and goes.
    fn end(&self) {
        let mut stays = self.pointsman.client();
        stays.send(&harness::encode(&["BLPOP", "nothing", "0"])).expect("a client that waits");
        wait_until("the client to be there", PATIENCE, || {
            self.status()["services"][0]["traffic"]["sessions_open"].as_u64() == Some(1)
        });
        self.freeze_at("verdict", "draining");
        self.pointsman.sigterm();
        self.wait_frozen("the page to show the drain");
        self.tab.wait_text("#verdict", "This proxy is draining: 1 session is left");
        self.look("draining", &TWO);
        self.press_freeze();
        assert!(self.pointsman.wait_exit(Duration::from_secs(30)).success());
        self.tab.wait_text("#verdict", "No answer from the process");
        self.look("gone", &TWO);
    }
}
