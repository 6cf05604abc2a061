//! Every option there is, each in its section, defined once.
//!
//! The comments on the fields are the text of `pointsman config`, of the help and of
//! `docs/configuration.md`, so they are written for an operator: what the key does, what its
//! extreme values mean, and when to change it. Every limit on memory, time and connections is here;
//! none is hidden in the code. The order is the order of printing, common keys first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proxy::ListenAddr;

use super::choices::{
    LogFormat, LogLevel, Minority, NoReplica, SessionLines, Sessions, Splice, Subscriptions, Verify,
};
use super::credentials::{Credentials, Token};
use super::endpoint::Endpoint;
use super::secret::Secret;
use super::section::section;
use super::value::Kind;

section! {
    /// One master, the sentinels that monitor it, and the addresses where its clients connect.
    Service {
        /// Name of the master, as in the sentinels' "sentinel monitor" line.
        ///
        /// Letters, digits, '.', '_' and '-'. Each service has its own name.
        name: String = Kind::MasterName, Some("mymaster"), Restart;
        /// Addresses where clients of this master connect.
        ///
        /// IP addresses with a port, IPv6 in brackets, and Unix sockets as "unix:/path". Two
        /// services, or a service and the admin server, cannot share an address. `[::]:6379`
        /// accepts IPv4 clients as well, unless net.ipv6.bindv6only is set or an IPv4 address with
        /// the same port is configured. The file of a Unix socket has the mode unix_socket_mode;
        /// it replaces a file left by a dead process, and is removed at the end. With port 0 the
        /// kernel chooses a port, which is useful in tests.
        listen: Vec<ListenAddr> = Kind::Listen, Some("0.0.0.0:6379"), Restart;
        /// Addresses where clients connect that only read, to be spread over the replicas; none by
        /// default.
        ///
        /// The section replicas defines which replicas may serve them. A client stays on one
        /// replica, the one with the fewest clients of this process when it connected. Needs verify
        /// = "role".
        replica_listen: Vec<ListenAddr> = Kind::Listen, Some(""), Restart;
        /// Mode of the files of Unix sockets in listen and replica_listen, in octal.
        ///
        /// A client needs write permission. The group is the one with which the process creates
        /// files. Limits per source do not apply to these clients, which have no address.
        unix_socket_mode: String = Kind::Mode, Some("0660"), Restart;
        /// Sentinels to query, as host:port; required.
        ///
        /// DNS names are resolved repeatedly and may have several addresses. IPv6 addresses are in
        /// brackets if a port follows. The default port is 26379. One sentinel that answers is
        /// enough to find the others; several are safer.
        sentinels: Vec<Endpoint> = Kind::Endpoints, None, Restart;
        /// Whether to use the further sentinels that the configured ones report.
        ///
        /// Turn it off where the reported addresses cannot be reached from here and address_map
        /// cannot help.
        learn_sentinels: bool = Kind::Bool, Some("true"), Restart;
        /// Timeout of one attempt to connect to the master.
        ///
        /// A failed attempt is repeated for as long as a client may be held, because a master that
        /// does not answer is about to be replaced or to come back.
        connect_timeout: Duration = Kind::Duration, Some("1s"), Live;
        /// How long a client waits while there is no master.
        ///
        /// Covers an ordinary failover, so that clients see a pause and not an error. Keep it below
        /// the timeout of your clients. When it expires, a request that was certainly not forwarded
        /// is answered with an error that clients retry on (LOADING), and the connection is closed.
        /// See also admin.ready_without_master.
        hold_timeout: Duration = Kind::Duration, Some("10s"), Live;
        /// What happens to sessions when the master is replaced: carry or close.
        ///
        /// "carry" connects every idle session to the new master and replays its state there
        /// (credentials, database, names), so its client notices nothing. Sessions with a request
        /// in flight, in a transaction, blocked or subscribed are closed, since only their clients
        /// can decide what to do. "close" closes all sessions, and keeps no credentials of clients
        /// in memory.
        sessions: Sessions = Kind::Choice(Sessions::NAMES), Some("carry"), Live;
        /// What happens to subscribed sessions when the master is replaced: close or replay.
        ///
        /// "close" closes them, so that their clients subscribe again and know that they may have
        /// missed messages. "replay" subscribes again on the new master without the client
        /// noticing: messages published in between are lost, because Pub/Sub stores none, and the
        /// client is not informed. A session is closed if its names exceed 512 KiB, or if the names
        /// of all sessions exceed 32 MiB. A change applies to sessions that begin after it.
        subscriptions: Subscriptions = Kind::Choice(Subscriptions::NAMES), Some("close"), Live;
        /// Commands that leave no state on their connection, in addition to the known ones; none by
        /// default.
        ///
        /// A session that sent a command unknown to Pointsman is closed when the master is
        /// replaced, because the command may have left any state on the connection: it may belong
        /// to a module, or be renamed by rename-command. Name commands here that leave no state, in
        /// any case, as "NAME" or "CONTAINER|SUBCOMMAND"; at most 1024. docs/commands.md lists the
        /// known ones. pointsman_sessions_by_state{state="unknown_command"} counts the sessions concerned,
        /// and the log names the command when such a session is closed. A change applies to
        /// sessions that begin after it.
        stateless_commands: Vec<String> = Kind::Commands, Some(""), Live;
        /// Whether to announce failovers and drains to clients that ask for it (CLIENT
        /// MAINT_NOTIFICATIONS).
        ///
        /// Recent client libraries ask by themselves when they speak RESP3 ("smart client
        /// handoffs"). They are notified when a failover begins, so that they extend their
        /// timeouts, and when it is over; in a drain they are told to move to another connection,
        /// and close the old one themselves between two commands. The master need not know the
        /// command: its refusal is replaced by an OK.
        maintenance_push: bool = Kind::Bool, Some("true"), Live;
        /// Address that clients are told to move to in a drain, as host:port: the one at which they
        /// find this service.
        ///
        /// Only for clients that ask for an address, which is what client libraries do unless they
        /// are configured to "none". Without this key such clients are not told to move, and are
        /// closed at a command boundary like any other. Use the name of the Kubernetes Service or
        /// of the virtual address, never that of a single process.
        moving_to: Option<String> = Kind::Endpoint, None, Live;
        /// Closes a client that has sent nothing for this long; "0s" for never.
        ///
        /// Off by default: Redis clients keep idle connections in pools, and blocked or subscribed
        /// clients are silent by nature. Only arriving bytes count: a client that stops within a
        /// request is idle, one whose large value arrives slowly is not.
        client_idle_timeout: Duration = Kind::DurationOrOff, Some("0s"), Live;
        /// Closes a client that has not sent its first byte this long after connecting; "0s" for
        /// never.
        ///
        /// Guards against connections that are opened and left, where clients cannot be trusted.
        /// Until the first request is complete, the timeout applies to each next byte as well.
        /// Pools that connect in advance need it off or long. Time spent waiting for a master does
        /// not count.
        first_byte_timeout: Duration = Kind::DurationOrOff, Some("0s"), Live;
        /// How long the second direction may stay open after one side has closed; below 60s.
        ///
        /// Linux forgets half-closed connections after 60 s in its connection tracking, and a FIN
        /// sent later never arrives.
        half_close_timeout: Duration = Kind::Duration, Some("30s"), Live;
        /// How long a client waits for a replica that was put out because it answers nobody; "0s"
        /// for ever.
        ///
        /// Counts from the moment when it is put out (replicas.unanswered). A client with nothing
        /// under way is moved to another replica then; any other is closed at the end of this time,
        /// unless the replica answers again. Keep it above the longest command of your readers.
        /// Clients of a hung master are closed when another master is confirmed.
        silent_timeout: Duration = Kind::DurationOrOff, Some("10s"), Live;
        /// Idle time before TCP keepalive probes are sent, to clients and to Redis; "0s" turns them
        /// off.
        tcp_keepalive: Duration = Kind::DurationOrOff, Some("60s"), Live;
        /// How long sent bytes may stay unacknowledged before a connection is closed; "0s" for the
        /// kernel's rule.
        ///
        /// Detects a peer that lost its power or its network within seconds, instead of the quarter
        /// of an hour that TCP would take.
        tcp_user_timeout: Duration = Kind::DurationOrOff, Some("30s"), Live;
        /// Whether values above 512 KiB are moved between sockets inside the kernel: on or off.
        ///
        /// Saves a quarter to a half of their CPU cost. Where the system does not allow splice,
        /// they are copied. A change applies to connections opened after it.
        splice: Splice = Kind::Choice(Splice::NAMES), Some("on"), Live;
        /// Maximum number of client connections of this service; 0 for an equal share of the
        /// process's limit.
        ///
        /// A client beyond it receives "-ERR max number of clients reached" and is closed. The
        /// share is taken from what the services with a number of their own leave. With
        /// replica_listen, readers are counted separately and have the same maximum.
        max_connections: usize = Kind::Count(0, MOST_CONNECTIONS), Some("0"), Live;
        /// Maximum number of client connections from one source; 0 for no limit.
        ///
        /// A source is an IPv4 address, or the first 64 bits of an IPv6 address. Many clients share
        /// a source when a load balancer or NAT is in front. A client beyond the limit is answered
        /// as with max_connections.
        max_connections_per_source: usize = Kind::Count(0, MOST_CONNECTIONS), Some("0"), Restart;
        /// What a candidate must prove before traffic is sent to it: role, ping or tcp.
        ///
        /// "role" requires ROLE to say master and PING to be answered. "ping" requires only the
        /// latter, for a user that may not run ROLE. "tcp" requires only that a connection opens,
        /// and so trusts the sentinels alone.
        verify: Verify = Kind::Choice(Verify::NAMES), Some("role"), Restart;
        /// What to do while only a minority of the sentinels can be reached: keep, hold or cut.
        ///
        /// "keep" continues with the verified master, "hold" lets requests wait, "cut" closes the
        /// sessions as well: safest against writes to a master that is being replaced elsewhere, at
        /// the price of an outage. With "hold" and "cut", no majority heard for three seconds is a
        /// minority, too, and only a majority ends it.
        minority: Minority = Kind::Choice(Minority::NAMES), Some("keep"), Restart;
        /// Announced addresses and what to connect to instead, for NAT and port mapping.
        ///
        /// A table of "host:port" = "host:port". The left address is compared with what a sentinel
        /// announces, for masters, replicas and reported sentinels alike. The default port is 6379.
        address_map: BTreeMap<Endpoint, Endpoint> = Kind::AddressMap, Some(""), Restart;
    }
    with {
        /// Credentials of this proxy's own checks at masters and replicas. Clients authenticate for
        /// themselves.
        auth: Credentials;
        /// Credentials at the sentinels.
        sentinel_auth: Credentials;
        /// Which replicas serve readers.
        replicas: Replicas;
        /// Intervals and timeouts of discovery.
        timers: Timers;
    }
}

