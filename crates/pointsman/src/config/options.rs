//! The definitions of all options, by section.
//!
//! The comment on a field is the documentation of its key in `pointsman config`, the help, the man
//! page and `docs/configuration.md`. It is written for an operator: what the key sets, what its
//! extreme values mean, the reason for the default, and when to change it. Every limit on memory,
//! time and connections is an option. The order is that of the printed configuration, with common
//! keys first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proxy::{ListenAddr, LoggedSessions, Network, OnTimeout, Sessions, Splice, Subscriptions};
use sentinel::{Minority, NodeAddr, Verify};
use target::EmptyPool;
use tracing::Level;

use super::choices::{LogFormat, Upstream};
use super::credentials::{Credentials, Secret};
use super::option_spec::section;
use super::tls_options::{AdminTlsConfig, ClientTlsConfig, ServerTlsConfig};
use super::value::{ChoiceValue, ValueKind};

section! {
    /// One master, the sentinels that monitor it, and the addresses where its clients connect.
    ServiceConfig {
        /// Name of the service in logs, metrics, commands and the status.
        ///
        /// Letters, digits, '.', '_' and '-', different for each service. It is also the name of
        /// the master, unless master says otherwise.
        name: String = ValueKind::MasterName, Some("mymaster"), Live;
        /// Name of the master, as in the sentinels' "sentinel monitor" line; by default the name of
        /// the service.
        ///
        /// Set it where two groups of sentinels use one name, such as mymaster.
        master: Option<String> = ValueKind::MasterName, None, Restart;
        /// Addresses where clients of this master connect.
        ///
        /// IP addresses with a port, IPv6 in brackets, and Unix sockets as "unix:/path". Each
        /// address belongs to one service or the admin server. `[::]:6379` accepts IPv4 clients as
        /// well, unless net.ipv6.bindv6only is set or an IPv4 address with the same port is
        /// configured. The file of a Unix socket replaces one left by a dead process and is removed
        /// on exit. With port 0 the kernel chooses a port.
        listen: Vec<ListenAddr> = ValueKind::Listen, Some("0.0.0.0:6379"), Live;
        /// Addresses where clients that only read connect; they are spread over the replicas. None
        /// by default.
        ///
        /// The section replicas defines which replicas are eligible. A client stays on the replica
        /// that had the fewest clients of this process when it connected. Requires verify = "role".
        replica_listen: Vec<ListenAddr> = ValueKind::Listen, Some(""), Live;
        /// Addresses on which clients reach any live configured sentinel; none by default.
        ///
        /// For clients that support Sentinel: they get the addresses of Redis itself and bypass
        /// Pointsman for their data. A client stays on one sentinel; if that fails, the connection
        /// is closed.
        sentinel_listen: Vec<ListenAddr> = ValueKind::Listen, Some(""), Live;
        /// Addresses where clients of this master connect with TLS, beside listen; none by default.
        ///
        /// The section tls has the certificates. Only IP addresses with a port.
        tls_listen: Vec<ListenAddr> = ValueKind::ListenTcp, Some(""), Live;
        /// As replica_listen, for clients with TLS.
        replica_tls_listen: Vec<ListenAddr> = ValueKind::ListenTcp, Some(""), Live;
        /// As sentinel_listen, for clients with TLS.
        sentinel_tls_listen: Vec<ListenAddr> = ValueKind::ListenTcp, Some(""), Live;
        /// Mode of the files of Unix sockets in listen, replica_listen and sentinel_listen, in
        /// octal.
        ///
        /// A client needs write permission to connect. The group of the file is that of the
        /// process. Limits per source do not apply to these clients.
        unix_socket_mode: String = ValueKind::Mode, Some("0660"), Restart;
        /// Sentinels to query, as host:port; required.
        ///
        /// DNS names are resolved repeatedly and may have several addresses. They decide who is
        /// asked: if all lead to another cluster with a master of this name, it is followed. IPv6
        /// addresses need brackets if a port follows. The default port is 26379. One is enough to
        /// find all others; list several, so that no start depends on one.
        sentinels: Vec<NodeAddr> = ValueKind::Endpoints, None, Live;
        /// Whether to use further sentinels that the configured ones report.
        ///
        /// Turn it off if their addresses cannot be reached from here and address_map does not
        /// help.
        learn_sentinels: bool = ValueKind::Bool, Some("true"), Live;
        /// Networks and names in which Redis nodes and learned sentinels may be; anywhere if it is
        /// empty.
        ///
        /// An entry is a network ("10.0.0.0/8"), an IP address, a name ("redis-0.example.com"), or
        /// all names below one ("*.redis-headless.cache.svc.cluster.local"). It is compared with
        /// the address that the sentinels announce. Addresses outside are never connected to and
        /// raise pointsman_alarm{alarm="outside_nodes"}: a failover to such a node stops traffic.
        /// The configured sentinels, and what address_map names, need no entry. Set it wherever you
        /// can.
        nodes: Vec<String> = ValueKind::Nodes, Some(""), Live;
        /// Timeout of one attempt to connect to the master.
        ///
        /// A failed attempt is repeated until hold_timeout.
        connect_timeout: Duration = ValueKind::Duration, Some("1s"), Live;
        /// How long a client waits while there is no master.
        ///
        /// The default covers an ordinary failover. Keep it below the timeout of your clients. When
        /// it expires, a request that was certainly not forwarded is answered with an error on
        /// which clients retry (LOADING), and the connection is closed. See also
        /// admin.ready_without_master.
        hold_timeout: Duration = ValueKind::Duration, Some("10s"), Live;
        /// What happens to sessions when the master is replaced: carry or close.
        ///
        /// "carry" connects every idle session to the new master and replays its state there
        /// (credentials, database, names), so that its client notices nothing. All other sessions
        /// are closed: only their clients can decide what to do. "close" closes all sessions, and
        /// keeps no credentials of clients in memory. A change applies to sessions that begin after
        /// it.
        sessions: Sessions = ValueKind::Choice(Sessions::NAMES), Some("carry"), Live;
        /// What happens to subscribed sessions when the master is replaced: close or replay.
        ///
        /// "close" closes them, so that their clients subscribe again and know that they may have
        /// missed messages. "replay" subscribes again on the new master, and the client does not
        /// learn that messages in between are lost. A session is closed if its names exceed 512
        /// KiB, or if the names of all sessions exceed 32 MiB. A change applies to sessions that
        /// begin after it.
        subscriptions: Subscriptions = ValueKind::Choice(Subscriptions::NAMES), Some("close"), Live;
        /// Whether clients share connections to Redis: dedicated or shared.
        ///
        /// "shared" lets clients with the same user, database and protocol share few connections,
        /// which costs far less for many small requests. docs/shared-upstreams.md lists what
        /// differs: WAIT after writes ends the session. Requires sessions = "carry". Does not apply
        /// to sentinel_listen. A change applies to sessions that begin after it.
        upstream: Upstream = ValueKind::Choice(Upstream::NAMES), Some("dedicated"), Live;
        /// With upstream = "shared": connections per worker and group of clients.
        ///
        /// One is best for small requests, because more of them leave at once.
        shared_connections: usize = ValueKind::Count(1, 64), Some("1"), Live;
        /// Commands that leave no state on their connection, in addition to the known commands;
        /// none by default.
        ///
        /// A session that sent an unknown command, of a module or renamed by rename-command, is
        /// closed when the master is replaced: the command may have left any state on the
        /// connection. Name those that leave none, in any case, as "NAME" or
        /// "CONTAINER|SUBCOMMAND"; at most 1024. Known are those of docs/commands.md, and commands
        /// that a newer server itself shows to be harmless.
        /// pointsman_sessions_by_state{state="unknown_command"} counts the sessions concerned, and
        /// the log names the command when such a session is closed. A change applies to sessions
        /// that begin after it.
        stateless_commands: Vec<String> = ValueKind::Commands, Some(""), Live;
        /// Commands that clients may not send; [] for none. The default protects discovery.
        ///
        /// An entry is a command ("FLUSHALL"), a subcommand ("CONFIG|SET"), publishing to a channel
        /// or to all that begin so ("PUBLISH news:*", for SPUBLISH as well), or "@deployment": the
        /// default, and all that changes which server has which role. Keep the default entries when
        /// you add your own. A refused request is answered with -NOPERM, aborts its transaction,
        /// and is counted by pointsman_refused_commands_total. Commands in scripts and functions
        /// are not seen: set the ACL of Redis as well (docs/security.md). Unless this is [], bytes
        /// that are no request of Redis end the connection. A change applies to sessions that begin
        /// after it.
        refuse: Vec<String> = ValueKind::Refusals, Some(proxy::DEFAULT_REFUSALS), Live;
        /// Whether to announce failovers and drains to clients that request it with CLIENT
        /// MAINT_NOTIFICATIONS.
        ///
        /// Recent client libraries request it with RESP3 ("smart client handoffs"). They extend
        /// their timeouts during a failover. In a drain they are asked to move to another
        /// connection, and close the old one between two commands. The master does not need to
        /// support the command.
        maintenance_push: bool = ValueKind::Bool, Some("true"), Live;
        /// Address to which clients are asked to move in a drain, as host:port: the address of this
        /// service as clients know it.
        ///
        /// Use the name of the Kubernetes Service or of the virtual address, never that of a single
        /// process. The port is required. Client libraries request an address unless they are
        /// configured with "none"; without this key they are not asked to move, and are closed at a
        /// command boundary like any other client.
        moving_to: Option<String> = ValueKind::Endpoint, None, Live;
        /// Time without any byte from a client after which its connection is closed; "0s" for
        /// never.
        ///
        /// Off by default, because clients keep idle connections in pools, and blocked or
        /// subscribed ones send nothing. A client that stops in the middle of a request counts as
        /// idle.
        client_idle_timeout: Duration = ValueKind::DurationOrOff, Some("0s"), Live;
        /// Time from connecting to the first byte after which a client is closed; "0s" for never.
        ///
        /// Set it where clients are not trusted. Until the first request is complete, it applies to
        /// each further byte as well. Keep it off or long for pools that connect in advance. Time
        /// spent waiting for a master does not count.
        first_byte_timeout: Duration = ValueKind::DurationOrOff, Some("0s"), Live;
        /// How long the second direction may stay open after one side has closed; below 60s.
        ///
        /// The connection tracking of Linux drops half-closed connections after 60 s, and a FIN
        /// sent later never arrives.
        half_close_timeout: Duration = ValueKind::Duration, Some("30s"), Live;
        /// How long a client waits for a replica that was ejected because it does not answer; "0s"
        /// for no limit.
        ///
        /// Counts from the ejection (replicas.unanswered), when idle clients move to another
        /// replica. Keep it above the duration of the longest command of your readers. Clients of a
        /// hung master are closed when another master is confirmed.
        silent_timeout: Duration = ValueKind::DurationOrOff, Some("10s"), Live;
        /// Idle time before TCP keepalive probes are sent, to clients and to Redis; "0s" turns them
        /// off.
        tcp_keepalive: Duration = ValueKind::DurationOrOff, Some("60s"), Live;
        /// How long sent bytes may stay unacknowledged before a connection is closed; "0s" for the
        /// kernel's default.
        ///
        /// Detects a peer without power or network within this time, instead of about 15 minutes.
        tcp_user_timeout: Duration = ValueKind::DurationOrOff, Some("30s"), Live;
        /// Whether values above 512 KiB are moved between sockets inside the kernel: on or off.
        ///
        /// Saves a quarter to a half of the CPU time for such values. They are copied where the
        /// system does not allow splice. A change applies to connections opened after it.
        splice: Splice = ValueKind::Choice(Splice::NAMES), Some("on"), Live;
        /// Maximum number of client connections of this service; 0 for an equal share of the
        /// process's limit.
        ///
        /// A client beyond the limit receives "-ERR max number of clients reached" and is closed.
        /// Shares are computed from what remains after the services with a configured limit. With
        /// replica_listen, readers are counted separately and have the same limit.
        max_connections: usize = ValueKind::Count(0, MAX_CONNECTIONS), Some("0"), Live;
        /// Maximum number of client connections from one source; 0 for no limit.
        ///
        /// A source is an IPv4 address, or the first 64 bits of an IPv6 address; many clients share
        /// one behind a load balancer or NAT. A client beyond the limit is answered as with
        /// max_connections. If a change introduces the limit, clients that are connected by then do
        /// not count.
        max_connections_per_source: usize = ValueKind::Count(0, MAX_CONNECTIONS), Some("0"), Live;
        /// Networks whose clients may connect; everyone if it is empty.
        ///
        /// For example "10.0.0.0/8" or "2001:db8::/32". It applies to all addresses of the service,
        /// and to the address that a PROXY protocol header reports. Clients of Unix sockets are not
        /// checked. Another client receives "-DENIED ..." and is closed. A change applies to new
        /// clients; `pointsman sessions --source` lists those that are connected.
        allow: Vec<Network> = ValueKind::Networks, Some(""), Live;
        /// Networks whose clients may connect to replica_listen, in place of allow; the same as
        /// allow if it is empty.
        replica_allow: Vec<Network> = ValueKind::Networks, Some(""), Live;
        /// Networks whose clients may connect to sentinel_listen, in place of allow; the same as
        /// allow if it is empty.
        sentinel_allow: Vec<Network> = ValueKind::Networks, Some(""), Live;
        /// Networks of load balancers that send a PROXY protocol header, version 1 or 2; none by
        /// default.
        ///
        /// Every TCP connection from these networks must begin with a header. The address in it
        /// then counts as the client's, for limits, allow, logs and `pointsman sessions`. List the
        /// load balancers only: any host that may send a header may claim any address. Connections
        /// from elsewhere are served as they are.
        proxy_protocol_from: Vec<Network> = ValueKind::Networks, Some(""), Live;
        /// How long a connection may take to send its PROXY protocol header.
        proxy_protocol_timeout: Duration = ValueKind::Duration, Some("3s"), Live;
        /// What a candidate must prove before traffic is sent to it: role, ping or tcp.
        ///
        /// "role" requires that ROLE reports a master and that PING is answered. "ping" requires
        /// only the latter, for a user who may not run ROLE. "tcp" requires only that a connection
        /// opens, and relies on the sentinels for everything else.
        verify: Verify = ValueKind::Choice(Verify::NAMES), Some("role"), Live;
        /// What to do while only a minority of the sentinels can be reached: keep, hold or cut.
        ///
        /// "keep" continues with the verified master, "hold" lets requests wait, and "cut" closes
        /// the sessions as well. The latter two protect against writes to a master that is being
        /// replaced on the other side of a network partition, at the price of an outage: three
        /// seconds without an answer from a majority count as a minority, and only a majority ends
        /// it. A change takes effect at once, also in the middle of a minority: with "keep" traffic
        /// resumes, after "cut" as soon as a reachable sentinel confirms the master.
        minority: Minority = ValueKind::Choice(Minority::NAMES), Some("keep"), Live;
        /// Announced addresses and the addresses to connect to instead, for NAT and port mapping.
        ///
        /// A table of "host:port" = "host:port". The left address is one that sentinels announce,
        /// for masters, replicas and further sentinels. The default port is 6379.
        address_map: BTreeMap<NodeAddr, NodeAddr> = ValueKind::AddressMap, Some(""), Live;
    }
    with {
        /// Credentials with which this proxy checks masters and replicas. Clients authenticate
        /// themselves.
        auth: Credentials;
        /// Credentials for the sentinels.
        sentinel_auth: Credentials;
        /// How clients with TLS are served.
        tls: ServerTlsConfig;
        /// TLS to masters and replicas.
        redis_tls: ClientTlsConfig;
        /// TLS to the sentinels.
        sentinel_tls: ClientTlsConfig;
        /// Which writes are confirmed by replicas.
        durability: DurabilityConfig;
        /// Which replicas serve readers.
        replicas: ReplicasConfig;
        /// Intervals and timeouts of discovery.
        timers: TimersConfig;
    }
}

