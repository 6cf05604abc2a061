//! Which clients a listener accepted: rules on source networks, and the PROXY protocol.
//!
//! haproxy evaluates `tcp-request` rules in order, and the first that applies decides. Converted
//! are the forms that only permit: `reject` for everyone outside some networks, and `accept` for
//! some networks before a `reject` for everyone. Rules that refuse single networks, and rules on
//! anything but the source, have no counterpart and are reported as such.
//!
//! `accept` ends only its own stage, of `connection`, `session` and `content`. If several stages
//! restrict clients, the networks of one have to be part of those of all others.
//!
//! With `accept-proxy`, rules of the stage `connection` concern the load balancer and not the
//! client, so only later stages are converted.

use std::net::IpAddr;

use crate::config_file::Directive;
use crate::plan::{self, Plan, PlannedService, Planner};
use crate::proxies::{self, RedisListener};
use crate::report::LineOutcome;
use crate::tls;

/// Everyone, in both families.
const EVERYONE: &str = "[\"0.0.0.0/0\", \"::/0\"]";
/// The networks of haproxy's predefined condition LOCALHOST.
const LOCALHOST: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// A key's value, and the line that it comes from.
type Value<'a> = (String, &'a Directive);
/// The networks that a stage accepts, and its rules.
type Stage<'a> = (Vec<String>, Vec<&'a Directive>);

/// What a listener demands of its clients.
#[derive(Debug, Default)]
struct ClientRules<'a> {
    /// The networks that may connect.
    allow: Option<Value<'a>>,
    /// The networks of load balancers.
    balancers: Option<Value<'a>>,
    /// The lines that these come from.
    lines: Vec<&'a Directive>,
}

impl<'a> Planner<'a> {
    /// Adds the rules on clients to the services.
    pub(super) fn add_client_rules(&mut self, plan: &mut Plan) {
        let config = self.config;
        for service in &mut plan.services {
            let mut masters: Vec<ClientRules<'a>> = Vec::new();
            let mut readers: Vec<ClientRules<'a>> = Vec::new();
            for listener in &self.proxies.listeners {
                if plan::is_of(config, listener.section, &service.listen) {
                    masters.push(self.rules_of(listener));
                } else if plan::is_of(config, listener.section, &service.replica_listen) {
                    readers.push(self.rules_of(listener));
                }
            }
            self.add_rules(service, &masters, &readers);
        }
    }