section! {
    /// Which replicas serve the readers that connect to replica_listen.
    Replicas {
        /// What readers get while no replica is eligible: reject or master.
        ///
        /// "reject" answers a new client with "-MASTERDOWN ..." and closes it, which clients know
        /// as a reason to retry later; no reader ever reaches the master. "master" sends readers to
        /// the master until there is a replica again, and then lets them leave at a command
        /// boundary.
        empty: NoReplica = Kind::Choice(NoReplica::NAMES), Some("reject"), Restart;
        /// A replica that lags by more than this gets no readers; "0s" for no limit.
        ///
        /// It becomes eligible again at half of this lag.
        max_lag: Duration = Kind::DurationOrOff, Some("10s"), Restart;
        /// A replica that lags by more than this many bytes gets no readers; 0 for no limit.
        ///
        /// It becomes eligible again at half of it. The default is 64 MiB: by that much a replica
        /// of Redis may lag for a minute before the master disconnects it
        /// (client-output-buffer-limit).
        max_lag_bytes: usize = Kind::Count(0, MOST_BYTES), Some("67108864"), Restart;
        /// A replica whose last answer is older than this gets no readers.
        ///
        /// Each replica is probed once per timers.probe_replicas, and answers late while it runs a
        /// long command.
        unanswered: Duration = Kind::Duration, Some("3s"), Restart;
        /// How long an ineligible replica must be healthy without interruption before it gets
        /// readers again.
        readmit_after: Duration = Kind::DurationOrOff, Some("2s"), Restart;
        /// For how long after a failover replication links, and the sentinels' opinion of them, are
        /// ignored.
        ///
        /// Right after a failover, sentinels list every replica as disconnected; until then a
        /// replica's own answers decide.
        settle: Duration = Kind::DurationOrOff, Some("2s"), Restart;
        /// How many clients per second are moved from replicas with more of them to those with
        /// fewer; 0 for none.
        ///
        /// After a failover or a readmission, until no two replicas differ by more than one client
        /// of this process. Only clients that notice nothing of it are moved, and none before the
        /// replicas have been the same for three seconds.
        rebalance_per_second: usize = Kind::Count(0, 10_000), Some("10"), Restart;
    }
}

