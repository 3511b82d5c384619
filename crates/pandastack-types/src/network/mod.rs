//! Network policies: data, grammar, limits, and name matching.
//!
//! A policy starts from everything or nothing ([`Egress`]), adds its `allow` list and takes away
//! its `deny` list: **deny wins**. The host, other sandboxes, metadata and link-local are taken
//! away last: here for addresses known in advance, by each slot's own rules for the rest.
//!
//! Addresses become disjoint boxes ([`NetworkPolicy::openings`]). Names are checked when they are
//! resolved and when a connection names its destination ([`NetworkPolicy::resolves`],
//! [`NetworkPolicy::permits`]). Names open public addresses only: the owner of a name could
//! otherwise point it at a private network. Module `denial` holds what `deny` takes from open
//! names.
//!
//! Out of scope: enforcing it (`pandastack-net`), storing it with a sandbox (control and agent).

mod ceiling;
mod cidr;
mod denial;
mod preset;
mod ranges;
mod target;

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use ceiling::{Ceiling, MAIL_PORTS, Mail};
pub use cidr::{Cidr, CidrError, Range};
pub use preset::Preset;
use preset::WEB_PORTS;
pub use ranges::{Opening, is_metadata, is_public};
use target::has_port;
pub use target::{Destination, NamePattern, PortRange, Target, TargetError};

use crate::limits::{NETWORK_OPENINGS_MAX, NETWORK_PORT_CLASSES_MAX, NETWORK_TARGETS_MAX};

/// Address at which a machine reaches its attached databases, under any policy: its gateway, which
/// is the same for all machines. Without TLS: connections end in the agent of the same host.
pub const DATABASES_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 0, 1), 5432);

/// Base of a network policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    /// Allow the public internet and all host names.
    #[default]
    All,
    /// Deny everything, including DNS, because queries can carry data out.
    None,
}

/// Network policy for connections that a sandbox opens. Incoming requests and their responses are not
/// affected.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "Draft")]
pub struct NetworkPolicy {
    /// Base policy. Default: `none` if `allow` or `presets` is set, otherwise `all`.
    pub egress: Egress,
    /// Predefined lists of hosts to allow, in addition to `allow`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<Preset>,
    /// Targets to allow: addresses, networks, host names and `*.` wildcards, with optional ports, such as
    /// `10.0.0.0/8:5432`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub allow: Vec<Target>,
    /// Targets to deny. Takes precedence over `allow`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub deny: Vec<Target>,
}

/// A policy as written by the user, before validation.
#[derive(Deserialize)]
struct Draft {
    egress: Option<Egress>,
    #[serde(default)]
    presets: Vec<Preset>,
    #[serde(default)]
    allow: Vec<Target>,
    #[serde(default)]
    deny: Vec<Target>,
}

/// Reason why a policy is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A list is too long.
    #[error(
        "`{list}` has {count} entries, but the limit is {NETWORK_TARGETS_MAX}; use larger networks or *. \
         names"
    )]
    TooMany {
        /// Name of the list.
        list: &'static str,
        /// Length of the list.
        count: usize,
    },
    /// Too many host names have their own ports.
    #[error(
        "the network policy has {0} different port sets for names, but the limit is \
         {NETWORK_PORT_CLASSES_MAX}; give more names the same ports"
    )]
    PortClasses(usize),
    /// The product of addresses and ports exceeds the limit of firewall rules.
    #[error(
        "the network policy needs {0} combinations of networks and ports, but the limit is \
         {NETWORK_OPENINGS_MAX}; use fewer port ranges or larger networks"
    )]
    Openings(usize),
}

impl TryFrom<Draft> for NetworkPolicy {
    type Error = PolicyError;

    fn try_from(draft: Draft) -> Result<Self, PolicyError> {
        let Draft { egress, mut presets, allow, deny } = draft;
        for (list, targets) in [("allow", &allow), ("deny", &deny)] {
            if targets.len() > NETWORK_TARGETS_MAX {
                return Err(PolicyError::TooMany { list, count: targets.len() });
            }
        }
        presets.sort_unstable();
        presets.dedup();
        let listed = !allow.is_empty() || !presets.is_empty();
        let egress = egress.unwrap_or(if listed { Egress::None } else { Egress::All });
        let policy = NetworkPolicy { egress, presets, allow, deny };
        let classes = policy.name_ports().len().max(policy.shut_ports().len());
        if classes > NETWORK_PORT_CLASSES_MAX {
            return Err(PolicyError::PortClasses(classes));
        }
        match policy.openings(&Ceiling::widest()).len().max(policy.closings().len()) {
            count if count > NETWORK_OPENINGS_MAX => Err(PolicyError::Openings(count)),
            _ => Ok(policy),
        }
    }
}

impl NetworkPolicy {
    /// The public internet: the default.
    pub fn all() -> Self {
        NetworkPolicy::default()
    }

    /// A policy that allows nothing.
    pub fn none() -> Self {
        NetworkPolicy { egress: Egress::None, ..NetworkPolicy::default() }
    }

