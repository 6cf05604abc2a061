//! The definitions of the options for TLS, by side. See [`options`](super::options).

use std::time::Duration;

use tls::{ClientCertificates, Verification, Version};

use super::option_spec::section;
use super::pem_files::PemTexts;
use super::value::{ChoiceValue, ValueKind};

section! {
    /// How the clients of tls_listen, replica_tls_listen and sentinel_tls_listen are served.
    ServerTlsConfig {
        /// Files with certificates in the PEM format, each followed by those of the authorities
        /// between it and a known one.
        ///
        /// A client gets the first certificate with the name that it asks for (SNI), or else the
        /// first of all. A file may contain its private key as well, as those of haproxy do. The
        /// files are watched: changed ones are used for new sessions within seconds, all together.
        /// If one is missing, does not fit its key, or has expired and that before it has not, the
        /// certificates before stay in use, and this is reported.
        certificate_files: Vec<String> = ValueKind::Paths, Some(""), Live;
        /// Files with the private keys of certificate_files, in the same order; empty if each
        /// certificate's file contains its key.
        key_files: Vec<String> = ValueKind::Paths, Some(""), Live;
        /// Whether clients show a certificate: none, optional or required.
        ///
        /// A certificate must be issued by an authority in client_ca_file. It decides who may
        /// connect, and does not log in to Redis. A change applies to new sessions.
        client_certificates: ClientCertificates =
            ValueKind::Choice(ClientCertificates::NAMES), Some("none"), Live;
        /// File with the authorities that issue the certificates of clients, in the PEM format.
        client_ca_file: Option<String> = ValueKind::Path, None, Live;
        /// Oldest version of TLS that clients may use: 1.2 or 1.3.
        min_version: Version = ValueKind::Choice(Version::NAMES), Some("1.2"), Live;
        /// Newest version of TLS that clients may use: 1.2 or 1.3.
        max_version: Version = ValueKind::Choice(Version::NAMES), Some("1.3"), Live;
        /// Ciphers that clients may use, by the name of IANA or OpenSSL; all secure ones if it is
        /// empty.
        ///
        /// The order of the list is that of preference. Each version that clients may use needs at
        /// least one.
        ciphers: Vec<String> = ValueKind::Ciphers, Some(""), Live;
        /// How long a client may take from connecting to the end of the handshake.
        handshake_timeout: Duration = ValueKind::Duration, Some("10s"), Live;
    }
    with {
        /// The contents of the files.
        pem: PemTexts;
    }
}

section! {
    /// TLS of connections to servers.
    ClientTlsConfig {
        /// Whether connections use TLS: true or false.
        ///
        /// The addresses are then those of ports with TLS (tls-port of Redis and Sentinel). A
        /// change applies to new connections; those of discovery are opened anew one after another.
        enabled: bool = ValueKind::Bool, Some("false"), Live;
        /// File with the authorities that issue the servers' certificates, in the PEM format; those
        /// of the system without it.
        ///
        /// The files of this section are watched: changed ones are used for new connections within
        /// seconds, all together. If one is missing or does not fit, those before stay in use, and
        /// this is reported.
        ca_file: Option<String> = ValueKind::Path, None, Live;
        /// What is verified of a server's certificate: full, chain or none.
        ///
        /// "full" verifies that it is valid now, is issued by an authority in ca_file, and is for
        /// the name or address that is dialled. Sentinels announce IP addresses unless they have
        /// announce-hostnames: then the certificates need these addresses, or server_name. "chain"
        /// ignores names, as Redis itself does. "none" verifies nothing, so anybody on the path can
        /// read and change everything.
        verify: Verification = ValueKind::Choice(Verification::NAMES), Some("full"), Live;
        /// File with the certificate that is shown to servers with tls-auth-clients, in the PEM
        /// format; none by default.
        certificate_file: Option<String> = ValueKind::Path, None, Live;
        /// File with the private key of certificate_file; not needed if that file contains it.
        key_file: Option<String> = ValueKind::Path, None, Live;
        /// Name that the servers' certificates are for, in the place of the names or addresses that
        /// are dialled.
        server_name: Option<String> = ValueKind::Text, None, Live;
        /// Oldest version of TLS: 1.2 or 1.3.
        min_version: Version = ValueKind::Choice(Version::NAMES), Some("1.2"), Live;
        /// Newest version of TLS: 1.2 or 1.3.
        max_version: Version = ValueKind::Choice(Version::NAMES), Some("1.3"), Live;
        /// Ciphers, by the name of IANA or OpenSSL, in the order of preference; all secure ones if
        /// it is empty.
        ciphers: Vec<String> = ValueKind::Ciphers, Some(""), Live;
    }
    with {
        /// The contents of the files.
        pem: PemTexts;
    }
}

section! {
    /// TLS of the addresses in admin.listen and admin.read_only_listen; none without a certificate.
    ///
    /// The Unix socket stays plain. Probes are answered on the same port without TLS, too, and need
    /// no certificate.
    AdminTlsConfig {
        /// File with the certificate of the admin server in the PEM format, followed by those of
        /// the authorities between it and a known one.
        ///
        /// With it, the page, /status, /metrics and commands need HTTPS. To turn TLS on or off
        /// needs a restart. The files are watched: changed ones are used for new connections within
        /// seconds, all together. If one is missing, does not fit, or has expired and that before
        /// it has not, those before stay in use, and this is reported.
        certificate_file: Option<String> = ValueKind::Path, None, Live;
        /// File with the private key of certificate_file; not needed if that file contains it.
        key_file: Option<String> = ValueKind::Path, None, Live;
        /// Whether clients show a certificate: none, optional or required.
        ///
        /// With "required", everything except the probes is refused without a certificate that an
        /// authority in client_ca_file has issued. It does not replace the tokens.
        client_certificates: ClientCertificates =
            ValueKind::Choice(ClientCertificates::NAMES), Some("none"), Live;
        /// File with the authorities that issue the certificates of clients, in the PEM format.
        client_ca_file: Option<String> = ValueKind::Path, None, Live;
        /// Oldest version of TLS that clients may use: 1.2 or 1.3.
        min_version: Version = ValueKind::Choice(Version::NAMES), Some("1.2"), Live;
        /// Newest version of TLS that clients may use: 1.2 or 1.3.
        max_version: Version = ValueKind::Choice(Version::NAMES), Some("1.3"), Live;
    }
    with {
        /// The contents of the files.
        pem: PemTexts;
    }
}
