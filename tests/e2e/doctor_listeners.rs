//! `pointsman sentinels` on the certificates that listeners show to clients: each fault has its
//! finding, and the commands that are printed cure it. No proxy runs here.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use harness::{Authority, Certificates, Cluster};
use serde_json::Value as Json;

use crate::PROGRAM;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[expect(clippy::disallowed_methods, reason = "the validity of certificates is in wall time")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// A certificate and a key in a folder of their own, the key readable by its owner only.
struct Pair {
    chain: PathBuf,
    key: PathBuf,
}

impl Pair {
    fn secret(certificate: PathBuf, key: PathBuf) -> Self {
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&key, mode).expect("a mode");
        Self { chain: certificate, key }
    }
}

/// The sections of a service and of the admin server with these certificates.
fn sections(service: &[&Pair], admin: Option<&Pair>) -> String {
    let mut text = String::new();
    if !service.is_empty() {
        let chains: Vec<_> = service.iter().map(|pair| &pair.chain).collect();
        let keys: Vec<_> = service.iter().map(|pair| &pair.key).collect();
        let _ =
            writeln!(text, "[service.tls]\ncertificate_files = {chains:?}\nkey_files = {keys:?}");
    }
    if let Some(Pair { chain, key }) = admin {
        let _ = writeln!(text, "[admin.tls]\ncertificate_file = {chain:?}\nkey_file = {key:?}");
    }
    text
}