    /// Returns whether this is the policy of a sandbox that was given none.
    pub fn is_default(&self) -> bool {
        *self == NetworkPolicy::default()
    }

    /// Returns whether a lowercase name may be resolved.
    pub fn resolves(&self, name: &str, ceiling: &Ceiling) -> bool {
        !self.denies(name) && (self.egress == Egress::All || self.allowed(name, ceiling).next().is_some())
    }

    /// Returns whether a web connection to `to` with this host name, or without one, may pass.
    pub fn permits(&self, name: Option<&str>, to: SocketAddrV4, ceiling: &Ceiling) -> bool {
        let (address, port) = (*to.ip(), to.port());
        if !ceiling.admits(to) {
            return false;
        }
        let denied = |name: &str| {
            names(&self.deny).any(|(pattern, ports)| pattern.matches(name) && has_port(ports, port))
        };
        let listed = |targets: &[Target]| targets.iter().any(|target| target.is_about(address, port));
        if listed(&self.deny) || name.is_some_and(denied) {
            return false;
        }
        // A destination that is open by address needs no name.
        (self.egress == Egress::All && is_public(address))
            || listed(&self.allow)
            || ceiling.opens(self, to)
            || is_public(address)
                && name.is_some_and(|name| self.allowed(name, ceiling).any(|ports| has_port(ports, port)))
    }

    /// Returns whether names open addresses, which must then be recorded as they are resolved.
    pub fn opens_names(&self) -> bool {
        self.egress == Egress::None && (!self.presets.is_empty() || names(&self.allow).next().is_some())
    }

    /// Returns whether names are denied: every web connection must then state its destination.
    pub fn denies_names(&self) -> bool {
        names(&self.deny).next().is_some()
    }

    /// The different sets of ports that allowed names have, in an order that stays. Empty sets mean all ports.
    pub fn name_ports(&self) -> Vec<Vec<PortRange>> {
        let mut classes: Vec<Vec<PortRange>> = names(&self.allow).map(|(_, ports)| ports.to_vec()).collect();
        if !self.presets.is_empty() {
            classes.push(WEB_PORTS.to_vec());
        }
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    /// Indices of the [`NetworkPolicy::name_ports`] that a name opens.
    pub fn opened_by(&self, name: &str, ceiling: &Ceiling) -> Vec<usize> {
        if self.egress == Egress::All || self.denies(name) {
            return Vec::new();
        }
        let classes = self.name_ports();
        let class_of = |ports: &[PortRange]| classes.iter().position(|class| class == ports);
        let mut opened: Vec<usize> = self.allowed(name, ceiling).filter_map(class_of).collect();
        opened.sort_unstable();
        opened.dedup();
        opened
    }

    /// Whether a name is denied on every port. A name denied on some ports can be resolved: its
    /// other ports may be open.
    fn denies(&self, name: &str) -> bool {
        names(&self.deny).any(|(pattern, ports)| ports.is_empty() && pattern.matches(name))
    }

    /// The ports of every allowed name that matches.
    fn allowed<'a>(&'a self, name: &'a str, ceiling: &'a Ceiling) -> impl Iterator<Item = &'a [PortRange]> {
        let listed = names(&self.allow).filter(|(pattern, _)| pattern.matches(name)).map(|(_, ports)| ports);
        let preset = self.presets.iter().filter(|preset| preset.has(name, ceiling)).map(|_| &WEB_PORTS[..]);
        listed.chain(preset)
    }
}

