//! Webhooks: HTTP requests that users configure and this server sends.
//!
//! A user who configures a URL must not reach through it what only this server can reach. Addresses
//! outside the internet are refused after their names were resolved, on the very addresses that are
//! connected to, unless the operator allows them. Redirects are not followed and no proxy is used,
//! because either would go elsewhere than was checked. Addresses of this machine count as private,
//! too: a request from here would pass every limit that is kept by address. Metadata of a cloud's
//! machines is never called.
//!
//! A delivery is one attempt. Retries belong to the caller that keeps the record of pending
//! deliveries.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use pandastack_types::chain;
use pandastack_types::domains::Domains;
use pandastack_types::{Error, Result};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderMap;
use url::{Host, Url};

/// Longest time to open a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Longest time for a webhook to answer.
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest URL.
pub const URL_BYTES_MAX: usize = 4096;

/// Sends the requests.
pub struct Webhooks {
    allow_private: bool,
    /// Names of this server.
    domains: Domains,
    client: Result<reqwest::Client, String>,
}

/// Reason why a delivery to a webhook failed.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The URL can never be called.
    #[error("{0}")]
    Never(String),
    /// The server was not reached.
    #[error("{0}")]
    Unreachable(String),
    /// The answer was not a success.
    #[error("the server responded with {0}")]
    Answered(reqwest::StatusCode),
}

impl DeliveryError {
    /// Returns whether another attempt would get the same answer.
    pub fn is_refusal(&self) -> bool {
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
                found.filter(|address| is_permitted(address.ip(), allow_private)).collect();
            if good.is_empty() {
                return Err(format!("`{}` has no public address", name.as_str()).into());
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}

/// Returns whether an address may be connected to.
fn is_permitted(address: IpAddr, allow_private: bool) -> bool {
    !is_metadata(address) && (allow_private || (is_public(address) && !is_own(address)))
}

/// Returns whether an address is this machine's: a socket that is connected to such an address has
/// the same address itself.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let local = || {
        let socket = std::net::UdpSocket::bind((any, 0))?;
        // Nothing is sent: connecting only looks up the route.
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    local().is_ok_and(|local| local.ip() == address)
}

/// Returns whether clouds serve metadata and credentials of their machines at an address.
fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => pandastack_types::network::is_metadata(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => pandastack_types::network::is_metadata(mapped),
            // Link-local, and `fd00:ec2::254` with its neighbours.
            None => address.is_unicast_link_local() || address.segments()[..2] == [0xfd00, 0x0ec2],
        },
    }
}

/// Returns whether an address is publicly routed.
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

impl Webhooks {
    /// `allow_private`: URLs may be on loopback and private networks. `domains`: names of this server.
    pub fn new(allow_private: bool, domains: Domains) -> Self {
        let client = pandastack_http::builder()
            .dns_resolver(Arc::new(PublicOnly { allow_private }))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_WAIT)
            .user_agent(concat!("pandastack/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { allow_private, domains, client: client.map_err(|error| chain(&error)) }
    }

    /// Refuses a URL that could never be called.
    pub fn check_url(&self, field: &str, text: &str) -> Result<Url> {
        let refuse = |why: String| Error::bad_request(format!("`{field}` {why}"));
        if text.len() > URL_BYTES_MAX {
            return Err(refuse(format!("must be at most {URL_BYTES_MAX} bytes")));
        }
        let url = Url::parse(text).map_err(|error| refuse(format!("is not a valid URL: {error}")))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(refuse("must begin with http:// or https://".to_owned()));
        }
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(_)) | None => None,
        };
        if let Some(Host::Domain(name)) = url.host()
            && self.domains.is_platform(name)
            && !self.allow_private
        {
            return Err(refuse(format!("points to this server, `{name}`; use a target of another kind")));
        }
        if literal.is_some_and(|address| !is_permitted(address, self.allow_private)) {
            return Err(refuse(
                "is not a public address of another server; the operator can allow private addresses with \
                 --schedules-private-targets"
                    .to_owned(),
            ));
        }
        Ok(url)
    }

    /// Delivers a body with a `POST` that must be answered with 2xx.
    pub async fn deliver(&self, field: &str, url: &str, body: &serde_json::Value) -> Result<(), String> {
        self.deliver_with(field, url, HeaderMap::new(), body).await.map_err(|error| error.to_string())
    }

    /// The same with headers.
    pub async fn deliver_with(
        &self,
        field: &str,
        url: &str,
        headers: HeaderMap,
        body: &serde_json::Value,
    ) -> Result<(), DeliveryError> {
        self.deliver_text(field, url, headers, body.to_string()).await.map(drop)
    }

    /// The same with a body that is JSON already, which a header may be a signature of. Returns the status.
    pub async fn deliver_text(
        &self,
        field: &str,
        url: &str,
        headers: HeaderMap,
        body: String,
    ) -> Result<reqwest::StatusCode, DeliveryError> {
        let url = self.check_url(field, url).map_err(|error| DeliveryError::Never(error.message))?;
        let client = self.client().map_err(|error| DeliveryError::Never(error.message))?;
        let request = client.post(url).timeout(ANSWER_WAIT).headers(headers);
        let request = request.header("content-type", "application/json").body(body);
        // The error without its URL, which may be a secret of the receiver.
        let failed = |error: reqwest::Error| DeliveryError::Unreachable(chain(&error.without_url()));
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        if status.is_success() { Ok(status) } else { Err(DeliveryError::Answered(status)) }
    }

    /// The client itself, for requests of another form.
    pub fn client(&self) -> Result<&reqwest::Client> {
        self.client.as_ref().map_err(|error| Error::internal(error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_internet_addresses_are_public() {
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

    #[test]
    fn metadata_services_are_refused_and_own_addresses_recognized() {
        for metadata in
            ["169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "::ffff:169.254.169.254"]
        {
            assert!(!is_permitted(metadata.parse().unwrap(), true), "{metadata}");
        }
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_own("93.184.216.34".parse().unwrap()));
        assert!(is_permitted(Ipv4Addr::LOCALHOST.into(), true));
    }

    #[tokio::test]
    async fn names_resolving_to_private_addresses_are_rejected_unless_allowed() {
        for (allow_private, good) in [(false, false), (true, true)] {
            let resolver = PublicOnly { allow_private };
            let found = resolver.resolve("localhost".parse().unwrap()).await;
            assert_eq!(found.is_ok(), good, "allow_private: {allow_private}");
        }
    }

    #[test]
    fn invalid_webhook_urls_are_rejected() {
        let strict = Webhooks::new(false, Domains::new(&["panda.example".to_owned()], &[]).unwrap());
        for url in [
            "ftp://example.com",
            "file:///etc/passwd",
            "nonsense",
            "http://127.0.0.1/",
            "http://[::1]:80/",
            "http://2130706433/",
            "http://0x7f.1/",
            "https://panda.example/v1/sandboxes",
            "https://API.panda.example/",
        ] {
            assert!(strict.check_url("url", url).is_err(), "{url}");
        }
        assert!(strict.check_url("url", "https://example.com/x").is_ok());
        assert!(Webhooks::new(true, Domains::default()).check_url("url", "http://127.0.0.1/").is_ok());
        let long = format!("https://example.com/{}", "x".repeat(URL_BYTES_MAX));
        assert!(strict.check_url("url", &long).is_err());
    }
}
