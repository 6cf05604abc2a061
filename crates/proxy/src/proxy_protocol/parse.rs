//! Parses the header of the PROXY protocol. Pure.
//!
//! Strict: what the specification does not permit is a fault, so that a client cannot pass data as
//! a header by a small variation. Incomplete input is refused as soon as no continuation can make
//! it valid, so a client that sends no header is noticed at its first bytes.
//!
//! Version 1 is a line of at most 107 bytes. Version 2 is binary and has a length, which is bounded
//! here; its further fields (TLVs) are skipped, except for the checksum.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::crc32c::crc32c;
use crate::rejection::Rejection;

/// The longest header of version 1, with its line break.
const MAX_V1: usize = 107;

/// The longest header of version 2 that is accepted. The specification permits 64 KiB; load
/// balancers send some hundred bytes, or a few thousand with the certificate of the client.
pub(crate) const MAX_HEADER: usize = 4096;

/// The first bytes of a header of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The part of a version 2 header that has a fixed length: signature, version, family, length.
const V2_FIXED: usize = 16;

/// The type of the field with the checksum.
const CHECKSUM: u8 = 0x03;

/// A complete header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The address of the client. `None` if the connection is the load balancer's own (a health
    /// check), or its client has no IP address: then the connection's own address counts.
    pub client: Option<SocketAddr>,
    /// The length of the header in bytes.
    pub length: usize,
}

/// Parses the beginning of a connection: a complete header, or `None` if more bytes are needed.
///
/// # Errors
///
/// Why the bytes are no header, whatever follows.
pub fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, Rejection> {
    match bytes.first() {
        None => Ok(None),
        Some(b'P') => parse_v1(bytes),
        Some(_) => parse_v2(bytes),
    }
}

/// `PROXY TCP4 192.0.2.1 192.0.2.2 56324 6379`, with CR LF.
fn parse_v1(bytes: &[u8]) -> Result<Option<ProxyHeader>, Rejection> {
    const KEYWORD: &[u8] = b"PROXY ";
    if !agree(bytes, KEYWORD) {
        return Err(Rejection::HeaderMissing);
    }
    let head = bytes.get(..MAX_V1).unwrap_or(bytes);
    let end = head.iter().position(|byte| !(b' '..=b'~').contains(byte)).unwrap_or(head.len());
    match (head.get(end), head.get(end + 1)) {
        (Some(b'\r'), Some(b'\n')) => {}
        (None, _) | (Some(b'\r'), None) if head.len() == MAX_V1 => {
            return Err(Rejection::HeaderTooLong);
        }
        (None, _) | (Some(b'\r'), None) => return Ok(None),
        _ => return Err(Rejection::HeaderMalformed),
    }
    let line = head.get(KEYWORD.len()..end).and_then(|line| std::str::from_utf8(line).ok());
    let client =
        v1_client(line.ok_or(Rejection::HeaderMalformed)?).ok_or(Rejection::HeaderMalformed)?;
    Ok(Some(ProxyHeader { client, length: end + 2 }))
}

/// The client of a line without its keyword; the outer `None` if it is malformed.
fn v1_client(line: &str) -> Option<Option<SocketAddr>> {
    // Whatever follows is ignored, as the specification demands.
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Some(None);
    }
    let mut words = line.split(' ');
    let family = words.next()?;
    let (source, destination) = (words.next()?, words.next()?);
    let (source_port, destination_port) = (v1_port(words.next()?)?, v1_port(words.next()?)?);
    if words.next().is_some() {
        return None;
    }
    let of_family = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let (source, _) = (of_family(source)?, of_family(destination)?);
    let _ = destination_port;
    Some(Some(SocketAddr::new(source, source_port)))
}

/// A decimal number without leading zeros.
fn v1_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = text.len() > 1 && text.starts_with('0');
    text.parse().ok().filter(|_| digits && !leading_zero)
}

fn parse_v2(bytes: &[u8]) -> Result<Option<ProxyHeader>, Rejection> {
    if !agree(bytes, SIGNATURE) {
        return Err(Rejection::HeaderMissing);
    }
    let is_local = match bytes.get(12) {
        None => return Ok(None),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(Rejection::HeaderMalformed),
    };
    let Some([family, high, low]) = bytes.get(13..V2_FIXED) else { return Ok(None) };
    let rest = usize::from(u16::from_be_bytes([*high, *low]));
    let addresses = match (is_local, family) {
        // The family of the load balancer's own connection is to be ignored.
        (true, _) | (false, 0x00) => 0,
        (false, 0x11) => 12,
        (false, 0x21) => 36,
        (false, 0x31) => 216,
        _ => return Err(Rejection::HeaderMalformed),
    };
    let length = V2_FIXED + rest;
    if rest < addresses {
        return Err(Rejection::HeaderMalformed);
    }
    if length > MAX_HEADER {
        return Err(Rejection::HeaderTooLong);
    }
    let Some(header) = bytes.get(..length) else { return Ok(None) };
    let fields = V2_FIXED + addresses;
    match checksum(header, fields) {
        Ok(None) => {}
        Ok(Some((at, expected))) if sum_without(header, at) == expected => {}
        Ok(Some(_)) => return Err(Rejection::HeaderChecksum),
        // Without addresses, the format of the rest is not specified.
        Err(()) if addresses == 0 => {}
        Err(()) => return Err(Rejection::HeaderMalformed),
    }
    let client = match (is_local, family) {
        (false, 0x11) => v2_client::<4>(header, 8).map(|(ip, port)| (IpAddr::from(ip), port)),
        (false, 0x21) => v2_client::<16>(header, 32).map(|(ip, port)| (IpAddr::from(ip), port)),
        _ => None,
    };
    Ok(Some(ProxyHeader { client: client.map(SocketAddr::from), length }))
}

/// The source address, which is the first field, and its port, `port_at` bytes after it.
fn v2_client<const N: usize>(header: &[u8], port_at: usize) -> Option<([u8; N], u16)> {
    let fields = header.get(V2_FIXED..)?;
    let port = fields.get(port_at..)?.first_chunk::<2>()?;
    Some((*fields.first_chunk::<N>()?, u16::from_be_bytes(*port)))
}

/// Where the checksum of a header is, and its value; `None` without one.
///
/// # Errors
///
/// The fields from `at` on are malformed.
fn checksum(header: &[u8], mut at: usize) -> Result<Option<(usize, u32)>, ()> {
    let mut found = None;
    while at < header.len() {
        let fixed = header.get(at..).and_then(|rest| rest.first_chunk::<3>());
        let [kind, high, low] = *fixed.ok_or(())?;
        let begin = at + 3;
        at = begin + usize::from(u16::from_be_bytes([high, low]));
        let value = header.get(begin..at).ok_or(())?;
        if kind == CHECKSUM {
            let value = <[u8; 4]>::try_from(value).map_err(drop)?;
            if found.replace((begin, u32::from_be_bytes(value))).is_some() {
                return Err(());
            }
        }
    }
    Ok(found)
}

/// The checksum of a header with zeros in place of the one at `at`.
fn sum_without(header: &[u8], at: usize) -> u32 {
    let is_sum = |index| (at..at + 4).contains(&index);
    crc32c(header.iter().enumerate().map(|(index, byte)| if is_sum(index) { 0 } else { *byte }))
}

/// Whether the bytes begin with `expected`, as far as there are bytes.
fn agree(bytes: &[u8], expected: &[u8]) -> bool {
    bytes.iter().zip(expected).all(|(one, other)| one == other)
}
