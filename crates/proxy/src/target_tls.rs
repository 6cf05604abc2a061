//! TLS sessions with targets, counted by the faults for which they fail.

use tls::FaultKind;

use crate::counter::{Counter, Counters, counted};

counted! {
    /// The counters of one worker.
    pub(crate) struct TargetTlsCounters;

    /// TLS sessions with targets since the start of the process, summed over all workers.
    pub struct TargetTlsSnapshot {
        /// Handshakes completed with a new session.
        full: Counter => u64,
        /// Handshakes completed by resuming an earlier session.
        resumed: Counter => u64,
        /// Failures, by [`FaultKind`]'s number.
        failures: Counters<{ FaultKind::COUNT }> => [u64; FaultKind::COUNT],
    }
}

impl TargetTlsSnapshot {
    /// The faults for which a session may fail.
    pub const FAULTS: [FaultKind; FaultKind::COUNT - 1] = [
        FaultKind::TimedOut,
        FaultKind::Closed,
        FaultKind::NotTls,
        FaultKind::NoCommonProtocol,
        FaultKind::WrongName,
        FaultKind::UnknownIssuer,
        FaultKind::Expired,
        FaultKind::NotYetValid,
        FaultKind::Unusable,
        FaultKind::Refused,
        FaultKind::Broken,
        FaultKind::Internal,
    ];

    /// Failures by this fault.
    #[must_use]
    pub fn failed(&self, fault: FaultKind) -> u64 {
        self.failures.get(fault as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_each_fault_once() {
        let mut faults = TargetTlsSnapshot::FAULTS.to_vec();
        faults.push(FaultKind::NotPlain);
        faults.sort();
        let numbers: Vec<usize> = faults.iter().map(|it| *it as usize).collect();
        assert_eq!(numbers, (0..FaultKind::COUNT).collect::<Vec<_>>());
    }
}
