//! The rows of the benchmark, and one measurement with its line in the file of raw data.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde_json::json;

use crate::load::{Flow, Workload};
use crate::name_of;
use crate::peers::Peer;
use crate::stats::rounded;

/// Requests per second of the open loop.
const RATE: u32 = 20_000;

/// A kind of load, in the order of the tables, with its heading there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Row {
    /// Small requests, the proxy being the limit (GET of 64 B, 50 clients)
    Small,
    /// Small requests to a Redis (GET of 64 B, 50 clients)
    Redis,
    /// Pipelines of 16, the proxy being the limit (GET of 64 B, 50 clients)
    Pipeline,
    /// Latency at 20,000 requests a second to a Redis (GET of 64 B, 50 clients)
    Latency,
    /// Writes to a Redis with two replicas (SET of 64 B, 50 clients)
    Writes,
    /// Writes to a Redis with two replicas (SET of 64 B, 200 clients)
    ManyWriters,
    /// Pipelines of 16 writes to a Redis with two replicas (SET of 64 B, 50 clients)
    WritePipeline,
    /// Latency at 20,000 writes a second to a Redis with two replicas (50 clients)
    WriteLatency,
    /// Bulk: GET of 64 KiB, 8 clients
    #[value(name = "get-64k")]
    Get64,
    /// Bulk: SET of 64 KiB, 8 clients
    #[value(name = "set-64k")]
    Set64,
    /// Bulk: GET of 1 MiB, 8 clients
    #[value(name = "get-1m")]
    Get1m,
    /// Bulk: SET of 1 MiB, 8 clients
    #[value(name = "set-1m")]
    Set1m,
    /// Fairness: PING every 5 ms beside 8 clients with pipelines of 4 GETs of 1 MiB
    Fairness,
    /// Idle connections
    Idle,
    /// New connections, the proxy being the limit (connect, PING, close; 16 at a time)
    Connections,
    /// First reply on a new connection to a Redis (one at a time)
    First,
    /// TLS: small requests (GET of 64 B, 50 clients)
    TlsSmall,
    /// TLS, bulk: GET of 1 MiB, 8 clients
    #[value(name = "tls-get-1m")]
    TlsGet1m,
    /// TLS, bulk: SET of 1 MiB, 8 clients
    #[value(name = "tls-set-1m")]
    TlsSet1m,
    /// TLS: full handshakes (connect, PING, close; 8 at a time)
    TlsFull,
    /// TLS: resumed sessions (connect, PING, close; 8 at a time)
    TlsResumed,
    /// TLS: idle connections
    TlsIdle,
}

impl Row {
    /// The measures of the row, in the order of the tables.
    pub(super) fn measures(self) -> &'static [Measure] {
        match self {
            Self::Latency | Self::WriteLatency => {
                &[Measure::P50, Measure::P99, Measure::P999, Measure::CpuRequest]
            }
            Self::Get64
            | Self::Set64
            | Self::Get1m
            | Self::Set1m
            | Self::TlsGet1m
            | Self::TlsSet1m => &[Measure::Bulk, Measure::CpuBulk],
            Self::Fairness => &[Measure::P50, Measure::P99, Measure::Bulk, Measure::CpuBulk],
            Self::Idle | Self::TlsIdle => &[Measure::Memory],
            Self::Connections | Self::TlsFull | Self::TlsResumed => {
                &[Measure::Conns, Measure::CpuConn, Measure::Busy]
            }
            Self::First => &[Measure::P50, Measure::P99],
            _ => &[Measure::Rps, Measure::CpuRequest, Measure::Busy],
        }
    }

    /// What is sent by the row, if its connections stay open while requests flow.
    pub(super) fn flow(self) -> Option<Flow> {
        let small = Flow { workload: Workload::SMALL, clients: 50, pipeline: 1, rate: None };
        let writes = Flow { workload: Workload::WRITE, ..small };
        let bulk = |workload| Flow { workload, clients: 8, ..small };
        Some(match self {
            Self::Small | Self::TlsSmall | Self::Redis => small,
            Self::Pipeline => Flow { pipeline: 16, ..small },
            Self::Latency => Flow { rate: Some(RATE), ..small },
            Self::Writes => writes,
            // One confirmation covers many of them.
            Self::ManyWriters => Flow { clients: 200, ..writes },
            Self::WritePipeline => Flow { pipeline: 16, ..writes },
            Self::WriteLatency => Flow { rate: Some(RATE), ..writes },
            Self::Get64 => bulk(Workload::Get(64 << 10)),
            Self::Set64 => bulk(Workload::Set(64 << 10)),
            Self::Get1m | Self::TlsGet1m => bulk(Workload::Get(1 << 20)),
            Self::Set1m | Self::TlsSet1m => bulk(Workload::Set(1 << 20)),
            Self::Fairness => Flow { pipeline: 4, ..bulk(Workload::Get(1 << 20)) },
            Self::Idle | Self::TlsIdle => return None,
            Self::Connections | Self::First | Self::TlsFull | Self::TlsResumed => return None,
        })
    }

    /// Whether the backend is that of the load generator instead of a Redis.
    pub(super) fn is_to_sink(self) -> bool {
        use Row::{Connections, Idle, Pipeline, Small, TlsFull, TlsIdle, TlsResumed, TlsSmall};
        matches!(self, Small | Pipeline | Connections | Idle)
            || matches!(self, TlsSmall | TlsFull | TlsResumed | TlsIdle)
    }

    /// Whether clients speak TLS.
    pub(super) fn is_tls(self) -> bool {
        use Row::{TlsFull, TlsGet1m, TlsIdle, TlsResumed, TlsSet1m, TlsSmall};
        matches!(self, TlsSmall | TlsGet1m | TlsSet1m | TlsFull | TlsResumed | TlsIdle)
    }

    /// Whether it has writes for a Redis with replicas. It is only measured on request, because
    /// the replicas take a part of the core that is shared by load and Redis.
    pub(super) fn needs_replicas(self) -> bool {
        use Row::{ManyWriters, WriteLatency, WritePipeline, Writes};
        matches!(self, Writes | ManyWriters | WritePipeline | WriteLatency)
    }

    /// Whether the row measures this peer.
    pub(super) fn includes(self, peer: Peer) -> bool {
        if matches!(peer, Peer::PointsmanDurable | Peer::PointsmanSharedDurable) {
            return self.needs_replicas();
        }
        let bulk = self.measures().contains(&Measure::Bulk);
        if self.is_tls() {
            return matches!(peer, Peer::Pointsman | Peer::Haproxy3)
                || (bulk && peer == Peer::Haproxy3Buffers);
        }
        match peer {
            // Without a proxy there is no proxy to be the bottleneck or to be idle.
            Peer::Direct => {
                bulk || self.needs_replicas()
                    || matches!(self, Self::Redis | Self::Latency | Self::First)
            }
            Peer::Haproxy3Buffers | Peer::Haproxy3Splice => bulk,
            _ => true,
        }
    }
}

