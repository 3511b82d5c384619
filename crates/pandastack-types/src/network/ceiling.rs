//! The operator's limit on network policies of a host; it applies to every policy.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::ranges::{NEVER, NOT_INTERNET, Range, subtract};
use super::{Cidr, NetworkPolicy, PortRange};

/// Ports of mail servers and of mail submission.
pub const MAIL_PORTS: [u16; 3] = [25, 465, 587];

/// Access to [`MAIL_PORTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mail {
    /// A policy whose `allow` list names such a port.
    #[default]
    ByPolicy,
    /// All sandboxes.
    Open,
    /// No sandbox.
    Closed,
}

/// The most that any policy of a host can open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ceiling {
    /// Addresses of the host's own slots, which no guest reaches.
    pub slots: Option<Cidr>,
    /// Networks that are not the internet and that policies may open. Empty: none of them.
    pub reachable_private: Vec<Cidr>,
    /// Outgoing mail.
    pub mail: Mail,
}

impl Ceiling {
    /// No limit beyond the destinations that no sandbox may reach, to check a policy while the host
    /// is unknown.
    pub(super) fn widest() -> Self {
        let all = Cidr::literal([0, 0, 0, 0], 0);
        Self { slots: None, reachable_private: vec![all], mail: Mail::Open }
    }

    /// Returns whether a policy may open an address at all.
    pub fn admits(&self, address: Ipv4Addr) -> bool {
        let number = u32::from(address);
        !self.closed().iter().any(|range| (range.first..=range.last).contains(&number))
    }

    /// Addresses that stay closed under every policy.
    pub(super) fn closed(&self) -> Vec<Range> {
        let never = NEVER.iter().copied().chain(self.slots).map(|network| network.range());
        let private = NOT_INTERNET.iter().map(Cidr::range).collect();
        never.chain(subtract(private, self.reachable_private.iter().map(Cidr::range))).collect()
    }

    /// The mail ports that stay closed under a policy.
    pub fn closed_mail_ports(&self, policy: &NetworkPolicy) -> Vec<u16> {
        let named = |port: &u16| {
            let has = |ports: &PortRange| (ports.first..=ports.last).contains(port);
            policy.allow.iter().any(|target| target.ports.iter().any(has))
        };
        match self.mail {
            Mail::Open => Vec::new(),
            Mail::Closed => MAIL_PORTS.to_vec(),
            Mail::ByPolicy => MAIL_PORTS.into_iter().filter(|port| !named(port)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(json: &str) -> NetworkPolicy {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn mail_is_closed_unless_a_policy_or_the_operator_opens_it() {
        let with = |mail| Ceiling { mail, ..Ceiling::default() };
        let submission = policy(r#"{"allow":["mail.example.com:587","1.1.1.1"]}"#);
        for (mail, wanted, closed) in [
            (Mail::ByPolicy, &NetworkPolicy::all(), &[25, 465, 587][..]),
            (Mail::ByPolicy, &submission, &[25, 465]),
            (Mail::ByPolicy, &policy(r#"{"egress":"all","allow":["0.0.0.0/0:20-600"]}"#), &[]),
            (Mail::ByPolicy, &policy(r#"{"allow":["0.0.0.0/0"]}"#), &[25, 465, 587]),
            (Mail::Closed, &submission, &[25, 465, 587]),
            (Mail::Open, &NetworkPolicy::all(), &[]),
        ] {
            assert_eq!(with(mail).closed_mail_ports(wanted), closed, "{mail:?} {wanted:?}");
        }
    }

    #[test]
    fn an_address_is_admitted_as_far_as_the_operator_says() {
        let some =
            Ceiling { reachable_private: vec![Cidr::literal([10, 9, 0, 0], 16)], ..Ceiling::default() };
        for (address, admitted) in [
            ("1.1.1.1", true),
            ("10.9.3.4", true),
            ("10.8.255.255", false),
            ("192.168.1.1", false),
            ("169.254.169.254", false),
            ("168.63.129.16", false),
        ] {
            assert_eq!(some.admits(address.parse().unwrap()), admitted, "{address}");
        }
        let all = Ceiling { reachable_private: vec![Cidr::literal([0, 0, 0, 0], 0)], ..Ceiling::default() };
        for metadata in ["169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"] {
            assert!(!all.admits(metadata.parse().unwrap()), "{metadata}");
        }
    }
}
