//! TLS without sockets: the settings of both sides, made of certificates, keys and CAs.
//!
//! [`ServerTls`] and [`ClientTls`] are handles to one side's settings. They are built from the
//! texts of PEM files, and replaced whole while the process runs: new sessions use the new
//! settings, established ones keep theirs, and a fault leaves everything as it was.
//! [`TlsConnection`] is one end of a connection: ciphertext in, plaintext out, and back.
//!
//! ```no_run
//! # use tls::*;
//! # fn example(chain: PemFile, key: PemFile) -> Result<(), Vec<Problem>> {
//! let settings = ServerSettings {
//!     certificates: vec![CertificateFiles { chain, key }],
//!     ..ServerSettings::default()
//! };
//! let server = ServerTls::new(&settings)?;
//! println!("valid until {:?}", server.certificates()[0].not_after);
//! // After the files have changed:
//! server.commit(&ServerTls::prepare(&settings)?);
//! # Ok(())
//! # }
//! ```
//!
//! The protocol is rustls, the cryptography aws-lc-rs (`docs/decisions/tls.md`).
//!
//! Callers own the sockets and read the files, with limits of their own. There is no early data (a
//! command that is sent twice is executed twice), and there are no revocation lists.

mod certificate;
mod client;
mod connection;
mod examine;
mod fault;
mod outside_text;
mod pem;
mod problem;
mod protocol;
#[cfg(any(test, fuzzing))]
mod record_rig;
mod resolver;
mod server;
mod verify;

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod connection_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod testing;

pub use certificate::{CertificateFacts, CertificateFiles, PairFault};
pub use client::{ClientSettings, ClientTls, Roots, SYSTEM_CA_FILES, Verification};
pub use connection::{
    ClientSide, MAX_RECORD, MAX_WAITING, RECORD_OVERHEAD, ServerSide, TlsConnection, TlsSide,
};
pub use examine::{ChainState, ExaminedPair, KnownAuthorities};
pub use fault::{Fault, FaultKind};
pub use outside_text::OutsideText;
pub use pem::PemFile;
pub use problem::Problem;
pub use protocol::{Protocols, Version, cipher_names, is_cipher};
/// For the fuzz target of records.
#[cfg(fuzzing)]
pub use record_rig::{RigSettings, run as run_records};
/// The library whose configurations the handles contain, for adapters to other I/O.
pub use rustls;
pub use server::{BuiltServerTls, ClientCertificates, ServerSettings, ServerTls};
