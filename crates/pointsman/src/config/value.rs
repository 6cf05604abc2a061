//! Option values: their kinds, how each is parsed from text, and how it is written in a file.
//!
//! Environment variables, flags, defaults and strings in the file are all text, so each kind has
//! exactly one parser. Files have other types as well: `toml_value` converts those and uses this
//! module for every string.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use proxy::{ListenAddr, Network};
use sentinel::NodeAddr;

use super::credentials::Secret;
use super::endpoint::{self, SENTINEL_PORT};
use super::value_parsers::{
    elements, parse_choice, parse_cipher, parse_commands, parse_count, parse_elements,
    parse_env_name, parse_master_name, parse_pair, parse_refusals,
};
use super::{duration, hosts, listen};

/// Maximum number of elements of a list or map in the configuration.
pub(super) const MAX_ELEMENTS: usize = 1024;

/// What is wrong with a value, and what to do about it.
///
/// It never repeats the value, which may be a password in the wrong place: a URL with credentials
/// instead of an address, or the password itself instead of the name of its variable. The origin
/// and the key lead to the value. `tests::repeats_no_refused_value` holds this for every key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    pub(super) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn too_many() -> Self {
        Self::new("too many elements", format!("give at most {MAX_ELEMENTS}"))
    }

    /// Names the element of a list that has the problem, counted from 1.
    pub(super) fn of_element(self, number: usize) -> Self {
        Self { what: format!("element {number}: {}", self.what), ..self }
    }
}

/// The kind of an option's value, which determines how it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A duration above zero.
    Duration,
    /// A duration, or `0s` or `off` for none.
    DurationOrOff,
    /// `true` or `false`.
    Bool,
    /// An integer between the two bounds, inclusive.
    Count(usize, usize),
    /// Sentinel's name for a master.
    MasterName,
    /// Text that is not empty.
    Text,
    /// The path of a file.
    Path,
    /// The name of an environment variable.
    EnvName,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Addresses to listen on: TCP addresses and Unix sockets.
    Listen,
    /// TCP addresses to listen on.
    ListenTcp,
    /// The mode of a file, in octal.
    Mode,
    /// Hosts, each with an optional port.
    Endpoints,
    /// A host and a port, both required.
    Endpoint,
    /// Announced endpoints and the endpoints to connect to instead.
    AddressMap,
    /// Names of Redis commands, each with an optional subcommand after a `|`.
    Commands,
    /// Commands that are refused, and presets of them.
    Refusals,
    /// Networks, each as an address with an optional prefix.
    Networks,
    /// Paths of files.
    Paths,
    /// Names of TLS ciphers.
    Ciphers,
    /// Names of this host, `*.example.com` for all names below one.
    HostNames,
    /// Networks, and names as in [`ValueKind::HostNames`].
    Nodes,
    /// A password.
    Secret,
}

/// A value that is valid for its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// For [`ValueKind::Duration`] and [`ValueKind::DurationOrOff`].
    Duration(Duration),
    /// Of [`ValueKind::Bool`].
    Bool(bool),
    /// Of [`ValueKind::Count`].
    Count(usize),
    /// For every kind of text, [`ValueKind::Choice`] included.
    Text(String),
    /// Of [`ValueKind::Listen`] and [`ValueKind::ListenTcp`].
    Listen(Vec<ListenAddr>),
    /// Of [`ValueKind::Endpoints`].
    Endpoints(Vec<NodeAddr>),
    /// Of [`ValueKind::AddressMap`].
    AddressMap(BTreeMap<NodeAddr, NodeAddr>),
    /// Of [`ValueKind::Networks`].
    Networks(Vec<Network>),
    /// For every other list: commands, names of hosts, paths and ciphers.
    Words(Vec<String>),
    /// Of [`ValueKind::Secret`].
    Secret(Secret),
}

