//! The PROXY protocol, versions 1 and 2: the header with which a load balancer reports the address
//! of its client.
//!
//! [`parse`](parse::parse) is pure: bytes in, a header or a fault out.
//! [`receive`](receive::receive) reads a header from a connection, and nothing beyond it: what
//! follows may be a TLS handshake or a request. Which connections have one is decided by
//! `listener::accept_loop`.
//!
//! Headers are never sent: Redis does not know them.

mod crc32c;
pub(crate) mod parse;
pub(crate) mod receive;

#[cfg(test)]
mod parse_tests;
