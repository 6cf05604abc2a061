//! The shape of the command line. Help on what configures comes from the table of options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::config::{Flags, schema};

const EXAMPLES: &str = "\
Examples:
  One master, no file:
    pointsman run --service mymaster --sentinel redis-sentinel:26379 --listen 0.0.0.0:6379

  With a file, first checked:
    pointsman check --config /etc/pointsman.toml
    pointsman run --config /etc/pointsman.toml

  A file to begin with, every key explained:
    pointsman config --sentinel redis-sentinel:26379 > pointsman.toml

  Convert a haproxy.cfg, with a report on every line:
    pointsman import haproxy --explain /etc/haproxy/haproxy.cfg > pointsman.toml

  How is it doing?
    pointsman status --admin 127.0.0.1:8888

  What is wrong with the sentinels?
    pointsman sentinels --service mymaster --sentinel redis-sentinel:26379

Configuration:
  Flags come first, then the environment (POINTSMAN_…), then the file, then the defaults.
  `pointsman config` shows each key with its variable, its default and where its value came from.

Exit codes:
  0 fine, 64 wrong command line, 78 wrong configuration, 1 anything else.";

/// One address in front of Redis Sentinel that always leads to the one verified master.
#[derive(Debug, Parser)]
#[command(name = "pointsman", version, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Follow the masters and serve their clients, until told to stop.
    Run(RunArgs),
    /// Check the configuration: every fault at once, with file, line and key.
    ///
    /// Reads everything that `run` would read, files of passwords included, and starts nothing.
    /// Prints every fault as FILE:LINE:COLUMN: key: what is wrong; what to do. Exits with 78 if
    /// there is one, with 0 if there is none.
    Check(SourceArgs),
    /// Show the effective configuration, every key explained, passwords hidden.
    ///
    /// What is printed is itself a configuration file. Each key carries its documentation, its
    /// default, where its value came from, its environment variable, and whether a reload changes
    /// it.
    Config(SourceArgs),
    /// Show how a running pointsman is doing.
    Status(StatusArgs),
    /// Ask every sentinel and redis node directly what is wrong, and say what to do.
    ///
    /// Works with and without a running pointsman, from the place where it is started: reads the
    /// configuration, or takes --service and --sentinel. Finds troubles of quorum, epoch,
    /// passwords, ACLs, names, DNS and NAT, and changes nothing. Exits with 0 if all is well and
    /// with 1 if something is wrong; over in less than half a minute a service.
    Sentinels(SentinelsArgs),
    /// Move a service to another master, with nothing lost and nothing failed.
    ///
    /// Holds traffic, waits until every replica has all of the master's data, has a sentinel start
    /// the failover, and lets traffic on as soon as the new master is verified. Whatever is not as
    /// it should be before the failover is ordered, ends it with nothing changed. Needs `control =
    /// true` and a socket or a token in [admin].
    Switchover(SwitchoverArgs),
    /// Hold a service's traffic: clients wait, nothing reaches Redis.
    Pause(PauseArgs),
    /// Let a paused service's traffic on.
    Resume(OrderArgs),
    /// Convert the configuration of another proxy.
    #[command(subcommand)]
    Import(ImportFrom),
    /// Print a completion script for a shell.
    ///
    /// For example: pointsman completions bash > /etc/bash_completion.d/pointsman
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
    /// Print the manual page.
    ///
    /// For example: pointsman man > /usr/share/man/man1/pointsman.1
    Man,
}

