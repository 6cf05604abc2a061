//! Fuzzes the ledger of a shared connection with any bytes from the server: whole or byte by byte,
//! it delivers the same bytes to the same clients and finds the same disagreement.

#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::{Desync, Load, MemberId, UpstreamLedger};

/// What was delivered to each client, the replies that ended, and why the connection was closed.
type Outcome = ([Vec<u8>; 4], u64, Option<Desync>);

fn deliver(seed: u8, bytes: &[u8], size: usize) -> Outcome {
    let mut ledger = UpstreamLedger::new(seed & 1 == 0, seed & 2 == 0, Load::MOST);
    for member in 0..12 {
        let count = 1 + u32::from(seed) % 3;
        assert!(ledger.send(MemberId(member % 4), count, 10, member % 5 == 4));
    }
    let (mut delivered, mut ended, mut kept) = (<[Vec<u8>; 4]>::default(), 0, Vec::new());
    for piece in bytes.chunks(size) {
        kept.extend_from_slice(piece);
        let mut input = &kept[..];
        loop {
            match ledger.take(&mut input) {
                Ok(None) => break,
                Err(desync) => return (delivered, ended, Some(desync)),
                Ok(Some(piece)) => {
                    let to = piece.to.expect("no client has left").0 as usize;
                    ended += u64::from(piece.ended);
                    delivered[to].extend_from_slice(piece.bytes);
                }
            }
        }
        assert!(input.len() < 24, "more bytes are kept than decide");
        kept = input.to_vec();
    }
    (delivered, ended, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((seed, bytes)) = data.split_first() else { return };
    let (whole, bytewise) = (deliver(*seed, bytes, usize::MAX), deliver(*seed, bytes, 1));
    assert_eq!((whole.1, whole.2), (bytewise.1, bytewise.2));
    for (whole_bytes, bytes) in whole.0.iter().zip(&bytewise.0) {
        // If the connection was closed, the valid beginning of the last frame was delivered.
        let same = whole_bytes == bytes;
        assert!(same || (whole.2.is_some() && bytes.starts_with(whole_bytes)));
    }
});
