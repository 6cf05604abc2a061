//! The enumerations of the configuration: the values of options that accept one of a few words.

use super::option_spec::choice;

choice! {
    /// What a candidate must prove before traffic is sent to it.
    Verify {
        /// `ROLE` reports a master, and `PING` is answered.
        Role = "role",
        /// `PING` is answered; for users without the permission to run `ROLE`.
        Ping = "ping",
        /// A TCP connection opens; relies on the sentinels alone.
        Tcp = "tcp",
    }
}

choice! {
    /// What to do while only a minority of the sentinels is reachable.
    Minority {
        /// Traffic continues to the master that was verified before.
        Keep = "keep",
        /// New requests wait, for at most `hold_timeout`.
        Hold = "hold",
        /// Sessions are closed, and new clients wait.
        Cut = "cut",
    }
}

choice! {
    /// What happens to sessions when the master is replaced.
    Sessions {
        /// Idle sessions move to the new master; all other sessions are closed.
        Carry = "carry",
        /// All sessions are closed.
        Close = "close",
    }
}

choice! {
    /// What happens to subscribed sessions when the master is replaced.
    Subscriptions {
        /// They are closed, so that their clients know that messages may be lost.
        Close = "close",
        /// They are subscribed again on the new master.
        Replay = "replay",
    }
}

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
    /// What a client receives whose write too few replicas have confirmed in time.
    OnTimeout {
        /// An error in place of each reply to such a write.
        Error = "error",
        /// Nothing: its connection is closed.
        Close = "close",
    }
}

choice! {
    /// Whether large values are moved between sockets inside the kernel, by `splice`.
    Splice {
        /// If the system supports it.
        On = "on",
        /// Never.
        Off = "off",
    }
}

choice! {
    /// Whether clients of listeners for TLS show a certificate.
    ClientCertificates {
        /// They are not asked for one.
        None = "none",
        /// A client may show one, which is verified then.
        Optional = "optional",
        /// A client without a valid one is refused.
        Required = "required",
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
    /// A version of TLS.
    TlsVersion {
        /// TLS 1.2.
        Tls12 = "1.2",
        /// TLS 1.3.
        Tls13 = "1.3",
    }
}

choice! {
    /// What readers get while no replica is eligible.
    NoReplica {
        /// An error at once, and the connection is closed.
        Reject = "reject",
        /// The master, until a replica is eligible again.
        Master = "master",
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

choice! {
    /// Which sessions are logged when they end.
    SessionLines {
        /// No session.
        Off = "off",
        /// Sessions that were ended neither by their client nor by an operator.
        Failed = "failed",
        /// All sessions.
        All = "all",
    }
}
