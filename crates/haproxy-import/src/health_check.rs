//! What the health checks of a backend send, which shows whether the backend is Redis.
//!
//! A `tcp-check` is a conversation: what is sent may be spread over several directives, as text or
//! hexadecimal, as inline commands or RESP arrays. It is joined and split into commands. They give
//! the master's name (`SENTINEL get-master-addr-by-name`) and the credentials (`AUTH`, `HELLO …
//! AUTH`); the expected replies give the role.

use crate::Position;
use crate::sections::Directive;
use crate::tokenizer::{Fragment, Word};
use crate::variables::Variables;

/// How a check authenticates.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CheckLogin {
    pub(super) position: Position,
    pub(super) user: Option<String>,
    pub(super) password: Password,
}

/// A password as the check gives it. It cannot be printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Password {
    /// In the file itself.
    Literal(String),
    /// In an environment variable.
    Variable(String),
    /// Computed by haproxy, or not read here; has to be configured by hand.
    Computed,
}

/// The role that a check accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    Replica,
}

/// Whether one connection of a check is encrypted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum CheckTls {
    /// As the server line says.
    #[default]
    OfServer,
    Off,
    On,
}

/// A query to a sentinel for a master.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SentinelQuery {
    pub(super) position: Position,
    /// The master's name; contains `${` if a variable in it is unset.
    pub(super) master: String,
    /// It asks which node is the master, not about replicas or the quorum.
    pub(super) finds_master: bool,
    /// The port and the address that the check itself names.
    pub(super) port: Option<String>,
    pub(super) addr: Option<String>,
    pub(super) tls: CheckTls,
    pub(super) login: Option<CheckLogin>,
}

/// What a backend's checks send and expect.
#[derive(Clone, Default)]
pub(super) struct HealthCheck {
    /// It sends commands of Redis or Sentinel.
    pub(super) is_redis: bool,
    pub(super) sentinel: Option<SentinelQuery>,
    /// It sends `SENTINEL` to the port that clients reach.
    pub(super) is_sentinel: bool,
    /// How it authenticates at Redis.
    pub(super) login: Option<CheckLogin>,
    pub(super) role: Option<Role>,
    /// It asks for the state of nodes that all accept writes: of Redis Cluster, or of KeyDB.
    pub(super) has_no_master: bool,
    /// `tcp-check connect … ssl` whose connection leads to Redis and not to a sentinel.
    pub(super) redis_tls: Vec<Position>,
    /// Parts that haproxy computes and that may contain a password.
    pub(super) computed: Vec<Position>,
}

/// One connection of a check.
#[derive(Default)]
struct Exchange {
    port: Option<String>,
    addr: Option<String>,
    tls: CheckTls,
    /// The line that opens the connection; none for the first one without such a line.
    opened_at: Option<Position>,
    sent: Vec<(Position, Fragment)>,
}

/// The name of a variable that stands for something computed. No environment variable has it.
const COMPUTED: &str = "%";

/// The role of a KeyDB node that follows another node and accepts writes.
const ACTIVE_REPLICA: &str = "active-replica";
/// What such a node says, and a node of Redis Cluster in `CLUSTER INFO` and `INFO cluster`.
const WITHOUT_MASTER: [&str; 3] = [ACTIVE_REPLICA, "cluster_state", "cluster_enabled:1"];

/// Reads the check from the directives that apply to a backend.
pub(super) fn read<'a>(
    directives: impl Iterator<Item = &'a Directive>,
    variables: &Variables<'_>,
) -> HealthCheck {
    let mut check = HealthCheck::default();
    let mut exchanges = vec![Exchange::default()];
    for directive in directives {
        if directive.begins("option redis-check") {
            check.is_redis = true;
        } else if directive.begins("tcp-check connect") {
            let [port, addr] = ["port", "addr"].map(|key| directive.value(key));
            let tls = match (directive.has("ssl"), directive.has("default")) {
                (true, _) => CheckTls::On,
                (false, true) => CheckTls::OfServer,
                (false, false) => CheckTls::Off,
            };
            let opened_at = Some(directive.position.clone());
            exchanges.push(Exchange { port, addr, tls, opened_at, sent: Vec::new() });
        } else if directive.begins("tcp-check expect") {
            let (pattern, negated) = expected(&directive.words);
            let role = role(&pattern, negated);
            check.role = check.role.or(role);
            check.has_no_master |=
                role.is_none() && !negated && WITHOUT_MASTER.iter().any(|it| pattern.contains(it));
        } else if let Some(exchange) = exchanges.last_mut()
            && directive.begins("tcp-check")
        {
            exchange.sent.extend(sent(directive));
        }
    }
    for exchange in exchanges {
        interpret(exchange, variables, &mut check);
    }
    check
}

