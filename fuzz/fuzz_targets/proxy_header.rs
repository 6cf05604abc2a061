//! Fuzzes the header of the PROXY protocol: a result never changes when more bytes arrive, and what
//! follows a header is not looked at.

#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::parse_proxy_header;

fuzz_target!(|data: &[u8]| {
    let mut earlier = Ok(None);
    for end in 0..=data.len() {
        let now = parse_proxy_header(&data[..end]);
        assert!(earlier == Ok(None) || now == earlier);
        earlier = now;
    }
    if let Ok(Some(header)) = earlier {
        assert!((15..=4096).contains(&header.length));
        assert_eq!(parse_proxy_header(&data[..header.length]), earlier);
        assert_eq!(parse_proxy_header(&data[..header.length - 1]), Ok(None));
    }
});
