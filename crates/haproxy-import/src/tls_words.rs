//! haproxy's options about TLS, of a `bind` or a `server` line and of `global`.
//!
//! Options that would admit more than haproxy does, if they were left out, are kept by name as
//! `unsupported`: the caller refuses them. Options that only lose a restriction of no importance to
//! Redis, or that make Pointsman stricter, are kept as `dropped`.

use crate::config_file::ConfigFile;
use crate::sections::{Directive, SectionKind};

/// A version of TLS, ordered by age; 0 is older than TLS 1.2.
type Version = u8;

/// The oldest and the newest version that Pointsman speaks.
const SPOKEN: (Version, Version) = (12, 13);

/// Options that change who is admitted, and that Pointsman lacks.
const UNSUPPORTED: &[&str] =
    &["ca-sign-file", "ca-verify-file", "crl-file", "crt-list", "generate-certificates"];
/// Options that Pointsman lacks, without consequences for who is admitted.
const DROPPED: &str = "ca-ignore-err client-sigalgs crt-ignore-err curves ecdhe no-ca-names \
                       no-tls-tickets ocsp-update sigalgs strict-sni tls-ticket-keys";

/// The options of one line, with those that it inherits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TlsWords {
    /// `ssl`: connections are encrypted.
    pub(super) is_on: bool,
    /// `check-ssl`: health checks are encrypted.
    pub(super) is_on_in_checks: bool,
    /// `crt`, with the folder that applies: files with a certificate, usually also with its key.
    pub(super) certificates: Vec<String>,
    pub(super) ca_file: Option<String>,
    pub(super) verify: Option<String>,
    /// The name that the peer's certificate must have.
    pub(super) name: Option<String>,
    /// The expression of `sni`, if it is not a constant.
    pub(super) computed_name: Option<String>,
    min: Version,
    max: Version,
    /// `ciphers` or `ciphersuites`.
    pub(super) has_ciphers: bool,
    /// Options to refuse, by name.
    pub(super) unsupported: Vec<String>,
    /// Options to report, by name.
    pub(super) dropped: Vec<String>,
}

/// What haproxy does where a line says nothing: the options of `global`.
#[derive(Debug, Clone, Default)]
pub(super) struct TlsDefaults {
    /// What precedes the options of a line.
    options: Vec<String>,
    /// Without versions.
    words: TlsWords,
    ca_base: String,
    crt_base: String,
}

impl TlsDefaults {
    /// The defaults for `bind` or for `server` lines.
    pub(super) fn read(config: &ConfigFile, side: &str) -> Self {
        let mut defaults = Self::default();
        let prefix = format!("ssl-default-{side}-");
        let global = config.sections.iter().filter(|it| it.kind == SectionKind::Global);
        for line in global.flat_map(|it| &it.directives) {
            let (first, value) = (line.word(0), line.word(1));
            match (first.strip_prefix(&prefix), first.as_str()) {
                (Some("options"), _) => defaults.options = line.rest(1),
                (Some("ciphers" | "ciphersuites"), _) => defaults.words.has_ciphers = true,
                (_, "ssl-server-verify") if side == "server" => defaults.words.verify = Some(value),
                (_, "ca-base") => defaults.ca_base = value,
                (_, "crt-base") => defaults.crt_base = value,
                _ => {}
            }
        }
        defaults
    }

    /// The options of a `server`, after those of the `default-server` lines that apply to it.
    pub(super) fn of_server(
        &self,
        config: &ConfigFile,
        section: usize,
        server: &Directive,
    ) -> TlsWords {
        let lines = config.defaults_first(section);
        let defaults = lines.filter(|it| it.begins("default-server")).flat_map(|it| it.rest(1));
        self.of(defaults.chain(server.rest(3)).collect())
    }

    /// What these options of a line mean.
    pub(super) fn of(&self, words: Vec<String>) -> TlsWords {
        let mut read = TlsWords { min: SPOKEN.0, max: SPOKEN.1, ..self.words.clone() };
        let mut words = self.options.iter().cloned().chain(words);
        while let Some(word) = words.next() {
            read.take(&word, &mut words, self);
        }
        read
    }
}

