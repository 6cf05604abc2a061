//! Certificates and addresses for TLS that change while the program runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use harness::{Authority, Certificate, Client, Load, Pointsman, Signal, Tls, wait_until};

use crate::credentials::{status, write};
use crate::metric;
use crate::tls_clients::{NAME, PATIENCE, Secured, assert_served, folder, ping, section, small};

/// A volume of a kubelet: the files are links below a link that is replaced as a whole.
pub(crate) struct Volume {
    pub(crate) folder: PathBuf,
    number: usize,
}

impl Volume {
    pub(crate) fn new(folder: PathBuf, certificate: &Certificate) -> Self {
        let mut volume = Self { folder, number: 0 };
        volume.lay(certificate);
        for name in ["tls.crt", "tls.key"] {
            let target = Path::new("..data").join(name);
            std::os::unix::fs::symlink(target, volume.folder.join(name)).expect("a link");
        }
        volume
    }

    pub(crate) fn lay(&mut self, certificate: &Certificate) {
        self.number += 1;
        let name = format!("..{}", self.number);
        let _ = certificate.write(&self.folder.join(&name));
        let next = self.folder.join("..data_tmp");
        std::os::unix::fs::symlink(&name, &next).expect("a link");
        std::fs::rename(&next, self.folder.join("..data")).expect("the exchange");
    }

    fn section(&self) -> String {
        section(&[(&self.folder.join("tls.crt"), &self.folder.join("tls.key"))], "")
    }
}

/// Connects again and again until it is stopped; returns how often, and the failures.
fn call(
    secured: &Secured,
    stop: &Arc<AtomicBool>,
) -> impl FnOnce() -> (usize, Vec<String>) + use<> {
    let (addr, tls, stop) = (secured.addr, secured.tls(), Arc::clone(stop));
    let (served, failures) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    let thread = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            match ping(addr, &tls) {
                Ok(reply) if reply.text() == Some("PONG") => {
                    served.fetch_add(1, Ordering::Relaxed);
                }
                other => failures.lock().expect("a list").push(format!("{other:?}")),
            }
            harness::pause(std::time::Duration::from_millis(5));
        }
        (served.into_inner(), failures.into_inner().expect("a list"))
    });
    || thread.join().expect("a caller")
}

fn unread(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_config_secrets_unread").expect("a gauge")
}

#[test]
fn replaces_certificates_under_load_without_error() {
    let cluster = small();
    let authority = Authority::new("Test CA");
    let mut volume = Volume::new(folder(&cluster), &authority.issue(&[NAME, "first.test"]));
    let secured = Secured::start_with(&cluster, authority, &volume.section(), "");
    let mut established = secured.client();
    let mut load = Load::to(secured.addr).tls(&secured.tls()).writers(4).rate(400).start();
    let stop = Arc::<AtomicBool>::default();
    let callers = [call(&secured, &stop), call(&secured, &stop)];
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 100);
    for name in ["second.test", "third.test", "fourth.test"] {
        let tls = Tls::new(&secured.authority, name);
        ping(secured.addr, &tls).expect_err("a certificate of another name");
        volume.lay(&secured.authority.issue(&[NAME, name]));
        wait_until("the new certificate", PATIENCE, || ping(secured.addr, &tls).is_ok());
        assert_eq!(established.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        let (served, failures) = caller();
        assert!(served > 0 && failures.is_empty(), "{failures:?}");
    }
    load.stop();
    assert_eq!(load.errors(), Vec::<String>::new());
    assert_eq!(unread(&secured.pointsman), 0.0);
    let log = secured.pointsman.process().log();
    assert!(!log.contains("PRIVATE KEY"), "{log}");
}

