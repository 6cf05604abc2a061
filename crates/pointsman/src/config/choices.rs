//! The enumerations of the configuration: the values of options that accept one of a few words.

use super::option_spec::choice;

choice!(sentinel::Verify { Role = "role", Ping = "ping", Tcp = "tcp", });
choice!(sentinel::Minority { Keep = "keep", Hold = "hold", Cut = "cut", });
choice!(proxy::Sessions { Carry = "carry", Close = "close", });
choice!(proxy::Subscriptions { Close = "close", Replay = "replay", });
choice!(proxy::OnTimeout { Error = "error", Close = "close", });
choice!(proxy::Splice { On = "on", Off = "off", });
choice!(target::EmptyPool { Reject = "reject", Master = "master", });
choice!(tls::ClientCertificates { None = "none", Optional = "optional", Required = "required", });
choice!(tls::Version { Tls12 = "1.2", Tls13 = "1.3", });
choice!(proxy::LoggedSessions { Off = "off", Failed = "failed", All = "all", });

choice! {
    /// Whether sessions share connections to Redis.
    Upstream {
        /// Each has a connection of its own.
        Dedicated = "dedicated",
        /// Sessions that the server treats alike share few.
        Shared = "shared",
    }
}

choice! {
    /// What is verified of a server's certificate.
    TlsVerification {
        /// Validity, authority and name.
        Full = "full",
        /// Validity and authority.
        Chain = "chain",
        /// Nothing.
        None = "none",
    }
}

choice! {
    /// The log level.
    LogLevel {
        /// Problems that need an operator.
        Error = "error",
        /// Problems that may soon need an operator.
        Warn = "warn",
        /// Events for later analysis: failovers, starts, stops.
        Info = "info",
        /// Decisions, with their reasons.
        Debug = "debug",
        /// Every event and reply.
        Trace = "trace",
    }
}

choice! {
    /// The format of log lines.
    LogFormat {
        /// `human` on a terminal, `journald` in a systemd unit, `json` otherwise.
        Auto = "auto",
        /// Plain text.
        Human = "human",
        /// One JSON object per line.
        Json = "json",
        /// Entries of the systemd journal, with fields.
        Journald = "journald",
    }
}
