//! Every duration the discovery machine decides by, in one place. Defaults from measurements of
//! Sentinel 7.0.

use std::time::Duration;

/// How a candidate is verified before it is committed. Anything below [`Verify::Role`] is a
/// degraded mode that an operator has to ask for, for servers whose credentials do not allow more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Verify {
    /// `ROLE` says master and `PING` says PONG.
    #[default]
    Role,
    /// `PING` says PONG.
    Ping,
    /// The connection opens.
    Tcp,
}

/// What to do when the sentinels that can be heard are cut off from the majority of their peers, or
/// too few are heard at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Minority {
    /// Keep the current master, and say so in metrics and status.
    #[default]
    Keep,
    /// Shut the gate until a majority is heard again.
    Hold,
    /// Take the master away and cut its sessions.
    Cut,
}

/// The machine's rules that an operator may turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MachineRules {
    /// How a candidate is verified.
    pub verify: Verify,
    /// What a provable minority means.
    pub minority: Minority,
    /// Between two rounds of questions to a sentinel while all is well.
    pub poll: Duration,
    /// The same while something is wrong.
    pub poll_suspect: Duration,
    /// Between two probes of the master while all is well.
    pub probe_master: Duration,
    /// Between two probes of a replica while all is well.
    pub probe_replica: Duration,
    /// Between two probes of every node while something is wrong.
    pub probe_suspect: Duration,
    /// A view older than this does not vote.
    pub view_expiry: Duration,
    /// Where the policy is to hold or to cut in a minority: hearing no majority of the sentinels
    /// for this long is one, too. Never less than three polls.
    pub minority_after: Duration,
    /// How long one hold may last before it ends without a commit: from the selection of a replica,
    /// and anew from its promotion.
    pub hold_max: Duration,
    /// How long a claim without a majority must stand uncontradicted.
    pub solo_grace: Duration,
    /// How long a majority must insist on an older epoch.
    pub regress_grace: Duration,
    /// How long the start waits for a majority before it takes the best verified view.
    pub bootstrap_grace: Duration,
    /// How long a claimed master may fail its verification before the old one's sessions are cut.
    pub verify_deadline: Duration,
    /// Suspicion ends after this long without a new cause.
    pub calm: Duration,
    /// A master that cannot be reached for this long, and three times at least, is no master.
    pub unreachable: Duration,
    /// A gap between two steps beyond this means that the process itself was stopped: nothing known
    /// is trusted.
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
            calm: ms(1000),
            unreachable: ms(1000),
            stall: ms(3000),
        }
    }
}

/// The rules by which replicas are let in to serve readers, and put out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaRules {
    /// A replica this many bytes behind is put out, and comes back at half of it; 0 for however
    /// many.
    pub max_lag_bytes: u64,
    /// The same in time; zero for however long.
    pub max_lag: Duration,
    /// A replica whose last answer is to a question older than this is put out.
    pub unanswered: Duration,
    /// Who was out has to be sound for this long without a break.
    pub readmit: Duration,
    /// For how long after the master was in question the links to it, and what sentinels say of
    /// them, count for nothing.
    pub settle: Duration,
    /// Sessions per second that are moved from replicas with more of them to those with fewer; 0
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

/// Pauses between attempts to verify a claimed master: short at first, because a promotion takes
/// about 2 ms, then up to 200 ms.
#[must_use]
pub(crate) fn verify_pause(attempt: u32) -> Duration {
    const STEPS: [u64; 7] = [2, 5, 10, 20, 50, 100, 200];
    let step = usize::try_from(attempt).unwrap_or(usize::MAX).min(STEPS.len() - 1);
    Duration::from_millis(STEPS.get(step).copied().unwrap_or(200))
}
