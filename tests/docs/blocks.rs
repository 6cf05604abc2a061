//! Runs the examples of the documents with the real program.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use saphyr_parser::Parser;

use crate::{documents, fail_on, read};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

/// Blocks marked `ignore`: the document, the first line, and why they cannot be run here.
const IGNORED: &[(&str, &str, &str)] = &[
    (
        "CONTRIBUTING.md",
        "cargo install --locked cargo-fuzz",
        "installs a tool and runs for ten minutes",
    ),
    (
        "deploy/compose/README.md",
        "docker compose up",
        "needs Docker; tests/e2e/compose.rs plays the file",
    ),
    (
        "deploy/compose/README.md",
        "docker compose exec sentinel-1",
        "needs Docker; tests/e2e/compose.rs fails over",
    ),
    ("docs/override.md", "redis-cli -h", "needs a cluster; tests/e2e/follow.rs does the same"),
    ("docs/override.md", "for pod in", "needs a fleet of pods and hosts"),
    ("deploy/image/README.md", "docker run --detach", "needs Docker and a registry"),
    ("deploy/image/README.md", "docker exec pointsman", "needs Docker and a registry"),
    ("deploy/image/README.md", "docker run --rm", "needs Docker and a registry"),
    ("deploy/image/README.md", "cosign verify", "needs a release in a registry"),
    ("docs/migrating-from-haproxy.md", "kubectl get configmap", "needs a cluster"),
    (
        "deploy/helm/from-redis-ha.md",
        "helm install shop-pointsman",
        "played by `cargo xtask deploy-check`",
    ),
    (
        "deploy/helm/from-redis-ha.md",
        "kubectl rollout status",
        "played by `cargo xtask deploy-check`",
    ),
    ("deploy/helm/from-redis-ha.md", "helm upgrade shop", "played by `cargo xtask deploy-check`"),
    ("deploy/helm/from-redis-ha.md", "helm upgrade shop", "played by `cargo xtask deploy-check`"),
    ("deploy/nomad/README.md", "nomad var put", "needs a Nomad cluster"),
    ("docs/quickstart.md", "skopeo copy oci-archive:", "needs Docker and a release"),
    ("docs/quickstart.md", "skopeo copy oci-archive:", "needs a registry, a cluster and a release"),
    (
        "docs/quickstart.md",
        "apt install ./pointsman",
        "needs a machine of its own; `cargo xtask dist` does it",
    ),
    ("docs/upgrade.md", "helm upgrade", "needs a cluster and a release"),
    ("docs/upgrade.md", "apt install", "needs a machine of its own and a release"),
    ("docs/upgrade.md", "curl --silent", "needs a running process"),
    (
        "deploy/systemd/cutover.md",
        "pointsman check",
        "needs systemd; tests/e2e/cutover.rs plays the page",
    ),
    (
        "deploy/systemd/cutover.md",
        "systemctl daemon-reload",
        "needs systemd; tests/e2e/cutover.rs plays the page",
    ),
    (
        "deploy/systemd/cutover.md",
        "systemctl start pointsman",
        "needs systemd; tests/e2e/cutover.rs plays the page",
    ),
    (
        "deploy/systemd/cutover.md",
        "mkdir -p /run/systemd",
        "needs systemd; tests/e2e/cutover.rs plays the page",
    ),
    (
        "deploy/systemd/cutover.md",
        "systemctl stop haproxy",
        "needs systemd; tests/e2e/cutover.rs plays the page",
    ),
    (
        "deploy/systemd/cutover.md",
        "systemctl enable haproxy",
        "needs systemd; tests/e2e/cutover.rs plays the page",
    ),
];

/// A fenced block: the words after its fence, and its text.
pub(crate) struct Block {
    pub(crate) document: String,
    pub(crate) info: String,
    pub(crate) text: String,
}

pub(crate) fn blocks() -> Vec<Block> {
    let mut found = Vec::new();
    for document in documents() {
        let text = read(&document);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(info) = line.strip_prefix("```") {
                let text: String = lines
                    .by_ref()
                    .take_while(|it| *it != "```")
                    .map(|it| format!("{it}\n"))
                    .collect();
                found.push(Block { document: document.clone(), info: info.to_owned(), text });
            }
        }
    }
    found
}