fn names(targets: &[Target]) -> impl Iterator<Item = (&NamePattern, &[PortRange])> {
    targets.iter().filter_map(|target| match &target.place {
        Destination::Name(pattern) => Some((pattern, &target.ports[..])),
        Destination::Network(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::preset::PACKAGE_REGISTRIES;
    use super::*;

    fn policy(json: &str) -> NetworkPolicy {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_policy_without_egress_gets_an_inferred_default() {
        assert_eq!(policy("{}"), NetworkPolicy::all());
        assert_eq!(policy(r#"{"egress":"none"}"#), NetworkPolicy::none());
        assert_eq!(policy(r#"{"allow":["a.com"]}"#).egress, Egress::None);
        assert_eq!(policy(r#"{"presets":["package-registries"]}"#).egress, Egress::None);
        assert_eq!(policy(r#"{"deny":["a.com"]}"#).egress, Egress::All);
        assert_eq!(policy(r#"{"egress":"all","allow":["10.0.0.0/8"]}"#).egress, Egress::All);
    }

    #[test]
    fn a_network_policy_round_trips_through_json() {
        let before = policy(
            r#"{"egress":"all","allow":["10.0.0.0/8"],"deny":["*.a.com:80"],"presets":["package-registries"]}"#,
        );
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(policy(&text), before, "{text}");
        assert_eq!(serde_json::to_string(&NetworkPolicy::none()).unwrap(), r#"{"egress":"none"}"#);
    }

    /// Returns whether a web connection to a public address passes.
    fn permits(policy: &NetworkPolicy, name: &str, port: u16) -> bool {
        policy.permits(Some(name), SocketAddrV4::new([93, 184, 216, 34].into(), port), &Ceiling::default())
    }

    #[test]
    fn allow_lists_permit_names_and_deny_wins() {
        let web = policy(r#"{"allow":["*.a.com:443","b.com"],"deny":["x.a.com","b.com:22"]}"#);
        for (name, resolves, port, permitted) in [
            ("www.a.com", true, 443, true),
            ("www.a.com", true, 80, false),
            ("x.a.com", false, 443, false),
            ("b.com", true, 5432, true),
            ("b.com", true, 22, false),
            ("a.com", false, 443, false),
        ] {
            assert_eq!(
                (web.resolves(name, &Ceiling::default()), permits(&web, name, port)),
                (resolves, permitted),
                "{name}:{port}"
            );
        }
        assert!(web.opens_names() && web.denies_names());
        assert_eq!(web.name_ports().len(), 2);
        assert_eq!(web.opened_by("www.a.com", &Ceiling::default()).len(), 1);
        assert_ne!(
            web.opened_by("www.a.com", &Ceiling::default()),
            web.opened_by("b.com", &Ceiling::default())
        );
        assert!(web.opened_by("x.a.com", &Ceiling::default()).is_empty());
        let all = policy(r#"{"deny":["*.a.com"]}"#);
        assert!(
            all.resolves("b.com", &Ceiling::default())
                && !all.resolves("c.a.com", &Ceiling::default())
                && !all.opens_names()
        );
        assert!(!NetworkPolicy::none().resolves("a.com", &Ceiling::default()));
    }

    #[test]
    fn a_policy_checks_web_connections_by_name_and_address() {
        let check = |json: &str, name: Option<&str>, to: &str, expect: bool| {
            assert_eq!(
                policy(json).permits(name, to.parse().unwrap(), &Ceiling::widest()),
                expect,
                "{json} {name:?} {to}"
            );
        };
        let (www, public, private) = (Some("www.a.com"), "93.184.216.34:443", "10.1.2.3:443");
        check(r#"{"allow":["*.a.com"]}"#, www, public, true);
        check(r#"{"allow":["*.a.com"]}"#, None, public, false);
        check(r#"{"allow":["*.a.com"]}"#, www, private, false);
        check(r#"{"allow":["*.a.com"],"deny":["93.184.216.0/24"]}"#, www, public, false);
        check(r#"{"allow":["*.a.com"],"deny":["0.0.0.0/0:80"]}"#, www, public, true);
        check(r#"{"allow":["*.a.com"],"deny":["0.0.0.0/0:443"]}"#, www, public, false);
        check(r#"{"deny":["b.com"]}"#, None, public, true);
        check(r#"{"deny":["b.com"]}"#, www, private, false);
        check(r#"{"deny":["b.com","93.184.216.34"]}"#, www, public, false);
        check(r#"{"allow":["10.0.0.0/8"],"deny":["b.com"]}"#, www, private, true);
        check(r#"{"allow":["10.0.0.0/8"],"deny":["b.com"]}"#, None, private, true);
        check(r#"{"allow":["10.0.0.0/8"],"deny":["b.com"]}"#, Some("b.com"), private, false);
    }

    #[test]
    fn presets_open_the_web_ports_of_their_names() {
        let preset = policy(r#"{"presets":["package-registries"]}"#);
        assert!(permits(&preset, "pypi.org", 443) && permits(&preset, "index.rubygems.org", 80));
        assert!(!permits(&preset, "pypi.org", 22) && !permits(&preset, "evilpypi.org", 443));
        for entry in PACKAGE_REGISTRIES {
            assert!(entry.parse::<Target>().is_ok(), "{entry}");
        }
    }

    #[test]
    fn policies_over_a_limit_are_rejected_with_a_hint() {
        let list = |count: usize| -> Vec<String> { (0..count).map(|at| format!("n{at}.com")).collect() };
        let parse = |allow: Vec<String>| {
            serde_json::from_value::<NetworkPolicy>(serde_json::json!({ "allow": allow }))
                .map_err(|error| error.to_string())
        };
        assert!(parse(list(NETWORK_TARGETS_MAX)).is_ok());
        assert!(parse(list(NETWORK_TARGETS_MAX + 1)).unwrap_err().contains("the limit is"));
        let classes = |count: usize| (1..=count).map(|port| format!("a.com:{port}")).collect();
        assert!(parse(classes(NETWORK_PORT_CLASSES_MAX)).is_ok());
        assert!(parse(classes(NETWORK_PORT_CLASSES_MAX + 1)).unwrap_err().contains("port sets"));
        // Each network alone and open on ports of its own: one box for each.
        let boxes: Vec<String> = (0..200).map(|at| format!("10.{at}.0.0/24:{}", 2 * at + 1)).collect();
        assert!(parse(boxes).is_ok());
        let many: Vec<String> = (0..200).map(|at| format!("10.{at}.0.0/24:{}-60000", 2 * at + 1)).collect();
        assert!(parse(many).unwrap_err().contains("combinations"));
    }
}
