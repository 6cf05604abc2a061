//! Bytes that sentinels choose reach no terminal, page, metric or log unescaped.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use harness::{Cluster, wait_until};

use crate::{PROGRAM, builder};

const PATIENCE: Duration = Duration::from_secs(30);
/// A window title, a bell, a cleared screen, C1 controls, line breaks, DEL and an override of the
/// direction of text.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{1b}[2J\u{9b}31m\r\nforged=1\u{85}\u{7f}\u{202e}";
/// The same for error lines, which cannot have CR and LF.
const HOSTILE_LINE: &str = "\u{1b}]0;x\u{7}\u{1b}[2J\u{9b}31m\nforged=1\r\u{85}\u{7f}\u{202e}";

/// What of a fake sentinel is hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fake {
    /// Its view is right; every other field, name and address is hostile.
    Fields,
    /// The address of the master.
    Master,
    /// It answers errors only, after a right identity.
    Errors,
}

/// Polls that all fakes have answered.
type Polls = Arc<AtomicU64>;

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn array(items: &[&str]) -> String {
    let all: String = items.iter().map(|it| bulk(it)).collect();
    format!("*{}\r\n{all}", items.len())
}

impl Fake {
    fn start(self, number: u8, master: SocketAddr, polls: &Polls) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let addr = listener.local_addr().expect("an address");
        let polls = Arc::clone(polls);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let polls = Arc::clone(&polls);
                // It ends with the connection, at the latest with the test's process.
                std::thread::spawn(move || self.serve(&stream, number, master, &polls));
            }
        });
        addr
    }

    fn serve(self, stream: &TcpStream, number: u8, master: SocketAddr, polls: &Polls) {
        let mut reader = BufReader::new(stream);
        while let Some(words) = command(&mut reader) {
            let reply = self.reply(&words, number, master);
            if words.get(1).is_some_and(|it| it.eq_ignore_ascii_case("MASTER")) {
                polls.fetch_add(1, Ordering::Relaxed);
            }
            let mut stream = stream;
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn reply(self, words: &[String], number: u8, master: SocketAddr) -> String {
        let first = words[0].to_ascii_uppercase();
        let second = words.get(1).map(|it| it.to_ascii_uppercase()).unwrap_or_default();
        let (ip, port) = (master.ip().to_string(), master.port().to_string());
        let id = format!("{number:040x}");
        match (&*first, &*second) {
            ("HELLO", _) => format!("-ERR unknown command {HOSTILE_LINE}\r\n"),
            ("AUTH" | "CLIENT", _) => "+OK\r\n".to_owned(),
            ("SENTINEL", "MYID") => bulk(&id),
            ("SUBSCRIBE" | "PSUBSCRIBE", _) => {
                let confirm = |(at, channel): (usize, &String)| {
                    let word = bulk(&first.to_ascii_lowercase());
                    format!("*3\r\n{word}{}:{}\r\n", bulk(channel), at + 1)
                };
                let mut reply: String = words[1..].iter().enumerate().map(confirm).collect();
                let event = format!("mymaster {ip} {port} {HOSTILE} {port}");
                reply += &array(&["message", "+switch-master", &event]);
                reply
            }
            _ if self == Self::Errors => format!("-NOQUORUM {HOSTILE_LINE}\r\n"),
            ("PING", _) => "+PONG\r\n".to_owned(),
            ("INFO", _) => bulk(&format!(
                "# Server\r\nrun_id:{HOSTILE}\r\nconfig_file:/etc/{HOSTILE_LINE}\r\n\
                 sentinel_tilt:0\r\nmaster0:name=a{HOSTILE_LINE},status=ok\r\n"
            )),
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") if self == Self::Master => {
                array(&[&format!("10.0.0.1{HOSTILE}"), &port])
            }
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => array(&[&ip, &port]),
            ("SENTINEL", "MASTER") => {
                let row = ["name", HOSTILE, "ip", &ip, "port", &port, "runid", HOSTILE];
                let rest = ["flags", "master", "config-epoch", "0", "quorum", "2"];
                array(&[&row[..], &rest, &["extra", HOSTILE]].concat())
            }
            ("SENTINEL", "SENTINELS" | "REPLICAS" | "SLAVES") => {
                let id = format!("{:040x}", number + 100);
                let host = format!("evil-{number}{HOSTILE}");
                let row = array(&[
                    "name",
                    HOSTILE,
                    "ip",
                    &host,
                    "port",
                    "6379",
                    "runid",
                    &id,
                    "flags",
                    "slave",
                    "master-link-status",
                    HOSTILE,
                    "slave-priority",
                    HOSTILE,
                ]);
                format!("*1\r\n{row}")
            }
            _ => format!("-NOQUORUM {HOSTILE_LINE}\r\n"),
        }
    }
}