impl ServiceConfig {
    /// The listen addresses that lead to the master, to replicas and to sentinels, each without and
    /// with TLS.
    pub(crate) fn addresses(&self) -> [[&Vec<ListenAddr>; 2]; 3] {
        [
            [&self.listen, &self.tls_listen],
            [&self.replica_listen, &self.replica_tls_listen],
            [&self.sentinel_listen, &self.sentinel_tls_listen],
        ]
    }

    /// What the sentinels call the master.
    pub(crate) fn master_name(&self) -> &str {
        self.master.as_deref().unwrap_or(&self.name)
    }
}

section! {
    /// Whether a client hears of its write only when replicas have it.
    DurabilityConfig {
        /// How many replicas must have a write before its client receives the reply; 0 for none.
        ///
        /// The reply is held until the master has reported that many replicas, by WAIT.
        /// Acknowledged writes survive the death of the master if Sentinel promotes one of these
        /// replicas: with one replica, or with as many as there are, that is certain. Costs one
        /// round trip between the nodes per group of writes. Clients need the permission to run
        /// WAIT. See docs/durability.md. Applies to connections opened after a change.
        replicas: usize = ValueKind::Count(0, 16), Some("0"), Live;
        /// How long the master waits for the replicas.
        timeout: Duration = ValueKind::Duration, Some("1s"), Live;
        /// What a client receives whose write is not confirmed in time: error or close.
        ///
        /// "error" puts "-NOREPLICAS ..." in place of the reply, "close" closes the connection. The
        /// write was made, and may be lost.
        on_timeout: OnTimeout = ValueKind::Choice(OnTimeout::NAMES), Some("error"), Live;
    }
}

