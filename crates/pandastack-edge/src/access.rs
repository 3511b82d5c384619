//! Access control for previews.
//!
//! A signed URL works once as a link: it sets a cookie and redirects to the same address without
//! the signature, so that the page's own requests carry the cookie and users do not copy the
//! signature out of the address bar. Over TLS its name begins with `__Host-`, which a browser
//! accepts from this very host only, so that no neighbour below the same domain can set it.
//! Credentials of ours never reach the guest.

use http::header::{COOKIE, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use pandastack_types::preview::{Accepted, PARAMETER, PreviewKey, SECURE_COOKIE, TOKEN_HEADER, Visibility};

use crate::body::ResponseBody;
use crate::error::EdgeError;
use crate::route::Route;

const TOKEN: HeaderName = HeaderName::from_static(TOKEN_HEADER);
/// The same token as clients of the header form send it.
const TRAFFIC_TOKEN: HeaderName = HeaderName::from_static("e2b-traffic-access-token");

/// The decision about a request.
pub enum Verdict {
    /// Pass it on.
    Pass,
    /// Send this.
    Redirect(Box<Response<ResponseBody>>),
}

/// Decides whether a request may pass, and removes our credentials from it.
pub fn check(
    parts: &mut Parts,
    route: &Route,
    port: u16,
    secure: bool,
    now_unix: impl FnOnce() -> i64,
) -> Result<Verdict, EdgeError> {
    match (route.visibility, &route.key) {
        (Visibility::Unlisted, _) => {
            drop_credentials(parts);
            Ok(Verdict::Pass)
        }
        (Visibility::Off, _) => Err(EdgeError::Unknown),
        (Visibility::Private, None) => Err(EdgeError::NeedsToken),
        (Visibility::Private, Some(key)) => check_private(parts, key, port, secure, now_unix()),
    }
}

/// Removes the edge's own credentials from a request. One pass over the few names of a head costs
/// less than a lookup of each of ours.
fn drop_credentials(parts: &mut Parts) {
    let is_token = |name: &HeaderName| name == TOKEN || name == TRAFFIC_TOKEN;
    let is_credential = |(name, value): (&HeaderName, &HeaderValue)| {
        is_token(name) || (name == COOKIE && contains(value.as_bytes(), PARAMETER.as_bytes()))
    };
    if parts.headers.iter().any(is_credential) {
        parts.headers.remove(TOKEN);
        parts.headers.remove(TRAFFIC_TOKEN);
        take_cookie(&mut parts.headers, false);
    }
    if parts.uri.query().is_some_and(|query| query.contains(PARAMETER)) {
        take_parameter(&mut parts.uri);
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn check_private(
    parts: &mut Parts,
    key: &PreviewKey,
    port: u16,
    secure: bool,
    now_unix: i64,
) -> Result<Verdict, EdgeError> {
    let by_header = [TOKEN, TRAFFIC_TOKEN].into_iter().any(|name| {
        let given = parts.headers.remove(name);
        given.is_some_and(|given| {
            given.to_str().is_ok_and(|given| key.accepts(given, port, now_unix).is_some())
        })
    });
    let by_cookie = take_cookie(&mut parts.headers, secure)
        .is_some_and(|given| key.accepts(&given, port, now_unix).is_some());
    let signed = take_parameter(&mut parts.uri);
    let by_url = signed.as_deref().and_then(|given| Some((given, key.accepts(given, port, now_unix)?)));
    match by_url {
        Some((given, Accepted::Until(expires))) if matches!(parts.method, Method::GET | Method::HEAD) => {
            Ok(Verdict::Redirect(Box::new(set_cookie(&parts.uri, given, expires - now_unix, secure)?)))
        }
        Some(_) => Ok(Verdict::Pass),
        None if by_header || by_cookie => Ok(Verdict::Pass),
        None => Err(EdgeError::NeedsToken),
    }
}

fn set_cookie(
    uri: &Uri,
    signed: &str,
    seconds: i64,
    secure: bool,
) -> Result<Response<ResponseBody>, EdgeError> {
    let (name, flag) = if secure { (SECURE_COOKIE, "; Secure") } else { (PARAMETER, "") };
    let cookie = format!("{name}={signed}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{flag}");
    // Two slashes at the start would lead to another site.
    let target = uri.path_and_query().map_or("/", PathAndQuery::as_str).trim_start_matches('/');
    let malformed = |_| EdgeError::Malformed("the request URL is malformed".to_owned());
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(SET_COOKIE, HeaderValue::from_str(&cookie).map_err(malformed)?);
    let target = HeaderValue::from_str(&format!("/{target}")).map_err(malformed)?;
    response.headers_mut().insert(LOCATION, target);
    Ok(response)
}

/// Removes our cookies and keeps the guest's. Over TLS, only the cookie that no neighbour can set counts.
fn take_cookie(headers: &mut HeaderMap, secure: bool) -> Option<String> {
    let counts = if secure { SECURE_COOKIE } else { PARAMETER };
    let mut ours = None;
    let mut others = Vec::new();
    for value in headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()) {
        for pair in value.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((name, value)) if name == counts => ours = Some(value.to_owned()),
                Some((PARAMETER | SECURE_COOKIE, _)) => {}
                _ => others.push(pair),
            }
        }
    }
    let kept = HeaderValue::from_str(&others.join("; ")).ok().filter(|value| !value.is_empty());
    headers.remove(COOKIE);
    if let Some(kept) = kept {
        headers.insert(COOKIE, kept);
    }
    ours
}

