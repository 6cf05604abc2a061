//! What the health checks of a backend say to its servers: the one place of a haproxy.cfg where it shows that Redis is meant.
//!
//! A `tcp-check` is a conversation, and what is sent may be spread over several directives, in text or in hexadecimal, inline or as
//! RESP arrays. It is put together again and cut into commands. From these follow the name of the master (`SENTINEL
//! get-master-addr-by-name`), the passwords (`AUTH`, `HELLO … AUTH`), and from what is expected, whether the backend is for the
//! master or for replicas.

use super::Place;
use super::sections::Directive;
use super::words::{Part, Word};

/// How the check authenticates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) place: Place,
    pub(super) user: Option<String>,
    pub(super) password: Password,
}

/// A password as the check has it. Its `Debug` is not used anywhere near the account.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Password {
    /// In the file itself.
    Literal(String),
    /// In a variable of the environment.
    Variable(String),
    /// Put together from several; has to be given by hand.
    Mixed,
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Literal(_) => "Literal",
            Self::Variable(_) => "Variable",
            Self::Mixed => "Mixed",
        })
    }
}

/// Which role the check accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    Replica,
}

/// A look at a sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AsksSentinel {
    pub(super) place: Place,
    pub(super) master: String,
    /// The port that the check itself names, if it does.
    pub(super) port: Option<u16>,
    pub(super) login: Option<Login>,
}

/// What a backend's checks say.
#[derive(Debug, Clone, Default)]
pub(super) struct Check {
    /// It speaks with Redis, or with a sentinel.
    pub(super) is_redis: bool,
    pub(super) sentinel: Option<AsksSentinel>,
    /// How it authenticates at Redis.
    pub(super) login: Option<Login>,
    pub(super) role: Option<Role>,
}

/// One connection of the check.
#[derive(Debug, Default)]
struct Talk {
    port: Option<u16>,
    sent: Vec<(Place, Part)>,
}

/// An argument of a command.
type Arg = Vec<Part>;

/// Reads the check from the directives that hold in a backend.
pub(super) fn read<'a>(directives: impl Iterator<Item = &'a Directive>) -> Check {
    let mut check = Check::default();
    let mut talks = vec![Talk::default()];
    for directive in directives {
        if directive.begins(&["option", "redis-check"]) {
            check.is_redis = true;
        } else if directive.begins(&["tcp-check", "connect"]) {
            let port = value_of(&directive.words, "port").and_then(|port| port.parse().ok());
            talks.push(Talk { port, sent: Vec::new() });
        } else if directive.begins(&["tcp-check", "expect"]) {
            check.role = check.role.or_else(|| role(&directive.words));
        } else if let Some(talk) = talks.last_mut()
            && directive.begins(&["tcp-check"])
        {
            talk.sent.extend(sent(directive));
        }
    }
    talks.into_iter().for_each(|talk| hear(talk, &mut check));
    check
}

/// The word after `key`.
pub(super) fn value_of(words: &[Word], key: &str) -> Option<String> {
    let at = words.iter().position(|word| word.is(key))?;
    words.get(at + 1).map(ToString::to_string)
}

fn role(words: &[Word]) -> Option<Role> {
    let negated = words.iter().any(|word| word.is("!"));
    let pattern = words.last()?.to_string().to_ascii_lowercase();
    let mut pattern = pattern.as_str();
    let decoded;
    if words.iter().any(|word| word.is("binary") || word.is("rbinary")) {
        decoded = hexadecimal(pattern).to_ascii_lowercase();
        pattern = &decoded;
    }
    let named = if pattern.contains("master") && !pattern.contains("slave") && !pattern.contains("master_") {
        Role::Master
    } else if pattern.contains("slave") || pattern.contains("replica") || pattern.contains("master_link_status") {
        Role::Replica
    } else {
        return None;
    };
    // "not a replica" is said by some in place of "a master".
    Some(match (named, negated) {
        (Role::Master, false) | (Role::Replica, true) => Role::Master,
        _ => Role::Replica,
    })
}

/// What a `tcp-check send` puts on the wire.
fn sent(directive: &Directive) -> Vec<(Place, Part)> {
    let Some(data) = directive.words.get(2) else { return Vec::new() };
    let parts = match directive.word(1).as_str() {
        "send" | "send-lf" => data.parts.clone(),
        "send-binary" | "send-binary-lf" => vec![Part::Text(hexadecimal(&data.to_string()))],
        _ => Vec::new(),
    };
    parts.into_iter().map(|part| (directive.place.clone(), part)).collect()
}