section! {
    /// Which replicas serve the readers that connect to replica_listen.
    ReplicasConfig {
        /// What readers get while no replica is eligible: reject or master.
        ///
        /// "reject" answers a new client with "-MASTERDOWN ...", on which clients retry later, and
        /// closes the connection: no reader ever reaches the master. "master" sends readers to the
        /// master until a replica is eligible again, and then closes them at a command boundary.
        empty: EmptyPool = ValueKind::Choice(EmptyPool::NAMES), Some("reject"), Live;
        /// A replica that lags by more than this gets no readers; "0s" for no limit.
        ///
        /// It becomes eligible again at half of this lag.
        max_lag: Duration = ValueKind::DurationOrOff, Some("10s"), Live;
        /// A replica that lags by more than this many bytes gets no readers; 0 for no limit.
        ///
        /// It becomes eligible again at half of this lag. At the default, 64 MiB, a Redis master
        /// disconnects a replica after a minute (client-output-buffer-limit).
        max_lag_bytes: usize = ValueKind::Count(0, MAX_LAG_BYTES), Some("67108864"), Live;
        /// A replica whose last answer is older than this gets no readers.
        ///
        /// It is probed once per timers.probe_replicas, and answers late while it runs a long
        /// command.
        unanswered: Duration = ValueKind::Duration, Some("3s"), Live;
        /// How long an ineligible replica must be healthy without interruption before it gets
        /// readers again.
        readmit_after: Duration = ValueKind::DurationOrOff, Some("2s"), Live;
        /// How long after a failover the state of replication links, and the sentinels' view of
        /// them, are ignored.
        ///
        /// Right after a failover, sentinels list every replica as disconnected, and the replica's
        /// own answers decide.
        settle: Duration = ValueKind::DurationOrOff, Some("2s"), Live;
        /// Number of clients per second that are moved from replicas with more clients to replicas
        /// with fewer; 0 for none.
        ///
        /// Applies after a failover or a readmission, when the set of replicas has been unchanged
        /// for three seconds, until no two replicas differ by more than one client of this process.
        /// Only idle clients are moved, which do not notice it.
        rebalance_per_second: usize = ValueKind::Count(0, 10_000), Some("10"), Live;
    }
}

