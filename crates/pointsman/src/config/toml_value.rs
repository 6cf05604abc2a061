//! Converts TOML values to option values: checks the TOML type, then parses strings as `value`
//! does.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::endpoint::{self, REDIS_PORT};
use super::value::{MAX_ELEMENTS, Problem, Value, ValueKind};

/// A problem and its byte range in the file.
type LocatedProblem = (Range<usize>, Problem);

/// Converts a value. A list or table is read to its end and may have several problems; then there
/// is no value.
pub(super) fn read(
    kind: ValueKind,
    value: &Spanned<DeValue<'_>>,
) -> (Option<Value>, Vec<LocatedProblem>) {
    let mut problems = Vec::new();
    let read = match (kind.empty_list(), kind, value.get_ref()) {
        (Some(_), _, DeValue::Array(items)) if items.len() > MAX_ELEMENTS => Err(too_many(value)),
        (Some(empty), _, DeValue::Array(items)) => Ok(list(kind, empty, items, &mut problems)),
        (None, ValueKind::AddressMap, DeValue::Table(table)) if table.len() > MAX_ELEMENTS => {
            Err(too_many(value))
        }
        (None, ValueKind::AddressMap, DeValue::Table(table)) => Ok(map(table, &mut problems)),
        (Some(_), ..) | (None, ValueKind::AddressMap, _) => Err(mismatch(kind, value)),
        (None, ..) => scalar(kind, value),
    };
    let read = read.map_err(|found| problems.push(found)).ok();
    (read.filter(|_| problems.is_empty()), problems)
}

/// A TOML type with its article.
fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a floating-point number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// "expected ..., found ...".
fn mismatch(kind: ValueKind, value: &Spanned<DeValue<'_>>) -> LocatedProblem {
    let found = type_name(value.get_ref());
    let is_list = kind.empty_list().is_some();
    let remedy = match (kind, value.get_ref()) {
        (ValueKind::DurationOrOff, DeValue::Integer(number)) if number.as_str() == "0" => {
            "write \"0s\"".to_owned()
        }
        (ValueKind::Duration | ValueKind::DurationOrOff, DeValue::Integer(number)) => {
            format!("write \"{number}s\" or \"{number}ms\"")
        }
        (_, DeValue::String(_)) if is_list => "put it in brackets: [\"...\"]".to_owned(),
        (ValueKind::Bool | ValueKind::Count(..), DeValue::String(_)) => {
            "write it without quotes".to_owned()
        }
        (ValueKind::Bool, _) => "write true or false".to_owned(),
        (ValueKind::Count(least, most), _) => format!("give a number from {least} to {most}"),
        _ if is_list || kind == ValueKind::AddressMap => "write it in this form".to_owned(),
        _ => "put it in double quotes".to_owned(),
    };
    (value.span(), Problem::new(format!("expected {}, found {found}", kind.expected()), remedy))
}

fn scalar(kind: ValueKind, value: &Spanned<DeValue<'_>>) -> Result<Value, LocatedProblem> {
    let text = match (kind, value.get_ref()) {
        (ValueKind::Bool, DeValue::Boolean(yes)) => return Ok(Value::Bool(*yes)),
        (ValueKind::Count(..), DeValue::Integer(number)) if number.radix() == 10 => number.as_str(),
        (ValueKind::Bool | ValueKind::Count(..), _) => return Err(mismatch(kind, value)),
        (_, DeValue::String(text)) => text,
        _ => return Err(mismatch(kind, value)),
    };
    kind.parse(text).map_err(|problem| (value.span(), problem))
}

fn list(
    kind: ValueKind,
    mut all: Value,
    items: &[Spanned<DeValue<'_>>],
    problems: &mut Vec<LocatedProblem>,
) -> Value {
    for item in items {
        let Some(text) = item.get_ref().as_str() else {
            let what =
                format!("expected a string in the list, found {}", type_name(item.get_ref()));
            problems.push((item.span(), Problem::new(what, "put it in double quotes")));
            continue;
        };
        // An element is one address or name. A comma inside it would add a second one unnoticed.
        match kind.parse(text) {
            Ok(one) if one.elements() == Some(1) => all.append(one),
            Ok(_) => {
                let one = match kind {
                    ValueKind::Commands | ValueKind::Refusals => "command",
                    ValueKind::Networks => "network",
                    ValueKind::Nodes => "network or name",
                    ValueKind::HostNames => "name",
                    ValueKind::Paths => "path",
                    ValueKind::Ciphers => "cipher",
                    _ => "address",
                };
                let problem = Problem::new(
                    format!("it is not one {one}"),
                    format!("give each {one} a string of its own"),
                );
                problems.push((item.span(), problem));
            }
            Err(problem) => problems.push((item.span(), problem)),
        }
    }
    all
}

fn map(table: &DeTable<'_>, problems: &mut Vec<LocatedProblem>) -> Value {
    let mut read = BTreeMap::new();
    for (from, to) in table {
        let announced = endpoint::parse(from.get_ref(), REDIS_PORT)
            .map_err(|problem| problems.push((from.span(), problem)));
        let dialled = match to.get_ref().as_str() {
            Some(text) => endpoint::parse(text, REDIS_PORT)
                .map_err(|problem| problems.push((to.span(), problem))),
            None => {
                let what = format!("expected \"host:port\", found {}", type_name(to.get_ref()));
                let remedy = "quote both sides: \"10.0.0.1:6379\" = \"203.0.113.1:6379\"";
                problems.push((to.span(), Problem::new(what, remedy)));
                Err(())
            }
        };
        if let (Ok(announced), Ok(dialled)) = (announced, dialled)
            && read.insert(announced, dialled).is_some()
        {
            problems.push((
                from.span(),
                Problem::new("the address is mapped twice", "keep one of them"),
            ));
        }
    }
    Value::AddressMap(read)
}

fn too_many(value: &Spanned<DeValue<'_>>) -> LocatedProblem {
    (value.span(), Problem::too_many())
}
