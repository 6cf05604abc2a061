//! From the configuration to what discovery needs: nothing but a translation.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use sentinel::doctor::Patient;
use sentinel::{Credentials, NodeAddr, Replicas, Rules, Timeouts, Watch};
use target::TargetWriter;

use crate::config;

/// One service's discovery.
#[must_use]
pub fn watch(
    service: &config::ServiceConfig,
    points: TargetWriter,
    replicas: Option<Replicas>,
) -> Watch {
    let address_map = address_map(service);
    Watch {
        name: Arc::from(service.name.as_str()),
        sentinels: service.sentinels.iter().map(node).collect(),
        sentinel_auth: credentials(&service.sentinel_auth),
        auth: credentials(&service.auth),
        rules: rules(service),
        probe_timeout: service.timers.verify_timeout,
        learn: service.learn_sentinels,
        address_map,
        points,
        replicas,
    }
}

/// What the doctor needs of the same service; `own` are our listeners.
#[must_use]
pub fn patient(service: &config::ServiceConfig, own: Vec<SocketAddr>) -> Patient {
    Patient {
        name: Arc::from(service.name.as_str()),
        sentinels: service.sentinels.iter().map(node).collect(),
        sentinel_auth: credentials(&service.sentinel_auth),
        auth: credentials(&service.auth),
        verify: verify(service),
        learn: service.learn_sentinels,
        address_map: address_map(service),
        own,
    }
}

fn address_map(service: &config::ServiceConfig) -> BTreeMap<NodeAddr, NodeAddr> {
    service.address_map.iter().map(|(announced, dial)| (node(announced), node(dial))).collect()
}

fn verify(service: &config::ServiceConfig) -> sentinel::Verify {
    match service.verify {
        config::Verify::Role => sentinel::Verify::Role,
        config::Verify::Ping => sentinel::Verify::Ping,
        config::Verify::Tcp => sentinel::Verify::Tcp,
    }
}

/// The connections to sentinels are shared by all services, and so are their timeouts: the most
/// patient service decides.
#[must_use]
pub fn timeouts(services: &[config::ServiceConfig]) -> Timeouts {
    let most = |of: fn(&config::TimersConfig) -> std::time::Duration| {
        services.iter().map(|service| of(&service.timers)).max().unwrap_or_default()
    };
    Timeouts {
        connect: most(|timers| timers.sentinel_connect_timeout),
        command: most(|timers| timers.command_timeout),
        reconnect_min: most(|timers| timers.reconnect_min),
        reconnect_max: most(|timers| timers.reconnect_max),
        user: most(|timers| timers.sentinel_user_timeout),
    }
}

fn rules(service: &config::ServiceConfig) -> Rules {
    let timers = &service.timers;
    Rules {
        verify: verify(service),
        minority: match service.minority {
            config::Minority::Keep => sentinel::Minority::Keep,
            config::Minority::Hold => sentinel::Minority::Hold,
            config::Minority::Cut => sentinel::Minority::Cut,
        },
        poll: timers.poll,
        poll_suspect: timers.poll_suspect,
        probe_master: timers.probe_master,
        probe_replica: timers.probe_replicas,
        probe_suspect: timers.probe_suspect,
        view_expiry: timers.view_expiry,
        hold_max: timers.hold_max,
        solo_grace: timers.solo_grace,
        regress_grace: timers.regress_grace,
        bootstrap_grace: timers.bootstrap_grace,
        verify_deadline: timers.verify_deadline,
        unreachable: timers.unreachable_after,
        ..Rules::default()
    }
}

fn node(endpoint: &config::Endpoint) -> NodeAddr {
    NodeAddr { host: endpoint.host.as_str().into(), port: endpoint.port }
}

fn credentials(given: &config::Credentials) -> Option<Credentials> {
    given
        .password
        .as_ref()
        .map(|password| Credentials::new(given.username.as_deref(), password.reveal()))
}