section! {
    /// The keys that define a user and a password. At most one of the three password keys may be
    /// set.
    CredentialKeys {
        /// ACL user name; the default user if it is not set.
        ///
        /// Requires one of the three password keys.
        username: Option<String> = ValueKind::Text, None, Live;
        /// The password itself; password_file or password_env are safer.
        ///
        /// Never printed. There is no flag for it: other users can read the command line.
        password: Option<Secret> = ValueKind::Secret, None, Live;
        /// File that contains the password; a line break at its end is ignored.
        ///
        /// At most 64 KiB. A relative path is relative to the working directory. The file is
        /// watched: a changed password is used within seconds. While a server refuses it, or the
        /// file cannot be read, the password before it stays in use.
        password_file: Option<String> = ValueKind::Path, None, Live;
        /// Name of the environment variable that contains the password.
        password_env: Option<String> = ValueKind::EnvName, None, Live;
    }
}

section! {
    /// Intervals and timeouts of discovery. The defaults follow from measurements of Sentinel's own
    /// timing and rarely need a change.
    TimersConfig {
        /// Interval of polling each sentinel while the master is healthy.
        ///
        /// Sentinels send events immediately; polling compensates for lost ones.
        poll: Duration = ValueKind::Duration, Some("1s"), Live;
        /// Interval of polling each sentinel while the master is suspect.
        poll_suspect: Duration = ValueKind::Duration, Some("100ms"), Live;
        /// Timeout of connecting to a sentinel.
        sentinel_connect_timeout: Duration = ValueKind::Duration, Some("300ms"), Live;
        /// Timeout of one command to a sentinel or a Redis node.
        command_timeout: Duration = ValueKind::Duration, Some("500ms"), Live;
        /// Shortest wait before reconnecting to a lost sentinel.
        reconnect_min: Duration = ValueKind::Duration, Some("50ms"), Live;
        /// Longest wait before reconnecting to a lost sentinel; waits double, with jitter.
        reconnect_max: Duration = ValueKind::Duration, Some("1s"), Live;
        /// Interval of probing the master while it is healthy.
        probe_master: Duration = ValueKind::Duration, Some("500ms"), Live;
        /// Interval of probing each replica while the master is healthy.
        probe_replicas: Duration = ValueKind::Duration, Some("1s"), Live;
        /// Interval of probing master and replicas while the master is suspect.
        probe_suspect: Duration = ValueKind::Duration, Some("20ms"), Live;
        /// Timeout of one attempt to verify a candidate.
        verify_timeout: Duration = ValueKind::Duration, Some("250ms"), Live;
        /// How long the attempts to verify one candidate continue.
        verify_deadline: Duration = ValueKind::Duration, Some("10s"), Live;
        /// How long a sentinel's answer counts as its vote.
        view_expiry: Duration = ValueKind::Duration, Some("5s"), Live;
        /// Maximum time for which traffic is held for an announced failover; if no master is
        /// confirmed by then, traffic resumes.
        ///
        /// Measured from the selection of a replica. Once its promotion was seen, there is no
        /// limit.
        hold_max: Duration = ValueKind::Duration, Some("3s"), Live;
        /// How long the new view of a single sentinel must stay without contradiction before it is
        /// accepted.
        solo_grace: Duration = ValueKind::Duration, Some("250ms"), Live;
        /// How long a majority must agree on a lower epoch before it is accepted.
        ///
        /// Sentinel's epoch returns to 0 after SENTINEL REMOVE and MONITOR. A stale sentinel looks
        /// the same for some time.
        regress_grace: Duration = ValueKind::Duration, Some("10s"), Live;
        /// How long a start waits for a majority before the best verified view of fewer sentinels
        /// is accepted.
        bootstrap_grace: Duration = ValueKind::Duration, Some("3s"), Live;
        /// How long the master must be unreachable, without a candidate, before the service counts
        /// as having no master.
        unreachable_after: Duration = ValueKind::Duration, Some("1s"), Live;
        /// How long bytes sent to a sentinel may stay unacknowledged before its connection is
        /// closed.
        sentinel_user_timeout: Duration = ValueKind::Duration, Some("3s"), Live;
    }
}

