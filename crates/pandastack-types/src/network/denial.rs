//! Effect of `deny` on allowed names: whole networks, and ports of denied names.
//!
//! Boxes of [`NetworkPolicy::openings`] exclude it; a name's addresses are known only once it is
//! resolved, so denied ports of names are separate, and checked before the ports that names open.

use super::{Destination, NetworkPolicy, PortRange, names};

impl NetworkPolicy {
    /// Returns whether the policy denies addresses that a name could open.
    pub fn closes_networks(&self) -> bool {
        self.opens_names() && self.deny.iter().any(|target| matches!(target.place, Destination::Network(_)))
    }

    /// The different sets of ports on which names are denied, in an order that stays. Names that are denied on all ports are
    /// not in it: they do not resolve.
    pub fn shut_ports(&self) -> Vec<Vec<PortRange>> {
        let with_ports = names(&self.deny).filter(|(_, ports)| !ports.is_empty());
        let mut classes: Vec<Vec<PortRange>> = with_ports.map(|(_, ports)| ports.to_vec()).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    /// Indices of the [`NetworkPolicy::shut_ports`] that are closed at the addresses of a name.
    pub fn shut_by(&self, name: &str) -> Vec<usize> {
        let classes = self.shut_ports();
        let denied = names(&self.deny).filter(|(pattern, ports)| !ports.is_empty() && pattern.matches(name));
        let mut shut: Vec<usize> =
            denied.filter_map(|(_, ports)| classes.iter().position(|class| class == ports)).collect();
        shut.sort_unstable();
        shut.dedup();
        shut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NETWORK_PORT_CLASSES_MAX;

    fn policy(json: &str) -> NetworkPolicy {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn ports_of_denied_names_are_closed_at_their_addresses() {
        let some = policy(r#"{"deny":["b.com:22","*.b.com:22","*.b.com:25,465","c.com"]}"#);
        let (ssh, mail) = (some.shut_by("b.com"), some.shut_by("www.b.com"));
        assert_eq!((some.shut_ports().len(), ssh.len(), mail.len()), (2, 1, 2));
        assert_eq!(some.shut_ports()[ssh[0]], [PortRange { first: 22, last: 22 }]);
        assert!(some.shut_by("a.com").is_empty() && some.shut_by("c.com").is_empty());
        assert!(!some.closes_networks(), "what is open by address has nothing of a denied network");
    }

    #[test]
    fn policies_with_allowed_names_can_deny_networks() {
        assert!(policy(r#"{"allow":["a.com"],"deny":["10.0.0.0/8"]}"#).closes_networks());
        assert!(!policy(r#"{"allow":["a.com"],"deny":["b.com"]}"#).closes_networks());
        assert!(!policy(r#"{"allow":["10.0.0.0/8"],"deny":["10.1.0.0/16"]}"#).closes_networks());
    }

    #[test]
    fn deny_lists_have_the_same_limits_as_allow_lists() {
        let parse = |deny: Vec<String>| {
            let policy = serde_json::json!({ "allow": ["a.com"], "deny": deny });
            serde_json::from_value::<NetworkPolicy>(policy).map_err(|error| error.to_string())
        };
        let classes = |count: usize| (1..=count).map(|port| format!("b.com:{port}")).collect();
        assert!(parse(classes(NETWORK_PORT_CLASSES_MAX)).is_ok());
        assert!(parse(classes(NETWORK_PORT_CLASSES_MAX + 1)).unwrap_err().contains("port sets"));
        let many: Vec<String> = (0..200).map(|at| format!("10.{at}.0.0/24:{}-60000", 2 * at + 1)).collect();
        assert!(parse(many).unwrap_err().contains("combinations"));
    }
}
