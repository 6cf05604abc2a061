//! TLS of the admin server: what the command line, the start and a reload say about mistakes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use harness::{Authority, wait_until};

use crate::credentials::write;
use crate::tls_admin::{NAME, Scene, assert_fails, assert_succeeds, command, path, text};
use crate::tls_clients::{PATIENCE, folder, small};

#[test]
fn names_tls_faults_of_the_command_line() {
    let cluster = small();
    let scene = Scene::start(&cluster, "");
    let (admin, url, ca) = (scene.pointsman.admin().to_string(), scene.url(), path(&scene.ca));
    let config = scene.config();
    // The local configuration names the certificate, so it needs no authority.
    assert!(assert_succeeds(&["status", "--config", path(&config)]).contains("mymaster"));
    assert_succeeds(&["status", "--admin", &url, "--admin-ca", ca]);
    assert_fails(
        &["status", "--admin", &admin],
        &["requires TLS", &format!("use --admin https://{admin}")],
    );
    assert_fails(&["resume", "--admin", &admin], &["this port accepts HTTPS only"]);
    let other = Authority::new("Other CA").write(cluster.folder(), "other.crt");
    for order in ["status", "resume"] {
        let args = [order, "--admin", &url, "--admin-ca", path(&other)];
        assert_fails(&args, &["not issued by a known authority", "--admin-ca"]);
    }
    let files = scene.authority.issue(&[NAME]).write(&folder(&cluster));
    let section = format!("certificate_file = {:?}\nkey_file = {:?}", files.chain, files.key);
    let named = Scene::start_with(&cluster, Authority::new("Unused CA"), &section);
    let _ = scene.authority.write(cluster.folder(), "ca.crt");
    assert_fails(
        &["status", "--admin", &named.url(), "--admin-ca", ca],
        &[NAME, "use one of its names"],
    );
    assert_succeeds(&["status", "--config", path(&named.config())]);
    let without = crate::pointsman(&cluster);
    let plain = format!("https://{}", without.admin());
    assert_fails(
        &["status", "--admin", &plain, "--admin-ca", ca],
        &["no status from https://", "it answers without TLS"],
    );
    assert_fails(
        &["status", "--admin", &admin, "--admin-ca", ca],
        &["--admin-ca has no effect without TLS"],
    );
    assert_fails(
        &["status", "--admin", &url, "--admin-ca", "/missing.crt"],
        &["cannot read /missing.crt"],
    );
}

#[test]
fn refuses_bad_admin_certificate_at_the_start() {
    let cluster = small();
    let authority = Authority::new("Test CA");
    let folder = folder(&cluster);
    let files = authority.issue(&[NAME]).write(&folder);
    let text = |keys: &str| {
        format!(
            "[[service]]\nsentinels = [\"127.0.0.1:1\"]\nlisten = [\"127.0.0.1:0\"]\n[admin.tls]\n{keys}\n"
        )
    };
    let config = folder.join("pointsman.toml");
    let foreign = authority.issue(&[NAME]).key;
    let secret = foreign.lines().nth(1).expect("a line");
    let pair = format!("certificate_file = {:?}\nkey_file = {:?}", files.chain, files.key);
    for (keys, key, why) in [
        (pair.as_str(), Some(foreign.as_str()), "is not the private key"),
        (&pair, Some("nothing"), "admin.tls.key_file"),
        ("certificate_file = \"/missing.crt\"", None, "admin.tls.certificate_file"),
        ("client_certificates = \"required\"", None, "TLS needs a certificate"),
    ] {
        if let Some(key) = key {
            write(&files.key, key);
        }
        write(&config, &text(keys));
        for verb in ["check", "run"] {
            let output = command(&[verb, "--config", path(&config)]);
            let text = self::text(&output);
            assert_eq!(output.status.code(), Some(78), "{verb} {keys}: {text}");
            assert!(text.contains(why) && !text.contains(secret), "{verb} {keys}: {text}");
        }
    }
}

#[test]
fn keeps_admin_tls_on_until_a_restart() {
    let cluster = small();
    let scene = Scene::start(&cluster, "");
    let config = scene.config();
    let file = std::fs::read_to_string(&config).expect("the file");
    let without = file.split("[admin.tls]").next().expect("a part");
    write(&config, without);
    let pending = || {
        let (_, status) = scene.get("/status");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        status["config"]["pending_restart"].to_string()
    };
    wait_until("the report", PATIENCE, || match pending() {
        keys if keys.contains("admin.tls") => Ok(()),
        keys => Err(keys),
    });
    let mut stream = TcpStream::connect(scene.pointsman.admin()).expect("a connection");
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 400");
    write(&config, &file);
    wait_until("nothing pending", PATIENCE, || !pending().contains("admin.tls"));
}