    fn add_rules(
        &mut self,
        service: &mut PlannedService,
        masters: &[ClientRules<'a>],
        readers: &[ClientRules<'a>],
    ) {
        let mut set = |key, value: &str, line| {
            service.keys.extend(tls::planned_keys(vec![(key, value.to_owned())], line));
        };
        let all = || masters.iter().chain(readers);
        match common(all().map(|it| &it.balancers)) {
            Ok(Some((value, line))) => {
                set("proxy_protocol_from", &value, line);
                for line in all().flat_map(|it| &it.lines).filter(|it| is_about_proxies(it)) {
                    self.note_balancers(line, &value);
                }
            }
            Ok(None) => {}
            Err(()) => {
                let note = "only some addresses of the service expect the PROXY protocol; \
                            proxy_protocol_from applies to all of them, by the network of the \
                            load balancer";
                for line in all().flat_map(|it| &it.lines).filter(|it| is_about_proxies(it)) {
                    self.notes.replace(line, LineOutcome::Unmatched, note);
                }
            }
        }
        let allow = common(masters.iter().map(|it| &it.allow));
        let replica_allow = common(readers.iter().map(|it| &it.allow));
        let (Ok(allow), Ok(replica_allow)) = (allow, replica_allow) else {
            let note = "listeners of this service accept different networks: give them services of \
                        their own, or use a firewall";
            for line in all().flat_map(|it| &it.lines).filter(|it| !is_about_proxies(it)) {
                self.notes.replace(line, LineOutcome::Unmatched, note);
            }
            return;
        };
        for (key, rules, value) in
            [("allow", masters, &allow), ("replica_allow", readers, &replica_allow)]
        {
            let Some((value, line)) = value else { continue };
            set(key, value, line);
            for line in rules.iter().flat_map(|it| &it.lines).filter(|it| !is_about_proxies(it)) {
                self.notes.replace(line, LineOutcome::Mapped, &format!("service.{key} = {value}"));
            }
        }
        // The list of the service applies to readers as well, unless they have one.
        if let (Some((_, line)), None, false) = (&allow, &replica_allow, readers.is_empty()) {
            set("replica_allow", EVERYONE, line);
        }
    }

    fn note_balancers(&mut self, line: &Directive, value: &str) {
        if value == EVERYONE {
            let note = "haproxy took the PROXY header of every client, which may then claim any \
                        address: name the networks of the load balancers in \
                        service.proxy_protocol_from";
            self.notes.replace(line, LineOutcome::Assumed, note);
        } else {
            let note = format!("service.proxy_protocol_from = {value}");
            self.notes.replace(line, LineOutcome::Mapped, &note);
        }
    }

    fn rules_of(&self, listener: &RedisListener) -> ClientRules<'a> {
        let config = self.config;
        let own = proxies::directives(config, listener.section);
        let mut rules = ClientRules::default();
        let binds: Vec<&Directive> = proxies::lines(config, listener.section, "bind").collect();
        let accepts_proxy = |it: &&&Directive| it.has("accept-proxy");
        let with_proxy: Vec<&Directive> = binds.iter().filter(accepts_proxy).copied().collect();
        if let Some(first) = with_proxy.first() {
            // With a part of the addresses only, a value that no other listener has.
            let all = with_proxy.len() == binds.len();
            let value = if all { EVERYONE } else { "" };
            rules.balancers = Some((value.to_owned(), first));
            rules.lines.extend(&with_proxy);
        }
        let before = ["tcp-request", "connection", "expect-proxy", "layer4"];
        let expecting: Vec<&Directive> = own.iter().filter(|it| it.begins(&before)).collect();
        for rule in &expecting {
            if let Some(Condition::Inside(networks)) = condition(own, rule, 4) {
                rules.balancers = Some((toml_list(&networks), rule));
                rules.lines.push(rule);
            }
        }
        let is_proxied = rules.balancers.is_some() || !expecting.is_empty();
        let stages = ["connection", "session", "content"];
        let stages: Vec<Stage<'a>> = stages
            .iter()
            .skip(usize::from(is_proxied))
            .filter_map(|stage| restriction(own, stage))
            .collect();
        // A client has to pass every stage.
        let is_narrowest = |it: &&Stage<'a>| stages.iter().all(|other| is_within(&it.0, &other.0));
        let lines: Vec<&Directive> = stages.iter().flat_map(|it| &it.1).copied().collect();
        if let Some((networks, used)) = stages.iter().find(is_narrowest) {
            rules.allow = used.last().map(|last| (toml_list(networks), *last));
        }
        if rules.allow.is_some() {
            let is_used = |acl: &&Directive| {
                let is_name = |word: &str| word.trim_start_matches('!') == acl.word(1);
                acl.begins(&["acl"])
                    && lines.iter().any(|rule| rule.words.iter().any(|it| is_name(&it.to_string())))
            };
            rules.lines.extend(own.iter().filter(is_used));
            rules.lines.extend(&lines);
        }
        rules
    }
}

/// The only networks whose clients pass the rules of a stage; `None` if it closes nobody else.
fn restriction<'a>(own: &'a [Directive], stage: &str) -> Option<Stage<'a>> {
    let mut accepted: Vec<String> = Vec::new();
    let mut lines: Vec<&Directive> = Vec::new();
    for rule in own.iter().filter(|it| it.begins(&["tcp-request", stage])) {
        let action = rule.word(2);
        let (networks, is_last) = match (action.as_str(), condition(own, rule, 3)) {
            ("accept", Some(Condition::Inside(networks))) => (networks, false),
            ("reject", Some(Condition::Outside(networks))) => (networks, true),
            ("reject", Some(Condition::Always)) if !accepted.is_empty() => (Vec::new(), true),
            // Who is accepted by a rule that is not understood is unknown.
            ("accept", _) => return None,
            _ => continue,
        };
        accepted.extend(networks);
        lines.push(rule);
        if is_last {
            return Some((accepted, lines));
        }
    }
    None
}

fn is_about_proxies(line: &Directive) -> bool {
    line.begins(&["bind"]) || line.has("expect-proxy")
}

/// The value that all listeners have; `None` if none has one.
///
/// # Errors
///
/// They differ.
fn common<'b, 'a: 'b>(
    values: impl Iterator<Item = &'b Option<Value<'a>>>,
) -> Result<Option<Value<'a>>, ()> {
    let mut values = values.peekable();
    let Some(first) = values.peek().copied() else { return Ok(None) };
    let text = |it: &Option<Value<'a>>| it.as_ref().map(|(value, _)| value.clone());
    let (expected, is_partial) = (text(first), text(first).is_some_and(|it| it.is_empty()));
    if is_partial || values.any(|it| text(it) != expected) { Err(()) } else { Ok(first.clone()) }
}