/// The pattern of a `tcp-check expect`, in lower case, and whether the match is negated. Each
/// option before or after the pattern has one argument, which may read like a pattern.
fn expected(words: &[Word]) -> (String, bool) {
    let mut negated = false;
    let mut words = words.iter().skip(2).map(ToString::to_string);
    while let Some(word) = words.next() {
        let keyword = word.trim_start_matches('!');
        negated ^= (word.len() - keyword.len()) % 2 == 1;
        if keyword.is_empty() {
            continue;
        }
        let pattern = words.next().unwrap_or_default();
        let text = match keyword {
            "string" | "rstring" | "string-lf" => pattern,
            "binary" | "rbinary" | "binary-lf" => hexadecimal(&pattern),
            _ => continue,
        };
        return (text.to_ascii_lowercase(), negated);
    }
    Default::default()
}

fn role(pattern: &str, negated: bool) -> Option<Role> {
    // Such a node accepts writes, so it is no replica in the sense of Sentinel.
    let pattern = pattern.replace(ACTIVE_REPLICA, "");
    // Whole words: a master speaks of `connected_slaves`, and a replica of its `master_host`.
    let mut all = pattern.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_master = all.clone().any(|word| word == "master");
    let is_replica = all.any(|it| ["slave", "replica", "master_link_status"].contains(&it));
    if is_master == is_replica {
        return None;
    }
    // Some files write "not a replica" for "a master".
    Some(if is_replica == negated { Role::Master } else { Role::Replica })
}

/// What a `tcp-check send` sends.
fn sent(directive: &Directive) -> Vec<(Position, Fragment)> {
    let Some(data) = directive.words.get(2) else { return Vec::new() };
    let computed = Fragment::Variable { name: COMPUTED.to_owned(), default: None };
    let fragments = match directive.word(1).as_str() {
        "send-lf" | "send-binary-lf" if data.to_string().contains('%') => vec![computed],
        "send" | "send-lf" => data.fragments.clone(),
        "send-binary" | "send-binary-lf" => vec![Fragment::Text(hexadecimal(&data.to_string()))],
        _ => Vec::new(),
    };
    fragments.into_iter().map(|fragment| (directive.position.clone(), fragment)).collect()
}

fn hexadecimal(text: &str) -> String {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let byte = |pair: &[u32]| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    };
    let bytes: Vec<u8> = digits.chunks(2).filter_map(byte).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn interpret(mut exchange: Exchange, variables: &Variables<'_>, check: &mut HealthCheck) {
    let mut login = None;
    let mut query = None;
    for (position, command) in commands(std::mem::take(&mut exchange.sent)) {
        let word =
            |at: usize| command.get(at).map(display).unwrap_or_default().to_ascii_uppercase();
        match word(0).as_str() {
            "PING" | "INFO" | "ROLE" => check.is_redis = true,
            "AUTH" => login = login.or_else(|| read_login(&position, command.get(1..), variables)),
            "HELLO" if word(2) == "AUTH" => {
                login = login.or_else(|| read_login(&position, command.get(3..), variables));
            }
            "CLUSTER" => (check.is_redis, check.has_no_master) = (true, true),
            "SENTINEL" => {
                check.is_redis = true;
                check.is_sentinel |= exchange.port.is_none() && exchange.addr.is_none();
                let subcommand = word(1);
                if ["SLAVES", "REPLICAS"].contains(&subcommand.as_str()) {
                    check.role = check.role.or(Some(Role::Replica));
                }
                if let Some(master) = command.get(2) {
                    let name = variables.expand(master).unwrap_or_else(|_| display(master));
                    let finds =
                        ["GET-MASTER-ADDR-BY-NAME", "MASTER"].contains(&subcommand.as_str());
                    query = Some((position, name, finds));
                }
            }
            first if first.contains(&format!("${{{COMPUTED}}}")) => check.computed.push(position),
            _ => {}
        }
    }
    let Exchange { port, addr, tls, opened_at, .. } = exchange;
    match query {
        Some((position, master, finds_master)) => {
            let query = SentinelQuery { position, master, finds_master, port, addr, tls, login };
            check.sentinel = check.sentinel.take().or(Some(query));
        }
        None => {
            check.redis_tls.extend(opened_at.filter(|_| tls == CheckTls::On));
            check.login = check.login.take().or(login);
        }
    }
}

