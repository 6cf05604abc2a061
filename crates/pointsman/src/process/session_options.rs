//! Translates the configuration into the options of sessions, by what their listener leads to.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use proxy::{
    Durability, Network, Networks, Options, Refusals, StatelessCommands, TlsListening, UpstreamMode,
};

use crate::config::{LogConfig, ServiceConfig, Upstream};
use crate::process::listener_set::Destinations;

/// Returns the options of sessions that come through a listener to these nodes.
pub(crate) fn options_to(
    to: Destinations,
    service: &ServiceConfig,
    limit: usize,
    log: &LogConfig,
    tls: Option<TlsListening>,
) -> Options {
    let options = options(service, limit, log);
    let options = match to {
        Destinations::Master => options,
        // `moving_to` is an address for writers and does not apply to readers.
        Destinations::Replicas => {
            let allow = allowed(&service.replica_allow, &options);
            Options { moving_to: None, allow, durability: None, ..options }
        }
        // None is carried to another sentinel: its subscriptions refer to events that each sentinel
        // publishes by itself.
        Destinations::Sentinels => Options {
            allow: allowed(&service.sentinel_allow, &options),
            sessions: proxy::Sessions::Close,
            upstream: UpstreamMode::Dedicated,
            subscriptions: proxy::Subscriptions::Close,
            durability: None,
            maintenance_push: false,
            moving_to: None,
            splice: proxy::Splice::Off,
            target_tls: service.sentinel_tls.client(),
            ..options
        },
    };
    Options { tls, ..options }
}

/// Returns the options of a service's sessions.
fn options(service: &ServiceConfig, max_connections: usize, log: &LogConfig) -> Options {
    Options {
        connect_timeout: service.connect_timeout,
        hold_timeout: service.hold_timeout,
        client_idle_timeout: service.client_idle_timeout,
        first_byte_timeout: service.first_byte_timeout,
        half_close_timeout: service.half_close_timeout,
        silent_timeout: service.silent_timeout,
        sessions: service.sessions,
        subscriptions: service.subscriptions,
        upstream: match service.upstream {
            Upstream::Dedicated => UpstreamMode::Dedicated,
            Upstream::Shared => UpstreamMode::Shared(
                u16::try_from(service.shared_connections)
                    .ok()
                    .and_then(NonZeroU16::new)
                    .unwrap_or(NonZeroU16::MIN),
            ),
        },
        durability: durability(service),
        // Every name was checked when the configuration was read.
        stateless_commands: StatelessCommands::new(
            service.stateless_commands.iter().map(String::as_str),
        )
        .unwrap_or_default(),
        refusals: Refusals::new(service.refuse.iter().map(String::as_str)).unwrap_or_default(),
        maintenance_push: service.maintenance_push,
        moving_to: service.moving_to.as_deref().map(Arc::from),
        keepalive: service.tcp_keepalive,
        user_timeout: service.tcp_user_timeout,
        splice: service.splice,
        max_connections,
        allow: service.allow.iter().copied().collect(),
        proxy_protocol_from: service.proxy_protocol_from.iter().copied().collect(),
        proxy_protocol_timeout: service.proxy_protocol_timeout,
        max_connections_per_source: service.max_connections_per_source,
        lines: access_log(log),
        tls: None,
        target_tls: service.redis_tls.client(),
        target_names: target_names(service),
    }
}

/// Returns how many replicas confirm writes.
fn durability(service: &ServiceConfig) -> Option<Durability> {
    let options = &service.durability;
    let replicas = u8::try_from(options.replicas).ok().filter(|replicas| *replicas > 0)?;
    Some(Durability { replicas, timeout: options.timeout, on_timeout: options.on_timeout })
}

/// Returns the hosts of the address map, by the announced address.
fn target_names(service: &ServiceConfig) -> Arc<BTreeMap<Box<str>, Box<str>>> {
    let names = service.address_map.iter();
    Arc::new(names.map(|(from, to)| (from.to_string().into(), to.host.clone())).collect())
}

/// Returns which session ends are logged.
fn access_log(log: &LogConfig) -> proxy::AccessLog {
    proxy::AccessLog {
        which: log.sessions,
        level: log.sessions_level,
        one_in: u32::try_from(log.sessions_one_in).unwrap_or(u32::MAX),
    }
}

/// The networks of a listener that has a list of its own, unless that is empty.
fn allowed(own: &[Network], of_service: &Options) -> Networks {
    if own.is_empty() { of_service.allow.clone() } else { own.iter().copied().collect() }
}
