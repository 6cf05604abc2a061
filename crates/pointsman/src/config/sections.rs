//! Every option there is, each in its section, defined once.
//!
//! The comments on the fields are what people read in `pointsman config`, in the help and in the documents, so they are
//! written for an operator: what it does, what happens at its ends, and when to change it. Every bound on memory, time and
//! connections is here; none is hidden in the code. The order is the order of printing, the common keys first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proxy::ListenAddr;

use super::choices::{LogFormat, LogLevel, Minority, NoReplica, SessionLines, Sessions, Splice, Subscriptions, Verify};
use super::credentials::{Credentials, Token};
use super::endpoint::Endpoint;
use super::secret::Secret;
use super::section::section;
use super::value::Kind;

section! {
    /// One master, the sentinels that watch it, and the addresses where its clients arrive.
    Service {
        /// Sentinel's name for the master, as in its "sentinel monitor" line.
        ///
        /// Letters, digits, '.', '_' and '-'. Each service has its own name.
        name: String = Kind::MasterName, Some("mymaster"), Restart;
        /// Addresses where clients of this master arrive.
        ///
        /// IP addresses with a port, IPv6 in brackets, and Unix sockets as "unix:/path". No two services, nor the admin server,
        /// may share one. `[::]:6379` takes IPv4 clients as well, unless net.ipv6.bindv6only is set or an IPv4 address is given
        /// with the same port. The file of a Unix socket has unix_socket_mode; it replaces one that a dead process left, and is
        /// removed at the end. Port 0 lets the kernel choose, which is of use in tests.
        listen: Vec<ListenAddr> = Kind::Listen, Some("0.0.0.0:6379"), Restart;
        /// Addresses where clients arrive that only read, to be spread over the replicas; none by default.
        ///
        /// What may serve them is said in the section replicas. Each client stays on one replica, the one with the fewest
        /// clients of this process when it came. Needs verify = "role".
        replica_listen: Vec<ListenAddr> = Kind::Listen, Some(""), Restart;
        /// The mode of the files of Unix sockets in listen and replica_listen, in octal.
        ///
        /// A client needs the permission to write. The group is the one that the process creates files with. Limits on one source
        /// do not hold for these clients, which have no address.
        unix_socket_mode: String = Kind::Mode, Some("0660"), Restart;
        /// Sentinels to ask, as host:port; required.
        ///
        /// DNS names are resolved again and again and may give several addresses; IPv6 addresses stand in brackets if a port
        /// follows. The port is 26379 where none is named. One that answers is enough to find the others, several are safer.
        sentinels: Vec<Endpoint> = Kind::Endpoints, None, Restart;
        /// Whether to follow the further sentinels that the named ones report.
        ///
        /// Turn it off where the reported addresses cannot be reached from here and no address_map is given.
        learn_sentinels: bool = Kind::Bool, Some("true"), Restart;
        /// How long one attempt to connect to the master may take.
        ///
        /// A failed attempt is repeated for as long as a client may be held, because a master that does not answer is about to be
        /// replaced or to come back.
        connect_timeout: Duration = Kind::Duration, Some("1s"), Live;
        /// How long a client waits at the gate while there is no master.
        ///
        /// Covers an ordinary failover, so that clients see a pause and not an error. Keep it below the timeout of your
        /// clients. At its end, a request that was certainly not forwarded is answered by an error that clients try again after
        /// (LOADING), and the connection is closed. See also admin.ready_without_master.
        hold_timeout: Duration = Kind::Duration, Some("10s"), Live;
        /// What becomes of sessions when the master is replaced: carry or close.
        ///
        /// "carry" connects every quiet session to the new master and says again there what it is (credentials, database, names),
        /// so its client notices nothing. Sessions with a request in flight, in a transaction, blocked or subscribed are closed,
        /// since only their clients can know what to do. "close" closes all, and remembers no credentials of clients.
        sessions: Sessions = Kind::Choice(Sessions::NAMES), Some("carry"), Live;
        /// What becomes of subscribed sessions that could be carried over: close or replay.
        ///
        /// "close" ends them, so that their clients subscribe anew and know that they may have missed something. "replay" subscribes
        /// again with the new master, and the client notices nothing: messages that were published in between are lost, as Pub/Sub
        /// keeps none, and nobody tells the client. A session with more names than 512 KiB, or that comes when all sessions remember
        /// 32 MiB of them, is closed. Holds for sessions that begin after a change.
        subscriptions: Subscriptions = Kind::Choice(Subscriptions::NAMES), Some("close"), Live;
        /// Whether clients that ask for it are told of failovers and drains (CLIENT MAINT_NOTIFICATIONS, "smart client handoffs").
        ///
        /// Recent client libraries ask for it by themselves where they speak RESP3. They are told when a failover begins, so that they
        /// wait for replies longer than usual, and when it is over; and in a drain to move to another connection, so that
        /// theirs is closed by themselves and between two commands. The master need not know the command: its refusal is exchanged
        /// for an OK.
        maintenance_push: bool = Kind::Bool, Some("true"), Live;
        /// Where clients are told to move in a drain, as host:port: the address at which they find this service.
        ///
        /// Only for those that want to be told an address, which is what client libraries ask for unless they are configured to
        /// "none". Without this key such clients are not told to move, and are left at a command boundary like any other. The
        /// name of the Kubernetes Service, or of the virtual address, is the right one; never that of a single process.
        moving_to: Option<String> = Kind::Endpoint, None, Live;
        /// Closes a client that has sent nothing for this long; "0s" for never.
        ///
        /// Redis clients keep idle connections in pools, and blocked or subscribed ones are silent by nature, so this is off.
        client_idle_timeout: Duration = Kind::DurationOrOff, Some("0s"), Live;
        /// Closes a client that has sent nothing at all for this long after it came; "0s" for never.
        ///
        /// Guards against connections that are opened and left, where clients cannot be trusted. Pools that open connections
        /// in advance need it off or long. Time at the gate does not count.
        first_byte_timeout: Duration = Kind::DurationOrOff, Some("0s"), Live;
        /// How long the second direction may stay open after one side has ended; below 60s.
        ///
        /// Linux forgets half-closed connections after 60 s in its connection tracking, and a FIN sent later never arrives.
        half_close_timeout: Duration = Kind::Duration, Some("30s"), Live;
        /// Idle time before TCP asks whether the peer is still there; "0s" turns the asking off.
        tcp_keepalive: Duration = Kind::DurationOrOff, Some("60s"), Live;
        /// How long sent bytes may stay unacknowledged before the connection is given up; "0s" for the kernel's rule.
        ///
        /// Finds a peer that lost its power or its network in seconds and not in the quarter of an hour that TCP would take.
        tcp_user_timeout: Duration = Kind::DurationOrOff, Some("30s"), Live;
        /// Whether values above 512 KiB go from socket to socket inside the kernel: on or off.
        ///
        /// Saves a quarter to a half of the CPU that they cost. Where the system does not allow it they are copied. Holds for
        /// connections opened after a change.
        splice: Splice = Kind::Choice(Splice::NAMES), Some("on"), Live;
        /// The most client connections of this service at a time; 0 for an equal share of the process's bound.
        ///
        /// A client beyond it gets "-ERR max number of clients reached" and is closed. The share is taken of what the
        /// services with a number of their own leave over. Where there is a replica_listen, readers count by themselves and
        /// have the same number.
        max_connections: usize = Kind::Count(0, MOST_CONNECTIONS), Some("0"), Live;
        /// The most client connections from one source at a time; 0 for no such bound.
        ///
        /// A source is an IPv4 address, or the first 64 bits of an IPv6 one. Behind a load balancer or NAT many clients share
        /// one. Answered as max_connections is.
        max_connections_per_source: usize = Kind::Count(0, MOST_CONNECTIONS), Some("0"), Restart;
        /// What a candidate has to prove before traffic goes to it: role, ping or tcp.
        ///
        /// "role" wants ROLE to say master and PING to be answered; "ping" only the latter, for a user that may not run ROLE;
        /// "tcp" only that a connection opens, and so trusts the sentinels alone.
        verify: Verify = Kind::Choice(Verify::NAMES), Some("role"), Restart;
        /// What to do while the reachable sentinels are a minority: keep, hold or cut.
        ///
        /// "keep" goes on with the verified master, "hold" lets requests wait at the gate, "cut" closes the sessions too: safest
        /// against writes to a master that is being replaced elsewhere, at the price of an outage. With "hold" and "cut" it is a
        /// minority, too, if no majority of the sentinels was heard for three seconds, and only a majority ends it.
        minority: Minority = Kind::Choice(Minority::NAMES), Some("keep"), Restart;
        /// Announced addresses and what to dial instead, for NAT and port mapping.
        ///
        /// A table of "host:port" = "host:port"; the left one is compared with what a sentinel announces, for masters, replicas
        /// and learnt sentinels alike. The port is 6379 where none is named.
        address_map: BTreeMap<Endpoint, Endpoint> = Kind::AddressMap, Some(""), Restart;
    }
    with {
        /// How to authenticate at the masters and replicas for this proxy's own checks. Clients authenticate for themselves.
        auth: Credentials;
        /// How to authenticate at the sentinels.
        sentinel_auth: Credentials;
        /// Which replicas serve readers.
        replicas: Replicas;
        /// The pace of discovery.
        timers: Timers;
    }
}

