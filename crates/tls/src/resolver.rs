//! Selects a certificate by the name that the client asks for.
//!
//! An exact name precedes a wildcard, which stands for one label. Several certificates may have the
//! same name, such as one with an RSA key and one with an ECDSA key: the first whose key the client
//! can verify is used. A client that sends no name, or an unknown one, gets the first certificate
//! of all.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::CertificateFacts;

#[derive(Debug)]
pub(crate) struct CertificatesByName {
    all: Vec<Arc<CertifiedKey>>,
    /// Indices by name; those of wildcards by what follows `*.`.
    exact: HashMap<String, Vec<usize>>,
    wildcards: HashMap<String, Vec<usize>>,
}

impl CertificatesByName {
    pub(crate) fn new(
        certificates: impl IntoIterator<Item = (CertifiedKey, CertificateFacts)>,
    ) -> (Self, Vec<CertificateFacts>) {
        let mut by_name =
            Self { all: Vec::new(), exact: HashMap::new(), wildcards: HashMap::new() };
        let mut all_facts = Vec::new();
        for (index, (certified, facts)) in certificates.into_iter().enumerate() {
            for name in &facts.names {
                let (map, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut by_name.wildcards, parent),
                    None => (&mut by_name.exact, &**name),
                };
                map.entry(name.to_owned()).or_default().push(index);
            }
            by_name.all.push(Arc::new(certified));
            all_facts.push(facts);
        }
        (by_name, all_facts)
    }

    /// The certificates of this name, in the order in which they are tried.
    fn named<'a>(&'a self, name: Option<&str>) -> impl Iterator<Item = &'a Arc<CertifiedKey>> {
        let name = name.map(str::to_ascii_lowercase);
        let exact = name.as_ref().and_then(|name| self.exact.get(name));
        let parent = name.as_ref().and_then(|name| name.split_once('.')).map(|(_, parent)| parent);
        let wildcard = parent.and_then(|parent| self.wildcards.get(parent));
        exact.into_iter().chain(wildcard).flatten().filter_map(|index| self.all.get(*index))
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let verifiable =
            |it: &&Arc<CertifiedKey>| it.key.choose_scheme(hello.signature_schemes()).is_some();
        let named = self.named(hello.server_name()).find(verifiable);
        named.or_else(|| self.all.iter().find(verifiable)).or(self.all.first()).cloned()
    }
}
