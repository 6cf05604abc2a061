//! "Did you mean …?": the nearest of the words that would have been right.

/// The candidate nearest to `word`, if one is near enough to be a slip of the fingers: at most a
/// third of the letters, and always allowing two.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let bound = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| {
            (strsim::damerau_levenshtein(&word, &candidate.to_ascii_lowercase()), candidate)
        })
        .filter(|(distance, candidate)| *distance <= bound && *distance < candidate.len())
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_understood_and_the_rest_is_not() {
        let keys = ["listen", "sentinels", "connect_timeout", "accept_min", "accept_max"];
        assert_eq!(nearest("sentinel", keys), Some("sentinels"));
        assert_eq!(nearest("lisetn", keys), Some("listen"));
        assert_eq!(nearest("conect-timeout", keys), Some("connect_timeout"));
        assert_eq!(nearest("Accept_Min", keys), Some("accept_min"));
        assert_eq!(nearest("password", keys), None);
        assert_eq!(nearest("ä", ["on"]), None, "a short word is not everything's neighbour");
    }
}
