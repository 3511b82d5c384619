//! HTTP requests that users configured and this server makes.
//!
//! Whoever may make a schedule must not reach through it what only this server can reach: addresses that are not of the
//! internet are refused after their names were resolved, on the very addresses that are connected to, unless the operator
//! allows them. Redirects are not followed and no proxy is used, because either would go elsewhere than was checked.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pandastack_types::api::HttpTarget;
use pandastack_types::limits::RUN_OUTPUT_BYTES_MAX;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::{Host, Url};

use super::runner::Attempt;
use crate::error::{ApiError, ApiResult};
use crate::store::schedules::{RunOutcome, RunRecord, RunState, ScheduleRecord};

/// How long a connection may take to open.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long a webhook may take to answer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest URL.
pub(super) const URL_BYTES_MAX: usize = 4096;
/// Headers of one target.
const HEADERS_MAX: usize = 64;
/// Longest body of a target.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// Headers that belong to the connection.
const OWN_HEADERS: [&str; 5] = ["host", "content-length", "connection", "transfer-encoding", "upgrade"];

/// Makes the requests.
pub(crate) struct HttpClient {
    allow_private: bool,
    client: Result<reqwest::Client, String>,
}

/// Why something was not told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untold {
    /// It could never be.
    #[error("{0}")]
    Never(String),
    /// Nobody answered.
    #[error("{0}")]
    Unreachable(String),
    /// It was not taken.
    #[error("it answered {0}")]
    Answered(reqwest::StatusCode),
}

impl Untold {
    /// Whether the same would be answered again.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Never(_) => true,
            Self::Unreachable(_) => false,
            Self::Answered(status) => status.is_client_error() && !matches!(status.as_u16(), 408 | 425 | 429),
        }
    }
}

/// Names become addresses that may be connected to.
struct PublicOnly {
    allow_private: bool,
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let good: Vec<SocketAddr> =
                found.filter(|address| allow_private || is_public(address.ip())).collect();
            if good.is_empty() {
                return Err(format!("`{}` has no public address", name.as_str()).into());
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is one of the internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => pandastack_types::network::is_public(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => pandastack_types::network::is_public(mapped),
            None => is_public_v6(address),
        },
    }
}

/// Global unicast (2000::/3) without what carries IPv4 addresses (6to4, Teredo) and documentation.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let is_tunnel = first == 0x2002 || (first == 0x2001 && second < 0x0200);
    let is_documentation = (first == 0x2001 && second == 0x0db8) || first == 0x3fff;
    first & 0xe000 == 0x2000 && !is_tunnel && !is_documentation
}

impl HttpClient {
    pub(super) fn new(allow_private: bool) -> Self {
        let client = pandastack_http::builder()
            .dns_resolver(Arc::new(PublicOnly { allow_private }))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_WAIT)
            .user_agent(concat!("pandastack/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { allow_private, client: client.map_err(|error| chain(&error)) }
    }

    /// Refuses a URL that could never be called.
    pub(crate) fn check_url(&self, field: &str, text: &str) -> ApiResult<Url> {
        let refuse = |why: String| ApiError::bad_request(format!("`{field}` {why}"));
        if text.len() > URL_BYTES_MAX {
            return Err(refuse(format!("is at most {URL_BYTES_MAX} bytes")));
        }
        let url = Url::parse(text).map_err(|error| refuse(format!("is not a URL: {error}")))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(refuse("must begin with http:// or https://".to_owned()));
        }
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(_)) | None => None,
        };
        if !self.allow_private && literal.is_some_and(|address| !is_public(address)) {
            return Err(refuse(
                "is not on the internet; the operator can allow private addresses with \
                 --schedules-private-targets"
                    .to_owned(),
            ));
        }
        Ok(url)
    }

    /// Tells a webhook, with a `POST` that must be answered with 2xx.
    pub(crate) async fn tell(&self, field: &str, url: &str, body: &serde_json::Value) -> Result<(), String> {
        self.tell_with(field, url, HeaderMap::new(), body).await.map_err(|error| error.to_string())
    }

    /// The same with headers.
    pub(crate) async fn tell_with(
        &self,
        field: &str,
        url: &str,
        headers: HeaderMap,
        body: &serde_json::Value,
    ) -> Result<(), Untold> {
        let url = self.check_url(field, url).map_err(|error| Untold::Never(error.message))?;
        let client = self.client().map_err(|error| Untold::Never(error.message))?;
        let request = client.post(url).timeout(ANSWER_WAIT).headers(headers);
        let request = request.header("content-type", "application/json").body(body.to_string());
        let answer = request.send().await.map_err(|error| Untold::Unreachable(chain(&error)))?;
        if answer.status().is_success() { Ok(()) } else { Err(Untold::Answered(answer.status())) }
    }

    /// Refuses a target that could never be called.
    pub(super) fn check(&self, target: &HttpTarget) -> ApiResult<()> {
        self.check_url("target.url", &target.url)?;
        check_request(target)
    }

    /// Makes the request of a run.
    pub(super) async fn attempt(
        &self,
        target: &HttpTarget,
        schedule: &ScheduleRecord,
        run: &RunRecord,
        limit: Duration,
    ) -> Attempt {
        let request = match self.request(target, schedule, run) {
            Ok(request) => request,
            Err(error) => return failure(RunState::Error, error.message),
        };
        match tokio::time::timeout(limit, exchange(request)).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(error)) => {
                failure(RunState::Error, format!("{} did not answer: {}", target.url, chain(&error)))
            }
            Err(_) => failure(
                RunState::Timeout,
                format!("{} did not answer within {} s", target.url, limit.as_secs()),
            ),
        }
    }

    fn request(
        &self,
        target: &HttpTarget,
        schedule: &ScheduleRecord,
        run: &RunRecord,
    ) -> ApiResult<reqwest::RequestBuilder> {
        let url = self.check_url("target.url", &target.url)?;
        let request = self.client()?.request(method(target)?, url).headers(headers(target)?);
        let request = told(schedule, run)
            .into_iter()
            .fold(request, |request, (name, value)| request.header(name, value));
        Ok(match &target.body {
            Some(body) => request.body(body.clone()),
            None => request,
        })
    }

    /// The client itself, for alerts.
    pub(super) fn client(&self) -> ApiResult<&reqwest::Client> {
        self.client.as_ref().map_err(|error| ApiError::internal(error.clone()))
    }
}

