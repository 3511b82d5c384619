//! Query strings.

use percent_encoding::percent_decode_str;

/// Keys and values of a query string, decoded.
pub(super) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    form_urlencoded::parse(query.as_bytes()).into_owned()
}

/// Percent-decoded text; invalid escapes are kept.
pub(super) fn percent_decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_escapes_are_kept() {
        assert_eq!(percent_decode("100%+%zz"), "100%+%zz");
        let parsed: Vec<_> = pairs("a=100%+%zz&&b&c=1=2").collect();
        assert_eq!(parsed, [("a", "100% %zz"), ("b", ""), ("c", "1=2")].map(|(k, v)| (k.into(), v.into())));
    }
}
