//! Fuzzes what a sentinel sends, in both protocol versions: replies to a poll, and events.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sentinel::simulation::{Reply, parse_notice, read_poll, read_replies};

fuzz_target!(|data: &[u8]| {
    for is_resp3 in [false, true] {
        let replies = read_replies(data, is_resp3);
        for poll in replies.windows(5) {
            let _ = read_poll(poll, false);
        }
        for (channel, payload) in replies.iter().filter_map(Reply::message) {
            let _ = parse_notice(channel, payload);
        }
    }
});