impl TlsWords {
    fn take(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = String>,
        defaults: &TlsDefaults,
    ) {
        let mut value = || rest.next().unwrap_or_default();
        match word {
            "ssl" => self.is_on = true,
            "no-ssl" => self.is_on = false,
            "check-ssl" => self.is_on_in_checks = true,
            "no-check-ssl" => self.is_on_in_checks = false,
            "crt" => self.certificates.push(under(&defaults.crt_base, value())),
            // haproxy serves it to clients that ask for no known name.
            "default-crt" => self.certificates.insert(0, under(&defaults.crt_base, value())),
            "ca-file" => self.ca_file = Some(under(&defaults.ca_base, value())),
            "verify" => self.verify = Some(value()),
            // The name to verify comes before the one to ask for.
            "verifyhost" => (self.name, self.computed_name) = (Some(value()), None),
            "no-verifyhost" => self.name = None,
            "check-sni" => {
                let name = value();
                self.name = self.name.take().or(Some(name));
            }
            "sni" => match constant(&value()) {
                Ok(name) => self.name = self.name.take().or(Some(name)),
                Err(expression) if self.name.is_none() => self.computed_name = Some(expression),
                Err(_) => {}
            },
            "ciphers" | "ciphersuites" => self.has_ciphers |= !value().is_empty(),
            "ssl-min-ver" => self.min = version(&value()),
            "ssl-max-ver" => self.max = version(&value()),
            "no-tlsv13" => self.max = self.max.min(12),
            "no-tlsv12" => self.min = self.min.max(13),
            "force-sslv3" | "force-tlsv10" | "force-tlsv11" => (self.min, self.max) = (0, 0),
            "force-tlsv12" => (self.min, self.max) = (12, 12),
            "force-tlsv13" => (self.min, self.max) = (13, 13),
            other if UNSUPPORTED.contains(&other) => self.unsupported.push(other.to_owned()),
            other if DROPPED.split(' ').any(|it| it == other) => {
                self.dropped.push(other.to_owned());
            }
            _ => {}
        }
    }

    /// The keys `min_version` and `max_version`, where they differ from the default.
    ///
    /// # Errors
    /// Pointsman speaks none of the versions.
    pub(super) fn versions(&self) -> Result<Vec<(&'static str, String)>, ()> {
        let (min, max) = (self.min.max(SPOKEN.0), self.max.min(SPOKEN.1));
        if min > max {
            return Err(());
        }
        let oldest = (min > SPOKEN.0).then(|| ("min_version", "\"1.3\"".to_owned()));
        let newest = (max < SPOKEN.1).then(|| ("max_version", "\"1.2\"".to_owned()));
        Ok(oldest.into_iter().chain(newest).collect())
    }

    /// Whether versions are admitted that Pointsman refuses.
    pub(super) fn admits_old_versions(&self) -> bool {
        self.min < SPOKEN.0
    }
}

fn version(text: &str) -> Version {
    match text {
        "TLSv1.3" => 13,
        "TLSv1.2" => 12,
        _ => 0,
    }
}

/// A path below the folder that `global` names for paths that are not absolute.
fn under(base: &str, path: String) -> String {
    if base.is_empty() || path.starts_with(['/', '@']) {
        return path;
    }
    format!("{}/{path}", base.trim_end_matches('/'))
}

/// The text of `str(text)`, or the expression.
fn constant(expression: &str) -> Result<String, String> {
    let text = expression.strip_prefix("str(").and_then(|it| it.strip_suffix(')'));
    let text = text.map(|it| it.trim_matches(['\'', '"']));
    text.filter(|it| !it.is_empty() && !it.contains(['(', ')', ',']))
        .map(str::to_owned)
        .ok_or_else(|| expression.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> TlsWords {
        TlsDefaults::default().of(words.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn reads_versions_as_haproxy_does() {
        let key = |name: &'static str, value: &str| (name, format!("{value:?}"));
        for (words, expected) in [
            ("ssl", Ok(vec![])),
            ("ssl ssl-min-ver TLSv1.0", Ok(vec![])),
            ("ssl ssl-min-ver TLSv1.3", Ok(vec![key("min_version", "1.3")])),
            ("ssl no-tlsv12", Ok(vec![key("min_version", "1.3")])),
            ("ssl no-tlsv13", Ok(vec![key("max_version", "1.2")])),
            ("ssl force-tlsv12", Ok(vec![key("max_version", "1.2")])),
            ("ssl force-tlsv13", Ok(vec![key("min_version", "1.3")])),
            ("ssl ssl-max-ver TLSv1.1", Err(())),
            ("ssl force-tlsv10", Err(())),
            ("ssl no-tlsv12 no-tlsv13", Err(())),
        ] {
            assert_eq!(read(words).versions(), expected, "{words}");
        }
        assert!(read("ssl ssl-min-ver TLSv1.1").admits_old_versions());
        assert!(!read("ssl ssl-min-ver TLSv1.2").admits_old_versions());
    }

    #[test]
    fn reads_names_of_servers() {
        for (words, name, computed) in [
            ("ssl sni str(redis.example)", Some("redis.example"), None),
            ("ssl sni str(a.example) verifyhost b.example", Some("b.example"), None),
            ("ssl verifyhost b.example sni ssl_fc_sni", Some("b.example"), None),
            ("ssl sni ssl_fc_sni", None, Some("ssl_fc_sni")),
            ("ssl check-sni c.example", Some("c.example"), None),
        ] {
            let read = read(words);
            let found = (read.name.as_deref(), read.computed_name.as_deref());
            assert_eq!(found, (name, computed), "{words}");
        }
    }
}
