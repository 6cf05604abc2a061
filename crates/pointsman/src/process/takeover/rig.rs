//! One end of a takeover conversation against messages of a hostile process, for the fuzz target
//! and the test that replays its corpus.
//!
//! The first byte chooses the end; the messages follow, one per line. A line that begins with `+`
//! carries a listening socket, and `@` in it stands for that socket's address.
#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "a fuzz target uses it"))]

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use super::predecessor::hand_over;
use super::successor::converse;
use super::wire::TakeoverPeer;
use super::{CONFIRM, END, HELLO, LEAVING, Offer, SERVING, STEP};
use crate::admin::service_registry::OfferMark;
use crate::process::inherit::NamedSocket;

/// More than either end reads.
const MAX_LINES: usize = 64;

/// What a conversation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The new process received this number of sockets, and the old one leaves.
    Taken(usize),
    /// The old process handed its sockets over.
    HandedOver,
    /// The conversation failed, and both processes are as they were before.
    Failed,
}

/// Runs a conversation, and checks that it succeeds with the right messages only.
///
/// # Panics
///
/// If it does not, or if the system has no sockets.
#[allow(clippy::expect_used, clippy::panic, reason = "it reports by a panic")]
pub fn run(data: &[u8]) -> Ended {
    let (side, text) = data.split_first().map_or((b'n', &[][..]), |(side, text)| (*side, text));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let addr = listener.local_addr().expect("an address");
    let lines: Vec<(bool, String)> = text
        .split(|byte| *byte == b'\n')
        .take(MAX_LINES)
        .map(|line| {
            let (carries, line) = line.strip_prefix(b"+").map_or((false, line), |it| (true, it));
            let line = String::from_utf8_lossy(line).replace('@', &addr.to_string());
            (carries, line)
        })
        .filter(|(_, line)| !line.is_empty())
        .collect();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = pair.expect("a pair of sockets");
    let hostile = TakeoverPeer(theirs.try_clone().expect("a duplicate"));
    for (carries, line) in &lines {
        let handle: Option<OwnedFd> =
            carries.then(|| listener.try_clone().expect("a duplicate").into());
        hostile.send(line, handle.as_ref(), Instant::now() + STEP).expect("room for a message");
    }
    // All of it can be read, and then the end.
    shutdown(&theirs, Shutdown::Write).expect("an open socket");
    let peer = TakeoverPeer(ours);
    let said: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
    if side == b'n' { take(&peer, &lines, &said) } else { give(&peer, &listener, &said) }
}

#[allow(clippy::panic, reason = "it reports by a panic")]
fn take(peer: &TakeoverPeer, lines: &[(bool, String)], said: &[&str]) -> Ended {
    let Ok(sockets) = converse(peer) else { return Ended::Failed };
    let end = said.iter().position(|line| *line == END);
    let Some(end) = end else { panic!("sockets without their end: {said:?}") };
    assert_eq!(sockets.len(), end, "{said:?}");
    assert!(lines.iter().take(end).all(|(carries, _)| *carries), "{said:?}");
    let mut rest = said.iter().skip(end + 1).skip_while(|line| **line == CONFIRM);
    assert_eq!(rest.next(), Some(&LEAVING), "{said:?}");
    Ended::Taken(sockets.len())
}

#[allow(clippy::expect_used, reason = "it reports by a panic")]
fn give(peer: &TakeoverPeer, listener: &TcpListener, said: &[&str]) -> Ended {
    let listener = listener.try_clone().expect("a duplicate");
    let offer: Offer = Box::new(move || {
        let (addr, listener) = (listener.local_addr()?.into(), listener.try_clone()?.into());
        Ok((vec![NamedSocket { name: "m".to_owned(), addr, listener }], OfferMark::default()))
    });
    let done = hand_over(peer, &offer).is_ok();
    assert_eq!(done, matches!(said, [HELLO, SERVING, SERVING, ..]), "{said:?}");
    if done { Ended::HandedOver } else { Ended::Failed }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Every input of the corpus, and variations of it.
    #[test]
    fn hands_over_as_agreed_on_the_fuzz_corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/takeover");
        let (mut taken, mut handed_over, mut failed) = (0, 0, 0);
        let mut random = fastrand::Rng::with_seed(7);
        for file in std::fs::read_dir(folder).unwrap() {
            let input = std::fs::read(file.unwrap().path()).unwrap();
            for variation in 0..40 {
                let mut bytes = input.clone();
                for _ in 0..variation % 4 {
                    if !bytes.is_empty() {
                        let at = random.usize(..bytes.len());
                        bytes[at] = random.u8(..);
                    }
                }
                match run(&bytes) {
                    Ended::Taken(_) => taken += 1,
                    Ended::HandedOver => handed_over += 1,
                    Ended::Failed => failed += 1,
                }
            }
        }
        let counts = (taken, handed_over, failed);
        assert!(taken > 10 && handed_over > 10 && failed > 100, "of no use: {counts:?}");
    }
}