section! {
    /// The admin server, for probes, metrics, status and commands.
    AdminConfig {
        /// Addresses of probes, metrics and status.
        ///
        /// The pages contain addresses and counters, never passwords or data. By default only this
        /// host reaches them. "0.0.0.0:8888" is for scrapers, browsers and probes elsewhere, such
        /// as those of Kubernetes; restrict it with a network policy or a token. In the image
        /// 0.0.0.0:8888 is the default (POINTSMAN_DEFAULT_ADMIN), since nothing else reaches a
        /// container.
        listen: Vec<SocketAddr> = ValueKind::ListenTcp, Some("127.0.0.1:8888"), Restart;
        /// Addresses with the same pages on which no command is accepted; none by default.
        ///
        /// For a network that may see the state of the proxy and must not change it.
        read_only_listen: Vec<SocketAddr> = ValueKind::ListenTcp, Some(""), Restart;
        /// Names under which browsers and other clients reach the admin server.
        ///
        /// The page, /status and commands are answered only if the Host header of the request is an
        /// IP address, a name without a dot, localhost, the name of a Kubernetes Service (*.svc,
        /// *.svc.cluster.local), the name of this host, or one of these names; otherwise a web page
        /// elsewhere could read them (DNS rebinding). Add the name of an Ingress, for example
        /// "pointsman.example.com"; "*.example.com" stands for all names below, and "*" turns the
        /// check off. Probes and /metrics are not checked.
        hosts: Vec<String> = ValueKind::HostNames, Some(""), Live;
        /// Maximum number of connections to the admin server.
        ///
        /// Reserved at the start, so that probes are answered when memory is short.
        max_connections: usize = ValueKind::Count(1, 4096), Some("64"), Restart;
        /// Whether /ready stays 200 when there has been no master for longer than hold_timeout.
        ///
        /// All instances lose a master at the same time. If all become unready, Kubernetes refuses
        /// clients until some seconds after the failover, instead of letting them wait. "false"
        /// suits failovers shorter than hold_timeout, or a load balancer that chooses between
        /// sites: an instance that alone cannot reach Redis then gets no new clients. An instance
        /// is never ready before it has found its first master.
        ready_without_master: bool = ValueKind::Bool, Some("true"), Live;
        /// Whether the admin server accepts commands: pause, resume and switchover.
        ///
        /// Requires a token or control_socket; otherwise any host that can reach the port could
        /// stop the traffic. control_socket is created at the start only.
        control: bool = ValueKind::Bool, Some("false"), Live;
        /// Path of a Unix socket for commands, which needs no token.
        ///
        /// Only the user of this process and root can use it (mode 0600, and the kernel reports the
        /// user of the peer). It is created at the start and removed on exit; its folder must
        /// exist. A file left by a dead process is replaced.
        control_socket: Option<String> = ValueKind::Path, None, Restart;
        /// File that contains the token for commands, which has at least 16 characters.
        ///
        /// The file is watched. A token that was replaced is invalid from then on.
        control_token_file: Option<String> = ValueKind::Path, None, Live;
        /// Name of the environment variable that contains the token for commands.
        control_token_env: Option<String> = ValueKind::EnvName, None, Live;
        /// File that contains the token for reading, which has at least 16 characters.
        ///
        /// With it, everything but the probes requires this token or that for commands: the page,
        /// /status and /metrics. Clients send "Authorization: Bearer TOKEN"; browsers ask for a
        /// user and a password, where the token is the password and the user does not matter. The
        /// file is watched.
        read_token_file: Option<String> = ValueKind::Path, None, Live;
        /// Name of the environment variable that contains the token for reading.
        read_token_env: Option<String> = ValueKind::EnvName, None, Live;
    }
    with {
        /// The token that commands must present.
        control_token: Option<Secret>;
        /// The token that readers must present.
        read_token: Option<Secret>;
        /// TLS of its addresses.
        tls: AdminTlsConfig;
    }
}

