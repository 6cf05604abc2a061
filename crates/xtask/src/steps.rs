//! Runs commands one after the other, each announced and timed, and summarises the results.

use std::panic::resume_unwind;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use setup::build::FAST_PROPERTIES;
use setup::{cargo, seconds};

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its title, for people.
    pub(crate) title: &'static str,
    /// Arguments for cargo.
    pub(crate) args: Vec<String>,
    /// Environment variables to set.
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Step {
    fn with(mut self, name: &'static str, value: String) -> Self {
        self.env.push((name, value));
        self
    }
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) title: &'static str,
    pub(crate) passed: bool,
    pub(crate) took: Duration,
}

/// How many tests of one binary run at once.
const THREADS: &str = "RUST_TEST_THREADS";

fn step(title: &'static str, args: &str) -> Step {
    Step { title, args: args.split(' ').map(String::from).collect(), env: Vec::new() }
}

/// All tests of all crates, unless the arguments name a package.
///
/// The end-to-end tests take most of the time, and mostly wait for Sentinel: four per core use
/// two thirds of the cores. A number of threads in the environment or the arguments takes
/// precedence.
pub(crate) fn test(given: &[String]) -> Step {
    let ours = given.split(|arg| arg == "--").next().unwrap_or_default();
    let names = |arg: &String| {
        arg == "--package"
            || arg.starts_with("--package=")
            || (arg.starts_with("-p") && !arg.starts_with("--"))
    };
    let mut step = step("test", if ours.iter().any(names) { "test" } else { "test --workspace" });
    if given.is_empty() {
        step.args.extend(FAST_PROPERTIES.map(String::from));
    }
    step.args.extend(given.iter().cloned());
    in_parallel(step)
}

/// With four tests per core, unless the environment has a number.
fn in_parallel(step: Step) -> Step {
    if std::env::var_os(THREADS).is_some() {
        return step;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    step.with(THREADS, cores.saturating_mul(4).to_string())
}

/// What a developer runs between two changes: at most four minutes on two cores once it is built.
/// The end-to-end tests are those of the promises that most changes can break.
pub(crate) fn quick() -> Vec<Step> {
    vec![
        step("format", "fmt --all --check"),
        step("lint", "clippy --workspace --all-targets -- -D warnings"),
        in_parallel(step(
            "units",
            "test --workspace --exclude pointsman-simulator --no-fail-fast --lib --bins --test tidy --test docs --test deploy",
        ))
        .with("PROPTEST_CASES", "8".to_owned()),
        in_parallel(step(
            "e2e",
            "test --workspace --test e2e -- failover:: carry:: drain:: shared_upstreams:: tls_clients::",
        )),
    ]
}

/// Instructions per request, compared with the budget.
pub(crate) fn instructions() -> Step {
    step("count", "run --quiet --package xtask -- bench instructions")
}

/// Simulated failovers: some thousand seeds, the same ones every time.
pub(crate) fn simulate() -> Step {
    step("simulate", "run --quiet --profile simulate --package pointsman-simulator -- --seeds 450")
}

/// The checks of deploy/, as far as their tools are available.
pub(crate) fn deploy() -> Step {
    step("deploy", "run --quiet --package xtask -- deploy-check --lenient")
}

/// The steps of CI. `offline`: without those that need the advisory database, or cargo-deny where
/// it is not installed. Only a request leaves them out, never a failure.
pub(crate) fn ci(offline: bool, has_deny: bool) -> Vec<Step> {
    let mut steps = vec![
        step("format", "fmt --all --check"),
        step("lint", "clippy --workspace --all-targets -- -D warnings"),
        test(&[]),
        simulate(),
        instructions(),
        deploy(),
        step("doc", "doc --workspace --no-deps").with("RUSTDOCFLAGS", "-D warnings".to_owned()),
    ];
    if has_deny || !offline {
        steps.push(step("deny", "deny check bans licenses sources"));
    }
    if !offline {
        steps.push(step("advisories", "deny check advisories"));
    }
    steps
}

/// What `ci` did not check, for people.
pub(crate) fn left_out(offline: bool, has_deny: bool) -> Vec<&'static str> {
    let advisories = offline.then_some("Advisories were NOT CHECKED, because of --offline.");
    let all = "Licences and sources of dependencies were NOT CHECKED: cargo-deny is not installed.";
    let hint = "To install it: cargo install --locked cargo-deny";
    let deny = (offline && !has_deny).then_some(all).into_iter();
    advisories.into_iter().chain(deny).chain((!has_deny).then_some(hint)).collect()
}

/// The arguments after a subcommand, with the leading `--` that the command-line parser removes.
pub(crate) fn with_separator(
    raw: impl Iterator<Item = String>,
    name: &str,
    parsed: &[String],
) -> Vec<String> {
    let separated = raw.skip_while(|arg| arg != name).nth(1).is_some_and(|arg| arg == "--");
    let kept = parsed.first().is_some_and(|arg| arg == "--");
    let lost = (separated && !kept).then(|| String::from("--"));
    lost.into_iter().chain(parsed.iter().cloned()).collect()
}