section! {
    /// The keys that define a user and a password. At most one of the three password keys may be
    /// set.
    CredentialKeys {
        /// ACL user name; the default user if it is not set.
        ///
        /// Needs one of the three password keys.
        username: Option<String> = Kind::Text, None, Restart;
        /// The password itself; password_file or password_env are safer.
        ///
        /// Never printed. There is no flag for it, because the process list is public.
        password: Option<Secret> = Kind::Secret, None, Restart;
        /// A file that contains the password; a line break at its end is ignored.
        ///
        /// At most 64 KiB. A relative path starts at the working directory.
        password_file: Option<String> = Kind::Path, None, Restart;
        /// Name of the environment variable that contains the password.
        password_env: Option<String> = Kind::EnvName, None, Restart;
    }
}

section! {
    /// Intervals and timeouts of discovery. The defaults follow from measurements of Sentinel's own
    /// timing and rarely need a change.
    Timers {
        /// Interval of polling each sentinel while the master is healthy.
        ///
        /// Events arrive at once; polling makes up for lost ones.
        poll: Duration = Kind::Duration, Some("1s"), Restart;
        /// Interval of polling each sentinel while the master is suspect.
        poll_suspect: Duration = Kind::Duration, Some("100ms"), Restart;
        /// Timeout of connecting to a sentinel.
        sentinel_connect_timeout: Duration = Kind::Duration, Some("300ms"), Restart;
        /// Timeout of one command to a sentinel or a Redis node.
        command_timeout: Duration = Kind::Duration, Some("500ms"), Restart;
        /// Shortest wait before reconnecting to a lost sentinel.
        reconnect_min: Duration = Kind::Duration, Some("50ms"), Restart;
        /// Longest wait before reconnecting to a lost sentinel; waits double and have jitter.
        reconnect_max: Duration = Kind::Duration, Some("1s"), Restart;
        /// Interval of probing the master while it is healthy.
        probe_master: Duration = Kind::Duration, Some("500ms"), Restart;
        /// Interval of probing each replica while the master is healthy.
        probe_replicas: Duration = Kind::Duration, Some("1s"), Restart;
        /// Interval of probing master and replicas while the master is suspect.
        probe_suspect: Duration = Kind::Duration, Some("20ms"), Restart;
        /// Timeout of one attempt to verify a candidate.
        verify_timeout: Duration = Kind::Duration, Some("250ms"), Restart;
        /// How long the attempts to verify one candidate continue.
        verify_deadline: Duration = Kind::Duration, Some("10s"), Restart;
        /// How long a sentinel's answer counts as its vote.
        view_expiry: Duration = Kind::Duration, Some("5s"), Restart;
        /// Maximum time for which traffic is held on the sign of a promotion; without a commit by
        /// then, it flows again.
        ///
        /// Measured from the selection of a replica, and once more from its promotion.
        hold_max: Duration = Kind::Duration, Some("3s"), Restart;
        /// How long a single sentinel's new view must stay uncontradicted before it is sufficient.
        solo_grace: Duration = Kind::Duration, Some("250ms"), Restart;
        /// How long a majority must agree on a lower epoch before it is believed.
        ///
        /// Sentinel's epoch returns to 0 after SENTINEL REMOVE and MONITOR; a stale sentinel looks
        /// the same for a while.
        regress_grace: Duration = Kind::Duration, Some("10s"), Restart;
        /// How long a start waits for a majority before the best verified view of fewer sentinels
        /// is sufficient.
        bootstrap_grace: Duration = Kind::Duration, Some("3s"), Restart;
        /// How long the master must be unreachable, with no candidate, before the service has no
        /// master.
        unreachable_after: Duration = Kind::Duration, Some("1s"), Restart;
        /// How long bytes sent to a sentinel may stay unacknowledged before its connection is
        /// closed.
        sentinel_user_timeout: Duration = Kind::Duration, Some("3s"), Restart;
    }
}

