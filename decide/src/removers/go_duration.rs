//! Durations as Go writes them, exactly as `time.ParseDuration` reads them: Karpenter's annotation is in this form, and
//! what it does not read it takes for no hint.

use jiff::SignedDuration;

/// The duration; absent where Go would answer with an error.
pub fn parse(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (nanos, after) = component(rest)?;
        total = total.checked_add(nanos)?;
        rest = after;
    }
    // Go's durations are 64-bit nanoseconds.
    let nanos =
        i64::try_from(if negative { -i128::try_from(total).ok()? } else { i128::try_from(total).ok()? }).ok()?;
    Some(SignedDuration::from_nanos(nanos))
}

/// The nanoseconds of the first number with its unit, and what comes after.
fn component(text: &str) -> Option<(u128, &str)> {
    let (whole, after) = digits(text);
    let (fraction, after) = match after.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = after.find(|symbol: char| symbol == '.' || symbol.is_ascii_digit()).unwrap_or(after.len());
    let (unit, after) = after.split_at(end);
    let scale: u128 = match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    };
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // An hour has fewer than 10^13 ns: digits after the eighteenth cannot matter.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = if fraction.is_empty() {
        0
    } else {
        fraction.parse::<u128>().ok()? * scale / 10_u128.pow(u32::try_from(fraction.len()).ok()?)
    };
    Some((whole.checked_mul(scale)?.checked_add(part)?, after))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|symbol: char| !symbol.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        const SECOND: i64 = 1_000_000_000;
        for (text, nanos) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("5s", Some(5 * SECOND)),
            ("30m", Some(30 * 60 * SECOND)),
            ("1h30m", Some(5400 * SECOND)),
            ("1.5h", Some(5400 * SECOND)),
            (".5s", Some(SECOND / 2)),
            ("1.s", Some(SECOND)),
            ("+2s", Some(2 * SECOND)),
            ("-1.5h", Some(-5400 * SECOND)),
            ("10ms20us30ns", Some(10_020_030)),
            ("3\u{b5}s", Some(3_000)),
            ("3\u{3bc}s", Some(3_000)),
            ("1s1s", Some(2 * SECOND)),
            ("0.3333333333333333333h", Some(1_200 * SECOND - 1)),
            ("2562047h47m16.854775807s", Some(i64::MAX)),
            ("2562047h47m16.854775808s", None),
            ("99999999999999999999999999999999999999999h", None),
            ("", None),
            ("-", None),
            ("3", None),
            ("-3", None),
            ("s", None),
            (".", None),
            (".s", None),
            ("1d", None),
            ("1 h", None),
            ("1h ", None),
            ("True", None),
            ("false", None),
            ("1H", None),
        ] {
            assert_eq!(parse(text), nanos.map(SignedDuration::from_nanos), "{text:?}");
        }
    }
}