section! {
    /// What /metrics contains.
    MetricsConfig {
        /// Whether /metrics also contains the metrics of haproxy, for dashboards and alerts made
        /// for haproxy.
        ///
        /// In these, a proxy is a service (NAME, and NAME/replicas for its readers), and a server
        /// is a Redis node. docs/metrics.md has the list.
        haproxy_names: bool = ValueKind::Bool, Some("false"), Live;
    }
}

section! {
    /// What happens on SIGTERM, phase by phase.
    ShutdownConfig {
        /// Minimum time for which new clients are accepted after SIGTERM.
        ///
        /// Load balancers notice only after some seconds that this instance is leaving. Use "0s" in
        /// a sidecar.
        accept_min: Duration = ValueKind::DurationOrOff, Some("5s"), Live;
        /// After accept_min, new clients are accepted until none has connected for this long.
        accept_quiet: Duration = ValueKind::DurationOrOff, Some("3s"), Live;
        /// Maximum time for which new clients are accepted after SIGTERM.
        accept_max: Duration = ValueKind::DurationOrOff, Some("15s"), Live;
        /// Time over which the closing of idle sessions is spread, so that their clients do not all
        /// reconnect at once.
        drain_spread: Duration = ValueKind::DurationOrOff, Some("5s"), Live;
        /// How long sessions may continue after the listeners are closed; the rest is closed then.
        ///
        /// In Kubernetes, accept_max + drain_timeout + 2 s must not exceed
        /// terminationGracePeriodSeconds.
        drain_timeout: Duration = ValueKind::DurationOrOff, Some("20s"), Live;
        /// Whether /ready stays 200 while clients are still accepted after SIGTERM.
        ///
        /// By default /ready answers 503. Kubernetes sends traffic to a terminating pod, if there
        /// is no other, only while it is ready.
        ready_while_leaving: bool = ValueKind::Bool, Some("false"), Live;
    }
}