fn read_login(
    position: &Position,
    arguments: Option<&[Word]>,
    variables: &Variables<'_>,
) -> Option<CheckLogin> {
    let (user, password) = match arguments? {
        [password] => (None, password),
        [user, password, ..] => (Some(display(user)), password),
        [] => return None,
    };
    // Redis has rules of its own for quotes in inline commands.
    let is_unreadable =
        |it: &Word| display(it).contains([char::REPLACEMENT_CHARACTER, '"', '\'', '\\']);
    let password = match password.fragments.as_slice() {
        _ if arguments?.iter().any(is_unreadable) => Password::Computed,
        [Fragment::Text(text)] => Password::Literal(text.clone()),
        [Fragment::Variable { name, .. }] if name == COMPUTED => Password::Computed,
        [Fragment::Variable { name, .. }] => match variables.set.get(name) {
            Some(value) => Password::Literal(value.clone()),
            None => Password::Variable(name.clone()),
        },
        _ => Password::Computed,
    };
    let (position, user) = (position.clone(), user.filter(|user| user != "default"));
    Some(CheckLogin { position, user, password })
}

/// An argument with variables as `${NAME}`.
fn display(argument: &Word) -> String {
    argument.expand(&|name| Some(format!("${{{name}}}"))).unwrap_or_default()
}

/// Splits what is sent into pieces that are not empty.
fn split(
    sent: impl IntoIterator<Item = (Position, Fragment)>,
    separators: [char; 2],
) -> Vec<(Position, Word)> {
    let mut pieces = Vec::new();
    let mut open: Option<(Position, Word)> = None;
    for (position, fragment) in sent {
        let piece = || (position.clone(), Word::default());
        let Fragment::Text(text) = fragment else {
            open.get_or_insert_with(piece).1.fragments.push(fragment);
            continue;
        };
        for c in text.chars() {
            if separators.contains(&c) {
                pieces.extend(open.take());
            } else {
                open.get_or_insert_with(piece).1.push(c);
            }
        }
    }
    pieces.extend(open);
    pieces
}

/// Splits what is sent into commands: an inline command is one line, a RESP array several.
fn commands(sent: Vec<(Position, Fragment)>) -> Vec<(Position, Vec<Word>)> {
    let mut commands: Vec<(Position, Vec<Word>)> = Vec::new();
    let mut missing = 0_usize;
    for (position, line) in split(sent, ['\r', '\n']) {
        let first = display(&line);
        let is_length = first.strip_prefix('$').is_some_and(|it| it.parse::<u32>().is_ok());
        if let Some(count) = first.strip_prefix('*').and_then(|count| count.parse().ok()) {
            missing = count;
            commands.push((position, Vec::new()));
        } else if missing > 0 && is_length {
            // The length of the next argument.
        } else if missing > 0 {
            missing -= 1;
            if let Some((_, arguments)) = commands.last_mut() {
                arguments.push(line);
            }
        } else {
            let fragments = line.fragments.into_iter().map(|it| (position.clone(), it));
            let arguments = split(fragments, [' ', '\t']).into_iter();
            commands.push((position.clone(), arguments.map(|(_, it)| it).collect()));
        }
    }
    commands
}
