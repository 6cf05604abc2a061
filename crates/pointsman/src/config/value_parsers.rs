//! Parses single values from text, by the kinds of [`ValueKind`](super::value::ValueKind).

use proxy::{MAX_COMMAND_NAME, Refusals, StatelessCommands, StatelessError};
use sentinel::NodeAddr;

use super::endpoint::{self, REDIS_PORT};
use super::finding::nearest;
use super::value::{MAX_ELEMENTS, Problem, Value};

pub(super) fn elements(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|one| !one.is_empty())
}

/// Parses every element of a list, up to the first problem.
pub(super) fn parse_elements<T, C: FromIterator<T>>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, Problem>,
) -> Result<C, Problem> {
    let is_list = elements(text).nth(1).is_some();
    let numbered = (1..).zip(elements(text));
    numbered
        .map(|(number, one)| {
            parse(one).map_err(|it| if is_list { it.of_element(number) } else { it })
        })
        .collect()
}

/// Parses commands that leave no state. Each is checked against the command table.
pub(super) fn parse_commands(text: &str) -> Result<Value, Problem> {
    let check = |name: &str| {
        StatelessCommands::check(name).map_err(|why| match why {
            StatelessError::NotAName => Problem::new(
                "it cannot be the name of a command",
                format!(
                    "write NAME or CONTAINER|SUBCOMMAND, each of at most {MAX_COMMAND_NAME} printable \
                     characters"
                ),
            ),
            StatelessError::LeavesState(why) => Problem::new(
                format!("{name} is known to leave state on the connection: {why}"),
                "remove it; docs/commands.md says what each command does to its session",
            ),
        })
    };
    parse_words(text, check)
}

fn parse_words(
    text: &str,
    check: impl Fn(&str) -> Result<String, Problem>,
) -> Result<Value, Problem> {
    if elements(text).count() > MAX_ELEMENTS {
        return Err(Problem::too_many());
    }
    parse_elements(text, check).map(Value::Words)
}

/// Parses commands that are refused.
pub(super) fn parse_refusals(text: &str) -> Result<Value, Problem> {
    let check = |entry: &str| {
        Refusals::check(entry).map_err(|why| {
            Problem::new(
                format!("it cannot be refused: {why}"),
                "write a command (FLUSHALL), CONTAINER|SUBCOMMAND (CONFIG|SET), PUBLISH with a \
                 channel (PUBLISH __sentinel__:*), or @deployment",
            )
        })
    };
    parse_words(text, check)
}

/// Parses the name of a cipher.
pub(super) fn parse_cipher(name: &str) -> Result<String, Problem> {
    if tls::is_cipher(name) {
        return Ok(name.to_owned());
    }
    let remedy = match nearest(name, tls::cipher_names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("give some of {}", tls::cipher_names().collect::<Vec<_>>().join(", ")),
    };
    Err(Problem::new("it is not a supported cipher", remedy))
}

/// Parses one entry of an address map from a flag or a variable.
pub(super) fn parse_pair(text: &str) -> Result<(NodeAddr, NodeAddr), Problem> {
    let (from, to) = text.split_once('=').ok_or_else(|| {
        Problem::new(
            "it is not an address mapping",
            "write announced=dialled, for example \"10.0.0.1:6379=203.0.113.1:6379\"",
        )
    })?;
    Ok((endpoint::parse(from.trim(), REDIS_PORT)?, endpoint::parse(to.trim(), REDIS_PORT)?))
}

pub(super) fn parse_count(text: &str, least: usize, most: usize) -> Result<Value, Problem> {
    match text.parse::<usize>() {
        Ok(count) if (least..=most).contains(&count) => Ok(Value::Count(count)),
        _ => Err(Problem::new(
            "it is out of range",
            format!("give a whole number from {least} to {most}"),
        )),
    }
}

/// Parses the name of a master. The allowed characters are those that `redis:sentinel.conf` gives.
pub(super) fn parse_master_name(text: &str) -> Result<Value, Problem> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if text.is_empty() || text.len() > 255 || !text.bytes().all(good) {
        return Err(Problem::new(
            "it cannot be the name of a master",
            "use letters, digits, '.', '_' and '-', as in the sentinel's \"sentinel monitor\" line",
        ));
    }
    Ok(Value::Text(text.to_owned()))
}

/// Parses the name of an environment variable.
pub(super) fn parse_env_name(text: &str) -> Result<Value, Problem> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) || !text.bytes().all(good)
    {
        let what = "it is not the name of an environment variable";
        return Err(Problem::new(
            what,
            "give the name, for example \"REDIS_PASSWORD\", not the password",
        ));
    }
    Ok(Value::Text(text.to_owned()))
}

pub(super) fn parse_choice(text: &str, names: &'static [&'static str]) -> Result<Value, Problem> {
    if names.contains(&text) {
        return Ok(Value::Text(text.to_owned()));
    }
    let all = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let remedy = match nearest(text, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? It is one of {all}"),
        None => format!("give one of {all}"),
    };
    Err(Problem::new("it is unknown", remedy))
}
