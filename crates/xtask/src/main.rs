//! The commands that developers and CI run: `cargo xtask demo`, `test`, `bench`, `deploy-check`,
//! `dist`, `ci` and others.
//!
//! Each command installs what it lacks, reports its progress, and ends with a line for people.
//! Small pure functions decide what to do (what is missing, which steps, what to print).
//!
//! Packages are installed only as root, which is how containers and CI run; other users get the
//! command to run.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command for people: what it prints is what it is for"
)]

mod demo;
mod deploy;
mod dist;
mod docs;
mod libraries;
mod limited;
mod mutations;
mod servers;
mod simulate;
mod steps;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use setup::install;

/// Commands for developers and CI.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show a failover: a real Sentinel cluster, clients that write, a killed master.
    ///
    /// Installs what is missing, builds pointsman, starts one master, two replicas, three sentinels
    /// and pointsman on loopback addresses, writes through it, kills the master and shows what
    /// happens. Leaves nothing behind.
    Demo(demo::DemoOptions),
    /// Run every test with real servers, count instructions, and check deploy/.
    ///
    /// With arguments: only `cargo test` with them.
    Test(TestOptions),
    /// Compare CPU, throughput, latency, memory and connections with other proxies.
    ///
    /// Measures pointsman, haproxy 3 (stock, tuned), nginx, twemproxy and the smallest possible
    /// proxy in one interleaved run, one thread each. Fetches the other proxies into a folder below
    /// target/. Load and Redis share one core, the proxy has another; as root, in its own network
    /// namespace. Leaves nothing behind.
    Bench(bench::Bench),
    /// Check deploy/: chart, manifests, units, alerts; with tools from the package registries.
    DeployCheck(deploy::DeployCheckOptions),
    /// Produce the files of a release in target/dist: archive, chart, packages, image, SBOM,
    /// checksums.
    ///
    /// As root it tests them: the image in an empty root folder, the Debian package in a minimal
    /// Debian.
    Dist(dist::DistOptions),
    /// Simulate failovers with faults, one run per seed; print a timeline of the first violation.
    Simulate(simulate::SimulateOptions),
    /// Compare random conversations of several clients with a server and through Pointsman.
    ///
    /// Every reply is compared byte by byte, with dedicated and with shared connections, with one
    /// seed per conversation. One that differs is made as short as possible and printed.
    ///
    /// With --minutes: checks histories of clients of several proxies, on shared keys and under
    /// random faults of servers, sentinels, network and proxies, for linearizability. A history
    /// that is impossible is printed with what happened meanwhile.
    Verify(verify::VerifyCommand),
    /// Build the documentation as a book in target/book. Installs mdBook below target/ if needed.
    Docs,
    /// Generate the plain manifest and the kustomize base from the chart.
    Manifests,
    /// Run what CI runs: formatting, lints, tests, documentation, dependencies.
    Ci {
        /// Do not check dependencies for advisories, whose database has to be fetched. Without this
        /// option that check has to run and pass.
        #[arg(long)]
        offline: bool,
    },
}

/// Which tests.
#[derive(Debug, clap::Args)]
struct TestOptions {
    /// Check format and lints and run the unit tests, the tests of documents and deploy/, and some
    /// end-to-end tests: at most four minutes on two cores once built.
    #[arg(long, conflicts_with = "args")]
    quick: bool,
    /// Run the tests that depend on the server with every version of Redis and Valkey, or with the
    /// named ones or upgrades FROM..TO, and write docs/compatibility.md.
    ///
    /// Fetches each version into a folder below target/servers, runs tests with it and with its own
    /// sentinel, and records its commands. An idle machine of two cores needs 5 to 10 minutes per
    /// server.
    #[arg(long, conflicts_with_all = ["quick", "libraries"])]
    servers: bool,
    /// With --servers: list the servers and upgrades, and run nothing.
    #[arg(long, requires = "servers")]
    list: bool,
    /// Run the own tests of client libraries and of Redis, or of the named ones, directly and
    /// through Pointsman.
    ///
    /// Fetches the libraries, the tests and a Redis into folders below target/, runs the tests
    /// directly, with dedicated connections and with shared ones, and compares every test. Fails on
    /// a difference that libraries.json does not explain. Needs a network namespace, as root or
    /// with permission to create one. Two idle cores need about 75 minutes.
    #[arg(long, conflicts_with = "quick")]
    libraries: bool,
    /// With --libraries: test this program instead of building one.
    #[arg(long, value_name = "PATH", requires = "libraries")]
    program: Option<PathBuf>,
    /// Arguments for `cargo test`, or names of servers or libraries.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(options) => demo::run(options),
        Command::Test(options) => test(&options),
        Command::Bench(bench) => bench::run(&bench),
        Command::DeployCheck(options) => deploy::check(&options),
        Command::Dist(options) => dist::dist(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Docs => docs::build(),
        Command::Manifests => deploy::write_manifests(),
        Command::Ci { offline } => ci(offline),
    };
    match done {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("\n{problem}");
            ExitCode::FAILURE
        }
    }
}

fn test(options: &TestOptions) -> Result<ExitCode, String> {
    if options.servers {
        return servers::run(&options.args, options.list);
    }
    if options.libraries {
        return libraries::run(&options.args, options.program.as_deref());
    }
    install_for_tests()?;
    let start = Instant::now();
    if options.quick {
        return Ok(finish(&steps::run(&steps::quick()), start));
    }
    let given = steps::with_separator(std::env::args(), "test", &options.args);
    let mut outcome = steps::run(&[steps::test(&given)]);
    if given.is_empty() {
        // Neither measures time.
        outcome.extend(steps::run_both(&steps::instructions(), &steps::deploy()));
    }
    Ok(finish(&outcome, start))
}

/// Prints the time of each step and the result.
fn finish(outcome: &[steps::Outcome], start: Instant) -> ExitCode {
    println!("{}", steps::table(outcome));
    println!("{}", steps::closing(outcome, start.elapsed()));
    steps::code(outcome)
}

fn install_for_tests() -> Result<(), String> {
    install::for_tests()?;
    if let Err(why) = deploy::have_promtool() {
        println!("{why}");
    }
    Ok(())
}

fn ci(offline: bool) -> Result<ExitCode, String> {
    install_for_tests()?;
    let has_deny = harness::find_in_path("cargo-deny").is_some();
    let start = Instant::now();
    let outcome = steps::run(&steps::ci(offline, has_deny));
    for line in steps::left_out(offline, has_deny) {
        println!("{line}");
    }
    Ok(finish(&outcome, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a command would succeed without having checked what was asked for.
    #[test]
    fn refuses_options_without_effect() {
        let parsed = |line: &str| Cli::try_parse_from(line.split(' '));
        for line in [
            "xtask demo --seconds 999999",
            "xtask test --quick name",
            "xtask verify --conversations 0",
            "xtask verify --most 0",
            "xtask verify --exceptions --mode shared",
            "xtask verify --minutes 1 --jobs 2",
            "xtask verify --mutations --program name",
            "xtask bench failover --durability 1 --writers 0",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        let Ok(Cli { command: Command::DeployCheck(options) }) =
            parsed("xtask deploy-check --only nothing-of-this-name")
        else {
            panic!("deploy-check has an option --only");
        };
        assert!(deploy::check(&options).is_err_and(|why| why.contains("helm lint")));
    }
}
