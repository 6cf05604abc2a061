//! Configurations written from a model, and a comparison of the import with the model.
//!
//! The model is a list of Redis groups with their names, servers, passwords and checks. It is
//! written as a haproxy.cfg in one of several spellings. The expected result of the import, or the
//! refusal, follows from the model alone.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use haproxy_import::{Environment, Import, ImportOptions};
use proptest::prelude::*;

use super::check;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Votes {
    None,
    /// A backend that queries the sentinels, named in a condition.
    Backend,
    /// The check of the servers queries the sentinel on the same host, too.
    SameCheck,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Auth {
    None,
    Literal,
    Variable,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Readers {
    None,
    ByRole,
    ByName,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Tls {
    None,
    Bind,
    Server,
    DefaultServer,
    Check,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stats {
    None,
    Listen,
    Backend,
}

#[derive(Debug, Clone)]
struct RedisGroup {
    hosts: usize,
    votes: Votes,
    auth: Auth,
    readers: Readers,
    asks_role: bool,
    is_listen: bool,
}

#[derive(Debug, Clone)]
struct Model {
    groups: Vec<RedisGroup>,
    /// All groups on the same hosts, on different ports.
    shared_hosts: bool,
    /// `--name` for every listener.
    named: bool,
    sentinel_frontend: bool,
    stats: Stats,
    foreign: bool,
    /// TLS of the first group.
    tls: Tls,
    allow_plaintext: bool,
    quotes: bool,
    comments: bool,
}

fn group() -> impl Strategy<Value = RedisGroup> {
    let votes = prop::sample::select(vec![Votes::None, Votes::Backend, Votes::SameCheck]);
    let auth = prop::sample::select(vec![Auth::None, Auth::Literal, Auth::Variable]);
    let readers = prop::sample::select(vec![Readers::None, Readers::ByRole, Readers::ByName]);
    (1_usize..=3, votes, auth, readers, any::<bool>(), any::<bool>()).prop_map(
        |(hosts, votes, auth, readers, asks_role, is_listen)| RedisGroup {
            hosts,
            votes,
            auth,
            readers,
            asks_role,
            is_listen,
        },
    )
}

fn model() -> impl Strategy<Value = Model> {
    let groups = prop::collection::vec(group(), 1..=3);
    let stats = prop::sample::select(vec![Stats::None, Stats::Listen, Stats::Backend]);
    let tls = prop_oneof![
        4 => Just(Tls::None),
        1 => prop::sample::select(vec![Tls::Bind, Tls::Server, Tls::DefaultServer, Tls::Check]),
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let looks = (any::<bool>(), any::<bool>(), any::<bool>());
    (groups, stats, tls, flags, looks).prop_map(|(groups, stats, tls, flags, looks)| Model {
        groups,
        shared_hosts: flags.0,
        named: flags.1,
        sentinel_frontend: flags.2,
        stats,
        foreign: flags.3,
        tls,
        allow_plaintext: looks.0,
        quotes: looks.1,
        comments: looks.2,
    })
}

/// The expected result of the import for a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Understood {
    name: String,
    master: String,
    listen: BTreeSet<String>,
    replica_listen: BTreeSet<String>,
    sentinels: BTreeSet<String>,
    auth: Option<String>,
    /// The table of the side with TLS.
    tls: Option<&'static str>,
}

impl Model {
    fn hosts(&self, at: usize) -> Vec<String> {
        let base = if self.shared_hosts { "node".to_owned() } else { format!("g{at}-") };
        (0..self.groups[at].hosts).map(|host| format!("{base}{host}")).collect()
    }

    fn port(&self, at: usize) -> usize {
        if self.shared_hosts { 6379 + at } else { 6379 }
    }

    fn queried(&self) -> Vec<usize> {
        (0..self.groups.len()).filter(|at| self.groups[*at].votes != Votes::None).collect()
    }

    /// The name of the master that the import must find.
    fn master(&self, at: usize) -> String {
        let queried = self.queried();
        if self.named || queried.contains(&at) {
            format!("group{at}")
        } else if let [only] = queried[..] {
            format!("group{only}")
        } else {
            "mymaster".to_owned()
        }
    }

    /// The other groups whose masters have the same name.
    fn namesakes(&self, at: usize) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(move |it| *it != at && self.master(*it) == self.master(at))
    }

    /// The sentinels that the import must find or assume.
    fn sentinels(&self, at: usize) -> BTreeSet<String> {
        let on = |at: usize| -> BTreeSet<String> {
            self.hosts(at).iter().map(|it| format!("{it}:26379")).collect()
        };
        if self.groups[at].votes != Votes::None {
            return on(at);
        }
        let frontend = self.sentinel_frontend.then_some(0);
        let sources: BTreeSet<usize> = self.queried().into_iter().chain(frontend).collect();
        if sources.is_empty() || (!self.shared_hosts && sources.len() > 1 && !sources.contains(&at))
        {
            return on(at);
        }
        if self.shared_hosts {
            // All of them share the first host.
            return sources.into_iter().flat_map(on).collect();
        }
        if sources.contains(&at) { on(at) } else { sources.into_iter().flat_map(on).collect() }
    }

    /// Whether listeners without a role may be for readers.
    fn knows_masters(&self) -> bool {
        self.groups.iter().any(|it| it.asks_role || it.votes != Votes::None)
    }

    fn expected(&self) -> Vec<Understood> {
        let all = self.groups.iter().enumerate().map(|(at, group)| {
            let mut listen = BTreeSet::from([format!("0.0.0.0:{}", 10_000 + at)]);
            let mut replica_listen = BTreeSet::new();
            let readers = format!("0.0.0.0:{}", 11_000 + at);
            match group.readers {
                Readers::None => {}
                Readers::ByName if !self.knows_masters() => drop(listen.insert(readers)),
                _ => drop(replica_listen.insert(readers)),
            }
            let auth = match group.auth {
                Auth::None => None,
                Auth::Literal => Some(format!("password = \"secret{at}\"")),
                Auth::Variable => Some("password_env = \"REDIS_PASSWORD\"".to_owned()),
            };
            let (master, is_shared) = (self.master(at), self.namesakes(at).next().is_some());
            Understood {
                name: if is_shared { format!("redis{at}") } else { master.clone() },
                master,
                listen,
                replica_listen,
                sentinels: self.sentinels(at),
                auth,
                tls: if at == 0 { self.tls_table() } else { None },
            }
        });
        all.collect()
    }

    /// The table that the first group's TLS becomes.
    fn tls_table(&self) -> Option<&'static str> {
        match self.tls {
            Tls::Bind if !self.allow_plaintext => Some("tls"),
            Tls::Server | Tls::DefaultServer if !self.allow_plaintext => Some("redis_tls"),
            _ => None,
        }
    }

    /// A part of each expected refusal.
    fn refusals(&self) -> Vec<&'static str> {
        let mut refusals = Vec::new();
        let shares_sentinels =
            |one: usize, other: usize| !self.sentinels(one).is_disjoint(&self.sentinels(other));
        if (0..self.groups.len())
            .any(|at| self.namesakes(at).any(|other| shares_sentinels(at, other)))
        {
            refusals.push("would ask the same sentinels");
        }
        if self.tls == Tls::Check && !self.allow_plaintext {
            refusals.push("passes the clients' TLS through");
        }
        refusals
    }

    /// Whether nothing is assumed or left out, so that `--strict` changes nothing.
    fn is_certain(&self) -> bool {
        let certain = |it: &RedisGroup| it.votes != Votes::None && it.readers != Readers::ByName;
        // Servers that are not verified are reported, too.
        let is_tls_certain = self.tls == Tls::None || self.tls_table() == Some("tls");
        let leaves_out = self.sentinel_frontend || self.foreign || !is_tls_certain;
        self.groups.iter().all(certain) && !leaves_out
    }

    fn options(&self) -> ImportOptions {
        let names = (0..self.groups.len())
            .flat_map(|at| {
                let (name, readers) =
                    (format!("group{at}"), self.groups[at].readers != Readers::None);
                let readers = readers.then(|| (Some(format!("redis{at}-read")), name.clone()));
                [Some((Some(format!("redis{at}")), name)), readers]
            })
            .flatten();
        let names = if self.named { names.collect() } else { Vec::new() };
        ImportOptions { names, allow_plaintext: self.allow_plaintext, ..ImportOptions::default() }
    }

    /// `tcp-check send` of a command, in one of two spellings.
    fn send(&self, out: &mut String, command: &str) {
        let _ = if self.quotes || command.contains('$') {
            writeln!(out, "  tcp-check send \"{command}\\r\\n\"")
        } else {
            writeln!(out, "  tcp-check send {}\\r\\n", command.replace(' ', "\\ "))
        };
    }

    fn write(&self) -> String {
        let mut out =
            String::from("global\n  maxconn 4000\ndefaults\n  mode tcp\n  timeout connect 2s\n");
        match self.stats {
            Stats::None => {}
            Stats::Listen => {
                out.push_str("listen page\n  mode http\n  bind :8404\n  stats enable\n");
            }
            Stats::Backend => out.push_str(
                "frontend page\n  mode http\n  bind :8404\n  default_backend numbers\n\
                 backend numbers\n  mode http\n  stats enable\n",
            ),
        }
        for at in 0..self.groups.len() {
            self.write_group(&mut out, at);
        }
        if self.sentinel_frontend {
            out.push_str("listen watchers\n  bind :26379\n  option tcp-check\n");
            self.send(&mut out, "PING");
            for (number, host) in self.hosts(0).iter().enumerate() {
                let _ = writeln!(out, "  server s{number} {host}:26379 check");
            }
        }
        if self.foreign {
            out.push_str(
                "listen db\n  bind :3306\n  option mysql-check\n  server db db:3306 check ssl\n",
            );
        }
        if self.comments { out.replace('\n', " # 'as is\n") } else { out }
    }

    fn write_group(&self, out: &mut String, at: usize) {
        let group = &self.groups[at];
        let tls = if at == 0 { self.tls } else { Tls::None };
        let bind = if tls == Tls::Bind { " ssl crt certs/redis.pem" } else { "" };
        let port = 10_000 + at;
        let _ = if group.is_listen {
            writeln!(out, "listen redis{at}\n  bind *:{port}{bind}")
        } else {
            writeln!(
                out,
                "frontend redis{at}\n  bind :{port}{bind}\n  default_backend bk{at}\nbackend bk{at}"
            )
        };
        out.push_str("  option tcp-check\n");
        if tls == Tls::Check {
            out.push_str("  tcp-check connect ssl\n");
        }
        self.write_auth(out, at);
        self.send(out, "PING");
        if group.asks_role {
            self.send(out, "info replication");
            out.push_str("  tcp-check expect string role:master\n");
        }
        if group.votes == Votes::SameCheck {
            out.push_str("  tcp-check connect port 26379\n");
            self.send(out, &format!("SENTINEL get-master-addr-by-name group{at}"));
        }
        if group.votes == Votes::Backend {
            let _ = writeln!(out, "  use-server s0 if {{ nbsrv(vote{at}) ge 1 }}");
        }
        let ssl = if tls == Tls::Server { " ssl verify none" } else { "" };
        if tls == Tls::DefaultServer {
            out.push_str("  default-server inter 1s ssl verify none\n");
        }
        self.write_servers(out, at, ssl);
        if group.votes == Votes::Backend {
            let _ = writeln!(out, "backend vote{at}\n  option tcp-check");
            self.send(out, &format!("SENTINEL master group{at}"));
            for (number, host) in self.hosts(at).iter().enumerate() {
                let _ = writeln!(out, "  server v{number} {host}:26379 check inter 1s");
            }
        }
        if group.readers != Readers::None {
            let _ =
                writeln!(out, "listen redis{at}-read\n  bind :{}\n  option tcp-check", 11_000 + at);
            self.send(out, "PING");
            if group.readers == Readers::ByRole {
                self.send(out, "ROLE");
                out.push_str("  tcp-check expect string slave\n");
            }
            if tls == Tls::DefaultServer {
                out.push_str("  default-server ssl verify none\n");
            }
            self.write_servers(out, at, ssl);
        }
    }

    fn write_servers(&self, out: &mut String, at: usize, flags: &str) {
        for (number, host) in self.hosts(at).iter().enumerate() {
            let _ = writeln!(out, "  server s{number} {host}:{} check{flags}", self.port(at));
        }
    }

    fn write_auth(&self, out: &mut String, at: usize) {
        match self.groups[at].auth {
            Auth::None => {}
            Auth::Literal => self.send(out, &format!("AUTH secret{at}")),
            Auth::Variable => self.send(out, "AUTH ${REDIS_PASSWORD}"),
        }
    }
}

fn understood(import: &Import) -> (Vec<Understood>, Vec<String>) {
    let table: toml::Table = import.toml.parse().expect("TOML");
    let strings = |value: Option<&toml::Value>| -> Vec<String> {
        let all = value.and_then(toml::Value::as_array).cloned().unwrap_or_default();
        all.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
    };
    let services = table.get("service").and_then(toml::Value::as_array).expect("services").iter();
    let services = services.map(|service| Understood {
        name: service["name"].as_str().expect("a name").to_owned(),
        master: service
            .get("master")
            .unwrap_or(&service["name"])
            .as_str()
            .expect("a name")
            .to_owned(),
        // With TLS for clients, tls_listen has the addresses of the frontend.
        listen: ["listen", "tls_listen"].iter().flat_map(|it| strings(service.get(it))).collect(),
        replica_listen: strings(service.get("replica_listen")).into_iter().collect(),
        sentinels: strings(service.get("sentinels")).into_iter().collect(),
        auth: service
            .get("auth")
            .map(|it| it.to_string().trim_matches(['{', '}', ' ', '\n']).to_owned()),
        tls: ["tls", "redis_tls", "sentinel_tls"].into_iter().find(|it| service.get(it).is_some()),
    });
    (services.collect(), strings(table["admin"].get("listen")))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 192,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The import must understand what the model says, refuse what must not be guessed, and write
    /// what `pointsman check` accepts.
    #[test]
    fn understands_configurations_written_from_a_model(model in model()) {
        let text = model.write();
        let env = Environment {
            variable: &|_| None,
            folder: &|_| None,
            endpoint: &|it| Some(it.to_owned()),
        };
        let import = haproxy_import::import(&[("m.cfg".to_owned(), text.clone())], &model.options(), &env);
        let refusals: Vec<String> = import.refusals.iter().map(ToString::to_string).collect();
        let expected = model.refusals();
        prop_assert_eq!(expected.is_empty(), refusals.is_empty(), "{:?}\n{}", refusals, text);
        for part in &expected {
            prop_assert!(refusals.iter().any(|it| it.contains(part)), "{:?} lack {}\n{}", refusals, part, text);
        }
        let strict = ImportOptions { strict: true, ..model.options() };
        let strict = haproxy_import::import(&[("m.cfg".to_owned(), text.clone())], &strict, &env);
        let is_accepted = expected.is_empty() && model.is_certain();
        prop_assert_eq!(strict.refusals.is_empty(), is_accepted, "{:?}\n{}", strict.refusals, text);
        if expected.is_empty() {
            let (services, admin) = understood(&import);
            prop_assert_eq!(services, model.expected(), "\n{}", text);
            let page = if model.stats == Stats::None { &[][..] } else { &["0.0.0.0:8404"] };
            prop_assert_eq!(admin, page);
            let drops_tls = model.tls != Tls::None && model.allow_plaintext;
            prop_assert_eq!(import.toml.contains("# WITHOUT TLS"), drops_tls);
            check("the model", import.toml.as_bytes());
        }
    }
}