section! {
    /// What is logged, and in which format. Lines are written to the standard output.
    LogConfig {
        /// Log level: error, warn, info, debug or trace.
        level: Level = ValueKind::Choice(Level::NAMES), Some("info"), Live;
        /// Format of the lines: auto, human, json or journald.
        ///
        /// "auto" is human on a terminal, journald if the output is the systemd journal, and json
        /// otherwise. On a terminal, the variable NO_COLOR turns colours off.
        format: LogFormat = ValueKind::Choice(LogFormat::NAMES), Some("auto"), Restart;
        /// Maximum number of lines per second from one call site; 0 for no limit.
        ///
        /// Further lines are dropped and counted (pointsman_log_lines_suppressed_total): a failover
        /// with ten thousand sessions must not cause ten thousand lines.
        lines_per_second: usize = ValueKind::Count(0, 1_000_000), Some("100"), Live;
        /// Which sessions are logged when they end: off, failed or all.
        ///
        /// The line has the client, the target, the duration, bytes, commands, and the reason for
        /// the end. A session has failed if neither its client nor an operator ended it. At level
        /// debug, every session is logged.
        sessions: LoggedSessions = ValueKind::Choice(LoggedSessions::NAMES), Some("failed"), Live;
        /// Level of the lines about sessions: error, warn, info, debug or trace.
        sessions_level: Level = ValueKind::Choice(Level::NAMES), Some("info"), Live;
        /// With sessions = "all", one in this many successful sessions is logged. Failed sessions
        /// are always logged.
        sessions_one_in: usize = ValueKind::Count(1, 1_000_000), Some("1"), Live;
    }
}