#[test]
fn keeps_certificate_if_the_next_one_is_bad() {
    let cluster = small();
    let authority = Authority::new("Test CA");
    let files = authority.issue(&[NAME, "old.test"]).write(&folder(&cluster));
    let section = section(&[(&files.chain, &files.key)], "");
    let secured = Secured::start_with(&cluster, authority, &section, "");
    let (old, new) =
        (Tls::new(&secured.authority, "old.test"), Tls::new(&secured.authority, "new.test"));
    let next = secured.authority.issue(&[NAME, "new.test"]);
    let mut established = secured.client();

    // Without its key, then with half a key: the old pair stays, and this is reported.
    write(&files.chain, &next.chain);
    for key in [None, Some(&next.key[..next.key.len() / 2])] {
        if let Some(key) = key {
            write(&files.key, key);
        }
        wait_until("the report", PATIENCE, || {
            let faults = status(&secured.pointsman)["config"]["faults"].to_string();
            let is_reported = faults.contains("service.tls") && faults.contains("tls.key");
            if is_reported && unread(&secured.pointsman) >= 1.0 { Ok(()) } else { Err(faults) }
        });
        assert_served(secured.addr, &old);
    }
    // The pair is complete.
    write(&files.key, &next.key);
    wait_until("the new certificate", PATIENCE, || ping(secured.addr, &new).is_ok());
    wait_until("the end of the report", PATIENCE, || unread(&secured.pointsman) == 0.0);
    // A whole pair that has expired: the other files are reloaded.
    let past = secured.authority.issue_until(&[NAME, "past.test"], 2021);
    write(&files.chain, &past.chain);
    write(&files.key, &past.key);
    wait_until("the report", PATIENCE, || {
        let config = status(&secured.pointsman)["config"].to_string();
        let is_kept = config.contains("has expired") && unread(&secured.pointsman) >= 1.0;
        if is_kept { Ok(()) } else { Err(config) }
    });
    assert_served(secured.addr, &new);
    write(&files.chain, &next.chain);
    write(&files.key, &next.key);
    wait_until("the end of the report", PATIENCE, || {
        !status(&secured.pointsman)["config"].to_string().contains("has expired")
    });
    assert_eq!(established.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
}

/// Changes a line of the configuration, and waits until the reload is applied.
pub(crate) fn reconfigure(pointsman: &Pointsman, from: &str, to: &str) {
    let path = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&path).expect("the file");
    assert!(text.contains(from), "{from}: {text}");
    let applied = || metric(pointsman, "pointsman_config_reloads_total{result=\"applied\"}");
    let before = applied();
    write(&path, &text.replace(from, to));
    pointsman.process().signal(Signal::HUP);
    wait_until("the reload", PATIENCE, || applied() > before);
}

#[test]
fn opens_closes_and_changes_tls_addresses() {
    let cluster = small();
    let secured = Secured::start(&cluster, "", "");
    let (pointsman, addr, tls) = (&secured.pointsman, secured.addr, secured.tls());
    let with = |addr| format!("tls_listen = [\"{addr}\"]");
    let mut established = secured.client();
    let more = cluster.address().port();
    reconfigure(pointsman, &with(addr), &format!("tls_listen = [\"{addr}\", \"{more}\"]"));
    assert_served(more, &tls);
    assert_served(addr, &tls);
    assert_eq!(established.cmd(&["PING"]).expect("PING").text(), Some("PONG"));

    reconfigure(pointsman, &format!("[\"{addr}\", \"{more}\"]"), &format!("[\"{addr}\"]"));
    wait_until("the address to close", PATIENCE, || Client::connect(more).is_err());

    // The plain address and that for TLS change places.
    let plain = pointsman.addr();
    let lines = |plain, tls| (format!("listen = [\"{plain}\"]\nsentinels"), with(tls));
    let path = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&path).expect("the file");
    let (old, new) = (lines(plain, addr), lines(addr, plain));
    write(&path, &text.replace(&old.1, "TLS").replace(&old.0, &new.0).replace("TLS", &new.1));
    pointsman.process().signal(Signal::HUP);
    wait_until("TLS at the address that was plain", PATIENCE, || ping(plain, &tls).is_ok());
    wait_until("the other one to be plain", PATIENCE, || {
        Client::connect(addr).and_then(|mut it| it.cmd(&["PING"])).is_ok_and(|it| !it.is_error())
    });
}

#[test]
fn adds_tls_to_a_running_service() {
    let cluster = small();
    let pointsman = crate::pointsman(&cluster);
    let mut established = pointsman.client();
    assert_eq!(established.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let authority = Authority::new("Test CA");
    let files = authority.issue(&[NAME]).write(&folder(&cluster));
    let (addr, tls) = (cluster.address().port(), Tls::new(&authority, NAME));
    let section = section(&[(&files.chain, &files.key)], "");
    let lines = format!("tls_listen = [\"{addr}\"]\n{section}\n[admin]");
    reconfigure(&pointsman, "[admin]", &lines);
    assert_served(addr, &tls);
    let until = format!(
        "pointsman_tls_certificate_not_after_seconds\
         {{service=\"mymaster\",side=\"clients\",file={:?}}}",
        files.chain
    );
    assert_eq!(metric(&pointsman, &until), Some(4_102_444_800.0), "2100-01-01");
    let listed = &status(&pointsman)["config"]["certificates"][0];
    assert_eq!((&listed["names"][0], &listed["self_signed"]), (&NAME.into(), &false.into()));
    // A file that is changed in the same place is watched from then on.
    let other = Tls::new(&authority, "next.test");
    let next = authority.issue(&["next.test"]);
    write(&files.chain, &next.chain);
    write(&files.key, &next.key);
    wait_until("the new certificate", PATIENCE, || ping(addr, &other).is_ok());
    reconfigure(&pointsman, &lines, "[admin]");
    wait_until("the address to close", PATIENCE, || Client::connect(addr).is_err());
    assert_eq!(established.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
}
