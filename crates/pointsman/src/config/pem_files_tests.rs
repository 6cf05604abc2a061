//! Tests of the PEM files that the configuration names.

use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

use crate::config::{Flags, Loaded, load};

/// A certificate that signs itself, and its key.
fn made(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn loaded(folder: &Path, more: &str) -> Loaded {
    let text = format!(
        "[[service]]\nsentinels=[\"s\"]\ntls_listen=[\"127.0.0.1:1\"]\n[service.tls]\n\
         certificate_files=[\"{0}/tls.crt\"]\nkey_files=[\"{0}/tls.key\"]\n{more}",
        folder.display()
    );
    write(folder, "pointsman.toml", &text);
    load(&Flags { config: Some(folder.join("pointsman.toml")), ..Flags::default() }, [])
}

#[test]
fn reports_missing_and_mismatched_files_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let fault = |more| loaded(path, more).config().unwrap_err().to_string();
    assert!(fault("").contains("service.tls.certificate_files"), "{}", fault(""));
    let (certificate, _) = made("redis");
    let (_, other) = made("redis");
    write(path, "tls.crt", &certificate);
    assert!(fault("").contains("service.tls.key_files"), "{}", fault(""));
    write(path, "tls.key", &other);
    assert!(fault("").contains("tls.key"), "{}", fault(""));
    assert!(!fault("").contains("BEGIN"), "{}", fault(""));
    write(path, "tls.crt", "");
    assert!(fault("").contains("tls.crt"), "{}", fault(""));
}

#[test]
fn keeps_running_files_until_new_ones_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let replace = |(certificate, key): (&str, &str)| {
        write(path, "tls.crt", certificate);
        write(path, "tls.key", key);
        loaded(path, "")
    };
    let (old, new) = (made("redis"), made("redis"));
    let first = replace((&old.0, &old.1));
    let running = first.settings.clone();
    first.config().unwrap();
    assert_eq!(first.secret_files.len(), 2);
    // The certificate is replaced before its key.
    let half = replace((&new.0, &old.1));
    assert!(half.config().is_err());
    let kept = half.change(&running, &[]).unwrap();
    assert!(kept.applied.is_empty() && !half.unread_secrets().is_empty(), "{:?}", kept.applied);
    let texts = |plan: &crate::config::ReloadPlan| plan.config.services[0].tls.pem.clone();
    assert_eq!(texts(&kept), first.config().unwrap().services[0].tls.pem);
    let whole = replace((&new.0, &new.1));
    let plan = whole.change(&running, &[]).unwrap();
    assert_eq!(plan.applied, ["service.tls: the files themselves (mymaster)"]);
    assert_ne!(texts(&plan), texts(&kept));
    assert!(!format!("{plan:?}").contains("BEGIN"));
}

#[test]
fn keeps_valid_certificate_instead_of_an_expired_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let client = format!(
        "[service.redis_tls]\nenabled=true\ncertificate_file=\"{0}/tls.crt\"\n\
         key_file=\"{0}/tls.key\"\n\
         [[service]]\nname=\"b\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:2\"]\n",
        path.display()
    );
    let authority = harness::Authority::new("ca");
    let issued = |until, more: &str| {
        let pair = authority.issue_until(&["redis"], until);
        write(path, "tls.crt", &pair.chain);
        write(path, "tls.key", &pair.key);
        loaded(path, &format!("{client}{more}"))
    };
    let warnings = |it: &Loaded| {
        let all = it.config().unwrap().warnings.into_iter();
        all.filter(|it| it.contains("has expired")).collect::<Vec<_>>()
    };
    let (first, mut past) = (issued(2090, ""), issued(2021, "hold_timeout=\"3s\"\n"));
    assert!(warnings(&first).is_empty(), "{:?}", warnings(&first));
    let told = warnings(&past);
    assert_eq!(told.len(), 2, "{told:?}");
    // Everything else is applied.
    past.reject_expired(&first.settings, &[]);
    let plan = past.change(&first.settings, &[]).unwrap();
    assert_eq!(plan.applied, ["service.hold_timeout (b)"]);
    let kept = past.unread_secrets();
    assert!(kept.len() == 2 && kept[1].contains("service.redis_tls.certificate_file"), "{kept:?}");
    let texts = |it: &crate::config::Config| it.services[0].redis_tls.pem.clone();
    assert_eq!(texts(&plan.config), texts(&first.config().unwrap()));
    // There is no better one.
    let mut next = issued(2022, "");
    next.reject_expired(&issued(2021, "").settings, &[]);
    assert!(next.unread_secrets().is_empty());
}

#[test]
fn demands_what_tls_needs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (certificate, key) = made("redis");
    write(path, "tls.crt", &certificate);
    write(path, "tls.key", &key);
    loaded(path, "").config().unwrap();
    for (more, key) in [
        ("client_certificates=\"required\"\n", "service.tls.client_certificates"),
        ("min_version=\"1.3\"\nmax_version=\"1.2\"\n", "service.tls.min_version"),
        ("ciphers=[\"RC4\"]\n", "service.tls.ciphers"),
        ("client_ca_file=\"/nowhere\"\n", "service.tls.client_ca_file"),
    ] {
        let fault = loaded(path, more).config().unwrap_err().to_string();
        assert!(fault.contains(key), "{more}: {fault}");
    }
    let bare = "[[service]]\nsentinels=[\"s\"]\ntls_listen=[\"127.0.0.1:1\"]\n";
    let fault = crate::config::load_text("f", bare).config().unwrap_err().to_string();
    assert!(fault.contains("service.tls_listen") && fault.contains("certificate_files"), "{fault}");
}
