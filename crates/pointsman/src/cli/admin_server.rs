//! Where the admin server is, and how it is reached: in plain text, or over TLS.
//!
//! `--admin https://HOST:PORT` means TLS with a server that has a certificate for HOST, issued by
//! an authority in `--admin-ca` or by one of the system. Without `--admin`, the local configuration
//! says where the server is; the server must then have the very certificate that this configuration
//! names, since it is dialled by an address that no certificate need contain.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use tls::{
    CertificateFiles, ClientSettings, ClientTls, PemFile, Roots, SYSTEM_CA_FILES, Verification,
};

use super::Variables;
use crate::config::{self, Faults, Flags, Loaded, PendingReads, Value};

/// The default address of the admin server.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:8888";
/// The variable with the address, unless a flag is given.
const VARIABLE: &str = "POINTSMAN_ADMIN";
/// Maximum size of a PEM file.
const MAX_PEM_BYTES: u64 = 1024 * 1024;

/// How the admin server is reached.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct AdminArgs {
    /// Address of the admin server: host:port, or https://host:port with TLS [env: POINTSMAN_ADMIN]
    /// [default: as configured, else 127.0.0.1:8888]
    ///
    /// For example: --admin https://pointsman.redis.svc:8888 --admin-ca ca.crt
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<String>,

    /// File with the authorities that issue the certificate of the admin server [default: those of
    /// the system; without --admin, the certificate that is configured]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) admin_ca: Option<PathBuf>,

    /// File with the certificate to show to the admin server
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) admin_certificate: Option<PathBuf>,

    /// File with the private key of --admin-certificate [default: the same file]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires = "admin_certificate")]
    pub(super) admin_key: Option<PathBuf>,
}

/// An admin server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdminServer {
    pub(super) addr: SocketAddr,
    /// The name to verify, and the settings of TLS; `None` without it.
    pub(super) tls: Option<(String, ClientTls)>,
}

impl fmt::Display for AdminServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tls {
            None => self.addr.fmt(f),
            Some((host, _)) if host.contains(':') => {
                write!(f, "https://[{host}]:{}", self.addr.port())
            }
            Some((host, _)) => write!(f, "https://{host}:{}", self.addr.port()),
        }
    }
}

/// Why the admin server is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminServerError {
    /// The text is not repeated: a URL may contain a password.
    #[error(
        "the address of the admin server is neither host:port nor https://host:port; write for \
         example 127.0.0.1:8888"
    )]
    Address,
    #[error("cannot resolve {0:?}; check the name, or use an IP address")]
    Unresolved(String, #[source] io::Error),
    #[error("{0} has no effect without TLS; write --admin https://HOST:PORT")]
    NotHttps(&'static str),
    #[error("cannot read {0}")]
    File(String, #[source] io::Error),
    #[error("cannot read the token from {0}")]
    TokenFile(String, #[source] io::Error),
    #[error("TLS cannot be used: {0}")]
    Tls(String),
    #[error(
        "the system has no file with authorities; name that of the admin server with --admin-ca"
    )]
    NoAuthorities,
    /// Another process would be asked otherwise.
    #[error("the configuration does not say where pointsman is; correct it, or use --admin\n{0}")]
    Faults(Faults),
}

/// Loads the local configuration, for its addresses. Other faults do not matter.
pub(super) fn load(config: Option<&PathBuf>, env: &Variables) -> Result<Loaded, AdminServerError> {
    let flags = Flags { config: config.cloned(), ..Flags::default() };
    let loaded = config::load(&flags, env.iter().cloned());
    match loaded.faults_of_address() {
        Some(faults) => Err(AdminServerError::Faults(faults.clone())),
        None => Ok(loaded),
    }
}

/// Returns the given admin server, else that of the local configuration, else the default.
pub(super) fn find(
    args: &AdminArgs,
    config: Option<&PathBuf>,
    env: &Variables,
) -> Result<AdminServer, AdminServerError> {
    if let Some(text) = given(args, env) {
        return first(text, find_all(text, args)?);
    }
    let loaded = load(config, env)?;
    let values = &loaded.settings.process;
    let configured = match values.value("admin.listen") {
        Some(Value::Listen(addrs)) => addrs.first().and_then(proxy::ListenAddr::tcp).map(dialable),
        _ => None,
    };
    let addr = match configured {
        Some(addr) => addr,
        None => first(DEFAULT_ADDRESS, resolve_all(DEFAULT_ADDRESS)?)?,
    };
    let tls = match values.value("admin.tls.certificate_file") {
        Some(Value::Text(path)) => {
            let settings = match &args.admin_ca {
                Some(_) => ClientSettings::default(),
                None => ClientSettings {
                    roots: Roots::Own(read(Path::new(path))?),
                    verification: Verification::Exact,
                    ..ClientSettings::default()
                },
            };
            Some((addr.ip().to_string(), client(settings, args)?))
        }
        _ => plain(args).map(|()| None)?,
    };
    Ok(AdminServer { addr, tls })
}

/// The address that is given: by the flag, or as a URL by the variable. Without a scheme, the
/// variable is a value of the configuration.
pub(super) fn given<'a>(args: &'a AdminArgs, env: &'a Variables) -> Option<&'a str> {
    let url = |(name, value): &'a (OsString, OsString)| {
        value.to_str().filter(|text| name == VARIABLE && text.contains("://"))
    };
    args.admin.as_deref().or_else(|| env.iter().find_map(url))
}