/// A measured value, with its key in the raw data and its name in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Measure {
    /// requests/s
    #[value(name = "requests_per_second")]
    Rps,
    /// CPU s / million
    #[value(name = "proxy_cpu_seconds_per_million_requests")]
    CpuRequest,
    /// core used
    #[value(name = "proxy_busy")]
    Busy,
    /// p50 µs
    #[value(name = "p50_us")]
    P50,
    /// p99 µs
    #[value(name = "p99_us")]
    P99,
    /// p99.9 µs
    #[value(name = "p999_us")]
    P999,
    /// GiB/s
    #[value(name = "gib_per_second")]
    Bulk,
    /// CPU s / GiB
    #[value(name = "proxy_cpu_seconds_per_gib")]
    CpuBulk,
    /// bytes / pair
    #[value(name = "bytes_per_idle_pair")]
    Memory,
    /// connections/s
    #[value(name = "connections_per_second")]
    Conns,
    /// CPU s / 10,000
    #[value(name = "proxy_cpu_seconds_per_10k_connections")]
    CpuConn,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    pub(super) row: Row,
    pub(super) peer: Peer,
    /// Counted from one.
    pub(super) round: u32,
    pub(super) values: BTreeMap<Measure, f64>,
    /// The part of a core that other processes used meanwhile; unknown for memory, which does not
    /// depend on it.
    pub(super) foreign: f64,
    /// Whether that was too much.
    pub(super) disturbed: bool,
}

impl Record {
    pub(super) fn value(&self, measure: Measure) -> Option<f64> {
        self.values.get(&measure).copied().filter(|value| value.is_finite())
    }

    /// One line of JSON.
    pub(super) fn line(&self) -> String {
        let mut object = json!({
            "row": name_of(&self.row),
            "peer": name_of(&self.peer),
            "round": self.round,
            "foreign_cores": rounded(self.foreign, 3),
            "disturbed": self.disturbed,
        });
        if let Some(object) = object.as_object_mut() {
            let values = self.values.iter();
            object.extend(values.map(|(it, value)| (name_of(it), json!(rounded(*value, 4)))));
        }
        object.to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn writes_every_value_as_json() {
        let values = BTreeMap::from([(Measure::Rps, 1000.12344), (Measure::CpuRequest, 9.5)]);
        let record = Record {
            row: Row::Small,
            peer: Peer::Pointsman,
            round: 2,
            values,
            foreign: 0.01,
            disturbed: false,
        };
        let line: Value = serde_json::from_str(&record.line()).expect("JSON");
        assert_eq!(line["row"], "small");
        assert_eq!(line["requests_per_second"], 1000.1234);
        assert_eq!(line["proxy_cpu_seconds_per_million_requests"], 9.5);
        assert!(!record.line().contains('\n'));
    }

    #[test]
    fn compares_tuned_variants_only_where_relevant() {
        let rows = |peer| Row::value_variants().iter().filter(|row| row.includes(peer)).count();
        assert_eq!([Peer::Haproxy3Buffers, Peer::Direct, Peer::Pointsman].map(rows), [7, 12, 22]);
    }
}
