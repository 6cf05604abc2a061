//! The command line: the real binary, its two output streams and its exit code.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

const PASSWORD: &str = "correct-horse-battery";

/// Runs the binary in an environment with these variables only.
fn pointsman(args: &[&str], env: &[(&str, &str)]) -> Output {
    command(args, env).output().unwrap()
}

fn command(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.args(args).env_clear().envs(env.iter().copied()).stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A temporary file for the duration of the test.
fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[test]
fn prints_each_fault_with_line_and_key() {
    let config = file(
        "[[service]]\nname = \"my master\"\nsentinels = [\"a\"]\nconnect_timeout = 5\n\
         [shutdown]\naccept_mim = \"5s\"\n",
    );
    for command in ["check", "run", "config"] {
        let output = pointsman(&[command, "--config", path(&config)], &[]);
        assert_eq!(output.status.code(), Some(78), "{command}");
        let shown = stderr(&output);
        let lines: Vec<&str> = shown.lines().collect();
        let expected = [
            (":2:8: service.name: ", "cannot be the name of a master"),
            (":4:19: service.connect_timeout: ", "write \"5s\" or \"5ms\""),
            (":6:1: shutdown.accept_mim: ", "did you mean `accept_min`?"),
        ];
        assert_eq!(lines.len(), expected.len() + 1, "{shown}");
        for (line, (target, part)) in lines.iter().zip(expected) {
            assert!(
                line.starts_with(&format!("{}{target}", path(&config))) && line.contains(part),
                "{line}"
            );
        }
        assert_eq!(lines[3], "pointsman: 3 faults in the configuration");
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn accepts_valid_configuration() {
    let config = file("[[service]]\nsentinels = [\"a\"]\n");
    let output = pointsman(&["check", "--config", path(&config)], &[]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert!(
        stdout(&output).starts_with("valid: 1 service (mymaster), configuration "),
        "{}",
        stdout(&output)
    );
    let by_variable = pointsman(&["check"], &[("POINTSMAN_CONFIG", path(&config))]);
    assert_eq!(stdout(&by_variable), stdout(&output));
}

#[test]
fn reports_missing_file_as_fault() {
    let output = pointsman(&["check", "--config", "/nowhere/pointsman.toml"], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(
        stderr(&output).starts_with("--config: \"/nowhere/pointsman.toml\" does not exist; "),
        "{}",
        stderr(&output)
    );
    assert_eq!(
        stderr(&output).lines().count(),
        2,
        "one fault, without missing keys: {}",
        stderr(&output)
    );
}

#[test]
fn refuses_files_that_are_too_large() {
    let large =
        file(&format!("[[service]]\nsentinels = [\"a\"]\n{}", "# comment\n".repeat(110_000)));
    let output = pointsman(&["check", "--config", path(&large)], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("it is larger than 1048576 bytes"), "{}", stderr(&output));
    let secret = file(&"x".repeat(64 * 1024 + 1));
    let config = file(&format!(
        "[[service]]\nsentinels = [\"a\"]\n[service.auth]\npassword_file = \"{}\"\n",
        path(&secret)
    ));
    let output = pointsman(&["check", "--config", path(&config)], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(
        stderr(&output).contains(":4:1: service.auth.password_file: ")
            && stderr(&output).contains("65536 bytes")
    );
}

/// A supervisor that stops at this code would restart it for ever otherwise.
#[test]
fn exits_with_78_on_takeover_without_folder() {
    let config = file("[[service]]\nsentinels = [\"127.0.0.1:1\"]\nlisten = [\"127.0.0.1:0\"]\n");
    let output = pointsman(&["run", "--takeover", "--config", path(&config)], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("process.state_dir"), "{}", stderr(&output));
}

#[test]
fn exits_with_64_on_invalid_command_line() {
    for args in
        [&["run", "--nonsense"][..], &["dance"], &[], &["completions"], &["run", "--password", "x"]]
    {
        let output = pointsman(args, &[]);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(stderr(&output).contains("Usage"), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn says_what_was_meant_on_frequent_mistakes() {
    let (toml, cfg) = (file(""), file("global\n  maxconn 9\n\nfrontend redis\n  bind :6379\n"));
    let (toml, cfg) = (path(&toml), path(&cfg));
    let config = format!("tip: for a configuration file, use '--config {toml}'");
    let version = "tip: for the version, use 'pointsman --version'";
    for (args, tip) in [
        (&["check", toml][..], config.as_str()),
        (&["run", toml], &config),
        (&["-v"], version),
        (&["version"], version),
    ] {
        let output = pointsman(args, &[]);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(stderr(&output).contains(tip), "{args:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).matches("tip:").count(), 1, "{}", stderr(&output));
    }
    let output = pointsman(&["status", toml], &[]);
    let file = format!("is a file, and no service; for a configuration file, use --config {toml}");
    assert!(stderr(&output).contains(&file), "{}", stderr(&output));
    let output = pointsman(&["check", "--config", cfg], &[]);
    assert_eq!(output.status.code(), Some(78));
    let fault = format!(
        "{cfg}:1:1: syntax: this is the configuration of haproxy, and not TOML; convert it: \
         pointsman import haproxy {cfg} > pointsman.toml\n\
         pointsman: 1 fault in the configuration\n"
    );
    assert_eq!(stderr(&output), fault);
}

#[test]
fn prints_help_and_version_to_stdout() {
    let help = pointsman(&["--help"], &[]);
    assert_eq!((help.status.code(), stderr(&help).as_str()), (Some(0), ""));
    for part in
        ["Examples:", "Exit codes:", "run", "check", "config", "status", "completions", "man"]
    {
        assert!(stdout(&help).contains(part), "{part}");
    }
    let version = pointsman(&["--version"], &[]);
    assert_eq!(
        (version.status.code(), stdout(&version)),
        (Some(0), format!("pointsman {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn accepts_its_own_printed_configuration() {
    let config = file(
        "[[service]]\nname = \"a\"\nsentinels = [\"s1\", \"[::1]\"]\n\
         address_map = { \"10.0.0.1:6379\" = \"h:1\" }\n[service.timers]\npoll = \"2s\"\n\
         [[service]]\nname = \"b\"\nsentinels = [\"s1\"]\nlisten = [\"127.0.0.1:6380\"]\n",
    );
    let first = pointsman(
        &["config", "--config", path(&config), "--service", "b", "--listen", "127.0.0.1:7"],
        &[],
    );
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let again = file(&stdout(&first));
    let checked = pointsman(&["check", "--config", path(&again)], &[]);
    assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
    let original = pointsman(
        &["check", "--config", path(&config), "--service", "b", "--listen", "127.0.0.1:7"],
        &[],
    );
    assert_eq!(stdout(&checked), stdout(&original));

    let mut child = command(&["check", "--config", "-"], &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&first.stdout).unwrap();
    assert_eq!(stdout(&child.wait_with_output().unwrap()), stdout(&original));
}

#[test]
fn prints_default_and_origin_of_every_key() {
    let config = file("[[service]]\nsentinels = [\"a\"]\nhold_timeout = \"7s\"\n");
    let env = [("POINTSMAN_LOG_LEVEL", "debug"), ("POINTSMAN_HOLD_TIMEOUT", "8s")];
    let args = ["config", "--config", path(&config), "--set", "service.hold_timeout=9s"];
    let shown = stdout(&pointsman(&args, &env)).replace("\n# ", " ");
    for part in [
        "[default \"10s\"; set by flag --set; POINTSMAN_HOLD_TIMEOUT; changed by a reload]\nhold_timeout = \"9s\"",
        "[default \"info\"; set by environment POINTSMAN_LOG_LEVEL; POINTSMAN_LOG_LEVEL; changed by a reload]\nlevel = \"debug\"",
        &format!(
            "[no default; set by {}:2; POINTSMAN_SENTINEL; changed by a reload]\nsentinels = [\"a:26379\"]",
            path(&config)
        ),
        "[default \"5s\"; not changed; POINTSMAN_SHUTDOWN_ACCEPT_MIN; changed by a reload]\naccept_min = \"5s\"",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let by_env = stdout(&pointsman(&["config", "--config", path(&config)], &env));
    assert!(by_env.contains("\nhold_timeout = \"8s\"\n"), "the environment comes before the file");
}

#[test]
fn ignores_kubernetes_variables_and_names_typos() {
    let injected = [
        ("POINTSMAN_SENTINEL", "a"),
        ("POINTSMAN_SERVICE_HOST", "10.96.0.7"),
        ("POINTSMAN_SERVICE_PORT", "6379"),
        ("POINTSMAN_SERVICE_PORT_REDIS", "6379"),
        ("POINTSMAN_PORT", "tcp://10.96.0.7:6379"),
        ("POINTSMAN_PORT_6379_TCP", "tcp://10.96.0.7:6379"),
        ("POINTSMAN_PORT_6379_TCP_PORT", "6379"),
    ];
    let output = pointsman(&["check"], &injected);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let output = pointsman(&["check"], &[("POINTSMAN_SENTINEL", "a"), ("POINTSMAN_LISTENN", "x")]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("warning: POINTSMAN_LISTENN")
            && stderr(&output).contains("`POINTSMAN_LISTEN`")
    );
}

#[test]
fn never_prints_passwords() {
    let secret = file(&format!("{PASSWORD}\n"));
    let good = file(&format!(
        "[[service]]\nsentinels = [\"127.0.0.1:1\"]\n\
         [service.auth]\nusername = \"u\"\npassword = \"{PASSWORD}\"\n\
         [service.sentinel_auth]\npassword_file = \"{}\"\n",
        path(&secret)
    ));
    let faulty = file(&format!(
        "[[service]]\npasword = \"{PASSWORD}\"\n\
         [service.auth]\npassword = {PASSWORD}\npassword_env = \"{PASSWORD}\"\n"
    ));
    let unclosed =
        file(&format!("[[service]]\n[service.auth]\npassword = \"{PASSWORD}\nusername = \"u\"\n"));
    for config in [&good, &faulty, &unclosed] {
        for command in ["check", "config"] {
            let output = pointsman(
                &[command, "--config", path(config)],
                &[("POINTSMAN_AUTH_PASSWORD", PASSWORD)],
            );
            let shown = stdout(&output) + &stderr(&output);
            assert!(!shown.contains(PASSWORD), "{command}: {shown}");
            assert!(!shown.is_empty());
        }
    }
    let shown = stdout(&pointsman(&["config", "--config", path(&good)], &[]));
    assert!(shown.contains("password = \"<hidden>\"") && shown.contains(path(&secret)), "{shown}");
    let refused = pointsman(&["check", "--set", &format!("service.auth.password={PASSWORD}")], &[]);
    assert_eq!(refused.status.code(), Some(78));
    assert!(!stderr(&refused).contains(PASSWORD));
}

/// A password that is typed in the place of something else is not shown.
#[test]
fn repeats_no_refused_argument() {
    let url = format!("redis://:{PASSWORD}@h:1");
    let login = format!("u:{PASSWORD}@h:1");
    let haproxy = file(&format!(
        "listen redis\n bind :6379\n option tcp-check\n tcp-check send PING\\r\\n\n server a {url}\n \
         server b {login} check\n"
    ));
    let flag = format!("--password={PASSWORD}");
    let no_file =
        format!("[[service]]\nsentinels=[\"s\"]\n[service.tls]\ncertificate_files=[\"{url}\"]\n");
    let no_file = file(&no_file);
    let cases: &[&[&str]] = &[
        &["check", &url],
        &["check", PASSWORD],
        &["check", "--sentinel", &url],
        &["run", "--sentinel", &login],
        &["run", "--listen", &url, "--admin", &login],
        &["run", &flag],
        &["config", "--sentinel", "s", "--set", &url],
        &["config", "--sentinel", "s", "--set", &format!("{PASSWORD}=")],
        &["check", "--sentinel", "s", "--set", &format!("service.auth.password_file={PASSWORD}")],
        &["check", "--sentinel", "s", "--set", &format!("service.auth.password_env={PASSWORD}")],
        &["check", "--sentinel", "s", "--set", "service.auth.password_env=correct_horse"],
        &["check", "--config", path(&no_file)],
        &["sentinels", "--config", path(&no_file)],
        &["sentinels", "--sentinel", &url],
        &["sentinels", "--sentinel", "s", "--zone", &url],
        &["status", "--admin", &url],
        &["status", "--admin", &login],
        &["sessions", "--sort", PASSWORD],
        &["follow", "mymaster", &url, "--admin", "127.0.0.1:1"],
        &["import", "haproxy", path(&haproxy)],
        &["import", "haproxy", path(&haproxy), "--explain"],
        &["import", "haproxy", path(&haproxy), "--sentinel", &url],
        &["import", "haproxy", path(&haproxy), "--sentinel", "s", "--name", &url],
        &[&url],
        &[PASSWORD],
    ];
    for args in cases {
        let output = pointsman(args, &[]);
        let shown = stdout(&output) + &stderr(&output);
        assert_ne!(output.status.code(), Some(0), "{args:?}");
        assert!(!shown.contains(PASSWORD) && !shown.contains("correct_horse"), "{args:?}: {shown}");
    }
    let variables = ["POINTSMAN_SENTINEL", "POINTSMAN_LISTEN", "POINTSMAN_AUTH_PASSWORD_FILE"];
    for variable in variables {
        let output = pointsman(&["check"], &[(variable, &login)]);
        assert_eq!(output.status.code(), Some(78), "{variable}");
        assert!(!stderr(&output).contains(PASSWORD), "{variable}: {}", stderr(&output));
    }
}

#[test]
fn status_reports_missing_listener() {
    // The near end of a connection: the port stays in use, but no socket listens on it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let holder = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let addr = holder.local_addr().unwrap().to_string();
    let output = pointsman(&["status", "--admin", &addr], &[]);
    assert_eq!(output.status.code(), Some(1));
    let shown = stderr(&output);
    assert!(
        shown
            .starts_with(&format!("pointsman: no status from {addr}: is pointsman running there?")),
        "{shown}"
    );
    assert_eq!(shown.lines().count(), 1, "{shown}");
}

#[test]
fn status_renders_or_prints_document() {
    const BODY: &str =
        r#"{"phase":"serving","services":[{"name":"mymaster","target":{"addr":"10.0.0.2:6379"}}]}"#;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /status HTTP/1.1\r\n"));
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len())
                .unwrap();
        }
    });
    let json = pointsman(&["status", "--json"], &[("POINTSMAN_ADMIN", addr.as_str())]);
    assert_eq!((json.status.code(), stdout(&json)), (Some(0), format!("{BODY}\n")));
    let shown = stdout(&pointsman(&["status", "--admin", &addr], &[]));
    let document: serde_json::Value = serde_json::from_str(BODY).unwrap();
    assert_eq!(shown, format!("pointsman at {addr}\n{document:#}\n"));
    server.join().unwrap();
}

/// A process that hangs accepts connections, since the kernel does.
#[test]
fn control_says_that_it_waits_for_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut pause = command(&["pause", "--socket", socket.to_str().unwrap()], &[]);
    let mut running = pause.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    let shown = lines.next().unwrap().unwrap();
    assert!(shown.contains("control.sock has not answered for 5 s"), "{shown}");
    let (mut stream, _) = listener.accept().unwrap();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{{\"ok\": true}}").unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert!(lines.next().is_none(), "said once");
}

#[test]
fn control_needs_token_or_socket() {
    let service = "[[service]]\nsentinels = [\"a\"]\n[admin]\ncontrol = true\n";
    let neither = file(service);
    let output = pointsman(&["check", "--config", path(&neither)], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains(":4:1: admin.control: "), "{}", stderr(&output));
    assert!(stderr(&output).contains("control_socket"), "{}", stderr(&output));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let configured = file(&format!("{service}control_socket = {socket:?}\n"));
    assert!(pointsman(&["check", "--config", path(&configured)], &[]).status.success());
    for target in [["--config", path(&configured)], ["--socket", socket.to_str().unwrap()]] {
        let output = pointsman(&[&["resume"][..], &target].concat(), &[]);
        assert_eq!(output.status.code(), Some(1));
        let shown = stderr(&output);
        assert!(shown.contains(socket.to_str().unwrap()) && shown.contains("--socket"), "{shown}");
    }
    // The token of this configuration is not sent to another address.
    let token = file("a-token-for-a-test");
    let lines = format!("listen = [\"127.0.0.1:1\"]\ncontrol_token_file = {:?}\n", path(&token));
    let with_token = file(&format!("{service}{lines}"));
    let elsewhere = ["resume", "--config", path(&with_token), "--admin", "127.0.0.2:1"];
    let output = pointsman(&elsewhere, &[]);
    assert!(stderr(&output).contains("no control token"), "{}", stderr(&output));
    let output = pointsman(&elsewhere[..3], &[]);
    assert!(stderr(&output).contains("no answer from 127.0.0.1:1"), "{}", stderr(&output));
    let both = ["resume", "--socket", "s", "--admin", "127.0.0.1:1"];
    assert_eq!(pointsman(&both, &[]).status.code(), Some(64));
}

#[test]
fn status_watch_ends_with_ctrl_c_or_reader() {
    const BODY: &str = r#"{"phase":"serving","services":[]}"#;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    // Ends with the process of this test.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
        }
    });
    let watch = |more: &[&str]| {
        // A shell ignores SIGINT in background jobs, and child processes inherit that.
        let program = ["--default-signal=INT", env!("CARGO_BIN_EXE_pointsman")];
        let args = [&program, &["status", "--watch", "--admin", &addr][..], more].concat();
        let mut watching = Command::new("env");
        watching.args(args).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        watching.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = watching.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    };
    let (mut child, mut lines) = watch(&["--json"]);
    assert_eq!(
        (lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()),
        (BODY.to_owned(), BODY.to_owned())
    );
    let interrupted =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success() && !child.wait().unwrap().success());

    let (mut child, mut lines) = watch(&[]);
    let shown: Vec<String> = lines.by_ref().take(12).map(Result::unwrap).collect();
    let document: serde_json::Value = serde_json::from_str(BODY).unwrap();
    let once = format!("pointsman at {addr}\n{document:#}\n\n");
    let twice: Vec<&str> = once.lines().chain(once.lines()).collect();
    assert_eq!(shown, twice, "no escapes in a pipe");
    drop(lines);
    assert!(child.wait().unwrap().success(), "the reader has gone");
}

#[test]
fn generates_completions_and_manual_page() {
    for (shell, part) in [("bash", "--sentinel"), ("zsh", "--sentinel"), ("fish", "-l sentinel")] {
        let output = pointsman(&["completions", shell], &[]);
        assert!(output.status.success() && stdout(&output).contains(part), "{shell}");
    }
    let page = stdout(&pointsman(&["man"], &[]));
    for part in [
        ".TH pointsman 1",
        "pointsman_master_switches_total",
        "haproxy_server_status",
        "drain_timeout",
        "POINTSMAN_SHUTDOWN_DRAIN_TIMEOUT",
        "[[service]]",
        "Exit codes",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn ignores_closed_output_pipe() {
    let mut child =
        command(&["man"], &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Closed before the program writes: its write then meets a pipe without a reader.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn refuses_connections_beyond_open_file_limit() {
    let run = |setting: &str| {
        let mut shell = Command::new("sh");
        let script = format!(
            "ulimit -n 1000; exec {} run --sentinel 127.0.0.1:1 --listen 127.0.0.1:0 \
             --admin 127.0.0.1:0 --set {setting}",
            env!("CARGO_BIN_EXE_pointsman")
        );
        shell.args(["-c", &script]).stdin(Stdio::null()).output().unwrap()
    };
    for setting in ["process.max_connections=5000", "service.max_connections=5000"] {
        let output = run(setting);
        assert_eq!(output.status.code(), Some(78), "{setting}: {}", stderr(&output));
        let shown = stderr(&output);
        let parts = [
            "open files are needed for 5000 connections",
            "the limit is 1000",
            "LimitNOFILE",
            "lower max_connections to",
        ];
        assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
    }
}

#[test]
fn schema_matches_published_file() {
    let output = pointsman(&["status", "--schema"], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let kept =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/status.schema.json"))
            .unwrap();
    let rewrite = "rewrite it: cargo run -- status --schema > deploy/status.schema.json";
    assert!(
        stdout(&output) == kept,
        "deploy/status.schema.json differs from the program's schema; {rewrite}"
    );
    let schema: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let number = schema["properties"]["schema"]["const"].as_u64().unwrap();
    assert_eq!(schema["title"], format!("pointsman status, schema {number}"));
    // Every field of the schema has a description.
    let defs = schema["$defs"].as_object().unwrap().values();
    let all = defs.chain([&schema]).flat_map(|part| part["properties"].as_object().unwrap());
    let undocumented: Vec<_> = all
        .filter(|(_, field)| field["description"].as_str().is_none_or(|it| it.len() < 9))
        .collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}