/// The doctor's exit code and document.
fn examine(cluster: &Cluster, sections: &str) -> (Option<i32>, Json) {
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let config = cluster.folder().join("doctor.toml");
    let text = format!("[[service]]\nname = \"mymaster\"\nsentinels = {sentinels:?}\n{sections}\n");
    std::fs::write(&config, text).expect("a file");
    let mut command = Command::new(PROGRAM);
    command.arg("sentinels").arg("--json").arg("--config").arg(config).env_clear();
    let output = command.output().expect("the program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let document = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    (output.status.code(), document)
}

/// A finding: `severity: problem; remedy`, and its commands as one script.
struct Found {
    text: String,
    script: String,
}

#[track_caller]
fn find(part: &Json, code: &str, about: &Path) -> Found {
    let all = part["findings"].as_array().expect("findings");
    let about = about.display().to_string();
    let found = all.iter().find(|it| {
        it["code"] == code && it["about"].as_str().is_some_and(|it| it.starts_with(&about))
    });
    let found = found.unwrap_or_else(|| panic!("no {code} about {about} in {all:#?}"));
    let text = |key: &str| found[key].as_str().expect(key).to_owned();
    let commands = found["commands"].as_array().expect("commands");
    let commands: Vec<&str> = commands.iter().filter_map(Json::as_str).collect();
    Found {
        text: format!("{}: {}; {}", text("severity"), text("message"), text("remedy")),
        script: commands.join("\n"),
    }
}

/// Runs what a finding prints, and returns what it prints.
#[track_caller]
fn run(found: &Found) -> String {
    let output = Command::new("/bin/sh").args(["-ec", &found.script]).output().expect("a shell");
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !found.script.is_empty(), "{}: {shown}", found.script);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn is_healthy(cluster: &Cluster, sections: &str) {
    let (code, document) = examine(cluster, sections);
    assert_eq!((code, &document["healthy"]), (Some(0), &Json::Bool(true)), "{document:#}");
}

fn small() -> Cluster {
    Cluster::builder().sentinels(3).start()
}

#[test]
fn lists_certificates_of_sound_listeners_with_their_names() {
    let cluster = small();
    let folder = cluster.folder().join("listeners");
    let certificates = Certificates::new(&folder);
    let service = certificates.issue("service", &["redis.test", "10.1.2.3"]);
    let admin = certificates.issue("admin", &["admin.test"]);
    let service = Pair::secret(service.certificate, service.key);
    let admin = Pair::secret(admin.certificate, admin.key);
    let sections = sections(&[&service], Some(&admin));
    is_healthy(&cluster, &sections);
    let (_, document) = examine(&cluster, &sections);
    let shown = &document["services"][0]["certificates"][0];
    assert_eq!(shown["file"], service.chain.display().to_string());
    assert_eq!(shown["names"], serde_json::json!(["redis.test", "10.1.2.3"]));
    assert!(shown["expires_in_s"].as_i64() > Some(360 * 24 * 3600), "{shown}");
    assert_eq!(document["admin"]["certificates"][0]["names"][0], "admin.test");
    assert_eq!(document["admin"]["healthy"], true);
    let config = cluster.folder().join("doctor.toml");
    let mut command = Command::new(PROGRAM);
    let output = command.arg("sentinels").arg("--config").arg(config).output().expect("text");
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["redis.test, 10.1.2.3; issued by CN=harness CA", "admin server", "valid for 36"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn reports_files_that_are_missing_or_do_not_fit() {
    let cluster = small();
    let folder = cluster.folder().join("listeners");
    let authority = Authority::new("CA");
    let pair = |name: &str| {
        let paths = authority.issue(&[name]).write(&folder.join(name));
        Pair::secret(paths.chain, paths.key)
    };
    let (one, two) = (pair("one.test"), pair("two.test"));
    is_healthy(&cluster, &sections(&[&one, &two], Some(&one)));

    // The keys in another order.
    let swapped = [
        Pair { chain: one.chain.clone(), key: two.key.clone() },
        Pair { chain: two.chain.clone(), key: one.key.clone() },
    ];
    let (code, document) = examine(&cluster, &sections(&[&swapped[0], &swapped[1]], None));
    assert_eq!(code, Some(2));
    let found = find(&document["services"][0], "certificate-key", &two.key);
    assert!(
        found.text.contains("it is the key of") && found.text.contains("order"),
        "{}",
        found.text
    );
    let lines = run(&found);
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines.len() == 2 && lines[0] != lines[1], "{lines:?}");
    // What else is wrong is still found: the servers were examined.
    assert_eq!(document["services"][0]["nodes"].as_array().map(Vec::len), Some(3));

    // A key of none of them.
    let foreign = Pair { chain: one.chain.clone(), key: two.key.clone() };
    let (code, document) = examine(&cluster, &sections(&[], Some(&foreign)));
    assert_eq!(code, Some(2));
    let found = find(&document["admin"], "certificate-key", &two.key);
    assert!(
        found.text.starts_with("fault: ") && found.text.contains("does not start"),
        "{}",
        found.text
    );
    assert_eq!(document["admin"]["certificates"][0]["names"][0], "one.test", "it is listed");

    let missing = Pair { chain: folder.join("missing.crt"), key: one.key.clone() };
    let (code, document) = examine(&cluster, &sections(&[&missing], None));
    assert_eq!(code, Some(2));
    let found = find(&document["services"][0], "certificate-file", &missing.chain);
    assert!(found.text.contains("does not exist"), "{}", found.text);

    std::fs::write(&missing.chain, "-----BEGIN CERTIFICATE-----\nMIIB").expect("a file");
    let (_, document) = examine(&cluster, &sections(&[&missing], None));
    let found = find(&document["services"][0], "certificate-file", &missing.chain);
    assert!(found.text.contains("not complete PEM"), "{}", found.text);
    let all = document["services"][0]["findings"].as_array().expect("findings");
    let faults = all.iter().filter(|it| it["severity"] == "fault").count();
    assert_eq!(faults, 1, "each fault once: {all:#?}");

    // Other faults of the configuration are still refused as such.
    let text = format!("{}hosts = 3\n", sections(&[], Some(&foreign)));
    let config = cluster.folder().join("broken.toml");
    std::fs::write(&config, format!("[[service]]\nsentinels = [\"s\"]\n{text}")).expect("a file");
    let mut command = Command::new(PROGRAM);
    let output = command.arg("sentinels").arg("--config").arg(config).output().expect("an exit");
    assert_eq!(output.status.code(), Some(78));
}

#[test]
fn reports_validity_and_self_signed_certificates() {
    let cluster = small();
    let certificates = Certificates::new(&cluster.folder().join("listeners"));
    let now = now();
    let within = |file: &str, from: SystemTime, until: SystemTime| {
        let files = certificates.issue_within(file, &["redis.test"], (from, until));
        Pair::secret(files.certificate, files.key)
    };
    let past = within("past", now - DAY * 9, now - DAY);
    let soon = within("soon", now - DAY * 9, now + DAY * 5);
    let future = within("future", now + DAY * 2, now + DAY * 90);
    let signed = certificates.self_signed("signed", &["redis.test"]);
    let signed = Pair::secret(signed.certificate, signed.key);
    let all = [&past, &soon, &future, &signed];
    let (code, document) = examine(&cluster, &sections(&all, Some(&past)));
    assert_eq!(code, Some(2));
    let service = &document["services"][0];
    for (pair, code, severity, part) in [
        (&past, "certificate-expired", "fault", "it has expired: redis.test"),
        (&soon, "certificate-expires", "warning", "expires in 4 days: redis.test"),
        (&future, "certificate-expired", "fault", "not valid yet, but in 1 days"),
        (&signed, "certificate-self-signed", "note", "is self-signed: redis.test"),
    ] {
        let Found { text, .. } = find(service, code, &pair.chain);
        assert!(text.starts_with(severity) && text.contains(part), "{text}");
    }
    run(&find(service, "certificate-expired", &future.chain));
    find(&document["admin"], "certificate-expired", &past.chain);
    is_healthy(&cluster, &sections(&[&signed], None));
}

#[test]
fn completes_a_chain_and_hides_a_key_by_its_commands() {
    let cluster = small();
    let folder = cluster.folder().join("it's listeners");
    let middle = Authority::new("root").subordinate("middle");
    let paths = middle.issue(&["redis.test"]).write(&folder);
    let pair = Pair::secret(paths.chain, paths.key);
    // Without the intermediate at hand nothing is known.
    is_healthy(&cluster, &sections(&[&pair], None));
    let chain = middle.write(&folder, "chain.pem");
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&pair.key, mode).expect("a mode");
    let (code, document) = examine(&cluster, &sections(&[&pair], Some(&pair)));
    assert_eq!(code, Some(1));
    for part in [&document["services"][0], &document["admin"]] {
        let Found { text, .. } = find(part, "certificate-chain", &pair.chain);
        assert!(text.starts_with("warning: ") && text.contains("CN=middle"), "{text}");
        let Found { text, .. } = find(part, "key-exposed", &pair.key);
        assert!(text.contains("mode 0644"), "{text}");
    }
    run(&find(&document["services"][0], "certificate-chain", &pair.chain));
    run(&find(&document["services"][0], "key-exposed", &pair.key));
    is_healthy(&cluster, &sections(&[&pair], Some(&pair)));
    let whole = std::fs::read_to_string(&pair.chain).expect("the chain");
    assert_eq!(whole.matches("BEGIN CERTIFICATE").count(), 2, "{whole}");

    // A link is not replaced: whatever renews the file behind it would not be noticed.
    let leaf = middle.issue(&["redis.test"]).write(&folder.join("live"));
    let leaf = Pair::secret(leaf.chain, leaf.key);
    let link = Pair { chain: folder.join("link.crt"), key: leaf.key };
    symlink(&leaf.chain, &link.chain).expect("a link");
    let (_, document) = examine(&cluster, &sections(&[&link], None));
    let Found { text, script } = find(&document["services"][0], "certificate-chain", &link.chain);
    assert!(text.contains("symbolic link") && script.is_empty(), "{text} {script}");
    assert!(text.contains(&chain.display().to_string()), "{text}");
}
