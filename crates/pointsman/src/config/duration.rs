//! Parses and formats durations: `5s`, `250ms`, `1m30s`.
//!
//! A number without a unit is refused. Some proxies read it as seconds and others as milliseconds,
//! and a timeout that is wrong by a factor of a thousand is noticed only in an outage. Fractions
//! are refused as well, since each can be written exactly in a smaller unit.

use std::fmt::Write as _;
use std::time::Duration;

use super::value::Problem;

/// Maximum duration of any option: seven days, which is more than any option needs and too short to
/// overflow a clock.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Units in the order in which they must appear, with their length in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Parses a duration: one or more numbers with units, larger units first. `off` and `0` mean zero.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(crate) fn parse(text: &str) -> Result<Duration, Problem> {
    let text = text.trim();
    if text == "0" || text == "off" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Problem::new(
            "it has no unit",
            format!("write \"{text}s\" for seconds or \"{text}ms\" for milliseconds"),
        ));
    }
    let micros = total_micros(text).ok_or_else(|| {
        Problem::new("it is not a duration", "write for example \"5s\", \"250ms\" or \"1m30s\"")
    })?;
    let duration = Duration::from_micros(micros);
    if duration > MAX_DURATION {
        return Err(Problem::new("it is too long", "give at most \"7d\""));
    }
    Ok(duration)
}

fn total_micros(text: &str) -> Option<u64> {
    let (mut rest, mut total, mut allowed) = (text, 0_u64, UNITS.as_slice());
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(end)?;
        let at = allowed.iter().position(|(name, _)| *name == unit)?;
        let (_, micros) = allowed.get(at)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*micros)?)?;
        allowed = allowed.get(at + 1..)?;
        rest = tail;
    }
    Some(total)
}

/// Formats a duration so that [`parse`] gives the same one, to the microsecond.
pub(crate) fn format(duration: Duration) -> String {
    let mut micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if micros == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, length) in UNITS {
        if micros >= length {
            let _ = write!(text, "{}{unit}", micros / length);
            micros %= length;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_durations_with_units() {
        for (text, millis) in [
            ("5s", 5000),
            ("250ms", 250),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("0s", 0),
            ("off", 0),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn refuses_other_text_with_a_remedy() {
        for text in [
            "",
            "5",
            "s",
            "5 s",
            "1.5s",
            "-5s",
            "30s1m",
            "5s5s",
            "5x",
            "99999999999999999999s",
            "8d",
        ] {
            let problem = parse(text).unwrap_err();
            assert!(!problem.what.is_empty() && !problem.remedy.is_empty(), "{text}");
        }
        assert_eq!(
            parse("5").unwrap_err().remedy,
            "write \"5s\" for seconds or \"5ms\" for milliseconds"
        );
    }

    proptest! {
        #[test]
        fn parses_what_it_formats(micros in 0_u64..=7 * 86_400_000_000) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse(&format(duration)).unwrap(), duration);
        }

        #[test]
        fn never_panics_on_any_text(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
