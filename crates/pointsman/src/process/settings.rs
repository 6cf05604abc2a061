//! Translates the configuration into the settings of discovery, the workers and the drain.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use doctor::Examination;
use proxy::ServerCommands;
use sentinel::{
    AllowedHost, Credentials, DiscoveryConfig, DiscoverySettings, MachineRules, Timeouts,
};
use target::TargetWriter;

use crate::config::{self, Config};
use crate::system::cgroup;

/// Returns the discovery settings of one service. Pools are added with the listeners of readers
/// and of clients of the sentinels.
pub(crate) fn discovery(
    service: &config::ServiceConfig,
    target_writer: TargetWriter,
    commands: ServerCommands,
) -> DiscoveryConfig {
    DiscoveryConfig {
        name: Arc::from(service.name.as_str()),
        master_name: Arc::from(service.master_name()),
        sentinels: service.sentinels.clone(),
        settings: discovery_settings(service),
        target_writer,
        commands,
        replicas: None,
        sentinel_pool: None,
    }
}

/// Returns what a reload can change in the discovery of one service.
pub(crate) fn discovery_settings(service: &config::ServiceConfig) -> DiscoverySettings {
    DiscoverySettings {
        sentinel_auth: credentials(&service.sentinel_auth),
        sentinel_tls: service.sentinel_tls.client(),
        redis_tls: service.redis_tls.client(),
        auth: credentials(&service.auth),
        rules: rules(service),
        probe_timeout: service.timers.verify_timeout,
        learn: service.learn_sentinels,
        address_map: service.address_map.clone(),
        nodes: service.nodes.iter().filter_map(|entry| AllowedHost::parse(entry)).collect(),
    }
}

/// Returns what the doctor needs of the same service; `own` are our listen addresses.
pub(crate) fn examination(service: &config::ServiceConfig, own: Vec<SocketAddr>) -> Examination {
    Examination {
        name: Arc::from(service.master_name()),
        sentinels: service.sentinels.clone(),
        settings: discovery_settings(service),
        own,
    }
}

/// All services share the connections to sentinels, and therefore the timeouts: the longest timeout
/// of any service applies.
pub(crate) fn sentinel_timeouts(services: &[config::ServiceConfig]) -> Timeouts {
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

fn rules(service: &config::ServiceConfig) -> MachineRules {
    let timers = &service.timers;
    MachineRules {
        verify: service.verify,
        minority: service.minority,
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
        confirmed_by: u8::try_from(service.durability.replicas).unwrap_or(u8::MAX),
        confirmed_hold: service.hold_timeout,
        unreachable: timers.unreachable_after,
        ..MachineRules::default()
    }
}

fn credentials(configured: &config::Credentials) -> Option<Credentials> {
    configured
        .password
        .as_ref()
        .map(|password| Credentials::new(configured.username.as_deref(), password.reveal()))
}

/// Returns the number of workers: the configured one, or one that suits CPUs and CPU limit.
pub(crate) fn workers(config: &Config) -> NonZeroUsize {
    let suitable = || cgroup::workers(proxy::worker_count(), cgroup::cores(&cgroup::read));
    NonZeroUsize::new(config.process.workers).unwrap_or_else(suitable)
}

/// Returns the settings of the drain.
pub(crate) fn drain(config: &Config) -> drain::ShutdownSettings {
    let shutdown = &config.shutdown;
    drain::ShutdownSettings {
        accept_min: shutdown.accept_min,
        accept_quiet: shutdown.accept_quiet,
        accept_max: shutdown.accept_max,
        drain_spread: shutdown.drain_spread,
        drain_timeout: shutdown.drain_timeout,
    }
}
