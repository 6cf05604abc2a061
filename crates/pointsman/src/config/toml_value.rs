//! A value of the file, by its kind: the types of TOML on top of the readers of text.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use super::endpoint::{Endpoint, REDIS_PORT};
use super::value::{Kind, MOST_ELEMENTS, Problem, Value};

/// A problem and the bytes of the file it is about.
type Found = (Range<usize>, Problem);

/// Reads a value. A list or table is read to its end, so it may have several problems; then there
/// is no value.
pub(super) fn read(kind: Kind, value: &Spanned<DeValue<'_>>) -> (Option<Value>, Vec<Found>) {
    let mut problems = Vec::new();
    let read = match kind {
        Kind::Bool | Kind::Count(..) => scalar(kind, value, &mut problems),
        Kind::Listen | Kind::ListenTcp | Kind::Endpoints | Kind::Commands => {
            list(kind, value, &mut problems)
        }
        Kind::AddressMap => map(kind, value, &mut problems),
        _ => string(kind, value, &mut problems),
    };
    (if problems.is_empty() { read } else { None }, problems)
}

/// "expected …, found …". What was found is repeated only where it cannot be a password.
fn mismatch(kind: Kind, value: &Spanned<DeValue<'_>>) -> Found {
    let found = match value.get_ref() {
        DeValue::Integer(number) if kind != Kind::Secret => format!("the integer {number}"),
        DeValue::Boolean(yes) => format!("{yes}"),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        other => format!("a {}", other.type_str()),
    };
    let remedy = match (kind, value.get_ref()) {
        (Kind::Duration, DeValue::Integer(number)) => {
            format!("write \"{number}s\" or \"{number}ms\"")
        }
        (Kind::DurationOrOff, DeValue::Integer(number)) if number.as_str() == "0" => {
            "write \"0s\"".to_owned()
        }
        (Kind::DurationOrOff, DeValue::Integer(number)) => {
            format!("write \"{number}s\" or \"{number}ms\"")
        }
        (
            Kind::Listen | Kind::ListenTcp | Kind::Endpoints | Kind::Commands,
            DeValue::String(text),
        ) => {
            format!("put it in brackets: [{text:?}]")
        }
        (Kind::Bool | Kind::Count(..), DeValue::String(_)) => "write it without quotes".to_owned(),
        (Kind::Bool, _) => "write true or false".to_owned(),
        (Kind::Count(least, most), _) => format!("give a number from {least} to {most}"),
        (
            Kind::Listen | Kind::ListenTcp | Kind::Endpoints | Kind::Commands | Kind::AddressMap,
            _,
        ) => "write it as shown".to_owned(),
        _ => "put it in double quotes".to_owned(),
    };
    (value.span(), Problem::new(format!("expected {}, found {found}", kind.expected()), remedy))
}

fn scalar(kind: Kind, value: &Spanned<DeValue<'_>>, problems: &mut Vec<Found>) -> Option<Value> {
    let read = match (kind, value.get_ref()) {
        (Kind::Bool, DeValue::Boolean(yes)) => Ok(Value::Bool(*yes)),
        (Kind::Count(..), DeValue::Integer(number)) if number.radix() == 10 => {
            kind.parse(number.as_str()).map_err(|problem| (value.span(), problem))
        }
        _ => Err(mismatch(kind, value)),
    };
    read.map_err(|found| problems.push(found)).ok()
}

fn string(kind: Kind, value: &Spanned<DeValue<'_>>, problems: &mut Vec<Found>) -> Option<Value> {
    let read = match value.get_ref() {
        DeValue::String(text) => kind.parse(text).map_err(|problem| (value.span(), problem)),
        _ => Err(mismatch(kind, value)),
    };
    read.map_err(|found| problems.push(found)).ok()
}

fn list(kind: Kind, value: &Spanned<DeValue<'_>>, problems: &mut Vec<Found>) -> Option<Value> {
    let DeValue::Array(items) = value.get_ref() else {
        problems.push(mismatch(kind, value));
        return None;
    };
    if items.len() > MOST_ELEMENTS {
        problems.push((value.span(), too_many()));
        return None;
    }
    let (mut listen, mut endpoints, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        let Some(text) = item.get_ref().as_str() else {
            let what =
                format!("expected a string in the list, found a {}", item.get_ref().type_str());
            problems.push((item.span(), Problem::new(what, "put it in double quotes")));
            continue;
        };
        // An element is one address or name: a comma inside it would be a second one that nobody
        // sees.
        match kind.parse(text) {
            Ok(Value::Listen(one)) if one.len() == 1 => listen.extend(one),
            Ok(Value::Endpoints(one)) if one.len() == 1 => endpoints.extend(one),
            Ok(Value::Commands(one)) if one.len() == 1 => commands.extend(one),
            Ok(_) => {
                let one = if kind == Kind::Commands { "command" } else { "address" };
                let problem = Problem::new(
                    format!("{text:?} is not one {one}"),
                    format!("give each {one} a string of its own"),
                );
                problems.push((item.span(), problem));
            }
            Err(problem) => problems.push((item.span(), problem)),
        }
    }
    Some(match kind {
        Kind::Listen | Kind::ListenTcp => Value::Listen(listen),
        Kind::Commands => Value::Commands(commands),
        _ => Value::Endpoints(endpoints),
    })
}

fn map(kind: Kind, value: &Spanned<DeValue<'_>>, problems: &mut Vec<Found>) -> Option<Value> {
    let DeValue::Table(table) = value.get_ref() else {
        problems.push(mismatch(kind, value));
        return None;
    };
    if table.len() > MOST_ELEMENTS {
        problems.push((value.span(), too_many()));
        return None;
    }
    let mut read = BTreeMap::new();
    for (from, to) in table {
        let announced = Endpoint::parse(from.get_ref(), REDIS_PORT)
            .map_err(|problem| problems.push((from.span(), problem)));
        let dialled = match to.get_ref().as_str() {
            Some(text) => Endpoint::parse(text, REDIS_PORT)
                .map_err(|problem| problems.push((to.span(), problem))),
            None => {
                let what = format!("expected \"host:port\", found a {}", to.get_ref().type_str());
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
    Some(Value::AddressMap(read))
}

fn too_many() -> Problem {
    Problem::new("too many elements", format!("give at most {MOST_ELEMENTS}"))
}
