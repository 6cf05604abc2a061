//! Which clients a listener accepted: rules on source networks, and the PROXY protocol.
//!
//! haproxy evaluates `tcp-request` rules in order, and the first that applies decides. Converted
//! are the forms that only permit: `reject` or `silent-drop` for everyone outside some networks,
//! and `accept` for some networks before a `reject` for everyone. Other rules that turn clients
//! away by their source, such as those of single networks, are refused: without them the import
//! would admit more clients. Rules on anything else are reported.
//!
//! `accept` ends only its own stage, of `connection`, `session` and `content`. If several rules
//! restrict clients, they have to name the same networks.
//!
//! With `accept-proxy`, rules of the stage `connection` concern the load balancer and not the
//! client, so only later stages are converted.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::plan::{Plan, PlannedService, Planner};
use crate::proxies::RedisListener;
use crate::report::LineOutcome;
use crate::sections::Directive;
use crate::tls;

/// Everyone, in both families.
const EVERYONE: &str = "[\"0.0.0.0/0\", \"::/0\"]";
/// The networks of haproxy's predefined condition LOCALHOST.
const LOCALHOST: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// A key's value, and the line that it comes from.
type Value<'a> = (String, &'a Directive);
/// The networks that rules accept, and the rules.
type Restriction<'a> = (Vec<String>, Vec<&'a Directive>);

/// The remedy for rules that are refused.
const REMEDY: &str = "write `reject unless { src NETWORK … }`, or remove the rule and use a \
                      NetworkPolicy or a firewall";

/// What a listener demands of its clients.
#[derive(Default)]
struct ClientRules<'a> {
    /// The networks that may connect.
    allow: Option<Value<'a>>,
    /// The networks of load balancers.
    balancers: Option<Value<'a>>,
    /// The lines that say which networks may connect.
    lines: Vec<&'a Directive>,
    /// The lines that expect the PROXY protocol.
    balancer_lines: Vec<&'a Directive>,
}

impl<'a> Planner<'a> {
    /// Adds the rules on clients to the services.
    pub(super) fn add_client_rules(&mut self, plan: &mut Plan<'_>) {
        for service in &mut plan.services {
            let [masters, readers] = [&service.masters, &service.readers]
                .map(|all| all.iter().map(|it| self.rules_of(it)).collect::<Vec<_>>());
            self.add_rules(service, &masters, &readers);
        }
    }

