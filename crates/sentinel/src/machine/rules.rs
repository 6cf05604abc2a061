//! All durations and policies of the discovery machine. The defaults come from measurements of
//! Sentinel 7.0.

use std::time::Duration;

/// How a candidate is verified before the commit. Anything weaker than [`Verify::Role`] is a
/// degraded mode that an operator has to choose, for servers whose credentials do not permit more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Verify {
    /// `ROLE` reports a master, and `PING` is answered with PONG.
    #[default]
    Role,
    /// `PING` is answered with PONG.
    Ping,
    /// The connection opens.
    Tcp,
}

/// What to do when the reachable sentinels are cut off from the majority of their peers, or too few
/// of them are reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Minority {
    /// Keep the current master, and report it in metrics and status.
    #[default]
    Keep,
    /// Close the gate until a majority is reachable again.
    Hold,
    /// Remove the master and close its sessions.
    Cut,
}

/// The configurable rules of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MachineRules {
    /// How a candidate is verified.
    pub verify: Verify,
    /// The policy for a minority.
    pub minority: Minority,
    /// The interval between two rounds of queries to a sentinel in normal operation.
    pub poll: Duration,
    /// The same under suspicion.
    pub poll_suspect: Duration,
    /// The interval between two probes of the master in normal operation.
    pub probe_master: Duration,
    /// The interval between two probes of a replica in normal operation.
    pub probe_replica: Duration,
    /// The interval between two probes of each node under suspicion.
    pub probe_suspect: Duration,
    /// A view older than this does not count as a vote.
    pub view_expiry: Duration,
    /// With the policy `hold` or `cut`: a majority that has not answered for this long counts as a
    /// minority. At least three poll intervals.
    pub minority_after: Duration,
    /// How long a hold for an announced promotion may last before it ends without a commit.
    pub hold_max: Duration,
    /// How long a claim without a majority must stand uncontradicted.
    pub solo_grace: Duration,
    /// How long a majority must insist on an older epoch.
    pub regress_grace: Duration,
    /// How long to wait for a majority at start before the best verified view is used.
    pub bootstrap_grace: Duration,
    /// How long a claimed master may fail its verification before the old master's sessions are
    /// closed.
    pub verify_deadline: Duration,
    /// How many replicas confirm the writes of clients; 0 for none.
    pub confirmed_by: u8,
    /// How long a promoted node that lacks confirmed writes is not followed.
    pub confirmed_hold: Duration,
    /// A suspicion ends after this long without another sign of trouble.
    pub calm: Duration,
    /// A master that was unreachable for this long, at least three times, is considered gone.
    pub unreachable: Duration,
    /// An absence of discovery beyond this means that the process itself was stopped; nothing known
    /// before is trusted. It is also the lease of the target. Independent of the poll interval, and
    /// shorter than a failover.
    pub absence: Duration,
    /// The same for the gap between two steps, which is coarser: without events the machine is not
    /// stepped more often than it polls. The absence limit of a starved process rises up to this.
    pub stall: Duration,
}

impl Default for MachineRules {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            verify: Verify::default(),
            minority: Minority::default(),
            poll: ms(1000),
            poll_suspect: ms(100),
            probe_master: ms(500),
            probe_replica: ms(1000),
            probe_suspect: ms(20),
            view_expiry: ms(5000),
            minority_after: ms(3000),
            hold_max: ms(3000),
            solo_grace: ms(250),
            regress_grace: ms(10_000),
            bootstrap_grace: ms(1500),
            verify_deadline: ms(10_000),
            confirmed_by: 0,
            confirmed_hold: ms(10_000),
            calm: ms(1000),
            unreachable: ms(1000),
            absence: ms(500),
            stall: ms(3000),
        }
    }
}

/// The rules by which replicas become eligible for readers, and lose that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaRules {
    /// A replica that lags this many bytes is ejected and is readmitted at half of it; 0 for no
    /// limit.
    pub max_lag_bytes: u64,
    /// The same in time; zero for no limit.
    pub max_lag: Duration,
    /// A replica whose last answer belongs to a query older than this is ejected.
    pub unanswered: Duration,
    /// An ejected replica has to be healthy for this long without interruption.
    pub readmit: Duration,
    /// For this long after the master was in question, replication links to it and the sentinels'
    /// opinion of them are ignored.
    pub settle: Duration,
    /// Sessions per second that are moved from replicas with more sessions to those with fewer; 0
    /// for none.
    pub rebalance: usize,
}

impl Default for ReplicaRules {
    fn default() -> Self {
        let ms = Duration::from_millis;
        let max_lag_bytes = 64 * 1024 * 1024;
        let (unanswered, readmit, settle) = (ms(3000), ms(2000), ms(2000));
        Self { max_lag_bytes, max_lag: ms(10_000), unanswered, readmit, settle, rebalance: 10 }
    }
}

/// The pause after an attempt to verify a claimed master: short at first, because a promotion takes
/// about 2 ms, then up to 200 ms.
#[must_use]
pub(crate) fn verify_pause(attempt: u32) -> Duration {
    const STEPS: [u64; 7] = [2, 5, 10, 20, 50, 100, 200];
    let step = usize::try_from(attempt).unwrap_or(usize::MAX).min(STEPS.len() - 1);
    Duration::from_millis(STEPS.get(step).copied().unwrap_or(200))
}
