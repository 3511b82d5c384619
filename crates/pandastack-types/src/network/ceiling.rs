//! The operator's limit on network policies of a host; it applies to every policy.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

use super::cidr::Range;
use super::ranges::{NEVER, NOT_INTERNET, networks_on, subtract};
use super::{Cidr, Egress, NetworkPolicy, PortRange, Target};

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
    /// Networks outside the internet that policies may open; none if empty.
    pub reachable_private: Vec<Cidr>,
    /// Addresses that the operator opens to every guest with internet access, private ones too. Names in it
    /// open nothing.
    pub guest_allow: Vec<Target>,
    /// Host names of the operator's package mirrors, which count as package registries.
    pub mirrors: Vec<String>,
    /// Outgoing mail.
    pub mail: Mail,
}

impl Ceiling {
    /// No limit beyond the destinations that no sandbox may reach, to check a policy while the host
    /// is unknown.
    pub(super) fn widest() -> Self {
        let all = Cidr::literal([0, 0, 0, 0], 0);
        Self { reachable_private: vec![all], mail: Mail::Open, ..Self::default() }
    }

    /// Returns whether a policy may open an address and port at all.
    pub fn admits(&self, to: SocketAddrV4) -> bool {
        let number = u32::from(*to.ip());
        !self.closed_on(to.port()).iter().any(|range| (range.first..=range.last).contains(&number))
    }

    /// Returns whether the operator opens an address and port to guests with this policy.
    pub(super) fn opens(&self, policy: &NetworkPolicy, to: SocketAddrV4) -> bool {
        policy.has_internet() && self.guest_allow.iter().any(|target| target.is_about(*to.ip(), to.port()))
    }

    /// Addresses that stay closed under every policy, on a port.
    pub(super) fn closed_on(&self, port: u16) -> Vec<Range> {
        let never = NEVER.iter().copied().chain(self.slots).map(|network| network.range());
        let private = NOT_INTERNET.iter().map(Cidr::range).collect();
        let open = self.reachable_private.iter().map(Cidr::range);
        let open = open.chain(networks_on(&self.guest_allow, port));
        never.chain(subtract(private, open)).collect()
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

impl NetworkPolicy {
    /// Returns whether the policy opens the operator's mirrors and addresses: it opens the
    /// internet, or the package registries that they replace.
    pub(super) fn has_internet(&self) -> bool {
        self.egress == Egress::All || !self.presets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(json: &str) -> NetworkPolicy {
        serde_json::from_str(json).unwrap()
    }

    fn at(address: &str, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(address.parse().unwrap(), port)
    }

    #[test]
    fn operator_mirrors_are_open_to_guests_with_internet_access() {
        let ceiling = Ceiling {
            slots: Some(Cidr::literal([10, 201, 0, 0], 16)),
            guest_allow: ["10.7.0.5:443", "169.254.0.0/16", "10.201.0.0/16", "127.0.0.1"]
                .map(|target| target.parse().unwrap())
                .to_vec(),
            mirrors: vec!["pypi.corp.internal".to_owned()],
            ..Ceiling::default()
        };
        let opens = |json: &str, to: SocketAddrV4| {
            let policy = policy(json);
            let number = u32::from(*to.ip());
            let by_rules = policy.openings(&ceiling).iter().any(|opening| {
                (opening.addresses.first..=opening.addresses.last).contains(&number)
                    && (opening.ports.first..=opening.ports.last).contains(&to.port())
            });
            assert_eq!(by_rules, policy.permits(None, to, &ceiling), "{json} {to}: rules and proxy disagree");
            by_rules
        };
        let mirror = at("10.7.0.5", 443);
        for (json, open) in [
            ("{}", true),
            (r#"{"presets":["package-registries"]}"#, true),
            (r#"{"allow":["10.7.0.5:443"]}"#, true),
            (r#"{"egress":"all","deny":["10.7.0.0/16"]}"#, false),
            (r#"{"egress":"none"}"#, false),
            (r#"{"allow":["example.com"]}"#, false),
        ] {
            assert_eq!(opens(json, mirror), open, "{json}");
        }
        // Neither another port, nor another address, nor what is never open.
        for closed in [
            at("10.7.0.5", 22),
            at("10.7.0.6", 443),
            at("169.254.169.254", 80),
            at("10.201.0.2", 80),
            at("127.0.0.1", 80),
        ] {
            assert!(!opens(r#"{"egress":"all","allow":["0.0.0.0/0"]}"#, closed), "{closed}");
        }
        let preset = policy(r#"{"presets":["package-registries"]}"#);
        assert!(preset.resolves("pypi.corp.internal", &ceiling));
        assert!(!preset.resolves("pypi.corp.internal", &Ceiling::default()));
        assert!(!policy(r#"{"allow":["example.com"]}"#).resolves("pypi.corp.internal", &ceiling));
    }

    #[test]
    fn mail_ports_are_closed_unless_a_policy_or_the_operator_opens_them() {
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
    fn the_ceiling_admits_only_configured_private_addresses() {
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
            assert_eq!(some.admits(at(address, 80)), admitted, "{address}");
        }
        let all = Ceiling { reachable_private: vec![Cidr::literal([0, 0, 0, 0], 0)], ..Ceiling::default() };
        for metadata in ["169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"] {
            assert!(!all.admits(at(metadata, 80)), "{metadata}");
        }
    }
}
