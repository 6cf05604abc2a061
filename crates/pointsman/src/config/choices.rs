//! The words that an option may be one of, each set defined once.
//!
//! The comments are what people read beside the option, as in [`sections`](super::sections).

use super::section::choice;

choice! {
    /// What a candidate has to prove before traffic goes to it.
    Verify {
        /// `ROLE` says master and `PING` gets `PONG`.
        Role = "role",
        /// `PING` gets `PONG`; for servers whose user may not run `ROLE`.
        Ping = "ping",
        /// A TCP connection opens; trusts the sentinels alone.
        Tcp = "tcp",
    }
}

choice! {
    /// What to do while the reachable sentinels cannot reach a majority of theirs.
    Minority {
        /// Traffic goes on to the master already verified.
        Keep = "keep",
        /// New requests wait at the gate, up to `hold_timeout`.
        Hold = "hold",
        /// Sessions are closed and new ones wait.
        Cut = "cut",
    }
}

choice! {
    /// What becomes of sessions when the master is replaced.
    Sessions {
        /// Quiet ones go on with the new master; the others are closed.
        Carry = "carry",
        /// All are closed.
        Close = "close",
    }
}

choice! {
    /// What becomes of subscribed sessions when the master is replaced.
    Subscriptions {
        /// They are closed, so that their clients know that they missed messages.
        Close = "close",
        /// They subscribe again with the new master.
        Replay = "replay",
    }
}

choice! {
    /// Whether bodies of large values go through a pipe of the kernel.
    Splice {
        /// Where the system does it.
        On = "on",
        /// Never.
        Off = "off",
    }
}

choice! {
    /// What readers get while no replica may serve them.
    NoReplica {
        /// They are turned away at once.
        Reject = "reject",
        /// The master, until there is a replica again.
        Master = "master",
    }
}

choice! {
    /// How much is logged.
    LogLevel {
        /// What needs a person.
        Error = "error",
        /// What may soon need a person.
        Warn = "warn",
        /// What an operator wants to read afterwards: failovers, starts, stops.
        Info = "info",
        /// Decisions and their reasons.
        Debug = "debug",
        /// Every event and reply.
        Trace = "trace",
    }
}

choice! {
    /// How a log line looks.
    LogFormat {
        /// For people on a terminal, JSON otherwise.
        Auto = "auto",
        /// Lines for people.
        Human = "human",
        /// One JSON object a line.
        Json = "json",
        /// Entries of systemd's journal, with their fields.
        Journald = "journald",
    }
}

choice! {
    /// Which sessions get a line at their end.
    SessionLines {
        /// None.
        Off = "off",
        /// Those that ended otherwise than client or operator wanted.
        Failed = "failed",
        /// All.
        All = "all",
    }
}