/// Every admin server at a given address; a headless Service has one per pod. At least one.
pub(super) fn find_all(text: &str, args: &AdminArgs) -> Result<Vec<AdminServer>, AdminServerError> {
    let Some(address) = text.strip_prefix("https://") else {
        plain(args)?;
        let address = text.strip_prefix("http://").unwrap_or(text);
        let all = resolve_all(address.trim_end_matches('/'))?;
        return Ok(all.into_iter().map(|addr| AdminServer { addr, tls: None }).collect());
    };
    let address = address.trim_end_matches('/');
    let all = resolve_all(address)?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let tls = client(ClientSettings::default(), args)?;
    let server = |addr| AdminServer { addr, tls: Some((host.clone(), tls.clone())) };
    Ok(all.into_iter().map(server).collect())
}

fn first<T>(text: &str, all: Vec<T>) -> Result<T, AdminServerError> {
    let none = || AdminServerError::Unresolved(text.to_owned(), io::ErrorKind::NotFound.into());
    all.into_iter().next().ok_or_else(none)
}

/// Refuses flags for TLS where there is none: a token must not be sent in plain text by mistake.
fn plain(args: &AdminArgs) -> Result<(), AdminServerError> {
    let flags = [("--admin-ca", &args.admin_ca), ("--admin-certificate", &args.admin_certificate)];
    match flags.iter().find(|(_, given)| given.is_some()) {
        Some((flag, _)) => Err(AdminServerError::NotHttps(flag)),
        None => Ok(()),
    }
}

/// Completes the settings by the files that are given.
fn client(settings: ClientSettings, args: &AdminArgs) -> Result<ClientTls, AdminServerError> {
    let roots = match (&args.admin_ca, settings.roots) {
        (Some(path), _) => Roots::Own(read(path)?),
        (None, Roots::None) => {
            let found = SYSTEM_CA_FILES.iter().find_map(|path| read(Path::new(path)).ok());
            Roots::System(found.ok_or(AdminServerError::NoAuthorities)?)
        }
        (None, roots) => roots,
    };
    let certificate = args.admin_certificate.as_ref().map(|chain| {
        let key = args.admin_key.as_ref().unwrap_or(chain);
        Ok::<_, AdminServerError>(CertificateFiles { chain: read(chain)?, key: read(key)? })
    });
    let settings = ClientSettings { roots, certificate: certificate.transpose()?, ..settings };
    ClientTls::new(&settings).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        AdminServerError::Tls(problems.join("; "))
    })
}

fn read(path: &Path) -> Result<PemFile, AdminServerError> {
    let text = config::read_file(path, MAX_PEM_BYTES, &PendingReads::default())
        .map_err(|error| AdminServerError::File(path.display().to_string(), error))?;
    Ok(PemFile::new(path.to_owned(), text))
}

/// Every address of a name. At least one.
fn resolve_all(text: &str) -> Result<Vec<SocketAddr>, AdminServerError> {
    // Checked first: a password must not be looked up in the DNS either.
    if text.parse::<SocketAddr>().is_err() && config::parse_with_port(text).is_err() {
        return Err(AdminServerError::Address);
    }
    let wrong = |error| AdminServerError::Unresolved(text.to_owned(), error);
    let found: Vec<SocketAddr> = text.to_socket_addrs().map_err(wrong)?.map(dialable).collect();
    if found.is_empty() { Err(wrong(io::Error::from(io::ErrorKind::NotFound))) } else { Ok(found) }
}

