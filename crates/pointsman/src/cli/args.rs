//! Defines the command line. The help of configuration flags comes from the option definitions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use super::admin_server::AdminArgs;
use super::sessions::{KillArgs, SessionsArgs};
use crate::config::{Flags, help, long_help};

const EXAMPLES: &str = "\
Examples:
  One master, without a file:
    pointsman run --service mymaster --sentinel redis-sentinel:26379 --listen 0.0.0.0:6379

  With a file, checked first:
    pointsman check --config /etc/pointsman.toml
    pointsman run --config /etc/pointsman.toml

  Generate a file with every key explained:
    pointsman config --sentinel redis-sentinel:26379 > pointsman.toml

  Convert a haproxy.cfg, with a report on every line:
    pointsman import haproxy --explain /etc/haproxy/haproxy.cfg > pointsman.toml

  Show the status:
    pointsman status --admin 127.0.0.1:8888
    pointsman status --admin https://pointsman.redis.svc:8888 --admin-ca ca.crt

  Diagnose the sentinels:
    pointsman sentinels --service mymaster --sentinel redis-sentinel:26379

Configuration:
  Precedence: flags, environment (POINTSMAN_…), file, defaults.
  `pointsman config` prints each key with its variable, its default and the origin of its value.

Exit codes:
  0 success, 64 invalid command line, 78 invalid configuration, 1 any other failure.";

/// One address in front of Redis Sentinel that always leads to the one verified master.
#[derive(Debug, Parser)]
#[command(name = "pointsman", version, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve clients and follow the masters, until stopped by a signal.
    Run(RunArgs),
    /// Check the configuration and report every fault with file, line and key.
    ///
    /// Reads everything that `run` would read, including password files, and starts nothing. Prints
    /// each fault as FILE:LINE:COLUMN: key: problem; remedy. Exits with 78 if there is a fault,
    /// else with 0.
    Check(Flags),
    /// Print the effective configuration with every key explained and passwords hidden.
    ///
    /// The output is itself a configuration file. Each key carries its documentation, its default,
    /// the origin of its value, its environment variable, and whether a reload changes it.
    Config(Flags),
    /// Show the status of a running pointsman.
    Status(StatusArgs),
    /// Query every sentinel and Redis node directly, report problems and remedies.
    ///
    /// Works with or without a running pointsman, from the host where it is started: reads the
    /// configuration, or takes --service and --sentinel. Finds problems of quorum, epoch,
    /// passwords, ACLs, names, DNS, NAT and certificates, and changes nothing. Exits with 0 if all
    /// is well, with 1 for warnings, with 2 for faults. Takes less than half a minute per service.
    Sentinels(SentinelsArgs),
    /// Move a service to another master without lost writes or failed requests.
    ///
    /// Holds traffic, waits until every replica has all of the master's data, makes a sentinel
    /// start the failover, and releases traffic as soon as the new master is verified. Any failed
    /// precondition aborts it before the failover is ordered, with nothing changed. Requires
    /// `control = true` and a socket or a token in [admin].
    ///
    /// For example: pointsman switchover mymaster --to 10.0.0.2:6379
    Switchover(SwitchoverArgs),
    /// Hold the traffic of a service: clients wait, no request reaches Redis.
    ///
    /// For example: pointsman pause mymaster --for 30s
    Pause(PauseArgs),
    /// Release the traffic of a paused service.
    Resume(ControlArgs),
    /// Follow a node without the sentinels, when all of them are lost.
    ///
    /// An order to one running pointsman. The node must report `role:master` and continue the
    /// replication history of the last master; then requests go to it as after a failover. The
    /// override ends when a majority of the sentinels confirms a master, after --for, or with
    /// `unfollow`. Refused while a majority of the sentinels answers: use `switchover` then.
    /// Requires `control = true` and a socket or a token in [admin].
    ///
    /// For example: pointsman follow mymaster 10.0.0.2:6379 --for 30m
    Follow(FollowArgs),
    /// End the override that `follow` began; the sentinels decide again.
    ///
    /// For example: pointsman unfollow mymaster
    Unfollow(ControlArgs),
    /// List the sessions: which clients are connected, in what state, and what pins them.
    ///
    /// Each worker is asked for its sessions, a few at a time, so the list is no snapshot: a
    /// session that begins or ends meanwhile may be missing. Shows addresses, users and names of
    /// clients, never a password, key, value or argument. Requires `control = true` and a socket
    /// or a token in [admin].
    Sessions(SessionsArgs),
    /// End one session at once, given by the ID that `sessions` prints.
    ///
    /// Its client sees the connection close, whatever is in flight. Requires `control = true` and a
    /// socket or a token in [admin].
    Kill(KillArgs),
    /// Convert the configuration of another proxy.
    #[command(subcommand)]
    Import(ImportFrom),
    /// Print a completion script for a shell.
    ///
    /// For example: pointsman completions bash > /etc/bash_completion.d/pointsman
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page.
    ///
    /// For example: pointsman man > /usr/share/man/man1/pointsman.1
    Man,
}