impl ValueKind {
    /// Parses a value from text: a flag, an environment variable, a default or a string in the
    /// file. Elements of lists are separated by commas; a map is written `announced=dialled,...`.
    ///
    /// # Errors
    ///
    /// The first problem found.
    pub fn parse(self, text: &str) -> Result<Value, Problem> {
        match self {
            Self::Duration => match duration::parse(text)? {
                Duration::ZERO => {
                    Err(Problem::new("zero is not allowed here", "give more than \"0s\""))
                }
                duration => Ok(Value::Duration(duration)),
            },
            Self::DurationOrOff => duration::parse(text).map(Value::Duration),
            Self::Bool => match text {
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                _ => Err(Problem::new("it is neither true nor false", "write true or false")),
            },
            Self::Count(least, most) => parse_count(text, least, most),
            Self::MasterName => parse_master_name(text),
            Self::Text | Self::Path if text.is_empty() => {
                Err(Problem::new("it is empty", "give a value, or remove the key"))
            }
            Self::Text | Self::Path => Ok(Value::Text(text.to_owned())),
            Self::Endpoint => {
                endpoint::parse_with_port(text).map(|one| Value::Text(one.to_string()))
            }
            Self::EnvName => parse_env_name(text),
            Self::Choice(names) => parse_choice(text, names),
            Self::Listen => parse_elements(text, listen::parse).map(Value::Listen),
            Self::ListenTcp => parse_elements(text, listen::parse_tcp).map(Value::Listen),
            Self::Mode => listen::parse_mode(text).map(|mode| Value::Text(format!("{mode:04o}"))),
            Self::Endpoints => parse_elements(text, |one| endpoint::parse(one, SENTINEL_PORT))
                .map(Value::Endpoints),
            Self::AddressMap => parse_elements(text, parse_pair).map(Value::AddressMap),
            Self::Commands => parse_commands(text),
            Self::Refusals => parse_refusals(text),
            Self::Networks => parse_elements(text, hosts::parse_network).map(Value::Networks),
            Self::HostNames => parse_elements(text, hosts::parse_name).map(Value::Words),
            Self::Nodes => parse_elements(text, hosts::parse_node).map(Value::Words),
            Self::Paths => Ok(Value::Words(elements(text).map(str::to_owned).collect())),
            Self::Ciphers => parse_elements(text, parse_cipher).map(Value::Words),
            Self::Secret if text.is_empty() => {
                Err(Problem::new("it is empty", "give a password, or remove the key"))
            }
            Self::Secret => Ok(Value::Secret(Secret::new(text.to_owned()))),
        }
    }

    /// The empty list, if the values are lists of strings.
    pub(super) fn empty_list(self) -> Option<Value> {
        self.parse("").ok().filter(|value| value.elements().is_some())
    }

    /// The TOML value that a file needs, for messages of the form "expected ...".
    pub fn expected(self) -> &'static str {
        match self {
            Self::Duration | Self::DurationOrOff => "a duration such as \"5s\"",
            Self::Bool => "true or false",
            Self::Count(..) => "a whole number",
            Self::MasterName | Self::Text | Self::Path | Self::EnvName | Self::Choice(_) => {
                "a string"
            }
            Self::Secret => "a string (a password is quoted even if it is a number)",
            Self::Endpoint => "a string such as \"redis.example:6379\"",
            Self::Mode => "a string such as \"0660\"",
            Self::Listen | Self::ListenTcp => "a list of addresses such as [\"0.0.0.0:6379\"]",
            Self::Endpoints => "a list of hosts such as [\"redis-sentinel:26379\"]",
            Self::Commands => "a list of commands such as [\"GRAPH.QUERY\"]",
            Self::Refusals => "a list of commands such as [\"@deployment\", \"FLUSHALL\"]",
            Self::Networks => "a list of networks such as [\"10.0.0.0/8\"]",
            Self::Paths => "a list of files such as [\"/etc/tls/tls.crt\"]",
            Self::Ciphers => "a list of ciphers such as [\"TLS_AES_256_GCM_SHA384\"]",
            Self::Nodes => "a list of networks and names such as [\"10.0.0.0/8\"]",
            Self::HostNames => "a list of names such as [\"pointsman.example.com\"]",
            Self::AddressMap => "a table such as { \"10.0.0.1:6379\" = \"203.0.113.1:6379\" }",
        }
    }
}

