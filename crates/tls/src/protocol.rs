//! Protocol versions and ciphers: what an operator may restrict.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion, version};

use crate::problem::Problem;

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// TLS 1.2 (RFC 5246).
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

impl Version {
    /// Every version, the oldest first.
    pub const ALL: [Self; 2] = [Self::Tls12, Self::Tls13];

    /// Its name in settings and labels.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        }
    }

    /// The version that this one of the library is, if it is supported.
    #[must_use]
    pub const fn of(version: ProtocolVersion) -> Option<Self> {
        match version {
            ProtocolVersion::TLSv1_2 => Some(Self::Tls12),
            ProtocolVersion::TLSv1_3 => Some(Self::Tls13),
            _ => None,
        }
    }

    const fn supported(self) -> &'static SupportedProtocolVersion {
        match self {
            Self::Tls12 => &version::TLS12,
            Self::Tls13 => &version::TLS13,
        }
    }
}

/// The versions and ciphers that one side accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protocols {
    /// The oldest version.
    pub min: Version,
    /// The newest version.
    pub max: Version,
    /// Names of ciphers; empty for all that the library considers secure.
    pub ciphers: Vec<String>,
}

impl Default for Protocols {
    fn default() -> Self {
        Self { min: Version::Tls12, max: Version::Tls13, ciphers: Vec::new() }
    }
}

/// The name of a cipher in the registry of IANA, and in OpenSSL.
struct CipherName {
    iana: &'static str,
    openssl: &'static str,
}

/// The names of the ciphers of TLS 1.2 and 1.3 that the library supports. In TLS 1.3 both names are
/// the same.
const CIPHERS: &[CipherName] = &[
    same("TLS_AES_256_GCM_SHA384"),
    same("TLS_AES_128_GCM_SHA256"),
    same("TLS_CHACHA20_POLY1305_SHA256"),
    CipherName {
        iana: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        openssl: "ECDHE-ECDSA-AES256-GCM-SHA384",
    },
    CipherName {
        iana: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        openssl: "ECDHE-ECDSA-AES128-GCM-SHA256",
    },
    CipherName {
        iana: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        openssl: "ECDHE-ECDSA-CHACHA20-POLY1305",
    },
    CipherName {
        iana: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        openssl: "ECDHE-RSA-AES256-GCM-SHA384",
    },
    CipherName {
        iana: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        openssl: "ECDHE-RSA-AES128-GCM-SHA256",
    },
    CipherName {
        iana: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        openssl: "ECDHE-RSA-CHACHA20-POLY1305",
    },
];

const fn same(name: &'static str) -> CipherName {
    CipherName { iana: name, openssl: name }
}

/// The names of all supported ciphers, as IANA registers them, in the order of preference.
pub fn cipher_names() -> impl Iterator<Item = &'static str> {
    CIPHERS.iter().map(|cipher| cipher.iana)
}

/// Whether this is the name of a supported cipher, as IANA or OpenSSL writes it.
#[must_use]
pub fn is_cipher(name: &str) -> bool {
    CIPHERS.iter().any(|cipher| cipher.iana == name || cipher.openssl == name)
}

/// The name of a cipher as IANA registers it.
pub(crate) fn iana_name(suite: SupportedCipherSuite) -> &'static str {
    let name = suite.suite().as_str().unwrap_or_default();
    // The library writes those of TLS 1.3 with their version.
    let tail = name.strip_prefix("TLS13_").unwrap_or(name);
    let of = |it: &&CipherName| it.iana == name || it.iana.strip_prefix("TLS_") == Some(tail);
    CIPHERS.iter().find(of).map_or("unknown", |cipher| cipher.iana)
}

impl Protocols {
    /// The versions from the oldest to the newest.
    pub(crate) fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let within = |version: &Version| (self.min..=self.max).contains(version);
        Version::ALL.into_iter().filter(within).map(Version::supported).collect()
    }

    /// The cryptography with these ciphers.
    ///
    /// # Errors
    ///
    /// An unknown cipher, or a version without any.
    pub(crate) fn provider(&self) -> Result<Arc<CryptoProvider>, Problem> {
        if self.min > self.max {
            let (min, max) = (self.min.label(), self.max.label());
            let what = format!("the oldest version, {min}, is newer than the newest, {max}");
            return Err(Problem::of_setting(what, "exchange them, or remove one"));
        }
        let mut provider = aws_lc_rs::default_provider();
        if self.ciphers.is_empty() {
            return Ok(Arc::new(provider));
        }
        let mut chosen: Vec<SupportedCipherSuite> = Vec::new();
        for name in &self.ciphers {
            let is_it = |it: &&CipherName| {
                it.iana.eq_ignore_ascii_case(name) || it.openssl.eq_ignore_ascii_case(name)
            };
            let iana = CIPHERS.iter().find(is_it).map(|cipher| cipher.iana);
            let suite =
                provider.cipher_suites.iter().find(|suite| Some(iana_name(**suite)) == iana);
            let Some(suite) = suite else {
                let all = cipher_names().collect::<Vec<_>>().join(", ");
                let what = format!("{name:?} is not a supported cipher");
                return Err(Problem::of_setting(what, format!("use some of {all}")));
            };
            if !chosen.contains(suite) {
                chosen.push(*suite);
            }
        }
        // A list that was copied from a configuration for one version would switch the other off.
        for version in self.versions() {
            if !chosen.iter().any(|suite| suite.version() == version) {
                let label = match version.version {
                    ProtocolVersion::TLSv1_2 => Version::Tls12.label(),
                    _ => Version::Tls13.label(),
                };
                return Err(Problem::of_setting(
                    format!("the ciphers include none of TLS {label}"),
                    format!("add one, or restrict the versions so that {label} is not among them"),
                ));
            }
        }
        provider.cipher_suites = chosen;
        Ok(Arc::new(provider))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocols(min: Version, max: Version, ciphers: &[&str]) -> Protocols {
        Protocols { min, max, ciphers: ciphers.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn names_every_cipher_of_the_library() {
        let provider = aws_lc_rs::default_provider();
        let mut names: Vec<_> = provider.cipher_suites.iter().map(|it| iana_name(*it)).collect();
        let mut listed: Vec<_> = cipher_names().collect();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(names, listed);
    }

    #[test]
    fn selects_ciphers_by_either_name() {
        let both = ["tls_aes_128_gcm_sha256", "ECDHE-RSA-AES128-GCM-SHA256"];
        let chosen = protocols(Version::Tls12, Version::Tls13, &both).provider().unwrap();
        let chosen: Vec<_> = chosen.cipher_suites.iter().map(|it| iana_name(*it)).collect();
        assert_eq!(chosen, ["TLS_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    }

    #[test]
    fn refuses_unknown_ciphers_and_versions_without_any() {
        let refused = |it: Protocols| it.provider().unwrap_err().what;
        let (old, new) = (Version::Tls12, Version::Tls13);
        assert_eq!(
            refused(protocols(old, new, &["AES128-SHA"])),
            "\"AES128-SHA\" is not a supported cipher"
        );
        assert_eq!(
            refused(protocols(old, new, &["TLS_AES_128_GCM_SHA256"])),
            "the ciphers include none of TLS 1.2"
        );
        assert_eq!(
            refused(protocols(old, new, &["ECDHE-RSA-AES128-GCM-SHA256"])),
            "the ciphers include none of TLS 1.3"
        );
        assert_eq!(
            refused(protocols(new, old, &[])),
            "the oldest version, 1.3, is newer than the newest, 1.2"
        );
        assert!(protocols(new, new, &["TLS_AES_128_GCM_SHA256"]).provider().is_ok());
    }
}
