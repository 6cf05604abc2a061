//! Session resumption: after a rotation of certificates, after a reload of other keys, and across
//! processes.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use harness::{
    Authority, Client, ClientConfig, HandshakeKind, Launch, Process, Signal, Tls, http_get,
    tls_client, wait_until,
};

use crate::restart::wait_for_place;
use crate::tls_clients::{NAME, PATIENCE, Secured, folder, ping, section, small};
use crate::tls_rotation::{Volume, reconfigure};

/// How the handshake of a new connection went. The reply comes after the ticket, so that the next
/// connection can use it.
#[track_caller]
fn handshake(addr: SocketAddr, config: &Arc<ClientConfig>) -> Option<HandshakeKind> {
    let client = Client::connect_within(addr, PATIENCE).expect("a connection");
    let mut client = client.over_tls(config, NAME).expect("a handshake");
    assert_eq!(client.cmd(&["PING"]).expect("a reply").text(), Some("PONG"));
    client.tls().and_then(|tls| tls.handshake_kind())
}

fn taking_over(config: &Path, folder: &Path) -> Process {
    let args =
        ["run".into(), "--takeover".into(), "--config".into(), config.as_os_str().to_owned()];
    Process::start(&Launch {
        name: "takeover".to_owned(),
        program: PathBuf::from(crate::PROGRAM),
        args: Vec::<OsString>::from(args),
        env: Vec::new(),
        folder: folder.to_owned(),
    })
}

#[test]
fn resumes_after_reloads_and_begins_anew_after_takeover() {
    let cluster = small();
    let place = cluster.folder().to_owned();
    let authority = Authority::new("Test CA");
    let mut volume = Volume::new(folder(&cluster), &authority.issue(&[NAME]));
    let files = (&volume.folder.join("tls.crt"), &volume.folder.join("tls.key"));
    let lines = format!(
        "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
         drain_timeout = \"10s\"\n[process]\nstate_dir = {place:?}\nworkers = 2"
    );
    let secured = Secured::start_with(&cluster, authority, &section(&[files], ""), &lines);
    let (addr, client) = (secured.addr, tls_client(None));
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Full));
    // By whichever worker: they share the keys of tickets.
    for _ in 0..8 {
        assert_eq!(handshake(addr, &client), Some(HandshakeKind::Resumed));
    }
    // A rotation of the certificate, and a reload that changes another key of the section.
    volume.lay(&secured.authority.issue(&[NAME, "second.test"]));
    let second = Tls::new(&secured.authority, "second.test");
    wait_until("the new certificate", PATIENCE, || ping(addr, &second).is_ok());
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Resumed));
    reconfigure(&secured.pointsman, "[service.tls]", "[service.tls]\nhandshake_timeout = \"9s\"");
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Resumed));
    // Clients that are asked for certificates are verified each time.
    let ca = secured.authority.write(&place, "clients.crt");
    let asked =
        format!("[service.tls]\nclient_certificates = \"optional\"\nclient_ca_file = {ca:?}");
    reconfigure(&secured.pointsman, "[service.tls]", &asked);
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Full));
    reconfigure(&secured.pointsman, &asked, "[service.tls]");
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Full), "no ticket was left");
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Resumed));

    // The next process has keys of its own, and refuses no client with a ticket of the other.
    wait_for_place(&place.join("takeover.sock"));
    let config = secured.pointsman.process().log_path().with_file_name("pointsman.toml");
    let next = taking_over(&config, &place);
    assert_eq!(secured.pointsman.wait_exit(PATIENCE).code(), Some(0), "{}", next.tail());
    wait_until("the next process to be ready", PATIENCE, || {
        assert!(next.is_running(), "{}", next.tail());
        http_get(secured.pointsman.admin(), "/ready").is_ok_and(|(status, _)| status == 200)
    });
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Full), "a ticket of another process");
    assert_eq!(handshake(addr, &client), Some(HandshakeKind::Resumed));
    next.signal(Signal::TERM);
    assert_eq!(next.wait_exit(Duration::from_secs(60)).code(), Some(0));
}