fn failure(state: RunState, error: String) -> Attempt {
    Attempt { state, outcome: RunOutcome { exit_code: -1, error: Some(error), ..RunOutcome::default() } }
}

async fn exchange(request: reqwest::RequestBuilder) -> reqwest::Result<Attempt> {
    let mut response = request.send().await?;
    let status = response.status();
    let mut body = Vec::new();
    let mut truncated = false;
    while let Some(part) = response.chunk().await? {
        let room = RUN_OUTPUT_BYTES_MAX - body.len();
        body.extend_from_slice(&part[..part.len().min(room)]);
        if part.len() > room {
            truncated = true;
            break;
        }
    }
    Ok(judged(status, &body, truncated))
}

/// What an answer makes of an attempt.
pub(super) fn judged(status: reqwest::StatusCode, body: &[u8], truncated: bool) -> Attempt {
    let is_good = status.is_success();
    let outcome = RunOutcome {
        exit_code: if is_good { 0 } else { -1 },
        http_status: Some(status.as_u16()),
        stdout: String::from_utf8_lossy(body).into_owned(),
        truncated,
        error: (!is_good).then(|| format!("it answered {status}")),
        ..RunOutcome::default()
    };
    Attempt { state: if is_good { RunState::Success } else { RunState::Error }, outcome }
}

/// Headers of a run. The key is the same for every attempt of it, so that a receiver can tell a repetition.
pub(super) fn told(schedule: &ScheduleRecord, run: &RunRecord) -> [(&'static str, String); 5] {
    [
        ("idempotency-key", run.id.to_string()),
        ("x-pandastack-schedule-id", schedule.id.to_string()),
        ("x-pandastack-run-id", run.id.to_string()),
        ("x-pandastack-attempt", run.attempt.to_string()),
        ("x-pandastack-scheduled-for", run.scheduled_for.to_string()),
    ]
}

/// Refuses a request that could never be made, wherever it goes.
pub(super) fn check_request(target: &HttpTarget) -> ApiResult<()> {
    method(target)?;
    headers(target)?;
    match &target.body {
        Some(body) if body.len() > BODY_BYTES_MAX => {
            Err(ApiError::bad_request(format!("`target.body` is at most {BODY_BYTES_MAX} bytes")))
        }
        _ => Ok(()),
    }
}

pub(super) fn method(target: &HttpTarget) -> ApiResult<reqwest::Method> {
    let text = target.method.as_deref().unwrap_or("POST");
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    match known.iter().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) => reqwest::Method::from_bytes(known.as_bytes()).map_err(ApiError::internal),
        None => Err(ApiError::bad_request(format!("`target.method` is one of {}", known.join(", ")))),
    }
}

pub(super) fn headers(target: &HttpTarget) -> ApiResult<HeaderMap> {
    if target.headers.len() > HEADERS_MAX {
        return Err(ApiError::bad_request(format!("`target.headers` has at most {HEADERS_MAX}")));
    }
    let mut map = HeaderMap::new();
    for (name, value) in &target.headers {
        let shown: String = name.chars().take(64).collect();
        let refuse = |why: &str| ApiError::bad_request(format!("header `{shown}` of `target.headers` {why}"));
        if OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Err(refuse("is set by the connection; leave it out"));
        }
        let name: HeaderName = name.parse().map_err(|_| refuse("is not a header name"))?;
        let value: HeaderValue = value.parse().map_err(|_| refuse("has a value that HTTP cannot carry"))?;
        map.insert(name, value);
    }
    Ok(map)
}

/// An error and its causes; the outermost alone says only that sending failed.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        for (text, public) in [
            ("93.184.216.34", true),
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("100.64.0.1", false),
            ("2606:2800:220:1::1", true),
            ("::1", false),
            ("::", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:93.184.216.34", true),
            ("2002:7f00:1::", false),
            ("2001:0:1::", false),
            ("64:ff9b::7f00:1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(text.parse().unwrap()), public, "{text}");
        }
    }

    #[tokio::test]
    async fn names_of_private_addresses_are_refused_unless_allowed() {
        for (allow_private, good) in [(false, false), (true, true)] {
            let resolver = PublicOnly { allow_private };
            let found = resolver.resolve("localhost".parse().unwrap()).await;
            assert_eq!(found.is_ok(), good, "allow_private: {allow_private}");
        }
    }

    #[test]
    fn urls_that_cannot_be_called_are_refused() {
        let strict = HttpClient::new(false);
        for url in [
            "ftp://example.com",
            "file:///etc/passwd",
            "nonsense",
            "http://127.0.0.1/",
            "http://[::1]:80/",
            "http://2130706433/",
            "http://0x7f.1/",
        ] {
            assert!(strict.check_url("url", url).is_err(), "{url}");
        }
        assert!(strict.check_url("url", "https://example.com/x").is_ok());
        assert!(HttpClient::new(true).check_url("url", "http://127.0.0.1/").is_ok());
        let long = format!("https://example.com/{}", "x".repeat(URL_BYTES_MAX));
        assert!(strict.check_url("url", &long).is_err());
    }
}
