//! Why a connection to a server fails: each fault with its words.

use rustls::{AlertDescription, Error};

use crate::fault::{Fault, FaultKind, list_names};
use crate::testing::{Authority, P256, handshake};
use crate::{
    CertificateFiles, ClientCertificates, ClientSettings, ClientTls, Protocols, Roots,
    ServerSettings, ServerTls, Verification, Version,
};

fn fault(settings: &ServerSettings, client: &ClientSettings, dialled: &str) -> Fault {
    let server = ServerTls::new(settings).unwrap();
    let client = ClientTls::new(client).unwrap();
    let error = handshake(server.config(), client.connect(dialled).unwrap()).unwrap_err();
    Fault::of(&error)
}

fn server(certificate: CertificateFiles) -> ServerSettings {
    ServerSettings { certificates: vec![certificate], ..ServerSettings::default() }
}

fn trusting(authority: &Authority) -> ClientSettings {
    ClientSettings { roots: Roots::Own(authority.file()), ..ClientSettings::default() }
}

#[test]
fn explains_each_fault_of_a_servers_certificate() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let client = trusting(&ours);
    let wrong = fault(&server(ours.issue(&["a.example", "10.0.0.1"])), &client, "10.0.0.2");
    assert_eq!(wrong.kind, FaultKind::WrongName);
    assert_eq!(wrong.what, "its certificate is not for 10.0.0.2, only for a.example, 10.0.0.1");
    assert!(wrong.remedy.contains("server_name") && wrong.remedy.contains("verify"));

    let expired = ours.issue_within(&["a.example"], P256, 2010, 2020);
    let expired = fault(&server(expired), &client, "a.example");
    assert_eq!(expired.kind, FaultKind::Expired);
    assert!(expired.what.starts_with("its certificate expired ") && expired.what.contains("days"));

    let early = ours.issue_within(&["a.example"], P256, 2090, 2100);
    assert_eq!(fault(&server(early), &client, "a.example").kind, FaultKind::NotYetValid);

    let unknown = fault(&server(other.issue(&["a.example"])), &client, "a.example");
    assert_eq!(unknown.kind, FaultKind::UnknownIssuer);
    assert!(unknown.remedy.contains("ca_file"));

    let renewed = Authority::new("ours");
    let renewed = fault(&server(renewed.issue(&["a.example"])), &client, "a.example");
    assert_eq!(renewed.kind, FaultKind::UnknownIssuer, "{renewed}");
}

#[test]
fn reads_faulty_certificate_without_verification() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let certificate = other.issue_within(&["b.example"], P256, 2010, 2020);
    let server = ServerTls::new(&server(certificate)).unwrap();
    let client = ClientTls::new(&trusting(&ours)).unwrap();
    let connect = client.connect_unverified("a.example").unwrap();
    let (_, connected) = handshake(server.config(), connect).unwrap();
    let chain = connected.peer_certificates().unwrap();
    let facts = crate::CertificateFacts::of_peer(chain).unwrap();
    assert_eq!(facts.names, ["b.example"]);
    assert!(facts.issuer.contains("other") && !facts.self_signed);
    // The session must not be resumable by a connection that verifies.
    let error = handshake(server.config(), client.connect("a.example").unwrap()).unwrap_err();
    assert!(Fault::of(&error).kind.is_about_certificate());
}

#[test]
fn explains_refused_client_and_versions() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let demanding = ServerSettings {
        client_certificates: ClientCertificates::Required,
        client_ca: Some(ours.file()),
        ..server(ours.issue(&["a.example"]))
    };
    let without = fault(&demanding, &trusting(&ours), "a.example");
    assert_eq!(without.kind, FaultKind::Broken, "the server's own error: {without}");
    let alert = |it| Fault::of(&Error::AlertReceived(it));
    let required = alert(AlertDescription::CertificateRequired);
    assert_eq!(required.kind, FaultKind::Refused);
    assert!(required.remedy.contains("certificate_file"));
    assert_eq!(alert(AlertDescription::UnknownCA).kind, FaultKind::Refused);
    assert_eq!(alert(AlertDescription::ProtocolVersion).kind, FaultKind::NoCommonProtocol);
    let of = |version| Protocols { min: version, max: version, ..Protocols::default() };
    let new =
        ServerSettings { protocols: of(Version::Tls13), ..server(other.issue(&["a.example"])) };
    let old = ClientSettings {
        protocols: of(Version::Tls12),
        verification: Verification::None,
        ..trusting(&other)
    };
    assert_eq!(fault(&new, &old, "a.example").kind, FaultKind::NoCommonProtocol);
}

#[test]
fn bounds_names_of_a_certificate() {
    let names: Vec<String> =
        (0..20).map(|at| format!("DnsName(\"{at}\n{}\")", "x".repeat(500))).collect();
    let list = list_names(&names);
    assert!(list.len() < 1000 && !list.contains('\n') && list.ends_with("and 12 more"));
}
