//! Proof of ownership of a custom domain: a TXT record that only the owner of its DNS can make.
//!
//! ```text
//!   _pandastack-challenge.www.shop.example.  TXT  "pandastack-domain=<32 hex digits>"
//! ```
//!
//! The value is derived from the join secret, the workspace and the domain, so nothing is stored for it, and
//! one workspace's record proves nothing for another. Until the record is seen, no request with that name
//! reaches the app, and the name stays free for others.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::name_server::TokioConnectionProvider;
use hickory_resolver::proto::xfer::Protocol;
use pandastack_types::WorkspaceId;
use pandastack_types::link::LinkKey;

/// The label before the domain.
const LABEL: &str = "_pandastack-challenge";
/// Hex digits of a value: 128 bits.
const VALUE_DIGITS: usize = 32;
/// Timeout of one lookup.
const LOOKUP_WAIT: Duration = Duration::from_secs(3);
/// Tries of a lookup.
const LOOKUP_TRIES: usize = 2;

/// Looks up ownership records.
pub struct Challenges(TokioResolver);

/// Reason why a domain is not verified.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChallengeError {
    #[error("the TXT record `{0}` was not found")]
    Missing(String),
    #[error("the TXT record `{0}` has another value")]
    Other(String),
    #[error("the TXT record `{0}` could not be looked up: {1}")]
    Lookup(String, String),
}

/// The name and the value of the record that proves a domain. A rotation of the secret changes
/// neither, because the user's DNS holds them.
pub(crate) fn record(link: &LinkKey, workspace: &WorkspaceId, domain: &str) -> (String, String) {
    let digits = link.derive_lasting("domain challenge", &[workspace.as_str(), domain]);
    let digits = digits.get(..VALUE_DIGITS).unwrap_or_default();
    (format!("{LABEL}.{domain}"), format!("pandastack-domain={digits}"))
}

impl Challenges {
    /// Asks one DNS server, or those of this machine. Nothing is cached: a record that was just made is seen.
    pub fn new(server: Option<SocketAddr>) -> std::io::Result<Self> {
        let mut builder = match server {
            Some(server) => {
                let mut config = ResolverConfig::new();
                config.add_name_server(NameServerConfig::new(server, Protocol::Udp));
                config.add_name_server(NameServerConfig::new(server, Protocol::Tcp));
                TokioResolver::builder_with_config(config, TokioConnectionProvider::default())
            }
            None => TokioResolver::builder_tokio().map_err(std::io::Error::other)?,
        };
        let options: &mut ResolverOpts = builder.options_mut();
        options.cache_size = 0;
        options.timeout = LOOKUP_WAIT;
        options.attempts = LOOKUP_TRIES;
        Ok(Self(builder.build()))
    }

    /// Checks that the record exists.
    pub(crate) async fn check(&self, name: &str, value: &str) -> Result<(), ChallengeError> {
        // The dot at the end keeps the machine's search domains out of it.
        let found = self.0.txt_lookup(format!("{name}.")).await.map_err(|error| {
            let name = name.to_owned();
            if error.is_no_records_found() {
                ChallengeError::Missing(name)
            } else {
                ChallengeError::Lookup(name, error.to_string())
            }
        })?;
        let says = |parts: &[Box<[u8]>]| parts.concat().trim_ascii() == value.as_bytes();
        match found.iter().any(|record| says(record.txt_data())) {
            true => Ok(()),
            false => Err(ChallengeError::Other(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::op::{Message, MessageType, ResponseCode};
    use hickory_resolver::proto::rr::rdata::TXT;
    use hickory_resolver::proto::rr::{RData, Record};
    use tokio::net::UdpSocket;

    use super::*;

    /// A DNS server with one TXT record; every other query gets `NXDOMAIN`.
    async fn server(name: &'static str, texts: Vec<String>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut bytes = [0; 1500];
            while let Ok((count, from)) = socket.recv_from(&mut bytes).await {
                let mut answer = Message::from_vec(&bytes[..count]).unwrap();
                let asked = answer.queries()[0].name().clone();
                answer.set_message_type(MessageType::Response);
                if asked.to_ascii() == name {
                    for text in &texts {
                        let (first, second) = text.split_at(text.len() / 2);
                        let data = RData::TXT(TXT::new(vec![first.to_owned(), second.to_owned()]));
                        answer.add_answer(Record::from_rdata(asked.clone(), 60, data));
                    }
                } else {
                    answer.set_response_code(ResponseCode::NXDomain);
                }
                socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn only_the_matching_dns_record_verifies_a_domain() {
        let link = LinkKey::new(&[7; 32]).unwrap();
        let workspace = WorkspaceId::default_workspace();
        let (name, value) = record(&link, &workspace, "shop.example");
        assert_eq!(name, "_pandastack-challenge.shop.example");
        let texts = vec!["v=spf1 -all".to_owned(), value.clone()];
        let challenges =
            Challenges::new(Some(server("_pandastack-challenge.shop.example.", texts).await)).unwrap();
        challenges.check(&name, &value).await.unwrap();
        let (other, other_value) = record(&link, &workspace, "other.example");
        assert_ne!(other_value, value);
        assert!(matches!(challenges.check(&name, &other_value).await, Err(ChallengeError::Other(_))));
        assert!(matches!(challenges.check(&other, &other_value).await, Err(ChallengeError::Missing(_))));
    }

    #[test]
    fn domain_challenges_differ_by_workspace() {
        let link = LinkKey::new(&[7; 32]).unwrap();
        let value = |workspace: &str| record(&link, &workspace.parse().unwrap(), "shop.example").1;
        assert_ne!(value("a"), value("b"));
    }
}
