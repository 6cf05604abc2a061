//! Tests of the whole configuration: faults, precedence, printing, secrets.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::connection_limits::DEFAULT_CONNECTIONS;
use super::load::assemble;
use super::*;

const GOOD: &str = "[[service]]\nsentinels = [\"s1\"]\n";

fn files(path: &Path, _: u64) -> io::Result<Secret> {
    match path.to_str() {
        Some("/good") => Ok(Secret::new("hunter2\r\n".to_owned())),
        Some("/empty") => Ok(Secret::new("\n".to_owned())),
        Some("/long") => Ok(Secret::new("a\nb\n".to_owned())),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}

fn with(text: &str, env: &[(&str, &str)], flags: &Flags) -> Loaded {
    let vars: Vec<(OsString, OsString)> =
        env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    assemble((!text.is_empty()).then_some(("f", text)), &vars, flags, &files)
}

fn faults(text: &str) -> Vec<String> {
    match with(text, &[], &Flags::default()).config() {
        Ok(_) => Vec::new(),
        Err(faults) => faults.to_string().lines().map(str::to_owned).collect(),
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn configures_one_service_by_flags_alone() {
    let flags = Flags { sentinels: strings(&["a", "[::1]:5"]), ..Flags::default() };
    let config = with("", &[], &flags).config().unwrap();
    let [service] = config.services.as_slice() else { panic!("{config:?}") };
    assert_eq!(service.name, "mymaster");
    assert_eq!(service.listen, ["0.0.0.0:6379".parse::<SocketAddr>().unwrap().into()]);
    assert_eq!(
        service.sentinels.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["a:26379", "[::1]:5"]
    );
    assert_eq!(service.timers.poll, Duration::from_secs(1));
    assert_eq!(service.verify, sentinel::Verify::Role);
    assert!(
        service.learn_sentinels
            && config.log.level == tracing::Level::INFO
            && config.warnings.is_empty()
    );
    assert_eq!(config.admin.listen, ["127.0.0.1:8888".parse::<SocketAddr>().unwrap()]);
    assert_eq!(config.connections(usize::MAX).services, [DEFAULT_CONNECTIONS]);
}

#[test]
fn reports_the_position_of_every_fault() {
    let text = "[[service]]\nname = \"my master\"\nlisten = [\"localhost:1\", \"0.0.0.0:2\"]\nconnect_timeout = 5\n\
                sentinel = [\"a\"]\n[shutdown]\naccept_min = \"20s\"\n[log]\nformat = \"jsno\"\nlisten = 3\n";
    let got = faults(text);
    let expected = [
        ("f:1:1: service.sentinels: ", "--sentinel"),
        ("f:2:8: service.name: ", "cannot be the name"),
        ("f:3:11: service.listen: ", "127.0.0.1:1"),
        ("f:4:19: service.connect_timeout: ", "write \"5s\" or \"5ms\""),
        ("f:5:1: service.sentinel: ", "did you mean `sentinels`?"),
        ("f:7:1: shutdown.accept_min: ", "keep shutdown.accept_min <= shutdown.accept_max"),
        ("f:9:10: log.format: ", "did you mean `json`?"),
        ("f:10:1: log.listen: ", "it belongs in [[service]]"),
    ];
    assert_eq!(got.len(), expected.len(), "{got:#?}");
    for (line, (start, part)) in got.iter().zip(expected) {
        assert!(line.starts_with(start) && line.contains(part), "{line}");
    }
}

/// Files with a fault between values: the text, the position, and a part of the message.
const BETWEEN_VALUES: [(&str, &str, &str); 19] = [
    ("[[service]]\nsentinels = []\n", "f:2:1: service.sentinels", "empty"),
    ("[[service]]\nsentinels=[\"a\"]\nlisten=[]\n", "f:3:1: service.listen", "empty"),
    (
        "[[service]]\nsentinels=[\"a\"]\nhalf_close_timeout=\"60s\"\n",
        "f:3:1: service.half_close",
        "less than",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\nlisten=[\"0.0.0.0:8888\"]\n",
        "f:3:1: admin.listen",
        "service.listen",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\nlisten=[\"[::]:1\",\"[::1]:1\"]\n",
        "f:3:1: service.listen",
        "already used",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\n[service.auth]\nusername=\"u\"\n",
        "f:4:1: service.auth.username",
        "without",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\n[service.auth]\npassword_file=\"/none\"\n",
        "f:4:1: service.auth.pass",
        "does not exist",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\n[service.auth]\npassword_file=\"/empty\"\n",
        "f:4:1: service.auth.pass",
        "empty",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\n[service.auth]\npassword_file=\"/long\"\n",
        "f:4:1: service.auth.pass",
        "one line",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\n[service.auth]\npassword_env=\"NONE\"\n",
        "f:4:1: service.auth.pass",
        "is not set",
    ),
    ("[[service]]\nsentinels=[\"a\"]\nconnect_timeout=\"0s\"\n", "f:3:17: service.connect", "zero"),
    (
        "[[service]]\nsentinels=[\"a\"]\n[shutdown]\naccept_max=\"4s\"\n",
        "f:4:1: shutdown.accept_max",
        "below",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\n[shutdown]\ndrain_spread=\"1m\"\n",
        "f:4:1: shutdown.drain_spread",
        "above",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\nmax_connections=9\n[process]\nmax_connections=8\n",
        "f:5:1: process.max",
        "raise",
    ),
    (
        "[[service]]\nsentinels=[\"a\"]\nmax_connections=9\nsentinel_listen=[\"[::]:1\"]\n[process]\nmax_connections=17\n",
        "f:6:1: process.max",
        "(18 configured",
    ),
    ("[service]\nsentinels=[\"a\"]\n", "f:1:2: service", "[[service]]"),
    ("service = 3\n", "f:1:11: service", "[[service]]"),
    ("admin = 3\n[[service]]\nsentinels=[\"a\"]\n", "f:1:9: admin", "[admin]"),
    ("[amdin]\n[[service]]\nsentinels=[\"a\"]\n", "f:1:2: amdin", "`admin`"),
];

#[test]
fn reports_faults_between_values() {
    for (text, place, part) in BETWEEN_VALUES {
        let got = faults(text);
        assert!(
            got.iter().any(|line| line.starts_with(place) && line.contains(part)),
            "{text}{got:#?}"
        );
    }
    let twice = faults(
        "[[service]]\nsentinels=[\"a\"]\nlisten=[\"0.0.0.0:1\"]\n[[service]]\nsentinels=[\"a\"]\nlisten=[\"0.0.0.0:1\"]\n",
    );
    assert_eq!(twice.len(), 2, "{twice:#?}");
    assert!(
        twice[0].starts_with("f:4:1: service.name")
            && twice[1].starts_with("f:6:1: service.listen"),
        "{twice:#?}"
    );
    let both = faults(
        "[[service]]\nsentinels=[\"a\"]\n[service.auth]\npassword=\"x\"\npassword_file=\"/good\"\n",
    );
    assert!(
        both.len() == 1 && both[0].starts_with("f:5:1: service.auth.password_file"),
        "{both:#?}"
    );
    assert!(faults("").len() == 1, "a configuration without services is a fault");
}

#[test]
fn accepts_both_families_on_one_port_and_port_zero() {
    assert_eq!(
        faults(
            "[[service]]\nsentinels=[\"a\"]\nlisten=[\"0.0.0.0:1\",\"[::]:1\",\"1.1.1.1:0\",\"1.1.1.1:0\"]\n"
        ),
        [""; 0]
    );
}

/// Messages that once gave wrong advice.
#[test]
fn gives_advice_that_fits_the_fault() {
    let service = |line: &str| format!("[[service]]\nsentinels = [\"a\"]\n{line}\n");
    for (text, expected) in [
        (
            "[[service]\nsentinels = [\"a\"]\n".to_owned(),
            "f:1:11: syntax: the section header is not closed; write [[service]]",
        ),
        (
            format!("{GOOD}[admin\n"),
            "f:3:7: syntax: the section header is not closed; write [admin]",
        ),
        (
            service("name: a"),
            "f:3:5: syntax: a key is followed by `=`, not by `:`; write KEY = VALUE",
        ),
        (service("name a"), "f:3:6: syntax: key with no value, expected `=`; write KEY = VALUE"),
        (
            service("verify = \"none\""),
            "f:3:10: service.verify: it is unknown; give one of \"role\", \"ping\", \"tcp\"",
        ),
        (
            service("moving_to = \"nowhere\""),
            "f:3:13: service.moving_to: it has no port; write for example \"redis.example:6379\" or \
             \"[fd00::1]:6379\"",
        ),
        (
            service("moving_to = 6379"),
            "f:3:13: service.moving_to: expected a string such as \"redis.example:6379\", found an \
             integer; put it in double quotes",
        ),
        (
            "[[service]]\nsentinels = [1]\n".to_owned(),
            "f:2:14: service.sentinels: expected a string in the list, found an integer; put it in \
             double quotes",
        ),
        (
            "[[service]]\nsentinels = [[\"a\"]]\n".to_owned(),
            "f:2:14: service.sentinels: expected a string in the list, found a list; put it in \
             double quotes",
        ),
        (
            service("address_map = { a = 1 }"),
            "f:3:21: service.address_map: expected \"host:port\", found an integer; quote both \
             sides: \"10.0.0.1:6379\" = \"203.0.113.1:6379\"",
        ),
        (
            service("learn_sentinels = 1.5"),
            "f:3:19: service.learn_sentinels: expected true or false, found a floating-point \
             number; write true or false",
        ),
    ] {
        assert_eq!(faults(&text), [expected], "{text}");
    }
}

#[test]
fn explains_why_the_file_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let shown = |name: &str| {
        let flags = Flags { config: Some(folder.path().join(name)), ..Flags::default() };
        let shown = load(&flags, []).config().unwrap_err().to_string();
        shown.replace(&format!("{}/", folder.path().display()), "")
    };
    std::fs::write(folder.path().join("latin1"), b"# caf\xe9\n").unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(shown("latin1"), "--config: \"latin1\" is not UTF-8 text; save the file as UTF-8");
    assert_eq!(
        shown("missing"),
        "--config: \"missing\" does not exist; correct the path, or create the file"
    );
    assert_eq!(
        shown("folder"),
        "--config: \"folder\" cannot be read: it is a directory; only regular files are read; give the \
         path of a file"
    );
}

#[test]
fn reports_the_first_syntax_error_alone() {
    let first = |text: &str, start: &str| {
        let got = faults(text);
        assert!(got.len() == 1 && got[0].starts_with(start), "{got:#?}");
    };
    first(
        "[[service]]\nname = mymaster\nsentinels = [\"a\"]\nname = \"b\"\nlisten = [\"x\"]\n",
        "f:2:8: syntax: ",
    );
    first(
        "[log]\nlevel = \"x\"\n[[service]]\nsentinels = [\"a\"\nlisten = [\"y\"]\n[admin]\nmax_connections = 0\n",
        "f:5:1: syntax: ",
    );
}

#[test]
fn prefers_flags_to_environment_to_file_to_default() {
    let text = "[[service]]\nsentinels = [\"file\"]\nconnect_timeout = \"2s\"\nhold_timeout = \"2s\"\n[shutdown]\naccept_min = \"2s\"\n";
    let env = [
        ("POINTSMAN_SENTINEL", "env1,env2:1"),
        ("POINTSMAN_CONNECT_TIMEOUT", "3s"),
        ("POINTSMAN_SHUTDOWN_ACCEPT_MIN", "3s"),
        ("POINTSMAN_LOG_LEVEL", "debug"),
        ("POINTSMAN_PROCESS_WORKERS", ""),
    ];
    let flags = Flags { set: strings(&["service.connect_timeout=4s"]), ..Flags::default() };
    let loaded = with(text, &env, &flags);
    let config = loaded.config().unwrap();
    let service = &config.services[0];
    assert_eq!(service.connect_timeout, Duration::from_secs(4));
    assert_eq!(service.hold_timeout, Duration::from_secs(2));
    assert_eq!(config.shutdown.accept_min, Duration::from_secs(3));
    assert_eq!((service.sentinels.len(), config.log.level), (2, tracing::Level::DEBUG));
    let origin =
        |path: &str| loaded.settings.services[0].settings.get(path).unwrap().origin.to_string();
    assert_eq!(origin("service.connect_timeout"), "flag --set");
    assert_eq!(origin("service.sentinels"), "environment POINTSMAN_SENTINEL");
    assert_eq!(origin("service.hold_timeout"), "f:4");
    assert_eq!(origin("service.minority"), "default");
}

/// The image opens the admin server by a default of its own, which everything else overrides.
#[test]
fn opens_the_admin_server_only_if_it_is_set() {
    let admin = |text: &str, env: &[(&str, &str)]| {
        let config = with(text, env, &Flags::default()).config().unwrap();
        config.admin.listen.first().unwrap().to_string()
    };
    let image = ("POINTSMAN_DEFAULT_ADMIN", "0.0.0.0:8888");
    let file = format!("{GOOD}[admin]\nlisten=[\"127.0.0.1:9\"]\n");
    assert_eq!(admin(GOOD, &[]), "127.0.0.1:8888");
    assert_eq!(admin(GOOD, &[image]), "0.0.0.0:8888");
    assert_eq!(admin(&file, &[image]), "127.0.0.1:9");
    assert_eq!(admin(&file, &[image, ("POINTSMAN_ADMIN", "[::1]:7")]), "[::1]:7");
    let wrong = with(GOOD, &[("POINTSMAN_DEFAULT_ADMIN", "8888")], &Flags::default());
    assert_eq!(wrong.config().unwrap_err().0.len(), 1);
    let broken = format!("{GOOD}[admin]\nlisten=[\"x\"]\n");
    assert!(with(&broken, &[image], &Flags::default()).config().is_err());
}

#[test]
fn applies_flags_to_the_selected_service() {
    let text = "[[service]]\nname=\"a\"\nsentinels=[\"s\"]\nlisten=[\"0.0.0.0:1\"]\n[[service]]\nname=\"b\"\nsentinels=[\"s\"]\nlisten=[\"0.0.0.0:2\"]\n";
    let given = |service: Option<&str>, listen: &[&str]| {
        with(
            text,
            &[],
            &Flags {
                service: service.map(str::to_owned),
                listen: strings(listen),
                ..Flags::default()
            },
        )
    };
    let config = given(Some("b"), &["0.0.0.0:3"]).config().unwrap();
    assert_eq!(
        config
            .services
            .iter()
            .map(|service| service.listen[0].tcp().unwrap().port())
            .collect::<Vec<_>>(),
        [1, 3]
    );
    let unknown = given(Some("c"), &[]).config().unwrap_err().to_string();
    assert!(unknown.contains("no service is called \"c\"; the file has \"a\", \"b\""), "{unknown}");
    let unclear = given(None, &["0.0.0.0:3"]).config().unwrap_err().to_string();
    assert!(unclear.contains("say which one by --service: \"a\", \"b\""), "{unclear}");
    assert!(given(None, &[]).config().is_ok());
    // A single service with another name is not renamed.
    let one = "[[service]]\nname=\"a\"\nsentinels=[\"s\"]\n";
    assert!(with(one, &[("POINTSMAN_SERVICE", "z")], &Flags::default()).config().is_err());
    assert!(with(one, &[("POINTSMAN_SERVICE", "a")], &Flags::default()).config().is_ok());
}

#[test]
fn reports_faults_with_their_variable_or_flag() {
    let flags = Flags {
        sentinels: strings(&["a:0", "b:x"]),
        set: strings(&[
            "log.levle=debug",
            "service.auth.password=hunter2",
            "hunter2",
            "log.level=loud",
        ]),
        ..Flags::default()
    };
    let loaded = with(GOOD, &[("POINTSMAN_HOLD_TIMEOUT", "5")], &flags);
    let shown = loaded.config().unwrap_err().to_string();
    for part in [
        "POINTSMAN_HOLD_TIMEOUT: service.hold_timeout: it has no unit; write \"5s\"",
        "--sentinel: service.sentinels: element 1: the port is not a number from 1 to 65535",
        "--set: log.levle: unknown key; did you mean `log.level`?",
        "--set: service.auth.password: a password cannot be given by a flag",
        "--set: log.level: it is unknown",
        "--set: the value is missing; write --set KEY=VALUE",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(shown.lines().count(), 6, "{shown}");
}

#[test]
fn replaces_a_password_by_that_of_a_higher_layer() {
    let text = "[[service]]\nsentinels=[\"s\"]\n[service.auth]\nusername=\"u\"\npassword_file=\"/good\"\n\
                [service.sentinel_auth]\npassword_env=\"POINTSMAN_PW\"\n";
    let loaded = with(text, &[("POINTSMAN_PW", "other-secret")], &Flags::default());
    let service = loaded.config().unwrap().services.remove(0);
    assert_eq!(service.auth.password.unwrap().reveal(), "hunter2");
    assert_eq!(service.sentinel_auth.password.unwrap().reveal(), "other-secret");
    assert!(loaded.warnings.is_empty(), "a referenced variable is known: {:?}", loaded.warnings);
    let env = [("POINTSMAN_PW", "x"), ("POINTSMAN_AUTH_PASSWORD", "from-env")];
    let service = with(text, &env, &Flags::default()).config().unwrap().services.remove(0);
    assert_eq!(service.auth.password.unwrap().reveal(), "from-env");
}

#[test]
fn shows_no_secret_in_any_output() {
    let text = "[[service]]\nsentinels=[\"s\"]\npasword=\"hunter2\"\nauth=\"hunter2\"\n[service.sentinel_auth]\npassword=\"hunter2\"\npassword_env=\"hunter2 !\"\n";
    for text in [
        text,
        "[[service]]\nsentinels=[\"s\"]\n[service.auth]\npassword=\"hunter2\"\n",
        "password = hunter2\n",
    ] {
        let loaded = with(text, &[("POINTSMAN_AUTH_PASSWORD", "hunter2")], &Flags::default());
        let shown = format!("{loaded:?} {} {:?}", loaded.print(), loaded.config());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

/// Texts that are no value of most keys, with a password in each.
const MISPLACED: [&str; 9] = [
    "redis://:hunter2@h:1",
    "redis://u:hunter2,x@h:1",
    "u:hunter2@h:1",
    "h:hunter2",
    "[hunter2]:1",
    "hunter2!",
    "unix:hunter2@x",
    "10.0.0.1:1=hunter2@h:1",
    "hunter2",
];

/// A value that is refused is never repeated, whatever its key and wherever it was given.
#[test]
fn repeats_no_refused_value() {
    let service = "[[service]]\nsentinels=[\"s\"]\n";
    let mut refused = 0;
    for (section, option) in schema::options() {
        let header = if section.path == "service" { String::new() } else { section.header() };
        let path = section.path_of(option.key);
        for text in MISPLACED {
            let files = ["KEY=\"TEXT\"", "KEY=[\"TEXT\"]", "KEY=TEXT", "KEY={\"TEXT\"=\"TEXT\"}"];
            for file in files {
                let line = file.replace("KEY", option.key).replace("TEXT", text);
                let loaded = with(&format!("{service}{header}\n{line}\n"), &[], &Flags::default());
                let Err(faults) = loaded.config() else { continue };
                refused += 1;
                // The default service is named by that text, which is then a valid one.
                assert!(!faults.to_string().contains("hunter2"), "{line}\n{faults}");
            }
            if path == "service.name" {
                continue;
            }
            let flags = Flags { set: vec![format!("{path}={text}")], ..Flags::default() };
            let variable = section.variable(option.key);
            for loaded in
                [with(GOOD, &[], &flags), with(GOOD, &[(&variable, text)], &Flags::default())]
            {
                let Err(faults) = loaded.config() else { continue };
                refused += 1;
                assert!(!faults.to_string().contains("hunter2"), "{path}\n{faults}");
            }
        }
    }
    assert!(refused > 3000, "{refused}");
}

#[test]
fn repeats_no_refused_key_or_flag() {
    for text in MISPLACED {
        let lines = [
            format!("\"{text}\" = 1"),
            format!("{text} = \"x\""),
            text.to_owned(),
            format!("[{text}]\nx=1"),
            format!("[\"{text}\"]"),
            format!("[service.auth]\n\"{text}\" = 1"),
            format!("password = \"\"\"\n{text}=\nname = "),
            format!("[service.auth]\n{text}=="),
        ];
        for line in lines {
            let shown = faults(&format!("{GOOD}{line}\n")).join("\n");
            assert!(!shown.is_empty() && !shown.contains("hunter2"), "{line}\n{shown}");
        }
        let one = || vec![text.to_owned()];
        let set = ["", "=", "=1"].map(|end| format!("{text}{end}")).to_vec();
        for flags in [
            Flags { sentinels: one(), ..Flags::default() },
            Flags { listen: one(), replica_listen: one(), ..Flags::default() },
            Flags { admin: one(), set, ..Flags::default() },
        ] {
            let loaded = with(GOOD, &[], &flags);
            let shown = loaded.config().map_or_else(|faults| faults.to_string(), |_| String::new());
            assert!(!shown.contains("hunter2"), "{flags:?}\n{shown}");
        }
    }
}

#[test]
fn hashes_values_without_origins_and_passwords() {
    let hash = |text: &str, env: &[(&str, &str)]| {
        with(text, env, &Flags::default()).config().unwrap().hash
    };
    let auth = |password: &str| format!("{GOOD}[service.auth]\npassword=\"{password}\"\n");
    assert_eq!(
        hash(GOOD, &[]),
        hash("[[service]]\nsentinels=[\"x\"]\n", &[("POINTSMAN_SENTINEL", "s1:26379")])
    );
    assert_ne!(hash(GOOD, &[]), hash(GOOD, &[("POINTSMAN_LOG_LEVEL", "debug")]));
    assert_eq!(hash(&auth("a"), &[]), hash(&auth("b"), &[]));
    assert_ne!(hash(&auth("a"), &[]), hash(GOOD, &[]));
    // Instances of different releases are compared by it, so its form is fixed.
    assert_eq!(hash(GOOD, &[]).len(), 16);
}

#[test]
fn divides_the_connection_limit_among_services() {
    let limits = |numbers: &[usize], total: usize| {
        let services: Vec<String> = (0..)
            .zip(numbers)
            .map(|(at, most)| {
                format!(
                    "[[service]]\nname=\"m{at}\"\nsentinels=[\"s\"]\nlisten=[\"0.0.0.0:{}\"]\nmax_connections={most}\n",
                    at + 1
                )
            })
            .collect();
        let text = format!("{}[process]\nmax_connections={total}\n", services.concat());
        with(&text, &[], &Flags::default()).config().unwrap().connections(usize::MAX)
    };
    let shared =
        |services: &[usize], total: usize| ConnectionLimits { services: services.to_vec(), total };
    assert_eq!(limits(&[0, 0], 0), shared(&[DEFAULT_CONNECTIONS; 2], 2 * DEFAULT_CONNECTIONS));
    assert_eq!(limits(&[100, 0, 0], 300), shared(&[100, 100, 100], 300));
    assert_eq!(
        limits(&[20_000, 0], 0),
        shared(&[20_000, DEFAULT_CONNECTIONS], 20_000 + DEFAULT_CONNECTIONS)
    );
    assert_eq!(limits(&[5, 6], 0), shared(&[5, 6], 11));
}

#[test]
fn warns_of_duplicates_and_placeholders() {
    let text =
        "[[service]]\nsentinels=[\"s\",\"s:26379\"]\n[service.auth]\npassword=\"<hidden>\"\n";
    let warnings = with(text, &[], &Flags::default()).config().unwrap().warnings;
    assert!(
        warnings.len() == 2
            && warnings[0].contains("listed twice")
            && warnings[1].contains("placeholder"),
        "{warnings:?}"
    );
}

#[test]
fn warns_of_one_token_for_readers_and_commands() {
    let text =
        format!("{GOOD}[admin]\ncontrol=true\ncontrol_token_env=\"ONE\"\nread_token_env=\"TWO\"\n");
    for (two, count) in [("of sixteen letters", 1), ("of sixteen others", 0)] {
        let env = [("ONE", "of sixteen letters"), ("TWO", two)];
        let warnings = with(&text, &env, &Flags::default()).config().unwrap().warnings;
        assert_eq!(warnings.len(), count, "{warnings:?}");
        assert!(warnings.iter().all(|it| it.contains("read_token_env") && it.contains("commands")));
    }
}

#[test]
fn accepts_equal_bounds() {
    assert_eq!(
        faults(&format!(
            "{GOOD}[shutdown]\naccept_min=\"4s\"\naccept_quiet=\"4s\"\naccept_max=\"4s\"\n"
        )),
        [""; 0]
    );
}

#[test]
fn checks_no_default_in_place_of_an_invalid_value() {
    // The default of accept_min, 5s, exceeds this accept_max, but it is not in the file.
    let got = faults(&format!(
        "{GOOD}[shutdown]\naccept_min=3\naccept_quiet=\"1s\"\naccept_max=\"4s\"\n"
    ));
    assert!(got.len() == 1 && got[0].starts_with("f:4:12: shutdown.accept_min"), "{got:#?}");
}

#[test]
fn prints_file_names_without_control_characters() {
    let read =
        |name: &str, text: &str| assemble(Some((name, text)), &[], &Flags::default(), &files);
    let first = read("a\n[evil]\u{1b}", GOOD);
    let printed = first.print();
    assert!(
        printed.chars().all(|c| c == '\n' || !c.is_control()) && !printed.contains("\n[evil]"),
        "{printed}"
    );
    assert_eq!(read("f", &printed).config().unwrap().hash, first.config().unwrap().hash);
}

/// Independent faults: section, line, and the key under which it is reported.
const FAULTS: [(&str, &str, &str); 16] = [
    ("service", "connect_timeout = 5", "service.connect_timeout"),
    ("service", "hold_timeout = \"soon\"", "service.hold_timeout"),
    ("service", "listen = [\"nowhere\"]", "service.listen"),
    ("service", "verify = \"rolle\"", "service.verify"),
    ("service", "moving_to = \"nowhere\"", "service.moving_to"),
    ("service", "stateless_commands = [\"MULTI\"]", "service.stateless_commands"),
    ("service", "colour = 1", "service"),
    ("service", "half_close_timeout = \"2m\"", "service.half_close_timeout"),
    ("service.auth", "username = \"u\"", "service.auth.username"),
    ("service.timers", "poll = \"0s\"", "service.timers.poll"),
    ("admin", "max_connections = 0", "admin.max_connections"),
    ("shutdown", "accept_min = \"16s\"", "shutdown.accept_min"),
    ("shutdown", "ready_while_leaving = \"no\"", "shutdown.ready_while_leaving"),
    ("log", "level = \"loud\"", "log.level"),
    ("process", "workers = -1", "process.workers"),
    ("process", "max_connections = \"many\"", "process.max_connections"),
];

proptest! {
    #[test]
    fn reports_every_subset_of_faults_completely(
        chosen in proptest::collection::btree_set(0..FAULTS.len(), 0..FAULTS.len()),
    ) {
        let (mut text, mut expected) = (String::new(), BTreeSet::new());
        let sections =
            ["service", "service.auth", "service.timers", "admin", "shutdown", "log", "process"];
        for section in sections {
            text += &match section {
                "service" => "[[service]]\nsentinels = [\"s\"]\n".to_owned(),
                _ => format!("[{section}]\n"),
            };
            let faults = chosen.iter().map(|at| FAULTS[*at]);
            for (_, line, key) in faults.filter(|(inside, ..)| *inside == section) {
                text += &format!("{line}\n");
                expected.insert(format!("{}: {key}", text.lines().count()));
            }
        }
        let got: Vec<String> = faults(&text).iter().map(|line| {
            let mut parts = line.splitn(4, ':').skip(1);
            let (at, _, rest) = (parts.next().unwrap(), parts.next(), parts.next().unwrap());
            format!("{at}: {}", rest.trim().split(':').next().unwrap())
        }).collect();
        prop_assert_eq!(got.len(), expected.len(), "{:#?}\n{}", got, text);
        prop_assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn loads_what_it_prints(
        chosen in proptest::collection::vec(
            any::<(proptest::sample::Index, u16, bool)>(),
            0..12,
        ),
    ) {
        let sentinels = strings(&["s1", "[::1]"]);
        let flags = Flags { sentinels, set: random_sets(&chosen), ..Flags::default() };
        let first = with("", &[("POINTSMAN_AUTH_PASSWORD", "hunter2")], &flags);
        // Random values may contradict each other; invalid values are not printed.
        if let Ok(config) = first.config() {
            let printed = first.print();
            let second = with(&printed, &[], &Flags::default());
            let again = second
                .config()
                .map_err(|faults| TestCaseError::fail(format!("{faults}\n{printed}")))?;
            prop_assert_eq!(&again.hash, &config.hash);
            prop_assert!(!printed.contains("hunter2"));
            prop_assert_eq!(again.warnings.len(), 1, "the placeholder: {:?}", again.warnings);
        }
    }

    #[test]
    fn never_panics_on_any_text(text in "(\\[\\[service\\]\\]\n)?([a-z_.]{0,8} ?= ?[\"\\[\\]{}0-9a-z,]{0,12}\n|\\[[a-z.]{0,9}\\]\n|.{0,9}\n){0,9}") {
        let _ = faults(&text);
    }
}

/// A valid value for each chosen option.
fn random_sets(chosen: &[(proptest::sample::Index, u16, bool)]) -> Vec<String> {
    let options: Vec<_> = schema::options().collect();
    let value = |kind: ValueKind, number: u16, yes: bool| match kind {
        ValueKind::Duration | ValueKind::DurationOrOff => {
            Some(format!("{}ms", u32::from(number) + 1))
        }
        ValueKind::Bool => Some(yes.to_string()),
        ValueKind::Count(least, most) => Some(usize::from(number).clamp(least, most).to_string()),
        ValueKind::MasterName => Some(format!("m-{number}")),
        ValueKind::Endpoint => Some(format!("h{number}:{}", number.max(1))),
        ValueKind::Text => Some(format!("ü\"{number}\\'#")),
        ValueKind::Choice(names) => Some(names[usize::from(number) % names.len()].to_owned()),
        ValueKind::Listen | ValueKind::ListenTcp => {
            Some(format!("127.0.0.1:{number},[::1]:{number}"))
        }
        ValueKind::Mode => Some(format!("0{:o}", usize::from(number) % 0o700 + 0o100)),
        ValueKind::Endpoints => Some(format!("h{number},10.0.0.1:{}", number.max(1))),
        ValueKind::AddressMap => Some(format!("h{number}=[::1]:{},a=b", number.max(1))),
        ValueKind::Commands => Some(format!("mod.{number},graph|query")),
        ValueKind::Refusals => Some(format!("PUBLISH c{number}:*,@deployment")),
        ValueKind::Networks => Some(format!("10.{}.0.0/16,2001:db8::{number:x}", number % 256)),
        ValueKind::HostNames => Some(format!("h{number}.example,*.example")),
        ValueKind::Nodes => Some(format!("10.{}.0.0/16,*.h{number}.example", number % 256)),
        ValueKind::Ciphers => Some("TLS_AES_128_GCM_SHA256".to_owned()),
        ValueKind::Path | ValueKind::Paths | ValueKind::EnvName | ValueKind::Secret => None,
    };
    let pick = |(index, number, yes): &(proptest::sample::Index, u16, bool)| {
        let (section, option) = options[index.index(options.len())];
        let value = value(option.kind, *number, *yes)?;
        // A user name for the sentinels requires a password, TLS a certificate.
        let needs_files = section.path.ends_with("tls") || option.key.ends_with("tls_listen");
        (section.path != "service.sentinel_auth" && !needs_files)
            .then(|| format!("{}={value}", section.path_of(option.key)))
    };
    chosen.iter().filter_map(pick).collect()
}

#[test]
fn refuses_sharing_without_carrying() {
    let text = "[[service]]\nsentinels = [\"s\"]\nupstream = \"shared\"\nsessions = \"close\"\n";
    let faults = load_text("f", text).config().unwrap_err().to_string();
    assert!(faults.contains("set sessions = \"carry\""), "{faults}");
}