/// A condition on the source of a client.
enum Condition {
    Always,
    Inside(Vec<String>),
    Outside(Vec<String>),
}

/// The condition of a rule, from its word `at` on; `None` if it is about anything else.
fn condition(own: &[Directive], rule: &Directive, at: usize) -> Option<Condition> {
    let words = rule.rest(at);
    let mut words: &[String] = &words;
    let [first, rest @ ..] = words else { return Some(Condition::Always) };
    let mut is_outside = match first.as_str() {
        "if" => false,
        "unless" => true,
        _ => return None,
    };
    words = rest;
    // A negation may be a word of its own or the beginning of one.
    let mut name = words.first()?.as_str();
    if let Some(rest) = name.strip_prefix('!') {
        is_outside = !is_outside;
        name = rest;
        if name.is_empty() {
            words = words.get(1..)?;
            name = words.first()?.as_str();
        }
    }
    let networks = match (name, words) {
        ("{", [_, function, inner @ .., close]) if function == "src" && close == "}" => {
            networks(inner)?
        }
        (name, [_]) => named_networks(own, name)?,
        _ => return None,
    };
    Some(if is_outside { Condition::Outside(networks) } else { Condition::Inside(networks) })
}

/// The networks of the section's ACL called `name`.
fn named_networks(own: &[Directive], name: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for acl in own.iter().filter(|it| it.is_acl(name)) {
        if acl.word(2) != "src" {
            return None;
        }
        found.extend(networks(&acl.rest(3))?);
    }
    match name {
        "LOCALHOST" if found.is_empty() => Some(LOCALHOST.map(str::to_owned).to_vec()),
        _ => (!found.is_empty()).then_some(found),
    }
}

/// Networks as Pointsman writes them; `None` if one is a name, a file or an option.
fn networks(words: &[String]) -> Option<Vec<String>> {
    let words = words.strip_prefix(&["--".to_owned()]).unwrap_or(words);
    (!words.is_empty()).then_some(())?;
    words.iter().map(|word| network(word)).collect()
}

fn network(text: &str) -> Option<String> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (text, None),
    };
    let ip: IpAddr = ip.parse().ok()?;
    let (bits, width): (u128, u32) = match ip {
        IpAddr::V4(ip) => (ip.to_bits().into(), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let length: u32 = match prefix {
        None => width,
        Some(prefix) => match (prefix.parse(), prefix.parse::<std::net::Ipv4Addr>()) {
            (Ok(length), _) if length <= width => length,
            // A mask in place of a length: ones, then zeros.
            (_, Ok(mask)) if width == 32 => {
                let length = mask.to_bits().leading_ones();
                (mask.to_bits().count_ones() == length).then_some(length)?
            }
            _ => return None,
        },
    };
    let hosts = width - length;
    let base = bits.checked_shr(hosts).unwrap_or(0).checked_shl(hosts).unwrap_or(0);
    let base: IpAddr = match ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::from_bits(u32::try_from(base).ok()?).into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::from_bits(base).into(),
    };
    Some(format!("{base}/{length}"))
}

/// Whether each of these networks is part of one of the others.
fn is_within(networks: &[String], others: &[String]) -> bool {
    let length = |it: &str| it.rsplit_once('/').and_then(|(_, length)| length.parse::<u32>().ok());
    let is_part = |inner: &String, outer: &String| {
        let base = inner.split('/').next().unwrap_or_default();
        let wider = length(outer).filter(|it| length(inner).is_some_and(|own| own >= *it));
        wider.is_some_and(|it| network(&format!("{base}/{it}")).as_ref() == Some(outer))
    };
    networks.iter().all(|inner| others.iter().any(|outer| is_part(inner, outer)))
}

fn toml_list(networks: &[String]) -> String {
    let mut sorted: Vec<String> = Vec::new();
    for network in networks {
        if !sorted.contains(network) {
            sorted.push(network.clone());
        }
    }
    tls::toml_list(&sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_networks_as_haproxy_does() {
        for (text, expected) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("10.1.2.3", Some("10.1.2.3/32")),
            ("10.0.0.0/255.255.0.0", Some("10.0.0.0/16")),
            ("10.0.0.0/255.0.255.0", None),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("2001:db8::1/32", Some("2001:db8::/32")),
            ("::1", Some("::1/128")),
            ("::/0", Some("::/0")),
            ("10.0.0.0/33", None),
            ("redis.example", None),
            ("-f", None),
        ] {
            assert_eq!(network(text).as_deref(), expected, "{text}");
        }
    }
}