section! {
    /// Which replicas serve the readers that arrive at replica_listen.
    Replicas {
        /// What readers get while no replica may serve them: reject or master.
        ///
        /// "reject" answers "-MASTERDOWN ..." to a new client and closes, which clients know as a reason to try again later; no
        /// reader ever gets to the master. "master" sends readers there until there is a replica again, and then lets them
        /// leave at a command boundary.
        empty: NoReplica = Kind::Choice(NoReplica::NAMES), Some("reject"), Restart;
        /// A replica that has been behind the master for this long gets no readers; "0s" for however long.
        ///
        /// It comes back when it is behind for half of it at most.
        max_lag: Duration = Kind::DurationOrOff, Some("10s"), Restart;
        /// A replica this many bytes behind the master gets no readers; 0 for however many.
        ///
        /// It comes back at half of it. The default is 64 MiB, which is what a replica of Redis may fall behind by for a minute
        /// before the master gives it up (client-output-buffer-limit).
        max_lag_bytes: usize = Kind::Count(0, MOST_BYTES), Some("67108864"), Restart;
        /// A replica whose last answer is older than this gets no readers.
        ///
        /// Each is asked once every timers.probe_replicas, and answers late while it runs a long command.
        unanswered: Duration = Kind::Duration, Some("3s"), Restart;
        /// How long a replica that got no readers has to be sound without a break before it gets some again.
        readmit_after: Duration = Kind::DurationOrOff, Some("2s"), Restart;
        /// For how long after a failover the links to the master, and what sentinels say of them, count for nothing.
        ///
        /// Right after it they list every replica as disconnected; until then a replica's own answers decide.
        settle: Duration = Kind::DurationOrOff, Some("2s"), Restart;
    }
}

