//! What a listener's settings accept, refuse and keep.

use rustls::pki_types::CertificateDer;
use rustls::{Error, HandshakeKind, ProtocolVersion};

use crate::testing::{Authority, P256, RSA, handshake, pem};
use crate::{
    CertificateFiles, ClientCertificates, ClientSettings, ClientTls, PemFile, Problem, Protocols,
    Roots, ServerSettings, ServerTls, Version,
};

fn settings(certificates: &[CertificateFiles]) -> ServerSettings {
    ServerSettings { certificates: certificates.to_vec(), ..ServerSettings::default() }
}

fn client_of(authority: &Authority) -> ClientTls {
    let roots = Roots::Own(authority.file());
    ClientTls::new(&ClientSettings { roots, ..ClientSettings::default() }).unwrap()
}

/// The names that a client of `authority` finds in the certificate that it gets for `name`.
fn served(server: &ServerTls, client: &ClientTls, name: &str) -> Result<Vec<String>, Error> {
    let (_, client) = handshake(server.config(), client.connect(name).unwrap())?;
    let chain = client.peer_certificates().unwrap();
    let names = crate::CertificateFacts::of_peer(chain).unwrap().names;
    Ok(names.iter().map(ToString::to_string).collect())
}

fn problem(settings: &ServerSettings) -> String {
    let problems = ServerTls::new(settings).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].to_string()
}

#[test]
fn selects_certificates_by_name() {
    let authority = Authority::new("ca");
    let certificates = [
        authority.issue(&["default.example", "10.0.0.1"]),
        authority.issue(&["one.example", "*.pool.example"]),
        authority.issue(&["special.pool.example"]),
    ];
    let server = ServerTls::new(&settings(&certificates)).unwrap();
    let client = client_of(&authority);
    let served = |name| served(&server, &client, name).map(|names| names[0].clone());
    assert_eq!(served("default.example").unwrap(), "default.example");
    assert_eq!(served("ONE.example").unwrap(), "one.example");
    assert_eq!(served("any.pool.example").unwrap(), "one.example");
    assert_eq!(served("special.pool.example").unwrap(), "special.pool.example");
    // An address is not sent as a name, so the default answers.
    assert_eq!(served("10.0.0.1").unwrap(), "default.example");
    // The default has not these names either, which the client finds out.
    assert!(served("a.b.pool.example").is_err() && served("other.example").is_err());
}

#[test]
fn selects_a_key_that_the_client_can_verify() {
    let authority = Authority::new("ca");
    let both = [RSA, P256].map(|kind| authority.issue_within(&["redis.example"], kind, 2020, 2100));
    let server = ServerTls::new(&settings(&both)).unwrap();
    // In TLS 1.2 the cipher determines the kind of the key.
    for cipher in ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"] {
        let client = ClientTls::new(&ClientSettings {
            roots: Roots::Own(authority.file()),
            protocols: Protocols {
                min: Version::Tls12,
                max: Version::Tls12,
                ciphers: vec![cipher.to_owned()],
            },
            ..ClientSettings::default()
        })
        .unwrap();
        let connected = handshake(server.config(), client.connect("redis.example").unwrap());
        assert_eq!(connected.unwrap().0.protocol_version(), Some(ProtocolVersion::TLSv1_2));
    }
}

#[test]
fn reads_every_form_of_a_private_key() {
    let authority = Authority::new("ca");
    for (kind, label) in [(RSA, "RSA PRIVATE KEY"), (P256, "EC PRIVATE KEY")] {
        let mut files = authority.issue_within(&["redis.example"], kind, 2020, 2100);
        assert!(ServerTls::new(&settings(std::slice::from_ref(&files))).is_ok());
        let rustls::pki_types::PrivateKeyDer::Pkcs8(pkcs8) = files.key.private_key().unwrap()
        else {
            panic!("the generator writes PKCS #8")
        };
        let inner = inner_key(pkcs8.secret_pkcs8_der());
        let encoded = rcgen_pem(label, inner);
        files.key = pem("tls.key", &encoded);
        assert!(ServerTls::new(&settings(std::slice::from_ref(&files))).is_ok(), "{label}");
        // Both in one file, in either order, as haproxy reads them.
        let chain = |file: &PemFile| authority_text(file);
        for text in [chain(&files.chain) + &encoded, encoded.clone() + &chain(&files.chain)] {
            let both = pem("both.pem", &text);
            let both = CertificateFiles { chain: both.clone(), key: both };
            assert!(ServerTls::new(&settings(&[both])).is_ok(), "{label}");
        }
    }
}

