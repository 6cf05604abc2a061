//! How the bound on connections is shared out.

use super::Config;

/// The connections of a service where nobody gave a number. Redis itself takes as many
/// (`maxclients`), and each session of ours has one connection to it.
pub const DEFAULT_EACH: usize = 10_000;

/// The most client connections of each service, in the order of `services`, and of all together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connections {
    /// Each at least 1; a service's readers have the same number once more.
    pub services: Vec<usize>,
    /// The most of all services together.
    pub total: usize,
}

impl Config {
    /// Shares out what can be `carried`, which bounds only what nobody gave a number for.
    ///
    /// A service with a number of its own gets it; the others share what is left of the total
    /// evenly. A total that is left open is what the services ask for and [`DEFAULT_EACH`] for each
    /// that does not, or what can be carried if that is less.
    #[must_use]
    pub fn connections(&self, carried: usize) -> Connections {
        let (asked, open) = self.asked();
        let total = match self.process.max_connections {
            0 => asked
                .saturating_add(open.saturating_mul(DEFAULT_EACH))
                .min(carried)
                .max(self.least_connections()),
            total => total,
        };
        let share = (total.saturating_sub(asked) / open.max(1)).max(1);
        let own = self.services.iter().map(|service| service.max_connections);
        Connections { services: own.map(|own| if own == 0 { share } else { own }).collect(), total }
    }

    /// What the numbers that somebody gave make of the total at the least.
    #[must_use]
    pub fn least_connections(&self) -> usize {
        let (asked, open) = self.asked();
        asked.saturating_add(open).max(self.process.max_connections)
    }

    /// The sum of the services' own numbers, and how many have none; who has readers counts twice.
    fn asked(&self) -> (usize, usize) {
        // Readers have the same number, and count by themselves.
        let times = |service: &super::Service| 1 + usize::from(!service.replica_listen.is_empty());
        let own = || {
            self.services.iter().flat_map(|it| std::iter::repeat_n(it.max_connections, times(it)))
        };
        (own().fold(0, usize::saturating_add), own().filter(|own| *own == 0).count())
    }
}