fn hexadecimal(text: &str) -> String {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let byte = |pair: &[u32]| match pair {
        [high, low] => char::from_u32(high * 16 + low),
        _ => None,
    };
    digits.chunks(2).filter_map(byte).collect()
}

fn hear(talk: Talk, check: &mut Check) {
    let mut login = None;
    let mut sentinel = None;
    for (place, command) in commands(talk.sent) {
        let word = |at: usize| command.get(at).map(|arg| plain(arg).to_ascii_uppercase()).unwrap_or_default();
        match word(0).as_str() {
            "PING" | "INFO" | "ROLE" => check.is_redis = true,
            "AUTH" => login = login.or_else(|| read_login(&place, command.get(1..).unwrap_or_default())),
            "HELLO" if word(2) == "AUTH" => {
                login = login.or_else(|| read_login(&place, command.get(3..).unwrap_or_default()));
            }
            "SENTINEL" => {
                check.is_redis = true;
                if let Some(master) = command.get(2) {
                    sentinel = Some((place, plain(master)));
                }
            }
            _ => {}
        }
    }
    match sentinel {
        Some((place, master)) => {
            check.sentinel = check.sentinel.take().or(Some(AsksSentinel { place, master, port: talk.port, login }));
        }
        None => check.login = check.login.take().or(login),
    }
}

fn read_login(place: &Place, args: &[Arg]) -> Option<Login> {
    let (user, password) = match args {
        [password] => (None, password),
        [user, password, ..] => (Some(plain(user)), password),
        [] => return None,
    };
    let password = match password.as_slice() {
        [Part::Text(text)] => Password::Literal(text.clone()),
        [Part::Variable { name, .. }] => Password::Variable(name.clone()),
        _ => Password::Mixed,
    };
    Some(Login { place: place.clone(), user: user.filter(|user| user != "default"), password })
}

fn plain(arg: &[Part]) -> String {
    arg.iter()
        .map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Variable { name, .. } => format!("${{{name}}}"),
        })
        .collect()
}

/// Cuts what is sent into lines, and the lines into commands: an inline command is a line, a RESP array several.
fn commands(sent: Vec<(Place, Part)>) -> Vec<(Place, Vec<Arg>)> {
    let mut lines: Vec<(Place, Vec<Part>)> = Vec::new();
    let mut line: Option<(Place, Vec<Part>)> = None;
    for (place, part) in sent {
        match part {
            Part::Variable { .. } => line.get_or_insert_with(|| (place, Vec::new())).1.push(part),
            Part::Text(text) => {
                for (at, piece) in text.split('\n').enumerate() {
                    if at > 0 {
                        lines.extend(line.take());
                    }
                    let piece = piece.trim_end_matches('\r');
                    if !piece.is_empty() {
                        let piece = Part::Text(piece.to_owned());
                        line.get_or_insert_with(|| (place.clone(), Vec::new())).1.push(piece);
                    }
                }
            }
        }
    }
    lines.extend(line);
    let mut commands: Vec<(Place, Vec<Arg>)> = Vec::new();
    let mut wanted = 0_usize;
    for (place, line) in lines {
        let first = if let Some(Part::Text(text)) = line.first() { text.as_str() } else { "" };
        if let Some(count) = first.strip_prefix('*').and_then(|count| count.parse().ok()) {
            wanted = count;
            commands.push((place, Vec::new()));
        } else if wanted > 0 && first.starts_with('$') && first.get(1..).is_some_and(|len| len.parse::<u32>().is_ok()) {
            // The length of the argument that follows.
        } else if wanted > 0 {
            wanted -= 1;
            if let Some((_, args)) = commands.last_mut() {
                args.push(line);
            }
        } else {
            commands.push((place, arguments(line)));
        }
    }
    commands
}

/// An inline command at its blanks.
fn arguments(line: Vec<Part>) -> Vec<Arg> {
    let mut args: Vec<Arg> = vec![Vec::new()];
    for part in line {
        match part {
            Part::Variable { .. } => args.last_mut().into_iter().for_each(|arg| arg.push(part.clone())),
            Part::Text(text) => {
                for (at, piece) in text.split([' ', '\t']).enumerate() {
                    if at > 0 {
                        args.push(Vec::new());
                    }
                    if let Some(arg) = args.last_mut().filter(|_| !piece.is_empty()) {
                        arg.push(Part::Text(piece.to_owned()));
                    }
                }
            }
        }
    }
    args.retain(|arg| !arg.is_empty());
    args
}
