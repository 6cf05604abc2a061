//! The rows in which connections stay open while requests flow: what is sent, by how many clients,
//! to which backend.

use super::record::Row;
use crate::load::Workload;

/// Clients of small requests.
const CLIENTS: usize = 50;
/// Clients of writes of which one confirmation covers many.
const MANY_CLIENTS: usize = 200;
/// Clients of bulk.
pub(super) const BULK_CLIENTS: usize = 8;
/// Requests per second of the open loop.
const RATE: u32 = 20_000;

/// What a row sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) workload: Workload,
    pub(super) clients: usize,
    /// Requests that a client sends at once.
    pub(super) pipeline: usize,
    /// Requests per second; `None` sends when the replies are complete.
    pub(super) rate: Option<u32>,
    /// Whether a Redis is the backend instead of the one in the load generator.
    pub(super) to_redis: bool,
}

impl Flow {
    /// The flow of a row, if it is one.
    pub(super) fn of(row: Row) -> Option<Self> {
        let small = Self {
            workload: Workload::Small,
            clients: CLIENTS,
            pipeline: 1,
            rate: None,
            to_redis: false,
        };
        let bulk = |workload| Self { workload, clients: BULK_CLIENTS, to_redis: true, ..small };
        Some(match row {
            Row::Small | Row::TlsSmall => small,
            Row::Pipeline => Self { pipeline: 16, ..small },
            Row::Redis => Self { to_redis: true, ..small },
            Row::Latency => Self { rate: Some(RATE), to_redis: true, ..small },
            Row::Writes => Self { workload: Workload::Write, to_redis: true, ..small },
            Row::ManyWriters => {
                Self { workload: Workload::Write, clients: MANY_CLIENTS, to_redis: true, ..small }
            }
            Row::WritePipeline => {
                Self { workload: Workload::Write, pipeline: 16, to_redis: true, ..small }
            }
            Row::WriteLatency => {
                Self { workload: Workload::Write, rate: Some(RATE), to_redis: true, ..small }
            }
            Row::Get64 => bulk(Workload::Get(64 << 10)),
            Row::Set64 => bulk(Workload::Set(64 << 10)),
            Row::Get1m | Row::TlsGet1m => bulk(Workload::Get(1 << 20)),
            Row::Set1m | Row::TlsSet1m => bulk(Workload::Set(1 << 20)),
            Row::Fairness
            | Row::Idle
            | Row::TlsIdle
            | Row::Connections
            | Row::First
            | Row::TlsFull
            | Row::TlsResumed => return None,
        })
    }
}
