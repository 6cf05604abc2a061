//! Derives the connection limit of each service from that of the process.

use super::Config;

/// Connection limit of a service without a configured one. Redis itself accepts as many by default
/// (`maxclients`), and each session has one connection to it.
pub(crate) const DEFAULT_CONNECTIONS: usize = 10_000;

/// The maximum number of client connections of each service, and of all together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// The limit of each service, in the order of `services`; at least 1. The readers of a service
    /// have the same limit separately.
    pub services: Vec<usize>,
    /// The limit of all services together.
    pub total: usize,
}

impl Config {
    /// The limits for a machine that can hold `capacity` connections. The capacity applies only to
    /// limits that are not configured.
    ///
    /// A service with a configured limit gets it; the rest of the total is divided evenly among the
    /// remaining services. If the total is not configured, it is the sum of the configured limits
    /// and of [`DEFAULT_CONNECTIONS`] per remaining service, or the capacity if that is less.
    pub(crate) fn connections(&self, capacity: usize) -> ConnectionLimits {
        let (configured, open) = self.configured();
        let total = match self.process.max_connections {
            0 => configured
                .saturating_add(open.saturating_mul(DEFAULT_CONNECTIONS))
                .min(capacity)
                .max(self.min_connections()),
            total => total,
        };
        let share = (total.saturating_sub(configured) / open.max(1)).max(1);
        let own = self.services.iter().map(|service| service.max_connections);
        ConnectionLimits {
            services: own.map(|own| if own == 0 { share } else { own }).collect(),
            total,
        }
    }

    /// The minimum of the total that the configured limits require.
    pub(crate) fn min_connections(&self) -> usize {
        let (configured, open) = self.configured();
        configured.saturating_add(open).max(self.process.max_connections)
    }

    /// The sum of the configured limits, and the number of services without one. Each further
    /// kind of listener of a service has the same limit separately.
    fn configured(&self) -> (usize, usize) {
        let times = |service: &super::ServiceConfig| {
            let [_, additional @ ..] = service.addresses();
            1 + additional.iter().filter(|it| it.iter().any(|listen| !listen.is_empty())).count()
        };
        let own = || {
            self.services.iter().flat_map(|it| std::iter::repeat_n(it.max_connections, times(it)))
        };
        (own().fold(0, usize::saturating_add), own().filter(|own| *own == 0).count())
    }
}
