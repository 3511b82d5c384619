//! Answers of our own: what is wrong with a request or its sandbox, and what to do about it.
//!
//! The form follows the client: a page for browsers, JSON for programs, and for clients that named the sandbox by
//! headers the JSON and statuses that those read.

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use pandastack_types::{ErrorCode, SandboxId};

use crate::body::ResponseBody;
use crate::destination::Target;
use crate::limits::BODY_WAIT;

/// Names an answer of ours in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The request is malformed.
    Malformed(String),
    /// No such sandbox, or none that this caller may know of.
    Unknown,
    /// It is private.
    NeedsToken,
    /// Nothing listens on the port.
    PortClosed,
    /// The port is open inside the sandbox only; the address it is bound to.
    InsideOnly(String),
    /// The sandbox is in a state in which it serves nobody.
    NotServing(String),
    /// Too much at once, or a wait that was too long.
    Busy(String),
    /// The host, or something on it, does not answer.
    Unavailable(String),
    /// The program in the sandbox broke off.
    Broken,
    /// The program in the sandbox does not accept connections.
    Silent,
    /// The body is too large.
    TooLarge,
    /// The body stopped in the middle.
    TooSlow,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.sentence_for(None))
    }
}

impl std::error::Error for Trouble {}

impl Trouble {
    /// Its stable name.
    pub fn code(&self) -> ErrorCode {
        match self {
            Trouble::Malformed(_) | Trouble::TooSlow => ErrorCode::BadRequest,
            Trouble::Unknown => ErrorCode::NotFound,
            Trouble::NeedsToken => ErrorCode::Forbidden,
            Trouble::PortClosed | Trouble::InsideOnly(_) => ErrorCode::PortClosed,
            Trouble::NotServing(_) => ErrorCode::Conflict,
            Trouble::Busy(_) => ErrorCode::NoCapacity,
            Trouble::Unavailable(_) => ErrorCode::HostUnreachable,
            Trouble::Broken | Trouble::Silent => ErrorCode::GuestUnavailable,
            Trouble::TooLarge => ErrorCode::BodyTooLarge,
        }
    }

    /// The answer's status: its code's, but for the one that HTTP has a word for and the API has not.
    fn status(&self) -> u16 {
        match self {
            Trouble::TooSlow => StatusCode::REQUEST_TIMEOUT.as_u16(),
            _ => self.code().status(),
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Trouble::Malformed(_) => "Bad request",
            Trouble::Unknown => "Sandbox not found",
            Trouble::NeedsToken => "This preview is private",
            Trouble::PortClosed => "Nothing listens here",
            Trouble::InsideOnly(_) => "Only reachable inside the sandbox",
            Trouble::NotServing(_) => "The sandbox is not serving requests",
            Trouble::Busy(_) => "Too busy",
            Trouble::Unavailable(_) => "The sandbox's host is not responding",
            Trouble::Broken | Trouble::Silent => "The program in the sandbox did not respond",
            Trouble::TooLarge => "The body is too large",
            Trouble::TooSlow => "The request body timed out",
        }
    }

    fn sentence_for(&self, target: Option<&Target>) -> String {
        match (target, self) {
            (Some(target), _) => self.sentence(&target.sandbox, target.port),
            (None, Trouble::Malformed(what) | Trouble::Busy(what) | Trouble::NotServing(what)) => {
                what.clone()
            }
            (None, Trouble::Unavailable(what)) => what.clone(),
            (None, _) => self.title().to_owned(),
        }
    }

    /// What happened and what to do, in a sentence.
    pub fn sentence(&self, id: &SandboxId, port: u16) -> String {
        match self {
            Trouble::Malformed(what) | Trouble::NotServing(what) | Trouble::Busy(what) => what.clone(),
            Trouble::Unavailable(what) => what.clone(),
            Trouble::Unknown => {
                format!("sandbox `{id}` was not found; it may have been deleted or have expired")
            }
            Trouble::NeedsToken => {
                "this preview is private; open it with a signed URL, or send its token in \
                 `x-pandastack-preview-token`"
                    .to_owned()
            }
            Trouble::PortClosed => {
                format!("the sandbox is running, but this port is not open; start a server on 0.0.0.0:{port}")
            }
            Trouble::InsideOnly(address) => format!(
                "the sandbox is running, but this port is not open from outside: its server listens on \
                 {address}:{port}; make it listen on 0.0.0.0:{port} (often `--host 0.0.0.0`)"
            ),
            Trouble::Broken => {
                format!("the program on port {port} closed the connection before it responded")
            }
            Trouble::Silent => format!("the program on port {port} is not accepting connections"),
            Trouble::TooLarge => crate::body::BodyTooLarge.to_string(),
            Trouble::TooSlow => {
                let seconds = BODY_WAIT.as_secs();
                format!("the request body stalled for {seconds} s; send it without long pauses")
            }
        }
    }

