//! The enumerations of the configuration: the values of options that accept one of a few words.

use super::value::ChoiceValue;

/// The words of an enumeration.
macro_rules! choice {
    ($name:path { $first:ident = $word:literal, $( $variant:ident = $text:literal, )* }) => {
        impl ChoiceValue for $name {
            const NAMES: &'static [&'static str] = &[$word, $($text),*];

            fn named(text: &str) -> Self {
                match text {
                    $( $text => <$name>::$variant, )*
                    _ => <$name>::$first,
                }
            }
        }
    };
}

choice!(sentinel::Verify { Role = "role", Ping = "ping", Tcp = "tcp", });
choice!(sentinel::Minority { Keep = "keep", Hold = "hold", Cut = "cut", });
choice!(proxy::Sessions { Carry = "carry", Close = "close", });
choice!(proxy::Subscriptions { Close = "close", Replay = "replay", });
choice!(proxy::OnTimeout { Error = "error", Close = "close", });
choice!(proxy::Splice { On = "on", Off = "off", });
choice!(target::EmptyPool { Reject = "reject", Master = "master", });
choice!(tls::ClientCertificates { None = "none", Optional = "optional", Required = "required", });
choice!(tls::Verification { Full = "full", Chain = "chain", None = "none", });
choice!(tls::Version { Tls12 = "1.2", Tls13 = "1.3", });
choice!(proxy::LoggedSessions { Off = "off", Failed = "failed", All = "all", });
choice!(tracing::Level {
    ERROR = "error",
    WARN = "warn",
    INFO = "info",
    DEBUG = "debug",
    TRACE = "trace",
});
choice!(Upstream { Dedicated = "dedicated", Shared = "shared", });
choice!(LogFormat { Auto = "auto", Human = "human", Json = "json", Journald = "journald", });

/// Whether sessions share connections to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// Each has a connection of its own.
    Dedicated,
    /// Sessions that the server treats alike share few.
    Shared,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// `human` on a terminal, `journald` in a systemd unit, `json` otherwise.
    Auto,
    /// Plain text.
    Human,
    /// One JSON object per line.
    Json,
    /// Entries of the systemd journal, with fields.
    Journald,
}
