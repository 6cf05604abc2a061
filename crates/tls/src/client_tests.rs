//! What is verified of a server, and what is not.

use rustls::{CertificateError, Error};

use crate::testing::{Authority, P256, handshake, pem};
use crate::{
    CertificateFiles, ClientSettings, ClientTls, Roots, ServerSettings, ServerTls, Verification,
};

fn server(files: CertificateFiles) -> ServerTls {
    let settings = ServerSettings { certificates: vec![files], ..ServerSettings::default() };
    ServerTls::new(&settings).unwrap()
}

fn client(roots: Roots, verification: Verification, server_name: Option<&str>) -> ClientTls {
    ClientTls::new(&ClientSettings {
        roots,
        verification,
        server_name: server_name.map(ToOwned::to_owned),
        ..ClientSettings::default()
    })
    .unwrap()
}

/// The result of a connection to `dialled`.
fn connects(server: &ServerTls, client: &ClientTls, dialled: &str) -> Result<(), Error> {
    handshake(server.config(), client.connect(dialled).unwrap()).map(drop)
}

fn fault(result: Result<(), Error>) -> CertificateError {
    match result {
        Err(Error::InvalidCertificate(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn verifies_authority_name_and_validity() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let verify = |verification| client(Roots::Own(ours.file()), verification, None);
    let (full, chain, none) =
        (verify(Verification::Full), verify(Verification::Chain), verify(Verification::None));
    let good = server(ours.issue(&["redis.example", "10.0.0.1"]));
    for client in [&full, &chain, &none] {
        assert_eq!(connects(&good, client, "redis.example"), Ok(()));
        assert_eq!(connects(&good, client, "10.0.0.1"), Ok(()));
    }
    // The address of a replica that no certificate names.
    assert!(matches!(
        fault(connects(&good, &full, "10.0.0.2")),
        CertificateError::NotValidForNameContext { .. }
    ));
    assert_eq!(connects(&good, &chain, "10.0.0.2"), Ok(()));
    let expired = server(ours.issue_within(&["redis.example"], P256, 2020, 2021));
    for client in [&full, &chain] {
        assert!(matches!(
            fault(connects(&expired, client, "redis.example")),
            CertificateError::ExpiredContext { .. }
        ));
    }
    let foreign = server(other.issue(&["redis.example"]));
    for client in [&full, &chain] {
        assert_eq!(
            fault(connects(&foreign, client, "redis.example")),
            CertificateError::UnknownIssuer
        );
    }
    for server in [&expired, &foreign] {
        assert_eq!(connects(server, &none, "redis.example"), Ok(()));
    }
}

#[test]
fn verifies_the_configured_name_instead() {
    let ours = Authority::new("ours");
    let server = server(ours.issue(&["redis.example"]));
    let client = client(Roots::Own(ours.file()), Verification::Full, Some("redis.example"));
    assert_eq!(connects(&server, &client, "10.0.0.2"), Ok(()));
    assert_eq!(connects(&server, &client, "no name at all"), Ok(()));
}

#[test]
fn refuses_settings_that_cannot_verify() {
    let problem = |roots, verification, name: Option<&str>| {
        let settings = ClientSettings {
            roots,
            verification,
            server_name: name.map(ToOwned::to_owned),
            ..ClientSettings::default()
        };
        ClientTls::new(&settings).map(drop).map_err(|problems| problems[0].what.clone())
    };
    let none = problem(Roots::None, Verification::Full, None);
    assert_eq!(none.unwrap_err(), "there is no CA to verify servers with");
    assert_eq!(problem(Roots::None, Verification::None, None), Ok(()));
    let ca = || Roots::Own(Authority::new("ours").file());
    let name = problem(ca(), Verification::Full, Some("redis:6379"));
    assert_eq!(name.unwrap_err(), "\"redis:6379\" is not the name of a server");
    let empty = problem(Roots::Own(pem("ca.crt", "")), Verification::Chain, None);
    assert_eq!(empty.unwrap_err(), "\"ca.crt\" has no certificate");
}

#[test]
fn replaces_whole_settings_or_none() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let server = server(other.issue(&["redis.example"]));
    let client = client(Roots::Own(ours.file()), Verification::Full, None);
    let settings = |roots| ClientSettings { roots, ..ClientSettings::default() };
    assert!(client.replace(&settings(Roots::Own(pem("ca.crt", "half")))).is_err());
    assert_eq!(fault(connects(&server, &client, "redis.example")), CertificateError::UnknownIssuer);
    client.replace(&settings(Roots::Own(other.file()))).unwrap();
    assert_eq!(connects(&server, &client, "redis.example"), Ok(()));
}

#[test]
fn accepts_exactly_the_known_certificate() {
    let authority = Authority::new("ca");
    let ours = authority.issue(&["pod"]);
    let exact = client(Roots::Own(ours.chain.clone()), Verification::Exact, None);
    assert_eq!(connects(&server(ours), &exact, "127.0.0.1"), Ok(()), "whatever its names are");
    // Another one of the same authority and name, which has another key.
    let other = server(authority.issue(&["pod"]));
    assert_eq!(fault(connects(&other, &exact, "pod")), CertificateError::UnknownIssuer);
    let none = ClientSettings { verification: Verification::Exact, ..ClientSettings::default() };
    assert!(ClientTls::new(&none).is_err());
}