/// Replaces the wildcard address, which only a listener can use, by the loopback address.
fn dialable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        addr.set_ip(if addr.is_ipv4() {
            Ipv4Addr::LOCALHOST.into()
        } else {
            Ipv6Addr::LOCALHOST.into()
        });
    }
    addr
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(admin: &str) -> AdminArgs {
        AdminArgs { admin: Some(admin.to_owned()), ..AdminArgs::default() }
    }

    fn authority(folder: &Path) -> PathBuf {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["ca".to_owned()]).unwrap();
        let path = folder.join("ca.crt");
        std::fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
        path
    }

    #[test]
    fn resolves_given_configured_or_default_address() {
        let request = |args: &AdminArgs, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| (name.into(), value.into()));
            find(args, None, &env.collect::<Vec<_>>()).unwrap().to_string()
        };
        let none = AdminArgs::default();
        assert_eq!(request(&none, &[]), DEFAULT_ADDRESS);
        assert_eq!(request(&none, &[(VARIABLE, "[::]:9,1.2.3.4:8")]), "[::1]:9");
        assert_eq!(request(&at("1.2.3.4:5"), &[(VARIABLE, "0.0.0.0:9")]), "1.2.3.4:5");
        assert_eq!(request(&at("http://1.2.3.4:5/"), &[]), "1.2.3.4:5");
        assert_eq!(request(&none, &[(VARIABLE, "http://1.2.3.4:5")]), "1.2.3.4:5");
        let env = |value: &str| vec![(VARIABLE.into(), value.into())];
        assert_eq!(given(&none, &env("https://h:1")), Some("https://h:1"));
        assert_eq!(given(&none, &env("1.2.3.4:8")), None, "a value of the configuration");
        let wrong = find(&at("nonsense"), None, &[]);
        assert!(matches!(wrong, Err(AdminServerError::Address)));
        let unresolved = find(&at("nohost.invalid:8888"), None, &[]);
        assert!(matches!(unresolved, Err(AdminServerError::Unresolved(..))), "{unresolved:?}");
    }

    #[test]
    fn asks_nobody_else_if_the_named_file_is_missing_or_broken() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("pointsman.toml");
        let ask = || find(&AdminArgs::default(), Some(&config), &[]);
        assert!(matches!(ask(), Err(AdminServerError::Faults(_))), "no file");
        for (text, is_found) in [
            ("[admin\nlisten=[\"127.0.0.1:9\"]\n", false),
            ("[admin]\nlisten=[\"127.0.0.1\"]\n", false),
            ("[admin]\ncontrol_socket=9\n", false),
            ("[admin.tls]\ncertificate_file=9\n", false),
            ("[admin]\nlisten=[\"127.0.0.1:9\"]\nmax_connections=\"many\"\n", true),
        ] {
            std::fs::write(&config, text).unwrap();
            assert_eq!(ask().is_ok(), is_found, "{text}");
            let given = find(&at("1.2.3.4:5"), Some(&config), &[]);
            assert_eq!(given.unwrap().to_string(), "1.2.3.4:5");
        }
    }

    #[test]
    fn verifies_the_host_of_the_url() {
        let folder = tempfile::tempdir().unwrap();
        let ca = authority(folder.path());
        for (url, host, shown) in [
            ("https://localhost:9/", "localhost", "https://localhost:9"),
            ("https://127.0.0.1:9", "127.0.0.1", "https://127.0.0.1:9"),
            ("https://[::1]:9", "::1", "https://[::1]:9"),
        ] {
            let args = AdminArgs { admin_ca: Some(ca.clone()), ..at(url) };
            let server = find(&args, None, &[]).unwrap();
            assert_eq!(server.to_string(), shown);
            assert_eq!(server.tls.unwrap().0, host);
        }
        let plain = AdminArgs { admin_ca: Some(ca), ..at("localhost:9") };
        assert!(matches!(find(&plain, None, &[]), Err(AdminServerError::NotHttps("--admin-ca"))));
        let missing = AdminArgs { admin_ca: Some("/missing".into()), ..at("https://[::1]:9") };
        assert!(matches!(find(&missing, None, &[]), Err(AdminServerError::File(..))));
    }

    #[test]
    fn expects_configured_certificate_without_a_url() {
        let folder = tempfile::tempdir().unwrap();
        let certificate = authority(folder.path());
        let config = folder.path().join("pointsman.toml");
        // A fault, as the key is missing, which only the server can read.
        let text = format!(
            "[admin]\nlisten=[\"0.0.0.0:9\"]\n[admin.tls]\ncertificate_file={certificate:?}\n"
        );
        std::fs::write(&config, text).unwrap();
        let server = find(&AdminArgs::default(), Some(&config), &[]).unwrap();
        assert_eq!(server.to_string(), "https://127.0.0.1:9");
    }
}