section! {
    /// Resources of the process.
    ProcessConfig {
        /// Number of worker threads; 0 for one per core, by CPU affinity and the cgroup's quota.
        ///
        /// The number of cores is rounded down: with a quota of 1.5 there is one worker, and the
        /// rest is left for discovery and probes.
        workers: usize = ValueKind::Count(0, 256), Some("0"), Restart;
        /// Maximum number of client connections of all services together; 0 to derive it from the
        /// memory.
        ///
        /// The derived limit is 10000 per service, or what the memory limit of the cgroup or
        /// machine allows at 32 KiB per connection (8 KiB more per side with TLS), if that is less.
        /// It does not follow the limit on open files. A connection takes two open files; a
        /// configured limit for which the system allows too few files is an error at the start.
        max_connections: usize = ValueKind::Count(0, MAX_CONNECTIONS), Some("0"), Live;
        /// Maximum number of TLS handshakes of a service that wait for their clients; 0 to leave an
        /// eighth of its free places.
        ///
        /// The places are those of max_connections, of which established sessions take theirs
        /// first. One more handshake closes the oldest of the source that has the most (as in
        /// max_connections_per_source). A waiting handshake takes up to 80 KiB, and 16 KiB once its
        /// worker keeps more than 16 MiB for all clients: then a longer one is ended.
        max_handshakes: usize = ValueKind::Count(0, 65_536), Some("0"), Restart;
        /// Folder for the socket through which a new process takes over from this one (run
        /// --takeover).
        ///
        /// It must exist and belong to this user; /run/pointsman is suitable. Without it, takeover
        /// is not possible, nor from a process that found it full or read-only at its start.
        state_dir: Option<String> = ValueKind::Path, None, Restart;
    }
}

/// Name of the takeover socket in `process.state_dir`.
pub(crate) const TAKEOVER_SOCKET: &str = "takeover.sock";

/// Maximum of the options that limit connections.
pub(super) const MAX_CONNECTIONS: usize = 1_000_000;

/// Maximum of `max_lag_bytes`: a petabyte.
const MAX_LAG_BYTES: usize = 1_000_000_000_000_000;