section! {
    /// The keys by which a user and a password are given. At most one of the three password keys may stand.
    CredentialKeys {
        /// ACL user name; without it the default user.
        ///
        /// Needs one of the three password keys.
        username: Option<String> = Kind::Text, None, Restart;
        /// The password itself; better one of the next two keys.
        ///
        /// Never shown again. There is no flag for it, since the list of processes is public.
        password: Option<Secret> = Kind::Secret, None, Restart;
        /// A file that holds the password; a line break at its end is not part of it.
        ///
        /// At most 64 KiB. A relative path begins at the working directory.
        password_file: Option<String> = Kind::Path, None, Restart;
        /// Name of the environment variable that holds the password.
        password_env: Option<String> = Kind::EnvName, None, Restart;
    }
}

section! {
    /// The pace of discovery. The defaults follow from measurements of Sentinel's own timing; few people need to touch them.
    Timers {
        /// How often each sentinel is asked when all is well.
        ///
        /// Events arrive at once; this is the backstop for those that get lost.
        poll: Duration = Kind::Duration, Some("1s"), Restart;
        /// How often each sentinel is asked while the master is suspect.
        poll_suspect: Duration = Kind::Duration, Some("100ms"), Restart;
        /// How long a connection to a sentinel may take to open.
        sentinel_connect_timeout: Duration = Kind::Duration, Some("300ms"), Restart;
        /// How long a sentinel or a redis may take to answer one command.
        command_timeout: Duration = Kind::Duration, Some("500ms"), Restart;
        /// The shortest wait before a lost sentinel is dialled again.
        reconnect_min: Duration = Kind::Duration, Some("50ms"), Restart;
        /// The longest wait before a lost sentinel is dialled again; the waits double and are jittered.
        reconnect_max: Duration = Kind::Duration, Some("1s"), Restart;
        /// How often the master is probed when all is well.
        probe_master: Duration = Kind::Duration, Some("500ms"), Restart;
        /// How often each replica is probed when all is well.
        probe_replicas: Duration = Kind::Duration, Some("1s"), Restart;
        /// How often master and replicas are probed while the master is suspect.
        probe_suspect: Duration = Kind::Duration, Some("20ms"), Restart;
        /// How long one attempt to verify a candidate may take.
        verify_timeout: Duration = Kind::Duration, Some("250ms"), Restart;
        /// How long the attempts to verify one candidate go on.
        verify_deadline: Duration = Kind::Duration, Some("10s"), Restart;
        /// How long a sentinel's answer counts as its vote.
        view_expiry: Duration = Kind::Duration, Some("5s"), Restart;
        /// The longest hold of traffic on the sign of a promotion; without a commit by then, traffic goes on.
        ///
        /// Counted from the selection of a replica, and once anew from its promotion.
        hold_max: Duration = Kind::Duration, Some("3s"), Restart;
        /// How long a single sentinel's new view waits for contradiction before it is enough.
        solo_grace: Duration = Kind::Duration, Some("250ms"), Restart;
        /// How long a majority has to agree on a lower epoch before it is believed.
        ///
        /// Sentinel's epoch falls to 0 after SENTINEL REMOVE and MONITOR; a stale sentinel looks the same for a while.
        regress_grace: Duration = Kind::Duration, Some("10s"), Restart;
        /// How long a start waits for a majority before the best verified view of fewer is enough.
        bootstrap_grace: Duration = Kind::Duration, Some("3s"), Restart;
        /// How long the master has to be out of reach, with no candidate, before the service has none.
        unreachable_after: Duration = Kind::Duration, Some("1s"), Restart;
        /// How long sent bytes to a sentinel may stay unacknowledged before its connection is given up.
        sentinel_user_timeout: Duration = Kind::Duration, Some("3s"), Restart;
    }
}