/// The arguments of `run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) source: Flags,

    /// Take over from the pointsman that runs with the same process.state_dir, without a refused
    /// connection
    ///
    /// Takes its listening sockets with the clients that wait in them, finds the masters, and
    /// serves; only then does the old process stop accepting and drain. If anything fails before
    /// that, the old process continues to serve. If none runs, this is a normal start.
    #[arg(long)]
    pub(super) takeover: bool,
}

/// The program to convert from.
#[derive(Debug, Subcommand)]
pub(super) enum ImportFrom {
    /// Convert a haproxy.cfg into a configuration for Pointsman.
    ///
    /// Prints the configuration to standard output. Prints to standard error the lines without a
    /// counterpart (NO COUNTERPART), the assumptions to confirm (ASSUMED), and a count of the rest;
    /// --explain shows every line. Passwords appear in the configuration only.
    ///
    /// Refuses, with exit code 78 and without output, what could lead clients to another dataset,
    /// drop encryption or admit other clients: listeners with different servers that would ask the
    /// same sentinels for one name (use --name), and options of TLS without a counterpart (or use
    /// --allow-plaintext).
    Haproxy(ImportArgs),
}

/// The files to convert, and facts that they do not contain.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Files, read together like several -f of haproxy; - for standard input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) files: Vec<PathBuf>,

    /// The master's name in Sentinel, where no check names it; LISTENER=NAME for one listener
    ///
    /// May be repeated. A name for a listener also assigns a listener for readers to a master.
    /// Listeners with different servers are different services, even if their masters have the same
    /// name.
    #[arg(long = "name", value_name = "[LISTENER=]NAME")]
    pub(super) names: Vec<String>,

    /// A sentinel as host:port, instead of those in the file; LISTENER=ADDR for one listener
    ///
    /// May be repeated.
    #[arg(long = "sentinel", value_name = "[LISTENER=]ADDR")]
    pub(super) sentinels: Vec<String>,

    /// Convert listeners and servers with TLS to plain text
    ///
    /// Without this flag TLS towards clients, Redis and Sentinel is converted, and refused where it
    /// cannot be; with it, a comment in the configuration lists every line that lost its TLS.
    #[arg(long)]
    pub(super) allow_plaintext: bool,

    /// Refuse the import if anything is ASSUMED or has NO COUNTERPART
    #[arg(long)]
    pub(super) strict: bool,

    /// Report every line
    #[arg(long)]
    pub(super) explain: bool,
}

/// The arguments of `status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Show only this service, in full: more than eight are shown by their verdicts
    #[arg(conflicts_with_all = ["json", "ready", "schema"])]
    pub(super) service: Option<String>,

    #[command(flatten)]
    pub(super) server: AdminArgs,

    /// Configuration file that contains the address [env: POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) config: Option<PathBuf>,

    /// File that holds the token for reading [env: POINTSMAN_READ_TOKEN holds the token itself]
    /// [default: the token of the configuration, unless --admin is given]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) token_file: Option<PathBuf>,

    /// Print the JSON document
    #[arg(long)]
    pub(super) json: bool,

    /// Repeat every second, until Ctrl-C; with --json one line each
    #[arg(long, short)]
    pub(super) watch: bool,

    /// Fail unless every address of the admin server's host name is ready to serve clients
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub(super) ready: bool,

    /// Print the JSON schema of the status, without a request
    #[arg(long, conflicts_with_all = ["admin", "config", "json", "token_file"])]
    pub(super) schema: bool,
}

/// The process to command, and how it is asked.
#[derive(Debug, Args)]
pub(super) struct EndpointArgs {
    #[command(flatten)]
    pub(super) server: AdminArgs,

    /// The control socket [default: as configured]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["admin", "admin_ca", "admin_certificate", "token_file"])]
    pub(super) socket: Option<PathBuf>,

    /// Configuration file that contains the socket, or the address and the token [env:
    /// POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) config: Option<PathBuf>,

    /// File that holds the control token [env: POINTSMAN_CONTROL_TOKEN holds the token itself]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) token_file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The arguments of a control command: the service and the process.
#[derive(Debug, Args)]
pub(super) struct ControlArgs {
    /// The service; required if there are several
    pub(super) service: Option<String>,