/// What to run, and how to begin.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) source: SourceArgs,

    /// Take over from the pointsman that runs with the same process.state_dir, without a refused
    /// connection
    ///
    /// Takes its listening sockets with the clients that wait in them, looks for the masters, and
    /// serves; only then the old process stops accepting and drains. If anything fails before that,
    /// the old one goes on. Where none runs, this starts as usual.
    #[arg(long)]
    pub(super) takeover: bool,
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    /// Configuration file; - for the standard input [env: POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    #[arg(long, value_name = "NAME", help_heading = "Service", help = service_help(), long_help = service_long_help())]
    service: Option<String>,

    #[arg(long = "sentinel", value_name = "ADDR", help_heading = "Service", help = help("service.sentinels"), long_help = long_help("service.sentinels"))]
    sentinels: Vec<String>,

    #[arg(long, value_name = "ADDR", help_heading = "Service", help = help("service.listen"), long_help = long_help("service.listen"))]
    listen: Vec<String>,

    #[arg(long, value_name = "ADDR", help_heading = "Service", help = help("service.replica_listen"), long_help = long_help("service.replica_listen"))]
    replica_listen: Vec<String>,

    #[arg(long, value_name = "ADDR", help_heading = "Admin", help = help("admin.listen"), long_help = long_help("admin.listen"))]
    admin: Vec<String>,

    /// Any other key, as section.key=value; may be given several times
    ///
    /// For example --set shutdown.drain_timeout=30s --set service.minority=hold. Passwords cannot
    /// be given this way, since the list of processes is public.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Everything else")]
    set: Vec<String>,
}

impl SourceArgs {
    pub(super) fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            service: self.service.clone(),
            sentinels: self.sentinels.clone(),
            listen: self.listen.clone(),
            replica_listen: self.replica_listen.clone(),
            admin: self.admin.clone(),
            set: self.set.clone(),
        }
    }
}

/// The program to convert from.
#[derive(Debug, Subcommand)]
pub(super) enum ImportFrom {
    /// Convert a haproxy.cfg into a configuration for Pointsman.
    ///
    /// Prints the configuration to the standard output. Prints to the standard error the lines that
    /// have no counterpart (NO COUNTERPART), the guesses to confirm (ASSUMED), and a count of the
    /// rest; --explain shows every line. Passwords appear in the configuration only.
    ///
    /// Refuses, with exit code 78 and without output, what could lead clients to another dataset or
    /// drop encryption: listeners with different servers and one name (use --name), and TLS (use
    /// --allow-plaintext).
    Haproxy(ImportArgs),
}

/// What to convert, and facts that the file does not contain.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Files, read together like several -f of haproxy; - for the standard input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) files: Vec<PathBuf>,

    /// The master's name in Sentinel, where no check names it; LISTENER=NAME for one listener
    ///
    /// May be given several times. A name for a listener also says which master a listener for
    /// readers belongs to, and merges two listeners of the same name although their servers differ.
    #[arg(long = "name", value_name = "[LISTENER=]NAME")]
    pub(super) names: Vec<String>,

    /// A sentinel as host:port, in place of those in the file; may be given several times
    #[arg(long = "sentinel", value_name = "ADDR")]
    pub(super) sentinels: Vec<String>,

    /// Convert listeners and servers with TLS to plain text
    ///
    /// Pointsman does not speak TLS. Without this flag a file with TLS towards clients, Redis or
    /// Sentinel is refused; with it, a comment in the configuration lists every line that lost its
    /// TLS.
    #[arg(long)]
    pub(super) allow_plaintext: bool,

    /// Refuse the import if anything is ASSUMED or has NO COUNTERPART
    #[arg(long)]
    pub(super) strict: bool,

    /// Report every line
    #[arg(long)]
    pub(super) explain: bool,
}

/// Whom to ask.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Address of its admin server, host:port [env: POINTSMAN_ADMIN] [default: as configured, else
    /// 127.0.0.1:8888]
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<String>,

    /// Configuration file to learn the address from [env: POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) config: Option<PathBuf>,

    /// Print the JSON as it comes
    #[arg(long)]
    pub(super) json: bool,

    /// Ask again every second and show the newest, until Ctrl-C; with --json one line each
    #[arg(long, short)]
    pub(super) watch: bool,

    /// Fail unless every address of the admin server's host name is ready to serve clients
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub(super) ready: bool,

    /// Print the JSON schema of the status, and ask nobody
    #[arg(long, conflicts_with_all = ["admin", "config", "json"])]
    pub(super) schema: bool,
}

/// To whom, and about which service.
#[derive(Debug, Args)]
pub(super) struct OrderArgs {
    /// The service; needed where there are several
    pub(super) service: Option<String>,

    /// Address of the admin server, host:port [env: POINTSMAN_ADMIN] [default: as configured, else
    /// 127.0.0.1:8888]
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<String>,

    /// The Unix socket for orders [default: as configured]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with_all = ["admin", "token_file"])]
    pub(super) socket: Option<PathBuf>,

