//! The search for a line's end.

/// So many bytes are looked at one by one.
const SHORT: usize = 8;

/// Where the first line feed is. Most lines are shorter than the start-up of a vectorised search.
#[inline]
pub(crate) fn find_feed(input: &[u8]) -> Option<usize> {
    match input.split_at_checked(SHORT) {
        None => input.iter().position(|byte| *byte == b'\n'),
        Some((short, rest)) => short
            .iter()
            .position(|byte| *byte == b'\n')
            .or_else(|| memchr::memchr(b'\n', rest).map(|feed| SHORT + feed)),
    }
}

#[cfg(test)]
mod tests {
    use super::find_feed;

    #[test]
    fn finds_the_first_one_at_every_distance() {
        for before in 0..40 {
            let mut text = vec![b'x'; before];
            assert_eq!(find_feed(&text), None);
            text.extend_from_slice(b"\nabc\n");
            assert_eq!(find_feed(&text), Some(before));
        }
    }
}
