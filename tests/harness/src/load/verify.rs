//! Checks whether the acknowledged keys exist.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::tally::Ranges;
use super::writer::key;
use crate::client::{Client, Login};

/// Keys per command.
const BATCH: usize = 500;
/// How many missing keys are listed.
const NAMED: usize = 10;

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Acknowledged keys that were looked up.
    pub acknowledged: u64,
    /// How many of them do not exist.
    pub missing: u64,
    /// The first few missing keys.
    pub examples: Vec<String>,
    /// The writer and the number of each missing key.
    pub lost: BTreeSet<(usize, u64)>,
}

pub(super) fn verify(ranges: &Ranges, prefix: &str, mut client: Client) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
    each_batch(ranges, |batch| {
        verdict.acknowledged += batch.len() as u64;
        let keys = keys(prefix, batch);
        if count(&mut client, "EXISTS", &keys)? == keys.len() {
            return Ok(());
        }
        for (key, of) in keys.iter().zip(batch) {
            if count(&mut client, "EXISTS", std::slice::from_ref(key))? == 0 {
                verdict.missing += 1;
                verdict.lost.insert(*of);
                if verdict.examples.len() < NAMED {
                    verdict.examples.push(key.clone());
                }
            }
        }
        Ok(())
    })?;
    Ok(verdict)
}

pub(super) fn remove(
    ranges: &Ranges,
    prefix: &str,
    addr: SocketAddr,
    login: Option<&Login>,
) -> io::Result<()> {
    let mut client = Client::connect_as(addr, login, Duration::from_secs(10))?;
    each_batch(ranges, |batch| count(&mut client, "UNLINK", &keys(prefix, batch)).map(|_| ()))
}

fn keys(prefix: &str, batch: &[(usize, u64)]) -> Vec<String> {
    batch.iter().map(|(writer, number)| key(prefix, *writer, *number)).collect()
}

fn each_batch(
    ranges: &Ranges,
    mut act: impl FnMut(&[(usize, u64)]) -> io::Result<()>,
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH);
    for (writer, ranges) in ranges.iter().enumerate() {
        for number in ranges.iter().cloned().flatten() {
            batch.push((writer, number));
            if batch.len() == BATCH {
                act(&batch)?;
                batch.clear();
            }
        }
    }
    if batch.is_empty() { Ok(()) } else { act(&batch) }
}

fn count(client: &mut Client, command: &str, keys: &[String]) -> io::Result<usize> {
    let args: Vec<&str> = std::iter::once(command).chain(keys.iter().map(String::as_str)).collect();
    let reply = client.cmd(&args)?;
    let count = reply.int().and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{command} was answered {reply}"))
    })
}