    /// The answer, in the form that the client reads.
    pub fn answer(&self, target: Option<&Target>, headers: &HeaderMap) -> Response<ResponseBody> {
        let by_header = target.is_some_and(|target| target.by_header);
        let wants_page = headers
            .get(ACCEPT)
            .is_some_and(|accept| accept.as_bytes().windows(9).any(|part| part == b"text/html"));
        let status = if by_header { self.header_status() } else { self.status() };
        let request_id = uuid::Uuid::new_v4().to_string();
        let (kind, text) = match target {
            Some(target) if by_header => ("application/json", self.header_body(target, status)),
            _ if wants_page => ("text/html; charset=utf-8", self.page(target)),
            _ => ("application/json", self.body(target, &request_id)),
        };
        let mut response = Response::new(ResponseBody::Own(Full::new(Bytes::from(text))));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        let answer = response.headers_mut();
        answer.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        answer.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(id) = HeaderValue::from_str(&request_id) {
            answer.insert(REQUEST_ID, id);
        }
        tracing::debug!(request_id, trouble = ?self, "answered by the edge itself");
        if matches!(self, Trouble::Malformed(_) | Trouble::TooSlow) {
            // What follows a head that can be read in two ways may be read in two ways too, and a body that stopped has no end.
            answer.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = self.code().retry_after_seconds() {
            answer.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    fn body(&self, target: Option<&Target>, request_id: &str) -> String {
        let (error, code) = (self.sentence_for(target), self.code());
        serde_json::json!({ "error": error, "code": code, "request_id": request_id }).to_string()
    }

    /// Clients that name sandboxes by headers take 502 for "gone".
    fn header_status(&self) -> u16 {
        match self {
            Trouble::Unknown => 502,
            _ => self.status(),
        }
    }

    fn header_body(&self, target: &Target, status: u16) -> String {
        let mut body = serde_json::json!({
            "sandboxId": target.sandbox, "message": self.sentence_for(Some(target)), "code": status,
        });
        if matches!(self, Trouble::PortClosed | Trouble::InsideOnly(_)) {
            body["port"] = target.port.into();
        }
        body.to_string()
    }

    fn page(&self, target: Option<&Target>) -> String {
        let (title, sentence) = (self.title(), escape(&self.sentence_for(target)));
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{title}</title><style>body{{font:16px/1.5 system-ui,sans-serif;\
             max-width:38rem;margin:15vh auto;padding:0 1rem;color:#222;background:#fff}}h1{{font-size:1.4rem}}\
             @media(prefers-color-scheme:dark){{body{{color:#ddd;background:#181818}}}}</style>\
             <h1>{title}</h1><p>{sentence}.</p></html>\n"
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(by_header: bool) -> Target {
        Target { sandbox: "abc".parse().unwrap(), port: 80, by_header }
    }

    #[track_caller]
    fn check(trouble: Trouble, by_header: bool, accept: &'static str, status: u16, kind: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let answer = trouble.answer(Some(&target(by_header)), &headers);
        assert_eq!(answer.status(), status, "{trouble:?}");
        assert!(answer.headers()[CONTENT_TYPE].to_str().unwrap().starts_with(kind), "{trouble:?}");
    }

    #[test]
    fn the_form_follows_the_client() {
        check(Trouble::Unknown, false, "text/html,*/*", 404, "text/html");
        check(Trouble::Unknown, false, "*/*", 404, "application/json");
        check(Trouble::Unknown, true, "text/html", 502, "application/json");
        check(Trouble::PortClosed, true, "*/*", 502, "application/json");
        check(Trouble::NeedsToken, true, "*/*", 403, "application/json");
        check(Trouble::TooSlow, false, "*/*", 408, "application/json");
        check(Trouble::TooSlow, true, "*/*", 408, "application/json");
    }

    #[test]
    fn clients_by_header_find_the_words_they_look_for() {
        assert!(Trouble::Unknown.header_body(&target(true), 502).contains("was not found"));
        for closed in [Trouble::PortClosed, Trouble::InsideOnly("127.0.0.1".to_owned())] {
            let body = closed.header_body(&target(true), 502);
            assert!(body.contains("port is not open") && body.contains("\"port\":80"), "{body}");
        }
    }

    #[test]
    fn busy_invites_another_try_and_pages_are_escaped() {
        let answer = Trouble::Busy("x".to_owned()).answer(None, &HeaderMap::new());
        assert_eq!(answer.status(), 503);
        assert!(answer.headers().contains_key(RETRY_AFTER));
        assert!(!Trouble::NotServing("<script>".to_owned()).page(None).contains("<script>"));
    }
}