/// The certificates of a file, as text.
fn authority_text(file: &PemFile) -> String {
    let all = file.certificates().unwrap();
    all.iter().map(|der| rcgen_pem("CERTIFICATE", der)).collect()
}

fn rcgen_pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut lines = String::new();
    for piece in der.chunks(3) {
        let word = piece.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - piece.len()));
        for place in 0..4 {
            let index = (word >> (18 - 6 * place) & 63) as usize;
            lines.push(if place <= piece.len() { char::from(ALPHABET[index]) } else { '=' });
        }
        if lines.len() % 65 == 64 {
            lines.push('\n');
        }
    }
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.trim_end())
}

/// The key inside of a PKCS #8 structure: its octet string, after the version and the algorithm.
fn inner_key(der: &[u8]) -> &[u8] {
    /// The content of the first element, and what follows it.
    fn element(der: &[u8]) -> (&[u8], &[u8]) {
        let (length, header) = match der[1] {
            short @ ..0x80 => (usize::from(short), 2),
            long => {
                let count = usize::from(long & 0x7f);
                let bytes = &der[2..2 + count];
                let length = bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                (length, 2 + count)
            }
        };
        der[header..].split_at(length)
    }
    let (_version, rest) = element(element(der).0);
    let (_algorithm, rest) = element(rest);
    element(rest).0
}

#[test]
fn names_file_fault_and_remedy() {
    let authority = Authority::new("ca");
    let (one, other) = (authority.issue(&["one"]), authority.issue(&["other"]));
    let with = |chain: &PemFile, key: &PemFile| {
        settings(&[CertificateFiles { chain: chain.clone(), key: key.clone() }])
    };
    let mismatch = problem(&with(&one.chain, &other.key));
    assert!(
        mismatch.starts_with(
            "\"tls.key\" is not the private key of the first certificate in \"tls.crt\"; write"
        ),
        "{mismatch}"
    );
    let no_key = problem(&with(&one.chain, &one.chain));
    assert!(no_key.starts_with("\"tls.crt\" has no private key; write"), "{no_key}");
    let no_certificate = problem(&with(&one.key, &one.key));
    assert!(no_certificate.starts_with("\"tls.key\" has no certificate; "), "{no_certificate}");
    let whole = authority_text(&one.chain);
    let half = pem("tls.crt", &whole[..whole.len() / 2]);
    let half = problem(&with(&half, &one.key));
    assert!(half.starts_with("\"tls.crt\" is not complete PEM: "), "{half}");
    let encrypted = pem("tls.key", &rcgen_pem("ENCRYPTED PRIVATE KEY", b"secret"));
    let encrypted = problem(&with(&one.chain, &encrypted));
    assert!(encrypted.contains("has an encrypted private key; decrypt it"), "{encrypted}");
    let junk = pem("tls.crt", &rcgen_pem("CERTIFICATE", b"no certificate at all"));
    let junk = problem(&with(&junk, &one.key));
    assert!(junk.starts_with("\"tls.crt\" has a certificate that cannot be parsed"), "{junk}");
    let junk = pem("tls.key", &rcgen_pem("PRIVATE KEY", b"no key at all"));
    let junk = problem(&with(&one.chain, &junk));
    assert!(junk.starts_with("\"tls.key\" has a private key that cannot be used"), "{junk}");
    let twice = pem("tls.key", &(rcgen_pem("PRIVATE KEY", b"x") + &rcgen_pem("PRIVATE KEY", b"y")));
    let twice = problem(&with(&one.chain, &twice));
    assert!(twice.starts_with("\"tls.key\" has more than one private key; "), "{twice}");
    assert!(problem(&settings(&[])).starts_with("no certificate is set; "));
}

