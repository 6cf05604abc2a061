//! An authority, a server with its certificate, and clients that trust it.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tls::{
    CertificateFiles, ClientSettings, ClientTls, PemFile, Protocols, RigSettings, Roots,
    ServerSettings, ServerTls, Version,
};

const NAME: &str = "redis.example";

fn pem(text: String) -> PemFile {
    PemFile::new(PathBuf::from("fuzz.pem"), text)
}

pub fn settings() -> RigSettings {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let chain = pem(params.signed_by(&key, &authority).unwrap().pem());
    let certificates = vec![CertificateFiles { chain, key: pem(key.serialize_pem()) }];
    let settings = ServerSettings { certificates, ..ServerSettings::default() };
    let server = ServerTls::new(&settings).unwrap().config();
    let client = |version| {
        let protocols = Protocols { min: version, max: version, ..Protocols::default() };
        let roots = Roots::Own(pem(authority.pem()));
        let settings = ClientSettings { roots, protocols, ..ClientSettings::default() };
        ClientTls::new(&settings).unwrap().connect(NAME).unwrap()
    };
    let [(old, name), (new, _)] = Version::ALL.map(client);
    RigSettings { server, clients: [old, new], name }
}
