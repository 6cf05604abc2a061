//! The digest of the cursor of an iterating command: one number that is small enough for a mark.

/// A digest must fit into a mark of the ledger.
const DIGEST_BITS: u32 = 24;

/// The digest of an invalid cursor, which the server refuses.
const UNREADABLE: u32 = 1;

/// The digest of a cursor. It is zero only for the cursor that begins and ends an iteration.
pub(crate) fn digest(cursor: &[u8]) -> u32 {
    number(cursor).map_or(UNREADABLE, |cursor| {
        // Multiplication by an odd number close to 2^64 divided by the golden ratio spreads all
        // bits into the highest bits.
        let spread = cursor.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - DIGEST_BITS);
        if cursor == 0 { 0 } else { u32::try_from(spread).unwrap_or(UNREADABLE).max(UNREADABLE) }
    })
}

/// The number of a cursor; `None` if it is none that a server returns.
pub(crate) fn number(cursor: &[u8]) -> Option<u64> {
    let plain = !cursor.is_empty() && cursor.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(cursor).ok().filter(|_| plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn digests_only_the_first_cursor_to_zero() {
        assert_eq!((digest(b"0"), digest(b"00")), (0, 0));
        let others = [
            &b"1"[..],
            b"17",
            b"18446744073709551615",
            b"18446744073709551616",
            b"",
            b"-1",
            b"x",
            b"+1",
        ];
        for cursor in others {
            assert!((1..1 << 24).contains(&digest(cursor)), "{cursor:?}");
        }
        assert!((1..100_000_u64).all(|cursor| digest(cursor.to_string().as_bytes()) != 0));
    }
}