section! {
    /// The server for probes, metrics and status.
    Admin {
        /// Addresses of probes, metrics and status.
        ///
        /// Kubernetes probes come from the node, so the default can be reached from outside. Bind
        /// it to a private address or guard it with a network policy where that matters. It shows
        /// addresses and counters, never passwords or data.
        listen: Vec<SocketAddr> = Kind::ListenTcp, Some("0.0.0.0:8888"), Restart;
        /// Maximum number of connections to the admin server.
        max_connections: usize = Kind::Count(1, 4096), Some("64"), Restart;
        /// Whether /ready stays 200 when a master that was known has been gone for longer than
        /// hold_timeout.
        ///
        /// All instances lose a master together. If all become unready, Kubernetes sends clients
        /// nowhere: they are refused instead of held and then answered, until some seconds after
        /// the failover. "true" therefore suits several instances on one Service. With "false" an
        /// instance that alone has lost its way to Redis gets no new clients; this suits failovers
        /// shorter than hold_timeout, or a load balancer that chooses between sites. An instance is
        /// never ready before it has found its first master.
        ready_without_master: bool = Kind::Bool, Some("true"), Live;
        /// Whether the admin server accepts commands: pause, resume and switchover.
        ///
        /// Needs a token or control_socket; otherwise everyone who can reach the port could stop
        /// traffic.
        control: bool = Kind::Bool, Some("false"), Restart;
        /// Path of a Unix socket for commands, which needs no token.
        ///
        /// Only the user of this process and root may use it: its mode is 0600, and the kernel
        /// reports the user of the peer. The file is created at the start and removed at the end;
        /// its folder must exist. A file left by a dead process is replaced.
        control_socket: Option<String> = Kind::Path, None, Restart;
        /// A file that contains the token for commands; at least 16 characters.
        control_token_file: Option<String> = Kind::Path, None, Restart;
        /// Name of the environment variable that contains the token for commands.
        control_token_env: Option<String> = Kind::EnvName, None, Restart;
    }
    with {
        /// The token that commands must present.
        control_token: Token;
    }
}