    /// Configuration file to learn the socket, or the address and the token from [env:
    /// POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) config: Option<PathBuf>,

    /// File that holds the control token [env: POINTSMAN_CONTROL_TOKEN holds the token itself]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) token_file: Option<PathBuf>,

    /// Print the lines of JSON as they come
    #[arg(long)]
    pub(super) json: bool,
}

/// A switchover.
#[derive(Debug, Args)]
pub(super) struct SwitchoverArgs {
    #[command(flatten)]
    pub(super) order: OrderArgs,

    /// Also stop clients of the master that use no proxy
    ///
    /// Sends CLIENT PAUSE ... WRITE to the master, in short pauses that are renewed until a second
    /// after the new master is in force. Protects writers that connect to the master directly and
    /// listen to Sentinel. With several proxies, a request that reaches the master through another
    /// one during the pause gets no reply. Needs +client|pause and +client|unpause on the redis
    /// nodes, and `down-after-milliseconds` of 2 seconds or more.
    #[arg(long)]
    pub(super) pause_clients: bool,
}

/// A pause.
#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    #[command(flatten)]
    pub(super) order: OrderArgs,

    /// How long at most, up to 10m
    #[arg(long = "for", value_name = "TIME", default_value = "30s")]
    pub(super) span: String,
}

/// Whom to examine.
#[derive(Debug, Args)]
pub(super) struct SentinelsArgs {
    /// Configuration file; - for the standard input [env: POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Sentinel's name for the master: only this service of the configuration, or the name that
    /// goes with --sentinel
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    #[arg(long = "sentinel", value_name = "ADDR", help = help("service.sentinels"), long_help = long_help("service.sentinels"))]
    sentinels: Vec<String>,

    /// Any other key, as section.key=value; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl SentinelsArgs {
    pub(super) fn flags(&self) -> Flags {
        let (listen, admin) = (Vec::new(), Vec::new());
        let (config, service) = (self.config.clone(), self.service.clone());
        Flags {
            config,
            service,
            sentinels: self.sentinels.clone(),
            listen,
            admin,
            set: self.set.clone(),
            ..Flags::default()
        }
    }
}

/// The summary of an option with its variable and its default.
fn help(path: &str) -> String {
    let summary = schema::option(path).map(crate::config::OptionSpec::summary).unwrap_or_default();
    format!("{}{}", summary.trim_end_matches('.'), brackets(path))
}

fn long_help(path: &str) -> String {
    let paragraphs =
        schema::option(path).map(crate::config::OptionSpec::paragraphs).unwrap_or_default();
    format!(
        "{}\n\nMay be given several times; replaces what environment and file say.{}",
        paragraphs.join("\n\n"),
        brackets(path)
    )
}

fn service_help() -> String {
    format!(
        "Sentinel's name for the master; with several services, the one that flags are about{}",
        brackets("service.name")
    )
}

fn service_long_help() -> String {
    let rule = "Names the service that the other flags and the environment are about. It is needed when the file has several \
                services and flags or variables are given for one; all of them are served all the same. Without a service in \
                a file it is the name of the one that the flags describe.";
    format!("Sentinel's name for the master.\n\n{rule}{}", brackets("service.name"))
}

fn brackets(path: &str) -> String {
    let Some((section_path, key)) = path.rsplit_once('.') else { return String::new() };
    let variable =
        schema::section(section_path).map(|section| section.variable(key)).unwrap_or_default();
    match schema::option(path).and_then(|option| option.default) {
        Some(default) => format!(" [env: {variable}] [default: {default}]"),
        None => format!(" [env: {variable}]"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_comes_from_the_table() {
        let mut command = Cli::command();
        let run = command.find_subcommand_mut("run").unwrap();
        let unwrapped = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (short, long) = (
            unwrapped(run.render_help().to_string()),
            unwrapped(run.render_long_help().to_string()),
        );
        assert!(short.contains("[env: POINTSMAN_LISTEN] [default: 0.0.0.0:6379]"), "{short}");
        assert!(long.contains("Kubernetes probes come from the node"), "{long}");
        assert!(!long.contains("--password"), "{long}");
    }
}