/// Reads one command; `None` at the end.
fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut number = |sigil: char| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let number: usize = line.trim_end().strip_prefix(sigil)?.parse().ok()?;
        if sigil == '*' {
            return Some((number, String::new()));
        }
        let mut bytes = vec![0; number + 2];
        reader.read_exact(&mut bytes).ok()?;
        bytes.truncate(number);
        Some((number, String::from_utf8(bytes).ok()?))
    };
    let (words, _) = number('*')?;
    (0..words).map(|_| number('$').map(|(_, word)| word)).collect()
}

/// Fails if `text` has anything that acts on a terminal, or a line that a sentinel wrote.
fn assert_printable(what: &str, text: &str) {
    assert!(!text.is_empty(), "{what} is empty");
    let bad: Vec<&str> = text
        .lines()
        .filter(|line| {
            line.chars().any(|c| c.is_control() || c == '\u{202e}') || line.starts_with("forged")
        })
        .collect();
    assert_eq!(bad, Vec::<&str>::new(), "in {what}");
}

fn run(args: &[&str]) -> String {
    let output = Command::new(PROGRAM)
        .args(args)
        .env_clear()
        .env("RES_OPTIONS", "timeout:1 attempts:1")
        .stdin(Stdio::null())
        .output()
        .expect("the program");
    String::from_utf8(output.stdout).expect("UTF-8")
        + &String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn prints_no_byte_of_a_hostile_sentinel_raw() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let master = cluster.master().addr();
    for format in ["human", "json"] {
        let polls = Polls::default();
        let fakes = [Fake::Fields, Fake::Fields, Fake::Master, Fake::Errors];
        let fakes = (1..).zip(fakes).map(|(number, it)| it.start(number, master, &polls));
        let mut sentinels: Vec<String> = fakes.map(|it| it.to_string()).collect();
        sentinels.extend(cluster.sentinel_addrs().iter().map(ToString::to_string));
        let pointsman = builder(&cluster)
            .sentinels(&sentinels)
            .lines(&format!("[log]\nformat = \"{format}\"\nlevel = \"debug\""))
            .without_waiting()
            .start();
        wait_until("twenty polls", PATIENCE, || polls.load(Ordering::Relaxed) >= 20);
        let admin = pointsman.admin().to_string();
        for path in ["/status", "/metrics", "/history", "/"] {
            let (code, text) = pointsman.get(path).expect("a page");
            assert_eq!(code, 200, "{path}");
            assert_printable(path, &text);
        }
        let config = pointsman.process().log_path().with_file_name("pointsman.toml");
        let config = config.to_string_lossy();
        for args in [
            &["sentinels", "--config", &config][..],
            &["sentinels", "--config", &config, "--json"],
            &["status", "--admin", &admin],
            &["status", "--admin", &admin, "--json"],
        ] {
            assert_printable(&format!("{args:?}"), &run(args));
        }
        assert_printable(&format!("the log as {format}"), &pointsman.process().log());
    }
}