section! {
    /// What /metrics contains.
    Metrics {
        /// Whether /metrics also uses haproxy's names, for dashboards and alerts that were made for
        /// haproxy.
        ///
        /// A proxy is a service (NAME, and NAME/replicas for its readers), a server is a Redis
        /// node. docs/metrics.md has the list.
        haproxy_names: bool = Kind::Bool, Some("false"), Restart;
    }
}

section! {
    /// What happens on SIGTERM, phase by phase.
    Shutdown {
        /// Minimum time for which new clients are accepted after SIGTERM.
        ///
        /// Load balancers learn late that this instance is leaving. Use "0s" in a sidecar.
        accept_min: Duration = Kind::DurationOrOff, Some("5s"), Live;
        /// After accept_min, new clients are accepted until none has come for this long.
        accept_quiet: Duration = Kind::DurationOrOff, Some("3s"), Live;
        /// Maximum time for which new clients are accepted after SIGTERM.
        accept_max: Duration = Kind::DurationOrOff, Some("15s"), Live;
        /// Idle sessions are closed spread over this time, so that their clients do not all
        /// reconnect at once.
        drain_spread: Duration = Kind::DurationOrOff, Some("5s"), Live;
        /// How long sessions may continue after the listeners are closed; then the rest is cut.
        ///
        /// accept_max + drain_timeout and a second must fit into Kubernetes's
        /// terminationGracePeriodSeconds.
        drain_timeout: Duration = Kind::DurationOrOff, Some("20s"), Live;
        /// Whether /ready stays 200 while clients are still accepted after SIGTERM.
        ///
        /// Kubernetes sends fallback traffic to a terminating pod only while it is ready. By
        /// default /ready says 503.
        ready_while_leaving: bool = Kind::Bool, Some("false"), Live;
    }
}