/// Removes our parameter and keeps the guest's.
fn take_parameter(uri: &mut Uri) -> Option<String> {
    let query = uri.query()?;
    let (mut ours, mut others) = (None, Vec::new());
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((PARAMETER, value)) => ours = Some(value.to_owned()),
            _ => others.push(pair),
        }
    }
    ours.as_ref()?;
    let rest = others.join("&");
    let target = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{rest}", uri.path()) };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = target.parse().ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
    ours
}

#[cfg(test)]
mod tests {
    use http::Request;
    use pandastack_types::link::LinkKey;

    use super::*;
    use crate::route::Location;

    const NOW: i64 = 1_000;

    fn route(visibility: Visibility) -> Route {
        let key = PreviewKey::new(&LinkKey::new(&[7; 32]).unwrap(), &"a".parse().unwrap(), 0);
        Route { to: Location::Fixed([127, 0, 0, 1].into()), visibility, host_header: None, key: Some(key) }
    }

    fn signed() -> String {
        route(Visibility::Private).key.unwrap().sign(80, 2_000)
    }

    fn token() -> String {
        route(Visibility::Private).key.unwrap().token().to_owned()
    }

    fn head(method: Method, uri: &str, lines: &[(&'static str, String)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in lines {
            request = request.header(*name, value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn passes(head: &mut Parts, visibility: Visibility) -> bool {
        matches!(check(head, &route(visibility), 80, false, || NOW), Ok(Verdict::Pass))
    }

    #[test]
    fn visibility_controls_preview_access() {
        assert!(passes(&mut head(Method::GET, "/", &[]), Visibility::Unlisted));
        assert!(!passes(&mut head(Method::GET, "/", &[]), Visibility::Private));
        let mut good = head(Method::GET, "/", &[("x-pandastack-preview-token", token())]);
        assert!(passes(&mut good, Visibility::Private));
        assert!(good.headers.is_empty(), "the guest must not see the token");
        let mut good = head(Method::GET, "/", &[("x-pandastack-preview-token", token())]);
        assert!(!passes(&mut good, Visibility::Off));
    }

    #[test]
    fn a_signed_url_is_exchanged_for_an_access_cookie() {
        let uri = format!("/page?a=1&{PARAMETER}={}&b=2", signed());
        let Ok(Verdict::Redirect(answer)) =
            check(&mut head(Method::GET, &uri, &[]), &route(Visibility::Private), 80, false, || NOW)
        else {
            panic!("no redirect");
        };
        assert_eq!(answer.headers()[LOCATION], "/page?a=1&b=2");
        let cookie = answer.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
        let mut next = head(Method::GET, "/page", &[("cookie", format!("theme=dark; {cookie}"))]);
        assert!(passes(&mut next, Visibility::Private));
        assert_eq!(next.headers[COOKIE], "theme=dark");
    }

    #[test]
    fn over_tls_only_host_prefixed_cookies_grant_access() {
        let uri = format!("/?{PARAMETER}={}", signed());
        let Ok(Verdict::Redirect(answer)) =
            check(&mut head(Method::GET, &uri, &[]), &route(Visibility::Private), 80, true, || NOW)
        else {
            panic!("no redirect");
        };
        let set = answer.headers()[SET_COOKIE].to_str().unwrap().to_owned();
        assert!(set.starts_with("__Host-pandastack_preview=") && set.ends_with("; Secure"), "{set}");
        assert!(set.contains("; Path=/;") && !set.contains("Domain"), "{set}");
        let opens = |cookie: String| {
            let mut head = head(Method::GET, "/", &[("cookie", cookie)]);
            let verdict = check(&mut head, &route(Visibility::Private), 80, true, || NOW);
            assert!(!head.headers.contains_key(COOKIE), "the guest must not see it");
            matches!(verdict, Ok(Verdict::Pass))
        };
        assert!(opens(format!("__Host-{PARAMETER}={}", signed())));
        assert!(!opens(format!("{PARAMETER}={}", signed())), "any neighbour could have set this one");
    }

    #[test]
    fn an_unlisted_preview_receives_no_credentials() {
        let mut request = head(
            Method::GET,
            &format!("/page?a=1&{PARAMETER}={}", signed()),
            &[
                ("x-pandastack-preview-token", token()),
                ("e2b-traffic-access-token", token()),
                ("cookie", format!("theme=dark; {PARAMETER}={}", signed())),
            ],
        );
        assert!(passes(&mut request, Visibility::Unlisted));
        assert_eq!(request.uri, "/page?a=1");
        assert_eq!(request.headers.len(), 1);
        assert_eq!(request.headers[COOKIE], "theme=dark");
        let mut request = head(Method::GET, "/?b=2", &[("cookie", "a=1;b=2".to_owned())]);
        assert!(passes(&mut request, Visibility::Unlisted));
        assert_eq!(
            (&request.headers[COOKIE], request.uri.query()),
            (&"a=1;b=2".parse().unwrap(), Some("b=2"))
        );
    }

    #[test]
    fn a_signed_post_is_forwarded_without_its_signature() {
        let mut post = head(Method::POST, &format!("/hook?{PARAMETER}={}", signed()), &[]);
        assert!(passes(&mut post, Visibility::Private));
        assert_eq!(post.uri, "/hook");
    }

    #[test]
    fn a_redirect_stays_on_the_site() {
        let uri = format!("//evil.example/?{PARAMETER}={}", signed());
        let mut request = head(Method::GET, "/", &[]);
        request.uri = Uri::builder().path_and_query(uri.as_str()).build().unwrap();
        let Ok(Verdict::Redirect(answer)) =
            check(&mut request, &route(Visibility::Private), 80, false, || NOW)
        else {
            panic!("no redirect");
        };
        assert_eq!(answer.headers()[LOCATION], "/evil.example/");
    }
}