/// A document without its fenced blocks.
pub(crate) fn outside_of_blocks(text: &str) -> String {
    let mut inside = false;
    let outside = text.lines().filter(|line| {
        let fence = line.starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    outside.map(|line| format!("{line}\n")).collect()
}

#[test]
fn labels_every_block() {
    let known = ["sh", "sh ignore", "text", "toml", "yaml", "hcl", "ini"];
    let odd = blocks().into_iter().filter(|block| !known.contains(&block.info.as_str()));
    fail_on(
        "blocks",
        &odd.map(|block| format!("{}: ```{}", block.document, block.info)).collect::<Vec<_>>(),
    );
}

#[test]
fn gives_a_reason_for_every_ignored_block() {
    let marked = blocks().into_iter().filter(|block| block.info.ends_with("ignore"));
    let mut left: Vec<_> = IGNORED.iter().collect();
    for Block { document, text, .. } in marked {
        let at =
            left.iter().position(|(file, first, _)| *file == document && text.starts_with(first));
        left.remove(
            at.unwrap_or_else(|| panic!("{document}: no reason is listed for ignoring:\n{text}")),
        );
    }
    assert!(left.is_empty(), "listed, but not there: {left:?}");
    assert!(IGNORED.iter().all(|(_, _, reason)| reason.len() > 10));
}

/// Runs the program with a text on its standard input.
pub(crate) fn pointsman(args: &[&str], env: &[(String, String)], input: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(args).env_clear().envs(env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("pointsman starts");
    // A program that exits at once, for example with its help, does not read.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    child.wait_with_output().expect("pointsman ends")
}

/// Replaces what an example presupposes: files with passwords or certificates, and variables.
fn furnished(text: &str, folder: &Path) -> (String, Vec<(String, String)>) {
    let secret = folder.join("secret");
    fs::write(&secret, "sixteen characters and more").expect("a file");
    let authority = harness::Authority::new("CA of the examples");
    let pair = authority.issue(&["redis.example"]).write(folder);
    let pem = [
        ("certificate_file", pair.chain),
        ("key_file", pair.key),
        ("ca_file", authority.write(folder, "ca.crt")),
    ];
    let mut env = Vec::new();
    let line = |line: &str| {
        let (key, rest) = line.split_once('=').unwrap_or((line, ""));
        let single = key.trim().strip_suffix('s').unwrap_or(key.trim());
        if let Some((_, path)) = pem.iter().find(|(name, _)| single.ends_with(name)) {
            let path = path.display().to_string();
            let is_list = key.trim().ends_with('s');
            return if is_list {
                format!("{key}= [{path:?}]\n")
            } else {
                format!("{key}= {path:?}\n")
            };
        }
        let value = rest.split('"').nth(1).unwrap_or_default();
        if key.trim().ends_with("_env") && !line.starts_with('#') {
            env.push((value.to_owned(), "sixteen characters and more".to_owned()));
        }
        if key.trim().ends_with("_file") && !line.starts_with('#') {
            return format!("{key}= {:?}\n", secret.display().to_string());
        }
        format!("{line}\n")
    };
    let text = text.lines().map(line).collect();
    (text, env)
}

#[test]
fn accepts_every_toml_block() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut faults = Vec::new();
    let all: Vec<_> = blocks().into_iter().filter(|block| block.info == "toml").collect();
    assert!(all.len() >= 4, "only {} blocks of TOML", all.len());
    for Block { document, text, .. } in all {
        let (text, env) = furnished(&text, folder.path());
        let output = pointsman(&["check", "--config", "-"], &env, &text);
        if !output.status.success() {
            faults
                .push(format!("{document}:\n{text}\n{}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    fail_on("configurations", &faults);
}

#[test]
fn parses_every_yaml_block() {
    let mut count = 0;
    for Block { document, text, .. } in blocks().into_iter().filter(|block| block.info == "yaml") {
        count += 1;
        for event in Parser::new_from_str(&text) {
            assert!(event.is_ok(), "{document}: {event:?}\n{text}");
        }
    }
    assert!(count >= 4, "only {count} blocks of YAML");
    assert!(
        Parser::new_from_str("a: [b\nc: d").any(|event| event.is_err()),
        "the parser finds no fault"
    );
}

/// The commands of shell blocks as words, without shell syntax.
fn commands() -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for Block { document, text, .. } in blocks().into_iter().filter(|block| block.info == "sh") {
        for line in text.replace("\\\n", " ").lines() {
            let line =
                line.split(" #").next().unwrap_or_default().split('>').next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let set = words.iter().take_while(|word| word.contains('=')).count();
            if words.len() > set {
                found.push((document.clone(), words[set..].to_vec()));
            }
        }
    }
    found
}

/// A command line of pointsman is parsed up to the `--help` at its end; an unknown flag or command
/// fails before. A configuration is checked.
fn parsed(words: &[String]) -> Output {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["run", rest @ ..] | ["config", rest @ ..] if !rest.contains(&"--config") => {
            pointsman(&[&["check"], rest].concat(), &[], "")
        }
        _ => pointsman(&[words.as_slice(), &["--help"]].concat(), &[], ""),
    }
}

#[test]
fn accepts_every_command_line() {
    let mut faults = Vec::new();
    let mut count = 0;
    for (document, words) in commands().into_iter().filter(|(_, words)| words[0] == "pointsman") {
        count += 1;
        let output = parsed(&words[1..]);
        if !output.status.success() {
            faults.push(format!(
                "{document}: {}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
    assert!(count >= 15, "only {count} command lines");
    fail_on("command lines", &faults);
    for wrong in ["run --no-such-flag", "run --sentinel a:b:c", "switchover --force", "conjure"] {
        let words: Vec<_> = wrong.split(' ').map(str::to_owned).collect();
        assert!(!parsed(&words).status.success(), "accepted: {wrong}");
    }
}

/// The commands that create a configuration run in a shell, in the order of the documents, in one
/// folder.
#[test]
fn runs_commands_that_make_a_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = Path::new(PROGRAM).parent().expect("a folder of the program");
    let mut count = 0;
    for Block { document, text, .. } in blocks().into_iter().filter(|block| block.info == "sh") {
        for line in text
            .lines()
            .filter(|it| it.starts_with("pointsman config ") || it.starts_with("pointsman check "))
        {
            count += 1;
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", line]).current_dir(folder.path()).env_clear().env("PATH", path);
            let output = shell.output().expect("a shell");
            assert!(
                output.status.success(),
                "{document}: {line}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(count >= 5, "only {count} commands");
}

/// The arguments of a container are a command line, too.
#[test]
fn accepts_commands_in_yaml_blocks() {
    let mut count = 0;
    for Block { document, text, .. } in blocks().into_iter().filter(|block| block.info == "yaml") {
        for line in text.lines().filter_map(|it| it.trim().strip_prefix("command: ")) {
            count += 1;
            let words: Vec<String> = serde_json::from_str(line).expect("a list of words");
            let output = parsed(&words);
            assert!(
                output.status.success(),
                "{document}: {line}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(count >= 1, "no command was found");
}

/// The variants of an enum in a source, as the commands that clap makes of them.
pub(crate) fn variants(path: &str, name: &str) -> BTreeSet<String> {
    let file = syn::parse_file(&read(path)).expect("Rust");
    let found = file.items.iter().find_map(|item| match item {
        syn::Item::Enum(item) if item.ident == name => Some(item),
        _ => None,
    });
    let found = found.unwrap_or_else(|| panic!("{path} has no enum {name}"));
    found.variants.iter().map(|it| kebab(&it.ident.to_string())).collect()
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Every `cargo xtask COMMAND` in a document, inline or in a block, must exist.
#[test]
fn knows_every_xtask_command() {
    let known = variants("crates/xtask/src/main.rs", "Command");
    let benches = variants("crates/bench/src/lib.rs", "What");
    let mut faults = Vec::new();
    let mut count = 0;
    for document in documents() {
        let text = read(&document);
        for rest in text.split("cargo xtask ").skip(1) {
            let words: Vec<&str> = rest
                .split(['`', '\n', ',', ';', ':', ')'])
                .next()
                .unwrap_or_default()
                .split(' ')
                .collect();
            let (command, next) = (words[0], words.get(1).copied().unwrap_or_default());
            count += 1;
            let bench = next.starts_with(|c: char| c.is_ascii_lowercase()) && command == "bench";
            if !known.contains(command) || (bench && !benches.contains(next)) {
                faults.push(format!("{document}: cargo xtask {command} {next}"));
            }
        }
    }
    assert!(count > 30, "only {count} commands");
    fail_on("commands", &faults);
}

#[test]
fn knows_other_commands_of_shell_blocks() {
    let known = ["pointsman", "cargo"];
    let odd = commands()
        .into_iter()
        .filter(|(_, words)| !known.contains(&words[0].as_str()) && !words[0].contains('='));
    fail_on(
        "commands that no test tries",
        &odd.map(|(document, words)| format!("{document}: {words:?}")).collect::<Vec<_>>(),
    );
}

#[test]
fn extracts_blocks() {
    assert_eq!(outside_of_blocks("a\n```sh\nb\n```\nc\n"), "a\nc\n");
    assert_eq!(kebab("DeployCheck"), "deploy-check");
}