    #[command(flatten)]
    pub(super) endpoint: EndpointArgs,
}

/// The arguments of `switchover`.
#[derive(Debug, Args)]
pub(super) struct SwitchoverArgs {
    #[command(flatten)]
    pub(super) control: ControlArgs,

    /// The replica to promote, as the sentinels list it; otherwise Sentinel chooses
    ///
    /// Raises the replica-priority of the replicas that would be preferred to it, waits for up to
    /// ten seconds until the sentinel that starts the failover reports that, switches, and restores
    /// the priorities as soon as the replica is selected. Traffic is held only for the switch.
    /// Before a priority is changed, the command that restores it is printed, in case the pointsman
    /// is killed meanwhile. Requires +config|get and +config|set on the Redis nodes.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) to: Option<String>,

    /// Also pause clients of the master that do not use a proxy
    ///
    /// Sends CLIENT PAUSE ... WRITE to the master, in short pauses that are renewed until one
    /// second after the switch to the new master. Protects writers that connect to the master
    /// directly and listen to Sentinel. With several proxies, a request that reaches the master
    /// through another one during the pause gets no reply. Requires +client|pause and
    /// +client|unpause on the Redis nodes, and `down-after-milliseconds` of at least 2 seconds.
    #[arg(long)]
    pub(super) pause_clients: bool,
}

/// The arguments of `pause`.
#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    #[command(flatten)]
    pub(super) control: ControlArgs,

    /// Maximum duration, up to 10m [default: 30s]
    #[arg(long = "for", value_name = "TIME")]
    pub(super) duration: Option<String>,
}

/// The arguments of `follow`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(super) struct FollowArgs {
    #[command(flatten)]
    pub(super) control: ControlArgs,

    /// The node to follow, host:port, as the sentinels would announce it
    #[arg(value_name = "HOST:PORT", required = true)]
    pub(super) addr: String,

    /// Maximum duration, up to 24h; another order renews it
    #[arg(long = "for", value_name = "TIME", default_value = "10m")]
    pub(super) duration: String,

    /// Follow a node that does not continue the history of the last master
    ///
    /// For a restored backup or a copy. Whatever the last master held and this node does not is
    /// lost, and the node may hold the data of another service. Nothing else is permitted by this
    /// flag: the node must still report `role:master`.
    #[arg(long)]
    pub(super) force: bool,
}

/// The arguments of `sentinels`.
#[derive(Debug, Args)]
pub(super) struct SentinelsArgs {
    /// Configuration file; - for the standard input [env: POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Sentinel's name for the master: selects one service of the configuration, or belongs to
    /// --sentinel
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    #[arg(long = "sentinel", value_name = "ADDR")]
    #[arg(help = help("service.sentinels"), long_help = long_help("service.sentinels"))]
    sentinels: Vec<String>,

    /// Any other key, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// The zone of a host, as the sentinels announce it; may be repeated
    ///
    /// No reply of Redis shows in which zone a server runs. With the zone of every sentinel, the
    /// doctor reports a zone whose loss would leave no majority. For example: --zone 10.0.0.11=a
    /// --zone 10.0.0.12=b --zone 10.0.0.13=c
    #[arg(long = "zone", value_name = "ADDRESS=ZONE", value_parser = zone)]
    zones: Vec<(String, String)>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Parses the value of `--zone`.
fn zone(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((host, zone)) if !host.is_empty() && !zone.is_empty() => {
            Ok((host.trim_matches(['[', ']']).to_ascii_lowercase(), zone.to_owned()))
        }
        _ => Err("expected ADDRESS=ZONE, for example 10.0.0.11=a".to_owned()),
    }
}

impl SentinelsArgs {
    /// The zone of each host.
    pub(super) fn zones(&self) -> BTreeMap<String, String> {
        self.zones.iter().cloned().collect()
    }

    pub(super) fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            service: self.service.clone(),
            sentinels: self.sentinels.clone(),
            set: self.set.clone(),
            ..Flags::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn accepts_command_definition() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn takes_help_from_option_definitions() {
        let mut command = Arguments::command();
        let run = command.find_subcommand_mut("run").unwrap();
        let unwrapped = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (short, long) = (
            unwrapped(run.render_help().to_string()),
            unwrapped(run.render_long_help().to_string()),
        );
        assert!(short.contains("[env: POINTSMAN_LISTEN] [default: 0.0.0.0:6379]"), "{short}");
        assert!(long.contains("By default only this host reaches them"), "{long}");
        assert!(!long.contains("--password"), "{long}");
    }
}