impl Value {
    /// The number of elements of a list of strings.
    pub(super) fn elements(&self) -> Option<usize> {
        match self {
            Self::Listen(all) => Some(all.len()),
            Self::Endpoints(all) => Some(all.len()),
            Self::Networks(all) => Some(all.len()),
            Self::Words(all) => Some(all.len()),
            _ => None,
        }
    }

    /// Appends the elements of a list of the same kind.
    pub(super) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Listen(all), Self::Listen(more)) => all.extend(more),
            (Self::Endpoints(all), Self::Endpoints(more)) => all.extend(more),
            (Self::Networks(all), Self::Networks(more)) => all.extend(more),
            (Self::Words(all), Self::Words(more)) => all.extend(more),
            _ => {}
        }
    }

    /// The value as written in a file. A secret is written as a placeholder.
    pub fn to_toml(&self) -> String {
        match self {
            Self::Duration(duration) => quote(&duration::format(*duration)),
            Self::Bool(yes) => yes.to_string(),
            Self::Count(count) => count.to_string(),
            Self::Text(text) => quote(text),
            Self::Listen(addrs) => list(addrs),
            Self::Endpoints(endpoints) => list(endpoints),
            Self::Networks(networks) => list(networks),
            Self::Words(words) => list(words),
            Self::AddressMap(map) if map.is_empty() => "{}".to_owned(),
            Self::AddressMap(map) => {
                let pairs = map.iter().map(|(from, to)| {
                    format!("{} = {}", quote(&from.to_string()), quote(&to.to_string()))
                });
                format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
            }
            Self::Secret(secret) => quote(&secret.to_string()),
        }
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    format!(
        "[{}]",
        items.iter().map(|item| quote(&item.to_string())).collect::<Vec<_>>().join(", ")
    )
}

/// A TOML basic string, escaped by the TOML library.
fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A Rust type of a field of a section.
pub(super) trait FieldType {
    fn from_value(value: Option<&Value>) -> Self;
}

/// An enumeration whose values are given by a [`ValueKind::Choice`].
pub(crate) trait ChoiceValue: Sized {
    /// The words.
    const NAMES: &'static [&'static str];

    /// The value of a word, or of the first one.
    fn named(text: &str) -> Self;
}

impl<T: ChoiceValue> FieldType for T {
    fn from_value(value: Option<&Value>) -> Self {
        T::named(if let Some(Value::Text(text)) = value { text } else { "" })
    }
}

macro_rules! typed {
    ($($ty:ty, $variant:ident;)*) => { $(
        impl FieldType for $ty {
            fn from_value(value: Option<&Value>) -> Self {
                match value {
                    Some(Value::$variant(inner)) => inner.clone(),
                    _ => Self::default(),
                }
            }
        }
    )* };
}

typed! {
    Duration, Duration;
    bool, Bool;
    usize, Count;
    String, Text;
    Secret, Secret;
    Vec<ListenAddr>, Listen;
    Vec<NodeAddr>, Endpoints;
    Vec<Network>, Networks;
    Vec<String>, Words;
    BTreeMap<NodeAddr, NodeAddr>, AddressMap;
}

impl FieldType for Vec<SocketAddr> {
    fn from_value(value: Option<&Value>) -> Self {
        match value {
            Some(Value::Listen(addrs)) => addrs.iter().filter_map(ListenAddr::tcp).collect(),
            _ => Self::default(),
        }
    }
}

impl<T: FieldType> FieldType for Option<T> {
    fn from_value(value: Option<&Value>) -> Self {
        value.map(|value| T::from_value(Some(value)))
    }
}
