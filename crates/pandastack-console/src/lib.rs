//! The web console: embedded, compressed files with strict security headers.
//!
//! - Every path below `/console/` is a file, or the page itself, which routes in the browser.
//! - The sources are in `web/`; `npm run build` there writes `pages/built`, and the build script embeds it.
//! - A program that was compiled without it serves a page that says how to build it.
//!
//! Sessions and the API are the server's business.

#![forbid(unsafe_code)]

use std::io::Read;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use flate2::read::GzDecoder;
use http::{HeaderMap, StatusCode, header};

/// Path of the console.
pub const BASE: &str = "/console/";

/// Content security policy: the page may load its own files, and nothing from elsewhere. Styles may
/// be inline, because the terminal and the editor make style sheets for their themes; scripts may
/// not.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; manifest-src 'self'; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Names of these files contain a hash of their content.
const HASHED: &str = "assets/";

/// One embedded file.
struct Page {
    path: &'static str,
    etag: &'static str,
    gzip: &'static [u8],
    brotli: &'static [u8],
}

static PAGES: &[Page] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));
static NOT_BUILT: &str = include_str!("../pages/not-built.html");

/// Returns whether the console is part of this program.
pub fn is_built() -> bool {
    find("index.html").is_some()
}

/// The console's routes.
pub fn router() -> Router {
    Router::new()
        .route("/console", get(|| async { Redirect::temporary(BASE) }))
        .route(BASE, get(|headers: HeaderMap| async move { answer("", &headers) }))
        .route(
            "/console/{*path}",
            get(|Path(path): Path<String>, headers: HeaderMap| async move { answer(&path, &headers) }),
        )
}

fn find(path: &str) -> Option<&'static Page> {
    let at = PAGES.binary_search_by(|page| page.path.cmp(path)).ok()?;
    PAGES.get(at)
}

fn answer(path: &str, headers: &HeaderMap) -> Response {
    let page = match find(path) {
        Some(page) => page,
        // A hashed file that an upgrade removed must not be answered with a page.
        None if path.starts_with(HASHED) => return StatusCode::NOT_FOUND.into_response(),
        None => match find("index.html") {
            Some(index) => index,
            None => return not_built(),
        },
    };
    let cache = match page.path.starts_with(HASHED) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let mut response = match headers.get(header::IF_NONE_MATCH) {
        Some(known) if known.as_bytes() == page.etag.as_bytes() => StatusCode::NOT_MODIFIED.into_response(),
        _ => content(page, headers),
    };
    let more = [
        (header::CACHE_CONTROL, cache),
        (header::ETAG, page.etag),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_TYPE, content_type(page.path)),
    ];
    for (name, value) in more.into_iter().chain(STRICT) {
        response.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    response
}

/// Headers of everything here.
const STRICT: [(http::HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (http::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (http::HeaderName::from_static("permissions-policy"), "camera=(), microphone=(), geolocation=()"),
];

/// The file in the best encoding that the client takes.
fn content(page: &Page, headers: &HeaderMap) -> Response {
    let accepts = |coding: &str| {
        let listed = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let mut codings = listed.flat_map(|value| value.split(',')).map(|value| {
            value.split_once(';').map_or((value.trim(), ""), |(name, weight)| (name.trim(), weight.trim()))
        });
        codings.any(|(name, weight)| name.eq_ignore_ascii_case(coding) && !matches!(weight, "q=0" | "q=0.0"))
    };
    let encoded = |bytes: &'static [u8], coding: &'static str| {
        ([(header::CONTENT_ENCODING, coding)], Body::from(bytes)).into_response()
    };
    if accepts("br") {
        return encoded(page.brotli, "br");
    }
    if accepts("gzip") {
        return encoded(page.gzip, "gzip");
    }
    let mut plain = Vec::new();
    match GzDecoder::new(page.gzip).read_to_end(&mut plain) {
        Ok(_) => Body::from(plain).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn not_built() -> Response {
    let mut response = axum::response::Html(NOT_BUILT).into_response();
    for (name, value) in STRICT {
        response.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    response.headers_mut().insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    response
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" | "webmanifest" => "application/json",
        "woff2" => "font/woff2",
        "png" => "image/png",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(encodings: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, encodings.parse().unwrap());
        headers
    }

    static PAGE: Page = Page {
        path: "x.js",
        etag: "\"1\"",
        // "ok", as gzip writes it.
        gzip: &[31, 139, 8, 0, 0, 0, 0, 0, 0, 3, 203, 207, 6, 0, 71, 221, 220, 121, 2, 0, 0, 0],
        brotli: b"br",
    };

    #[test]
    fn the_best_encoding_is_chosen() {
        for (encodings, coding) in [
            ("gzip, deflate, br", Some("br")),
            ("gzip", Some("gzip")),
            ("br;q=0, gzip;q=0.5", Some("gzip")),
            ("identity", None),
            ("", None),
        ] {
            let response = content(&PAGE, &asked(encodings));
            let got = response.headers().get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap());
            assert_eq!((response.status(), got), (StatusCode::OK, coding), "{encodings}");
        }
    }

    #[test]
    fn console_responses_forbid_inline_scripts() {
        for path in ["", "sandboxes/x", "index.html"] {
            let response = answer(path, &HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
            assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
        assert_eq!(answer("assets/gone.js", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
        assert!(!POLICY.contains("script-src 'self' 'unsafe") && !NOT_BUILT.contains("<script"));
        if let Some(index) = find("index.html") {
            let mut page = String::new();
            GzDecoder::new(index.gzip).read_to_string(&mut page).unwrap();
            assert_eq!(page.matches("<script").count(), page.matches(" src=\"/console/").count(), "{page}");
        }
    }
}
