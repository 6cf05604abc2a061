//! A workload for counting the instructions of the scanner: one case, repeated.
//!
//!     valgrind --tool=callgrind target/release/examples/count get 1000
//!
//! `cargo xtask bench instructions` takes the difference between two numbers of repetitions, so
//! that start-up does not count.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::hint::black_box;
use std::process::ExitCode;

use resp::{Ledger, Limits, SessionState};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n";
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$3\r\nxxx\r\n";
const VALUE: &[u8] = b"$3\r\nxxx\r\n";

/// The requests and replies of a case, and the size of the pieces in which the replies arrive.
fn case(name: &str) -> Option<(Vec<u8>, Vec<u8>, usize)> {
    let bulk = [b"$65536\r\n".as_slice(), &vec![b'x'; 65536], b"\r\n"].concat();
    let list = [b"*100\r\n".as_slice(), &VALUE.repeat(100)].concat();
    match name {
        "get" => Some((GET.to_vec(), VALUE.to_vec(), usize::MAX)),
        "set" => Some((SET.to_vec(), b"+OK\r\n".to_vec(), usize::MAX)),
        "pipeline" => Some((GET.repeat(16), VALUE.repeat(16), usize::MAX)),
        "bulk" => Some((GET.to_vec(), bulk, 16 << 10)),
        "list" => Some((GET.to_vec(), list, usize::MAX)),
        _ => None,
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let found = words.next().as_deref().and_then(case);
    let times = words.next().and_then(|word| word.parse::<u32>().ok());
    let (Some((requests, replies, pieces)), Some(times)) = (found, times) else {
        eprintln!("usage: count get|set|pipeline|bulk|list TIMES");
        return ExitCode::FAILURE;
    };
    let mut ledger = Ledger::new(&Limits::default());
    for _ in 0..times {
        ledger.request(black_box(&requests));
        for piece in black_box(&replies).chunks(pieces) {
            ledger.reply(piece);
        }
    }
    let session_state = ledger.session_state();
    println!("{times} times, {session_state:?}");
    if session_state == SessionState::Quiet { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
