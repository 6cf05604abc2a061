//! TLS between the client libraries and pointsman, with certificates on both sides.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Authority, CertificatePaths, Cluster, Pointsman};

/// What a client needs.
#[derive(Debug, Clone)]
pub(super) struct Secured {
    ca: PathBuf,
    own: CertificatePaths,
}

impl Secured {
    /// Starts a pointsman that serves clients with a certificate over TLS only.
    pub(super) fn start(
        program: &Path,
        cluster: &Cluster,
    ) -> (Pointsman, std::net::SocketAddr, Self) {
        let (authority, folder) = (Authority::new("Test CA"), cluster.folder());
        let addr = cluster.address().port();
        let server = authority.issue(&[&addr.ip().to_string()]).write(&folder.join("server"));
        let own = authority.issue(&["app"]).write(&folder.join("client"));
        let ca = authority.write(folder, "ca.crt");
        let pointsman = Pointsman::builder(program, cluster)
            .tls_listen(addr, &server)
            .service_line("tls.client_certificates = \"required\"")
            .service_line(&format!("tls.client_ca_file = {ca:?}"))
            .start();
        (pointsman, addr, Self { ca, own })
    }

    /// Tells a program of benches/clients.
    pub(super) fn set(&self, command: &mut Command) {
        command.env("CLIENTS_CA", &self.ca);
        command.env("CLIENTS_CERTIFICATE", &self.own.chain).env("CLIENTS_KEY", &self.own.key);
    }
}
