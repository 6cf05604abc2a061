//! How the bound on connections is shared out.

use super::Config;

/// The bound of the process where none is configured.
pub const DEFAULT_TOTAL: usize = 10_000;

impl Config {
    /// The most client connections of each service, in the order of `services`; each at least 1.
    ///
    /// A service with a number of its own gets it; the others share what is left of the total evenly. Where the total is
    /// left open, it is [`DEFAULT_TOTAL`], and never so small that the services without a number go short of a fair share.
    #[must_use]
    pub fn connection_limits(&self) -> Vec<usize> {
        let asked: usize = self.services.iter().map(|service| service.max_connections).fold(0, usize::saturating_add);
        let open = self.services.iter().filter(|service| service.max_connections == 0).count().max(1);
        let left = match self.process.max_connections {
            0 if asked < DEFAULT_TOTAL => DEFAULT_TOTAL - asked,
            0 => open,
            total => total.saturating_sub(asked),
        };
        let share = (left / open).max(1);
        self.services
            .iter()
            .map(|service| if service.max_connections == 0 { share } else { service.max_connections })
            .collect()
    }
}