#[test]
fn reports_all_problems_at_once() {
    let authority = Authority::new("ca");
    let (one, other) = (authority.issue(&["one"]), authority.issue(&["other"]));
    let wrong = CertificateFiles { chain: one.chain, key: other.key };
    let problems = ServerTls::new(&ServerSettings {
        client_certificates: ClientCertificates::Required,
        ..settings(&[wrong.clone(), wrong])
    })
    .unwrap_err();
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn reports_names_and_validity() {
    let authority = Authority::new("ca");
    let long = authority.issue_within(&["Redis.example", "10.0.0.1", "::1"], P256, 2020, 2050);
    // The chain is valid only as long as all of it is.
    let short = authority.issue_within(&["x"], P256, 2021, 2040);
    let text = authority_text(&long.chain) + &authority_text(&short.chain);
    let files = CertificateFiles { chain: pem("tls.crt", &text), key: long.key };
    let server = ServerTls::new(&settings(&[files])).unwrap();
    let facts = &server.certificates()[0];
    assert_eq!(facts.names, ["redis.example", "10.0.0.1", "::1"]);
    assert_eq!(facts.subject, "CN=Redis.example");
    assert_eq!((&*facts.issuer, facts.self_signed), ("CN=ca", false));
    // 1 January 2021 and 2040.
    assert_eq!(facts.not_before.as_secs(), 1_609_459_200);
    assert_eq!(facts.not_after.as_secs(), 2_208_988_800);
    assert_eq!(facts.warnings.len(), 1, "{:?}", facts.warnings);
    assert!(facts.warnings[0].starts_with("\"tls.crt\" has certificates out of order"));
}

fn replace(server: &ServerTls, settings: &ServerSettings) -> Result<(), Vec<Problem>> {
    ServerTls::prepare(settings).map(|built| server.commit(&built))
}

#[test]
fn replaces_whole_settings_or_none() {
    let authority = Authority::new("ca");
    let old = authority.issue(&["redis.example", "old"]);
    let new = authority.issue(&["redis.example", "new"]);
    let server = ServerTls::new(&settings(std::slice::from_ref(&old))).unwrap();
    // A client that resumes its session sees no certificate, so each is a new one.
    let client = || client_of(&authority);
    let served = || served(&server, &client(), "redis.example").unwrap()[1].clone();
    assert_eq!(served(), "old");
    // The key was replaced first, and the certificate not yet.
    let half = CertificateFiles { chain: old.chain, key: new.key.clone() };
    assert!(replace(&server, &settings(&[half])).is_err());
    assert_eq!(served(), "old");
    replace(&server, &settings(&[new])).unwrap();
    assert_eq!(served(), "new");
}

#[test]
fn requires_client_certificates_as_configured() {
    let (authority, theirs, others) =
        (Authority::new("ca"), Authority::new("clients"), Authority::new("others"));
    let client = |certificate: Option<CertificateFiles>| {
        ClientTls::new(&ClientSettings {
            roots: Roots::Own(authority.file()),
            certificate,
            ..ClientSettings::default()
        })
        .unwrap()
        .connect("redis.example")
        .unwrap()
    };
    let known = || client(Some(theirs.issue(&["app"])));
    let unknown = || client(Some(others.issue(&["app"])));
    let expired = || client(Some(theirs.issue_within(&["app"], P256, 2020, 2021)));
    let server = |client_certificates| {
        ServerTls::new(&ServerSettings {
            client_certificates,
            client_ca: Some(theirs.file()),
            ..settings(&[authority.issue(&["redis.example"])])
        })
        .unwrap()
    };
    let optional = server(ClientCertificates::Optional);
    let shown = |connected: Result<(rustls::ServerConnection, _), _>| {
        connected.map(|(server, _)| server.peer_certificates().map_or(0, <[_]>::len))
    };
    assert_eq!(shown(handshake(optional.config(), client(None))), Ok(0));
    assert_eq!(shown(handshake(optional.config(), known())), Ok(1));
    assert!(shown(handshake(optional.config(), unknown())).is_err());
    let required = server(ClientCertificates::Required);
    assert_eq!(
        shown(handshake(required.config(), client(None))),
        Err(Error::NoCertificatesPresented)
    );
    assert_eq!(shown(handshake(required.config(), known())), Ok(1));
    assert!(shown(handshake(required.config(), unknown())).is_err());
    assert!(shown(handshake(required.config(), expired())).is_err());
    // A CA without the word, and the word without a CA.
    let alone = problem(&ServerSettings {
        client_ca: Some(theirs.file()),
        ..settings(&[authority.issue(&["x"])])
    });
    assert!(alone.starts_with("\"ca.crt\" is the CA of client certificates"), "{alone}");
    let alone = problem(&ServerSettings {
        client_certificates: ClientCertificates::Optional,
        ..settings(&[authority.issue(&["x"])])
    });
    assert!(alone.starts_with("client certificates cannot be verified without"), "{alone}");
}

#[test]
fn sends_one_ticket_per_handshake() {
    let authority = Authority::new("ca");
    let server = ServerTls::new(&settings(&[authority.issue(&["redis.example"])])).unwrap();
    let client = client_of(&authority);
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
        let connected = handshake(server.config(), client.connect("redis.example").unwrap());
        let (server, client) = connected.unwrap();
        assert_eq!(server.handshake_kind(), Some(kind));
        assert_eq!(client.tls13_tickets_received(), 1);
    }
}