    fn add_rules(
        &mut self,
        service: &mut PlannedService<'_>,
        masters: &[ClientRules<'a>],
        readers: &[ClientRules<'a>],
    ) {
        let mut set = |key, value: &str, line| {
            service.keys.extend(tls::planned_keys(vec![(key, value.to_owned())], line));
        };
        let all = || masters.iter().chain(readers);
        let mut note_balancers = |outcome, note: &str| {
            for line in all().flat_map(|it| &it.balancer_lines) {
                self.notes.replace(&line.position, outcome, note);
            }
        };
        match common(all().map(|it| &it.balancers)) {
            Ok(Some((value, line))) => {
                set("proxy_protocol_from", &value, line);
                if value == EVERYONE {
                    let note = "haproxy took the PROXY header of every client, which may then \
                                claim any address: name the networks of the load balancers in \
                                service.proxy_protocol_from";
                    note_balancers(LineOutcome::Assumed, note);
                } else {
                    let note = format!("service.proxy_protocol_from = {value}");
                    note_balancers(LineOutcome::Mapped, &note);
                }
            }
            Ok(None) => {}
            Err(()) => {
                let note = "only some addresses of the service expect the PROXY protocol; \
                            proxy_protocol_from applies to all of them, by the network of the \
                            load balancer";
                note_balancers(LineOutcome::Unmatched, note);
            }
        }
        let allow = common(masters.iter().map(|it| &it.allow));
        let replica_allow = common(readers.iter().map(|it| &it.allow));
        let (Ok(allow), Ok(replica_allow)) = (allow, replica_allow) else {
            for line in all().filter_map(|it| Some(it.allow.as_ref()?.1)) {
                self.refuse(line, "listeners of one service accept different networks", REMEDY);
            }
            return;
        };
        for (key, rules, value) in
            [("allow", masters, &allow), ("replica_allow", readers, &replica_allow)]
        {
            let Some((value, line)) = value else { continue };
            set(key, value, line);
            let note = format!("service.{key} = {value}");
            for line in rules.iter().flat_map(|it| &it.lines) {
                self.notes.replace(&line.position, LineOutcome::Mapped, &note);
            }
        }
        // The list of the service applies to readers as well, unless they have one.
        if let (Some((_, line)), None, false) = (&allow, &replica_allow, readers.is_empty()) {
            set("replica_allow", EVERYONE, line);
        }
    }

    fn rules_of(&mut self, listener: &RedisListener) -> ClientRules<'a> {
        let config = self.config;
        let own: &Vec<&Directive> = &config.defaults_first(listener.section).collect();
        let mut rules = ClientRules::default();
        let (with_proxy, without): (Vec<&Directive>, Vec<_>) =
            config.lines(listener.section, "bind").partition(|it| it.has("accept-proxy"));
        if let Some(first) = with_proxy.first() {
            // With a part of the addresses only, a value that no other listener has.
            let value = if without.is_empty() { EVERYONE } else { "" };
            rules.balancers = Some((value.to_owned(), first));
            rules.balancer_lines.extend(&with_proxy);
        }
        let before = "tcp-request connection expect-proxy layer4";
        let mut is_proxied = rules.balancers.is_some();
        for rule in own.iter().copied().filter(|it| it.begins(before)) {
            is_proxied = true;
            if let Some(Condition::Inside(networks)) = condition(own, rule, 4) {
                rules.balancers = Some((toml_list(&networks), rule));
                rules.balancer_lines.push(rule);
            }
        }
        let mut found: Vec<Restriction<'a>> = Vec::new();
        for section in [listener.section].iter().chain(&listener.backends) {
            let own: Vec<&Directive> = config.defaults_first(*section).collect();
            for stage in ["connection", "session", "content"] {
                let is_of_client = stage != "connection" || !is_proxied;
                if let Err(rule) = restrict(&own, stage, is_of_client, &mut found) {
                    self.refuse(rule, "this rule by `src` cannot be converted", REMEDY);
                }
            }
        }
        let lines: Vec<&Directive> = found.iter().flat_map(|it| &it.1).copied().collect();
        let lists: BTreeSet<String> = found.iter().map(|it| toml_list(&it.0)).collect();
        let (Some(networks), Some(last)) = (lists.first(), lines.last()) else { return rules };
        if lists.len() > 1 {
            self.refuse(last, "its networks differ from those of an earlier rule", REMEDY);
            return rules;
        }
        rules.allow = Some((networks.clone(), last));
        let words = lines.iter().flat_map(|it| it.rest(3));
        let named: BTreeSet<String> = words.map(|it| it.replace('!', "")).collect();
        let is_used = |it: &&&Directive| it.has_at(0, "acl") && named.contains(&it.word(1));
        rules.lines.extend(own.iter().filter(is_used));
        rules.lines.extend(&lines);
        rules
    }
}

/// Adds the networks whose clients pass the rules of a stage, for each rule that turns all others
/// away.
///
/// # Errors
///
/// A rule that turns clients away by their source, and cannot be converted.
fn restrict<'a>(
    own: &[&'a Directive],
    stage: &str,
    is_of_client: bool,
    found: &mut Vec<Restriction<'a>>,
) -> Result<(), &'a Directive> {
    let (mut accepted, mut lines) = (Vec::new(), Vec::new());
    let (mut is_understood, mut by_source) = (is_of_client, false);
    for rule in own.iter().copied().filter(|it| it.begins("tcp-request") && it.has_at(1, stage)) {
        let accepts = rule.has_at(2, "accept");
        if !accepts && !rule.has_at(2, "reject") && !rule.has_at(2, "silent-drop") {
            continue;
        }
        let (names_source, condition) = (names_source(own, rule), condition(own, rule, 3));
        let is_always = matches!(&condition, Some(Condition::Outside(it)) if it.is_empty());
        let admits_none = is_always && accepted.is_empty();
        by_source |= names_source;
        match condition {
            Some(Condition::Inside(networks)) if accepts => {
                accepted.extend(networks);
                lines.push(rule);
            }
            _ if accepts => is_understood = false,
            Some(Condition::Outside(networks)) if is_understood && !admits_none => {
                lines.push(rule);
                found.push(([accepted.clone(), networks].concat(), lines.clone()));
            }
            // It turns everybody away.
            _ if is_understood && admits_none => return Err(rule),
            _ if names_source || (by_source && is_always) => return Err(rule),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a rule depends on the address of the client.
fn names_source(own: &[&Directive], rule: &Directive) -> bool {
    let is_source = |word: &str| word == "src" || word.starts_with("src,");
    rule.rest(3).iter().map(|it| it.trim_start_matches('!')).any(|word| {
        let mut acls = own.iter().filter(|it| it.is_acl(word));
        is_source(word) || word == "LOCALHOST" || acls.any(|it| is_source(&it.word(2)))
    })
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
    Inside(Vec<String>),
    /// Outside all of them: always, if there are none.
    Outside(Vec<String>),
}

/// The condition of a rule, from its word `at` on; `None` if it is about anything else than one set
/// of networks.
fn condition(own: &[&Directive], rule: &Directive, at: usize) -> Option<Condition> {
    // A negation may be a word of its own or the beginning of one.
    let text = rule.rest(at).join(" ").replace("if TRUE", "").replace('!', " ! ");
    let mut words = text.split_whitespace().peekable();
    let Some(first) = words.next() else { return Some(Condition::Outside(Vec::new())) };
    let is_negated = first == "unless";
    (is_negated || first == "if").then_some(())?;
    let (mut all, mut terms, mut ors) = (Vec::new(), Vec::new(), 0);
    while words.peek().is_some() {
        ors += usize::from(words.next_if(|it| ["or", "||"].contains(it)).is_some());
        terms.push(std::iter::from_fn(|| words.next_if_eq(&"!")).count() % 2 == 1);
        all.extend(match words.next()? {
            "{" => {
                let inner: Vec<&str> = words.by_ref().take_while(|it| *it != "}").collect();
                let ["src", inner @ ..] = inner.as_slice() else { return None };
                networks(inner)?
            }
            name => named_networks(own, name)?,
        });
    }
    let is_outside = *terms.first()?;
    let ors_of_union = if is_outside { 0 } else { terms.len() - 1 };
    (ors == ors_of_union && terms.iter().all(|it| *it == is_outside)).then_some(())?;
    Some(if is_outside == is_negated { Condition::Inside(all) } else { Condition::Outside(all) })
}

/// The networks of the section's ACL called `name`.
fn named_networks(own: &[&Directive], name: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for acl in own.iter().filter(|it| it.is_acl(name)) {
        (acl.word(2) == "src").then_some(())?;
        found.extend(networks(&acl.rest(3))?);
    }
    match name {
        "LOCALHOST" if found.is_empty() => Some(LOCALHOST.map(str::to_owned).to_vec()),
        _ => (!found.is_empty()).then_some(found),
    }
}

/// Networks as Pointsman writes them; `None` if one is a name, a file or an option.
fn networks(words: &[impl AsRef<str>]) -> Option<Vec<String>> {
    let start = usize::from(words.first().is_some_and(|it| it.as_ref() == "--"));
    let found: Option<Vec<String>> =
        words.iter().skip(start).map(|word| network(word.as_ref())).collect();
    found.filter(|it| !it.is_empty())
}

fn network(text: &str) -> Option<String> {
    let (ip, prefix) = text.split_once('/').unwrap_or((text, ""));
    let ip: IpAddr = ip.parse().ok()?;
    let width = if ip.is_ipv4() { 32 } else { 128 };
    // A mask in place of a length: ones, then zeros.
    let mask = prefix.parse::<Ipv4Addr>().ok().map(Ipv4Addr::to_bits).filter(|_| width == 32);
    let of_mask = mask.filter(|it| it.leading_ones() == it.count_ones()).map(u32::leading_ones);
    let length = if prefix.is_empty() { width } else { prefix.parse().ok().or(of_mask)? };
    let hosts = width.checked_sub(length)?;
    let base: IpAddr = match ip {
        IpAddr::V4(ip) => (ip & Ipv4Addr::from(u32::MAX.checked_shl(hosts).unwrap_or(0))).into(),
        IpAddr::V6(ip) => (ip & Ipv6Addr::from(u128::MAX.checked_shl(hosts).unwrap_or(0))).into(),
    };
    Some(format!("{base}/{length}"))
}

/// The distinct networks, in alphabetic order.
fn toml_list(networks: &[String]) -> String {
    let distinct: BTreeSet<&String> = networks.iter().collect();
    tls::toml_list(&distinct.into_iter().collect::<Vec<_>>())
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
