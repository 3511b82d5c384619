//! `Range` of a request for a file. Pure.

/// The requested range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// All of it.
    Whole,
    /// Some of it; at least one byte.
    Part {
        /// First byte.
        start: u64,
        /// Number of bytes.
        length: u64,
    },
    /// No byte of the file is in the range.
    Unsatisfiable,
}

/// Reads a header for a file of that size. Several ranges, other units and invalid headers select
/// the whole file, as the standard allows.
pub(crate) fn parse(header: &str, size: u64) -> ByteRange {
    let Some((first, last)) = header.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return ByteRange::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let part = |start: u64, end: u64| match end.min(size).checked_sub(start) {
        None | Some(0) => ByteRange::Unsatisfiable,
        Some(length) => ByteRange::Part { start, length },
    };
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(start), Ok(last)) if start <= last => part(start, last.saturating_add(1)),
        (Ok(start), Err(_)) if last.is_empty() => part(start, u64::MAX),
        (Err(_), Ok(count)) if first.is_empty() => {
            part(size.saturating_sub(count), if count == 0 { 0 } else { size })
        }
        _ => ByteRange::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::ByteRange::{Part, Unsatisfiable, Whole};
    use super::*;

    #[test]
    fn byte_ranges_follow_the_http_standard() {
        for (header, expect) in [
            ("bytes=0-0", Part { start: 0, length: 1 }),
            ("bytes=2-5", Part { start: 2, length: 4 }),
            ("bytes=8-", Part { start: 8, length: 2 }),
            ("bytes=8-100", Part { start: 8, length: 2 }),
            ("bytes=-3", Part { start: 7, length: 3 }),
            ("bytes=-100", Part { start: 0, length: 10 }),
            ("bytes=10-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=0-18446744073709551615", Part { start: 0, length: 10 }),
            ("bytes=5-2", Whole),
            ("bytes=0-1,3-4", Whole),
            ("lines=1-2", Whole),
            ("bytes=x-y", Whole),
            ("", Whole),
        ] {
            assert_eq!(parse(header, 10), expect, "{header}");
        }
        assert_eq!(parse("bytes=0-", 0), Unsatisfiable);
    }
}
