//! Comparison of versions as packages have them.

use std::cmp::Ordering;

/// Compares two versions part by part: numbers as numbers, everything else as Debian sorts it. A `~`
/// sorts before the end of a version, and letters before other characters.
///
/// `6.1.0-9` comes before `6.1.0-37`, and `7.2+dfsg-7+deb12u9` before `7.2+dfsg-7+deb12u18`.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.trim().as_bytes(), b.trim().as_bytes());
    while !a.is_empty() || !b.is_empty() {
        let (text_a, text_b) =
            (take(&mut a, |byte| !byte.is_ascii_digit()), take(&mut b, |byte| !byte.is_ascii_digit()));
        let texts =
            (0..text_a.len().max(text_b.len())).map(|at| rank(text_a.get(at)).cmp(&rank(text_b.get(at))));
        let (number_a, number_b) = (take(&mut a, u8::is_ascii_digit), take(&mut b, u8::is_ascii_digit));
        let differs = texts.chain([compare_numbers(number_a, number_b)]).find(|order| order.is_ne());
        if let Some(order) = differs {
            return order;
        }
    }
    Ordering::Equal
}

fn take<'a>(rest: &mut &'a [u8], matches: impl Fn(&u8) -> bool) -> &'a [u8] {
    let end = rest.iter().position(|byte| !matches(byte)).unwrap_or(rest.len());
    let (taken, left) = rest.split_at(end);
    *rest = left;
    taken
}

/// Order of a character among those at its place; a version that has ended there is `None`.
fn rank(byte: Option<&u8>) -> u16 {
    match byte {
        Some(b'~') => 0,
        None => 1,
        Some(letter) if letter.is_ascii_alphabetic() => 2 + u16::from(*letter),
        Some(other) => 0x200 + u16::from(*other),
    }
}

/// Compares digits as numbers of any length.
fn compare_numbers(a: &[u8], b: &[u8]) -> Ordering {
    let significant = |digits: &[u8]| digits.iter().position(|digit| *digit != b'0').unwrap_or(digits.len());
    let (a, b) = (&a[significant(a)..], &b[significant(b)..]);
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// A version of the platform, in which `-` starts a pre-release.
pub fn semantic(version: &str) -> String {
    version.replacen('-', "~", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_numbers_compare_numerically() {
        for (less, more) in [
            ("6.1.0-9-cloud-amd64", "6.1.0-37-cloud-amd64"),
            ("6.1", "6.1.1"),
            ("6.1.0-37", "6.1.0-37-cloud-amd64"),
            ("7.2.22 (Debian 1:7.2+dfsg-7+deb12u9)", "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"),
            ("7.2.22 (Debian 1:7.2+dfsg-7+deb12u9)", "7.2.23"),
            ("9", "10.0.2"),
            ("1.0~rc1", "1.0"),
            ("", "0.1"),
            ("1.9", "1.99999999999999999999999999"),
        ] {
            assert_eq!(compare(less, more), Ordering::Less, "{less} {more}");
            assert_eq!(compare(more, less), Ordering::Greater, "{more} {less}");
        }
        for (a, b) in [("1.01", "1.1"), ("0.5.0", " 0.5.0 "), ("", "")] {
            assert_eq!(compare(a, b), Ordering::Equal, "{a} {b}");
        }
    }

    #[test]
    fn a_pre_release_comes_before_its_release() {
        assert_eq!(compare(&semantic("0.6.0-rc.1"), &semantic("0.6.0")), Ordering::Less);
        assert_eq!(compare(&semantic("0.6.0-rc.1"), &semantic("0.6.0-rc.2")), Ordering::Less);
        assert_eq!(compare(&semantic("0.5.9"), &semantic("0.6.0-rc.1")), Ordering::Less);
    }
}