/// Runs all steps, also after one has failed, so that one run reports everything.
pub(crate) fn run(steps: &[Step]) -> Vec<Outcome> {
    steps.iter().map(|step| run_one(step, Stdio::inherit)).collect()
}

/// Runs `other` while `step` runs, and prints what it wrote when it has ended.
pub(crate) fn run_both(step: &Step, other: &Step) -> [Outcome; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run_one(other, Stdio::piped));
        let outcome = run_one(step, Stdio::inherit);
        [outcome, other.join().unwrap_or_else(|panic| resume_unwind(panic))]
    })
}

fn run_one(step: &Step, stdio: fn() -> Stdio) -> Outcome {
    println!("── {}: cargo {}", step.title, step.args.join(" "));
    let start = Instant::now();
    let mut cargo = cargo();
    cargo.args(&step.args).envs(step.env.clone()).stdout(stdio()).stderr(stdio());
    let passed = match cargo.output() {
        Ok(output) => {
            let wrote = [output.stdout, output.stderr].concat();
            print!("{}", String::from_utf8_lossy(&wrote));
            output.status.success()
        }
        Err(error) => {
            eprintln!("cargo could not be started: {error}");
            false
        }
    };
    let outcome = Outcome { title: step.title, passed, took: start.elapsed() };
    println!("── {} {} in {}\n", step.title, verdict(passed), seconds(outcome.took));
    outcome
}

/// One line per step.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let line = |it: &Outcome| {
        format!("  {:<10} {:<7} {:>9}\n", it.title, verdict(it.passed), seconds(it.took))
    };
    outcomes.iter().map(line).collect()
}

/// The last line.
pub(crate) fn closing(outcomes: &[Outcome], took: Duration) -> String {
    let took = seconds(took);
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.title).collect();
    match (failed.as_slice(), outcomes) {
        ([], [Outcome { title: "test", .. }, ..]) => format!("All tests passed in {took}."),
        ([], _) => format!("Everything passed in {took}."),
        (failed, _) => format!("FAILED after {took}: {}.", failed.join(", ")),
    }
}

/// Success only if every step passed.
pub(crate) fn code(outcomes: &[Outcome]) -> ExitCode {
    if outcomes.iter().all(|outcome| outcome.passed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn verdict(passed: bool) -> &'static str {
    if passed { "passed" } else { "FAILED" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn tests_the_workspace_by_default() {
        assert_eq!(
            test(&[]).args,
            words(&format!("test --workspace {}", FAST_PROPERTIES.join(" ")))
        );
        assert_eq!(test(&words("-- --nocapture")).args, words("test --workspace -- --nocapture"));
        assert_eq!(test(&words("-- -p")).args, words("test --workspace -- -p"));
        assert_eq!(test(&words("-p route fence")).args, words("test -p route fence"));
        assert_eq!(test(&words("--package=route")).args, words("test --package=route"));
        assert_eq!(
            test(&words("--profile release")).args,
            words("test --workspace --profile release")
        );
    }

    #[test]
    fn keeps_the_argument_separator() {
        let raw = |line: &str| words(line).into_iter();
        assert_eq!(
            with_separator(raw("xtask test -- --nocapture"), "test", &words("--nocapture")),
            words("-- --nocapture")
        );
        assert_eq!(
            with_separator(raw("xtask test -- -q"), "test", &words("-- -q")),
            words("-- -q")
        );
        assert_eq!(
            with_separator(raw("xtask test a -- -q"), "test", &words("a -- -q")),
            words("a -- -q")
        );
    }

    #[test]
    fn leaves_out_advisories_only_on_request() {
        let titles = |offline, has_deny| {
            let steps = ci(offline, has_deny);
            steps.iter().map(|step| step.title).skip(7).collect::<Vec<_>>()
        };
        // Without cargo-deny the steps fail, instead of being left out.
        assert_eq!(titles(false, true), ["deny", "advisories"]);
        assert_eq!(titles(false, false), ["deny", "advisories"]);
        assert_eq!(titles(true, true), ["deny"]);
        assert_eq!(titles(true, false), [""; 0]);
        assert_eq!(left_out(false, true), [""; 0]);
        assert_eq!(left_out(false, false).len(), 1);
        assert!(left_out(true, true).concat().contains("Advisories were NOT CHECKED"));
        assert_eq!(left_out(true, false).len(), 3);
    }

    #[test]
    fn names_failed_steps_in_the_last_line() {
        let took = Duration::from_millis(1500);
        let outcome = |title, passed| Outcome { title, passed, took };
        assert_eq!(closing(&[outcome("test", true)], took), "All tests passed in 1.5 s.");
        assert_eq!(
            closing(&[outcome("lint", false), outcome("doc", true)], took),
            "FAILED after 1.5 s: lint."
        );
    }
}
