//! Cookies that a guest sets.
//!
//! Previews and apps of different owners are neighbours below one domain. A cookie with a `Domain` above its
//! own host would be sent to all of them, and could replace theirs; without that attribute a browser keeps it
//! for the one host. Names that begin with our prefix are ours alone: a guest could otherwise log a visitor
//! out of a private preview.

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};
use pandastack_types::preview::{PARAMETER, SECURE_COOKIE};

/// Confines the cookies of a response to its host. With `is_own_domain` the host name belongs to
/// the app's owner, who may share cookies with other hosts of that domain.
pub fn confine(headers: &mut HeaderMap, is_own_domain: bool) {
    if !headers.get_all(SET_COOKIE).iter().any(|value| needs_change(value, is_own_domain)) {
        return;
    }
    let values: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    for value in values {
        let kept = if needs_change(&value, is_own_domain) { confined(&value) } else { Some(value) };
        if let Some(kept) = kept {
            headers.append(SET_COOKIE, kept);
        }
    }
}

fn needs_change(value: &HeaderValue, is_own_domain: bool) -> bool {
    is_ours(value.as_bytes()) || (!is_own_domain && attributes(value.as_bytes()).any(is_domain))
}

/// The cookie without `Domain`; `None` for a cookie that a guest may not set.
fn confined(value: &HeaderValue) -> Option<HeaderValue> {
    let bytes = value.as_bytes();
    if is_ours(bytes) {
        return None;
    }
    let pair = bytes.split(|byte| *byte == b';').next().unwrap_or_default();
    let mut kept = pair.to_vec();
    for attribute in attributes(bytes).filter(|attribute| !is_domain(attribute)) {
        kept.extend_from_slice(b"; ");
        kept.extend_from_slice(attribute);
    }
    HeaderValue::from_bytes(&kept).ok()
}

fn attributes(cookie: &[u8]) -> impl Iterator<Item = &[u8]> {
    cookie.split(|byte| *byte == b';').skip(1).map(<[u8]>::trim_ascii)
}

/// Browsers read the name without regard to case and to spaces around it.
fn is_domain(attribute: &[u8]) -> bool {
    let name = attribute.split(|byte| *byte == b'=').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(b"domain")
}

fn is_ours(cookie: &[u8]) -> bool {
    let name = cookie.split(|byte| matches!(byte, b'=' | b';')).next().unwrap_or_default().trim_ascii();
    [PARAMETER, SECURE_COOKIE].iter().any(|ours| name.eq_ignore_ascii_case(ours.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(set: &[&'static str], is_own_domain: bool, expect: &[&str]) {
        let mut headers = HeaderMap::new();
        for value in set {
            headers.append(SET_COOKIE, HeaderValue::from_static(value));
        }
        confine(&mut headers, is_own_domain);
        let left: Vec<_> = headers.get_all(SET_COOKIE).iter().collect();
        assert_eq!(left, expect, "{set:?}");
    }

    #[test]
    fn cookie_domains_set_by_guests_are_removed() {
        let plain = "a=1; Path=/; HttpOnly";
        check(&[plain], false, &[plain]);
        check(&["a=1; Domain=example.com; Path=/", plain], false, &["a=1; Path=/", plain]);
        check(&["a=1;DOMAIN = .example.com ;Secure"], false, &["a=1; Secure"]);
        check(&["a=1; domain=x; Domain=y"], false, &["a=1"]);
        check(&["a=1; Domain"], false, &["a=1"]);
        check(&["domain=1"], false, &["domain=1"]);
        check(&["=x; Domain=example.com"], false, &["=x"]);
    }

    #[test]
    fn cookies_may_be_shared_within_a_custom_domain() {
        check(&["a=1; Domain=shop.example"], true, &["a=1; Domain=shop.example"]);
    }

    #[test]
    fn guests_cannot_set_platform_cookies() {
        let other = "other=1";
        check(&["pandastack_preview=x; Path=/", other], true, &[other]);
        check(
            &["__Host-pandastack_preview=x; Secure; Path=/", " Pandastack_Preview", other],
            false,
            &[other],
        );
    }
}