section! {
    /// What is logged, and how. Lines are written to the standard output.
    Log {
        /// How much is logged: error, warn, info, debug or trace.
        level: LogLevel = Kind::Choice(LogLevel::NAMES), Some("info"), Live;
        /// Format of the lines: auto, human, json or journald.
        ///
        /// "auto" is human on a terminal, journald where the output is systemd's journal, and json
        /// otherwise. On a terminal the variable NO_COLOR turns colours off.
        format: LogFormat = Kind::Choice(LogFormat::NAMES), Some("auto"), Restart;
        /// Maximum number of lines per second from one call site; 0 for no limit.
        ///
        /// Lines beyond it are dropped and counted (pointsman_log_lines_suppressed_total), so that
        /// a failover of ten thousand sessions does not become as many lines.
        lines_per_second: usize = Kind::Count(0, 1_000_000), Some("100"), Live;
        /// Which sessions are logged when they end: off, failed or all.
        ///
        /// The line has the client, the target, the duration, bytes, commands, and the reason for
        /// the end. "failed" means that the session ended otherwise than its client or an operator
        /// wanted. At level debug every session is logged.
        sessions: SessionLines = Kind::Choice(SessionLines::NAMES), Some("failed"), Live;
        /// Level of these lines: error, warn, info, debug or trace.
        sessions_level: LogLevel = Kind::Choice(LogLevel::NAMES), Some("info"), Live;
        /// With sessions = "all": one in this many sessions that ended well is logged. Failed ones
        /// always are.
        sessions_one_in: usize = Kind::Count(1, 1_000_000), Some("1"), Live;
    }
}

section! {
    /// Resources of the process.
    Process {
        /// Number of worker threads; 0 for one per core, by CPU affinity and the cgroup's quota.
        ///
        /// A part of a core gets no worker: with a quota of 1.5 there is one worker, and the rest
        /// is for discovery and probes.
        workers: usize = Kind::Count(0, 256), Some("0"), Restart;
        /// Maximum number of client connections of all services together; 0 to derive it from the
        /// memory.
        ///
        /// The derived number is 10000 per service (as many as a Redis accepts by default), or what
        /// the memory limit of the cgroup or machine allows at 32 KiB per connection, if that is
        /// less. The limit on open files never raises it, because container runtimes set that to a
        /// billion. A connection takes two open files; a configured number that the system does not
        /// allow files for is an error at the start.
        max_connections: usize = Kind::Count(0, MOST_CONNECTIONS), Some("0"), Restart;
        /// A folder for the socket through which a new process takes over from this one (run
        /// --takeover).
        ///
        /// It must exist and belong to this user; /run/pointsman is suitable. Without it no
        /// takeover is possible.
        state_dir: Option<String> = Kind::Path, None, Restart;
    }
}

/// The highest bound on connections that may be configured.
pub(super) const MOST_CONNECTIONS: usize = 1_000_000;

/// The highest lag in bytes that may be configured: a petabyte.
const MOST_BYTES: usize = 1_000_000_000_000_000;