section! {
    /// The server for probes, metrics and status.
    Admin {
        /// Addresses of probes, metrics and status.
        ///
        /// Kubernetes probes come from the node, so the default is reachable from outside; bind it to a private address or guard
        /// it by a network policy where that matters. It shows addresses and counters, never passwords or data.
        listen: Vec<SocketAddr> = Kind::ListenTcp, Some("0.0.0.0:8888"), Restart;
        /// The most connections to the admin server at a time.
        max_connections: usize = Kind::Count(1, 4096), Some("64"), Restart;
        /// Whether /ready stays 200 while masters that were found are gone for longer than
        /// hold_timeout.
        ///
        /// All instances lose a master together. If all turn unready, Kubernetes sends clients
        /// nowhere, and they are refused instead of held and then answered, for as long as the
        /// failover lasts and some seconds more. So "true" suits several instances on one Service.
        /// With "false" an instance that alone has lost its way to Redis gets no new clients, which
        /// is of use where failovers are shorter than hold_timeout, or where a load balancer
        /// chooses between sites. Before its first master an instance is never ready.
        ready_without_master: bool = Kind::Bool, Some("true"), Live;
        /// Whether the admin server takes orders: pause, resume and switchover.
        ///
        /// Needs a token or control_socket, since whoever reaches the port could stop traffic otherwise.
        control: bool = Kind::Bool, Some("false"), Restart;
        /// Path of a Unix socket for orders, which needs no token.
        ///
        /// Only the user of this process and root may use it: its mode is 0600, and the kernel is asked who is there. The file is
        /// made at the start and removed at the end; its folder has to be there. What a dead process left is replaced.
        control_socket: Option<String> = Kind::Path, None, Restart;
        /// A file that holds the token which orders have to show; 16 characters at least.
        control_token_file: Option<String> = Kind::Path, None, Restart;
        /// Name of the environment variable that holds the token.
        control_token_env: Option<String> = Kind::EnvName, None, Restart;
    }
    with {
        /// The token that orders have to show.
        control_token: Token;
    }
}

section! {
    /// What /metrics shows.
    Metrics {
        /// Whether metrics come under haproxy's names too, for dashboards and alerts that were made for it.
        ///
        /// A proxy is a service (NAME, and NAME/replicas for its readers), a server is a Redis node. deploy/metrics.md has the
        /// list.
        haproxy_names: bool = Kind::Bool, Some("false"), Restart;
    }
}

