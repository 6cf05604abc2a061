//! CRC-32C (Castagnoli), with which a version 2 header may be protected.
//!
//! Bit by bit: it is computed once per connection, over some hundred bytes at most, and only if the
//! header has a checksum.

/// The polynomial, with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The checksum of the bytes.
pub(super) fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    !bytes.fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_known_checksums() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(b"123456789".iter().copied()), 0xe306_9283);
        assert_eq!(crc32c([0; 32].into_iter()), 0x8a91_36aa);
        assert_eq!(crc32c([0xff; 32].into_iter()), 0x62a8_ab43);
        assert_eq!(crc32c(0..32), 0x46dd_794e);
        assert_eq!(crc32c([].into_iter()), 0);
    }
}
