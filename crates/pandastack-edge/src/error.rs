//! Error responses of the edge: the reason, and what to do.
//!
//! The format depends on the client: a page for browsers, JSON for programs. Clients that name the
//! sandbox in headers get the JSON and the statuses they expect.

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use pandastack_types::{ErrorCode, SandboxId};

use crate::body::ResponseBody;
use crate::destination::Target;
use crate::limits::BODY_WAIT;

/// Identifies an error response in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Reason why a request or a stream does not reach its sandbox, or gets no response from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeError {
    /// The request is malformed.
    Malformed(String),
    /// The sandbox does not exist, or the caller may not know of it.
    Unknown,
    /// The port is private.
    NeedsToken,
    /// The port is closed.
    PortClosed,
    /// The port is open inside the sandbox only; the address it is bound to.
    InsideOnly(String),
    /// The sandbox is in a state in which it serves no requests.
    NotServing(String),
    /// The operator suspended its workspace.
    Suspended(String),
    /// Too much at once, or a wait that was too long.
    Busy(String),
    /// The host, or something on it, does not respond.
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

impl std::fmt::Display for EdgeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.sentence_for(None))
    }
}

impl std::error::Error for EdgeError {}

impl EdgeError {
    /// Stable error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            EdgeError::Malformed(_) | EdgeError::TooSlow => ErrorCode::BadRequest,
            EdgeError::Unknown => ErrorCode::NotFound,
            EdgeError::NeedsToken => ErrorCode::Forbidden,
            EdgeError::PortClosed | EdgeError::InsideOnly(_) => ErrorCode::PortClosed,
            EdgeError::NotServing(_) => ErrorCode::Conflict,
            EdgeError::Suspended(_) => ErrorCode::WorkspaceSuspended,
            EdgeError::Busy(_) => ErrorCode::NoCapacity,
            EdgeError::Unavailable(_) => ErrorCode::HostUnreachable,
            EdgeError::Broken | EdgeError::Silent => ErrorCode::GuestUnavailable,
            EdgeError::TooLarge => ErrorCode::BodyTooLarge,
        }
    }

    /// The answer's status: its code's, except where HTTP has another one for visitors, who do not call the
    /// API.
    fn status(&self) -> u16 {
        match self {
            EdgeError::Suspended(_) => StatusCode::SERVICE_UNAVAILABLE.as_u16(),
            EdgeError::TooSlow => StatusCode::REQUEST_TIMEOUT.as_u16(),
            _ => self.code().status(),
        }
    }

    fn title(&self) -> &'static str {
        match self {
            EdgeError::Malformed(_) => "Bad request",
            EdgeError::Unknown => "Sandbox not found",
            EdgeError::NeedsToken => "This preview is private",
            EdgeError::PortClosed => "Nothing listens here",
            EdgeError::InsideOnly(_) => "Only reachable inside the sandbox",
            EdgeError::NotServing(_) => "The sandbox is not serving requests",
            EdgeError::Suspended(_) => "Suspended",
            EdgeError::Busy(_) => "Too busy",
            EdgeError::Unavailable(_) => "The sandbox's host is not responding",
            EdgeError::Broken | EdgeError::Silent => "The program in the sandbox did not respond",
            EdgeError::TooLarge => "The body is too large",
            EdgeError::TooSlow => "The request body timed out",
        }
    }

    fn sentence_for(&self, target: Option<&Target>) -> String {
        match (target, self) {
            (Some(target), _) => self.sentence(&target.sandbox, target.port),
            (None, EdgeError::Malformed(what) | EdgeError::Busy(what) | EdgeError::NotServing(what)) => {
                what.clone()
            }
            (None, EdgeError::Unavailable(what) | EdgeError::Suspended(what)) => what.clone(),
            (None, _) => self.title().to_owned(),
        }
    }

    /// Message for the user: what happened and what to do.
    pub fn sentence(&self, id: &SandboxId, port: u16) -> String {
        match self {
            EdgeError::Malformed(what) | EdgeError::NotServing(what) | EdgeError::Busy(what) => what.clone(),
            EdgeError::Unavailable(what) | EdgeError::Suspended(what) => what.clone(),
            EdgeError::Unknown => {
                format!("sandbox `{id}` was not found; it may have been deleted or have expired")
            }
            EdgeError::NeedsToken => {
                "this preview is private; open it with a signed URL, or send its token in \
                 `x-pandastack-preview-token`"
                    .to_owned()
            }
            EdgeError::PortClosed => {
                format!("the sandbox is running, but this port is not open; start a server on 0.0.0.0:{port}")
            }
            EdgeError::InsideOnly(address) => format!(
                "the sandbox is running, but this port is not open from outside: its server listens on \
                 {address}:{port}; make it listen on 0.0.0.0:{port} (often `--host 0.0.0.0`)"
            ),
            EdgeError::Broken => {
                format!("the program on port {port} closed the connection before it responded")
            }
            EdgeError::Silent => format!("the program on port {port} is not accepting connections"),
            EdgeError::TooLarge => crate::body::BodyTooLarge.to_string(),
            EdgeError::TooSlow => {
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
        tracing::debug!(request_id, error = ?self, "the edge responded itself");
        if matches!(self, EdgeError::Malformed(_) | EdgeError::TooSlow) {
            // Bytes after an ambiguous head are ambiguous too, and a stalled body has no known end.
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
            EdgeError::Unknown => 502,
            _ => self.status(),
        }
    }

    fn header_body(&self, target: &Target, status: u16) -> String {
        let mut body = serde_json::json!({
            "sandboxId": target.sandbox, "message": self.sentence_for(Some(target)), "code": status,
        });
        if matches!(self, EdgeError::PortClosed | EdgeError::InsideOnly(_)) {
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
        Target { sandbox: "abc".parse().unwrap(), port: 80, by_header, own_domain: false }
    }

    #[track_caller]
    fn check(error: EdgeError, by_header: bool, accept: &'static str, status: u16, kind: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let answer = error.answer(Some(&target(by_header)), &headers);
        assert_eq!(answer.status(), status, "{error:?}");
        assert!(answer.headers()[CONTENT_TYPE].to_str().unwrap().starts_with(kind), "{error:?}");
    }

    #[test]
    fn the_error_format_follows_the_accept_header() {
        check(EdgeError::Unknown, false, "text/html,*/*", 404, "text/html");
        check(EdgeError::Unknown, false, "*/*", 404, "application/json");
        check(EdgeError::Unknown, true, "text/html", 502, "application/json");
        check(EdgeError::PortClosed, true, "*/*", 502, "application/json");
        check(EdgeError::NeedsToken, true, "*/*", 403, "application/json");
        check(EdgeError::TooSlow, false, "*/*", 408, "application/json");
        check(EdgeError::TooSlow, true, "*/*", 408, "application/json");
        let suspended = || EdgeError::Suspended("app `a` is suspended".to_owned());
        check(suspended(), false, "text/html,*/*", 503, "text/html");
        check(suspended(), false, "*/*", 503, "application/json");
    }

    #[test]
    fn error_bodies_contain_the_phrases_e2b_clients_match() {
        let gone = EdgeError::Unknown.header_body(&target(true), 502);
        assert!(gone.contains("was not found") && gone.contains("\"sandboxId\":\""), "{gone}");
        for closed in [EdgeError::PortClosed, EdgeError::InsideOnly("127.0.0.1".to_owned())] {
            let body = closed.header_body(&target(true), 502);
            assert!(body.contains("port is not open") && body.contains("\"port\":80"), "{body}");
        }
    }

    #[test]
    fn busy_errors_set_retry_after_and_escape_html() {
        let answer = EdgeError::Busy("x".to_owned()).answer(None, &HeaderMap::new());
        assert_eq!(answer.status(), 503);
        assert!(answer.headers().contains_key(RETRY_AFTER));
        assert!(!EdgeError::NotServing("<script>".to_owned()).page(None).contains("<script>"));
    }
}