section! {
    /// What happens on SIGTERM, phase by phase.
    Shutdown {
        /// Keeps accepting at least this long after SIGTERM.
        ///
        /// Load balancers learn late that this instance is leaving. "0s" suits a sidecar.
        accept_min: Duration = Kind::DurationOrOff, Some("5s"), Live;
        /// Then keeps accepting until no client has come for this long.
        accept_quiet: Duration = Kind::DurationOrOff, Some("3s"), Live;
        /// Stops accepting this long after SIGTERM, whoever still comes.
        accept_max: Duration = Kind::DurationOrOff, Some("15s"), Live;
        /// Idle sessions are closed spread over this time, so that their clients do not all come back at once.
        drain_spread: Duration = Kind::DurationOrOff, Some("5s"), Live;
        /// After accepting has stopped, sessions may go on this long; then what is left is cut.
        ///
        /// accept_max + drain_timeout and a second must fit into Kubernetes's terminationGracePeriodSeconds.
        drain_timeout: Duration = Kind::DurationOrOff, Some("20s"), Live;
        /// Whether /ready stays 200 while still accepting after SIGTERM.
        ///
        /// Kubernetes sends fallback traffic to a terminating pod only while it is ready. By default /ready says 503.
        ready_while_leaving: bool = Kind::Bool, Some("false"), Live;
    }
}

section! {
    /// What is logged, and how. Lines go to the standard output.
    Log {
        /// How much is logged: error, warn, info, debug or trace.
        level: LogLevel = Kind::Choice(LogLevel::NAMES), Some("info"), Live;
        /// How a line looks: auto, human, json or journald.
        ///
        /// "auto" writes for people on a terminal, entries of systemd's journal where the output leads there, and JSON otherwise.
        /// On a terminal the variable NO_COLOR turns colours off.
        format: LogFormat = Kind::Choice(LogFormat::NAMES), Some("auto"), Restart;
        /// The most lines a second from one place of the program; 0 for any number.
        ///
        /// What is beyond is left out and counted (pointsman_log_lines_suppressed_total), so that a failover of ten thousand
        /// sessions does not become as many lines.
        lines_per_second: usize = Kind::Count(0, 1_000_000), Some("100"), Live;
        /// Which sessions get a line at their end: off, failed or all.
        ///
        /// The line has the client, the target, how long the session lasted, its bytes and commands, and why it ended. "failed"
        /// means that it ended otherwise than its client or an operator wanted. At the level debug every session has its line.
        sessions: SessionLines = Kind::Choice(SessionLines::NAMES), Some("failed"), Live;
        /// The level of these lines: error, warn, info, debug or trace.
        sessions_level: LogLevel = Kind::Choice(LogLevel::NAMES), Some("info"), Live;
        /// With sessions = "all": of those that ended well, one in so many gets its line. Failed ones always do.
        sessions_one_in: usize = Kind::Count(1, 1_000_000), Some("1"), Live;
    }
}

section! {
    /// The resources of the process.
    Process {
        /// Worker threads; 0 for one a core, by CPU affinity and the cgroup's quota.
        ///
        /// A part of a core gets none: with a quota of 1.5 there is one worker, and the half is for discovery and probes.
        workers: usize = Kind::Count(0, 256), Some("0"), Restart;
        /// The most client connections of all services together; 0 for what the memory carries.
        ///
        /// Then it is 10000 a service (as many as a Redis takes by default), or what the memory limit of the cgroup or machine
        /// carries at 32 KiB a connection, if that is less; never what the limit on open files allows, which container
        /// runtimes set to a billion. A connection takes two open files; a number given here that the system does not allow
        /// files for is an error at the start.
        max_connections: usize = Kind::Count(0, MOST_CONNECTIONS), Some("0"), Restart;
        /// A folder for the socket by which a newly started pointsman takes over from this one (`run --takeover`).
        ///
        /// It must exist and belong to this user; /run/pointsman suits. Without it nobody can take over.
        state_dir: Option<String> = Kind::Path, None, Restart;
    }
}

/// The highest bound on connections that may be configured.
pub(super) const MOST_CONNECTIONS: usize = 1_000_000;

/// The highest lag in bytes that may be configured: a petabyte.
const MOST_BYTES: usize = 1_000_000_000_000_000;