#[test]
fn resumes_unless_clients_are_asked_for_certificates() {
    let (authority, theirs) = (Authority::new("ca"), Authority::new("clients"));
    let name = "redis.example";
    for version in Version::ALL {
        let protocols = Protocols { min: version, max: version, ..Protocols::default() };
        let with = |client_certificates, ca: Option<&Authority>| ServerSettings {
            client_certificates,
            client_ca: ca.map(Authority::file),
            ..settings(&[authority.issue(&[name])])
        };
        let server = ServerTls::new(&with(ClientCertificates::None, None)).unwrap();
        let client = ClientTls::new(&ClientSettings {
            roots: Roots::Own(authority.file()),
            protocols,
            ..ClientSettings::default()
        })
        .unwrap();
        let kind = || {
            let connected = handshake(server.config(), client.connect(name).unwrap());
            connected.unwrap().0.handshake_kind().unwrap()
        };
        assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Resumed));
        replace(&server, &with(ClientCertificates::None, None)).unwrap();
        assert_eq!(kind(), HandshakeKind::Resumed, "a new certificate");
        replace(&server, &with(ClientCertificates::Optional, Some(&theirs))).unwrap();
        assert_eq!((kind(), kind()), (HandshakeKind::Full, HandshakeKind::Full));
        replace(&server, &with(ClientCertificates::Required, Some(&theirs))).unwrap();
        let connected = handshake(server.config(), client.connect(name).unwrap());
        assert_eq!(connected.unwrap_err(), Error::NoCertificatesPresented, "no way around it");
    }
}

#[test]
fn hides_keys_in_debug_output() {
    let files = Authority::new("ca").issue(&["redis.example"]);
    let settings = settings(&[files]);
    let shown = format!("{settings:?} {:?}", ServerTls::new(&settings).unwrap());
    assert!(shown.contains("tls.key") && !shown.contains("PRIVATE"), "{shown}");
}

#[test]
fn bounds_the_certificates_of_a_file() {
    let der = CertificateDer::from(vec![0; 3]);
    let text: String = (0..2049).map(|_| rcgen_pem("CERTIFICATE", &der)).collect();
    let problem = pem("tls.crt", &text).certificates().unwrap_err();
    assert_eq!(problem.what, "\"tls.crt\" has more than 2048 certificates");
}

#[test]
fn resumes_nothing_without_resumption() {
    let authority = Authority::new("ca");
    let both = [Version::Tls12, Version::Tls13].map(|version| {
        let protocols = Protocols { min: version, max: version, ..Protocols::default() };
        let certificates = vec![authority.issue(&["admin.example"])];
        let without_resumption = true;
        ServerSettings { certificates, protocols, without_resumption, ..ServerSettings::default() }
    });
    for settings in both {
        let (server, client) = (ServerTls::new(&settings).unwrap(), client_of(&authority));
        for _ in 0..2 {
            let ends = handshake(server.config(), client.connect("admin.example").unwrap());
            assert_eq!(ends.unwrap().0.handshake_kind(), Some(HandshakeKind::Full));
        }
    }
}

#[test]
fn verifies_client_again_under_current_rules() {
    let (authority, clients) = (Authority::new("ca"), Authority::new("clients"));
    let under = |ca: &Authority| ServerSettings {
        client_certificates: ClientCertificates::Optional,
        client_ca: Some(ca.file()),
        ..settings(&[authority.issue(&["admin.example"])])
    };
    let server = ServerTls::new(&under(&clients)).unwrap();
    let chain = |files: &CertificateFiles| files.chain.certificates().unwrap();
    let (known, expired) =
        (clients.issue(&["operator"]), clients.issue_within(&["operator"], P256, 2020, 2021));
    assert!(server.accepts_client(&chain(&known)));
    assert!(!server.accepts_client(&chain(&expired)) && !server.accepts_client(&[]));
    assert!(!server.accepts_client(&chain(&authority.issue(&["operator"]))));
    replace(&server, &under(&Authority::new("others"))).unwrap();
    assert!(!server.accepts_client(&chain(&known)), "the authority is gone");
    replace(&server, &settings(&[authority.issue(&["admin.example"])])).unwrap();
    assert!(!server.accepts_client(&chain(&known)), "none is asked for");
}
