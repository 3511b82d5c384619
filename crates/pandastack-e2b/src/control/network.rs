//! Network rules: converts E2B's lists to a network policy and back.
//!
//! The two mean different things by the same words. There everything is open, `denyOut` closes, and
//! **`allowOut` wins**; here `deny` wins. So what is allowed is cut out of what is denied before it
//! is passed on, and a list that denies everything becomes a policy that starts from nothing. A
//! rule that cannot be enforced is refused, because ignoring it would leave a sandbox open.

use pandastack_types::network::{Cidr, Destination, Egress, NetworkPolicy, Target};
use serde::Deserialize;
use serde_json::{Value, json};

use super::json::is_empty;
use crate::error::{RestError, RestResult};

/// Everything.
const ALL: Cidr = Cidr::literal([0, 0, 0, 0], 0);

/// Network rules in a request, at create or later.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Network {
    pub(super) allow_public_traffic: Option<bool>,
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<Value>>,
    egress_proxy: Option<Value>,
    pub(super) mask_request_host: Option<String>,
    https_ports: Option<Vec<Value>>,
    rules: Option<Value>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
}

impl Network {
    /// The requested policy; `None` if the request has none.
    pub(super) fn policy(&self, allow_internet_access: Option<bool>) -> RestResult<Option<NetworkPolicy>> {
        self.check()?;
        let internet = allow_internet_access.or(self.allow_internet_access);
        if self.allow_out.is_none() && self.deny_out.is_none() && internet.is_none() {
            return Ok(None);
        }
        let allow = targets("allowOut", self.allow_out.as_deref().unwrap_or_default())?;
        let deny = targets("denyOut", self.deny_out.as_deref().unwrap_or_default())?;
        translate(allow, deny, internet == Some(false)).map(Some)
    }

    /// Refuses what cannot be enforced.
    fn check(&self) -> RestResult<()> {
        let some = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
        let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !is_empty(value));
        for (is_given, what) in [
            (some(&self.dns_servers), "custom name servers are"),
            (given(&self.egress_proxy), "egress proxies are"),
            (given(&self.rules), "request rewrite rules are"),
            // The creation of a sandbox takes it out before.
            (self.mask_request_host.is_some(), "masked host names of existing sandboxes are"),
            (some(&self.https_ports), "HTTPS ports are"),
        ] {
            if is_given {
                return Err(RestError::unsupported(what));
            }
        }
        Ok(())
    }
}

fn targets(list: &str, texts: &[String]) -> RestResult<Vec<Target>> {
    let parse = |text: &String| {
        text.parse::<Target>().map_err(|error| RestError::bad_request(format!("`{list}`: {error}")))
    };
    texts.iter().map(parse).collect()
}

fn network(target: &Target) -> Option<Cidr> {
    match (&target.place, target.ports.is_empty()) {
        (Destination::Network(network), true) => Some(*network),
        _ => None,
    }
}

fn translate(allow: Vec<Target>, deny: Vec<Target>, closed: bool) -> RestResult<NetworkPolicy> {
    let is_name = |target: &Target| matches!(target.place, Destination::Name(_));
    if deny.iter().any(is_name) {
        return Err(RestError::bad_request("`denyOut` accepts addresses and networks only, not names"));
    }
    let is_all = |target: &Target| network(target) == Some(ALL);
    let policy = if closed || deny.iter().any(is_all) {
        let open = allow.iter().any(is_all);
        json!({ "egress": if open { Egress::All } else { Egress::None }, "allow": allow })
    } else if allow.iter().any(is_name) {
        let what =
            "names in `allowOut` have no effect while all traffic is allowed; add 0.0.0.0/0 to `denyOut`";
        return Err(RestError::bad_request(what));
    } else {
        let deny: Vec<String> = deny.iter().flat_map(|denied| without(denied, &allow)).collect();
        json!({ "egress": Egress::All, "allow": allow, "deny": deny })
    };
    serde_json::from_value(policy).map_err(|error| RestError::bad_request(error.to_string()))
}

/// Parts of a denied entry that remain once allowed networks are taken out.
fn without(denied: &Target, allowed: &[Target]) -> Vec<String> {
    let Some(network_denied) = network(denied) else { return vec![denied.clone().into()] };
    let mut left = vec![network_denied];
    for hole in allowed.iter().filter_map(network) {
        left = left.into_iter().flat_map(|network| subtract(network, hole)).collect();
    }
    left.iter().map(Cidr::to_string).collect()
}

/// A network without another one: at most one piece for each bit by which they differ in length.
fn subtract(from: Cidr, hole: Cidr) -> Vec<Cidr> {
    if hole.covers(&from) {
        return Vec::new();
    }
    let mut left = Vec::new();
    let mut around = from;
    while around != hole {
        let halves = around.halves().filter(|_| around.covers(&hole));
        let Some([lower, upper]) = halves else { return vec![from] };
        let (inside, outside) = if lower.covers(&hole) { (lower, upper) } else { (upper, lower) };
        left.push(outside);
        around = inside;
    }
    left
}

/// A policy as clients read it: whether anything is open, and the lists.
pub(super) fn shown(policy: &NetworkPolicy) -> (bool, Value) {
    let closed = policy.egress == Egress::None;
    let mut deny: Vec<String> = policy.deny.iter().cloned().map(String::from).collect();
    if closed {
        deny.insert(0, ALL.to_string());
    }
    let is_open = !closed || !policy.allow.is_empty() || !policy.presets.is_empty();
    (is_open, json!({ "allowOut": policy.allow, "denyOut": deny }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(json: &str) -> Result<Option<Value>, u16> {
        let network: Network = serde_json::from_str(json).unwrap();
        let policy = network.policy(None).map_err(|error| error.status.as_u16())?;
        Ok(policy.map(|policy| serde_json::to_value(policy).unwrap()))
    }

    #[test]
    fn allow_and_deny_lists_become_policies() {
        for (asked, expected) in [
            ("{}", None),
            (r#"{"allowPublicTraffic":false}"#, None),
            (r#"{"allow_internet_access":true}"#, Some(json!({ "egress": "all" }))),
            (r#"{"allow_internet_access":false}"#, Some(json!({ "egress": "none" }))),
            (r#"{"denyOut":["0.0.0.0/0"]}"#, Some(json!({ "egress": "none" }))),
            (
                r#"{"denyOut":["0.0.0.0/0"],"allowOut":["*.a.com","1.1.1.1"]}"#,
                Some(json!({ "egress": "none", "allow": ["*.a.com", "1.1.1.1/32"] })),
            ),
            (r#"{"denyOut":["8.8.8.0/24"]}"#, Some(json!({ "egress": "all", "deny": ["8.8.8.0/24"] }))),
            (
                r#"{"denyOut":["8.8.8.0/30"],"allowOut":["8.8.8.1"]}"#,
                Some(
                    json!({ "egress": "all", "allow": ["8.8.8.1/32"], "deny": ["8.8.8.2/31", "8.8.8.0/32"] }),
                ),
            ),
        ] {
            assert_eq!(policy(asked), Ok(expected), "{asked}");
        }
    }

    #[test]
    fn unsupported_options_are_rejected() {
        for (asked, status) in [
            (r#"{"rules":{"a.com":[{}]}}"#, 501),
            (r#"{"egressProxy":{"address":"a:1"}}"#, 501),
            (r#"{"dnsServers":["1.1.1.1"]}"#, 501),
            (r#"{"denyOut":["a.com"]}"#, 400),
            (r#"{"allowOut":["a.com"]}"#, 400),
            (r#"{"allowOut":["not an address"]}"#, 400),
        ] {
            assert_eq!(policy(asked), Err(status), "{asked}");
        }
    }

    #[test]
    fn denied_subnets_are_subtracted_from_networks() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        for (from, hole, left) in [
            ("10.0.0.0/8", "11.0.0.0/8", vec!["10.0.0.0/8"]),
            ("10.0.0.0/8", "10.0.0.0/8", vec![]),
            ("10.1.0.0/16", "10.0.0.0/8", vec![]),
            ("10.0.0.0/30", "10.0.0.3", vec!["10.0.0.0/31", "10.0.0.2/32"]),
        ] {
            let got: Vec<String> = subtract(cidr(from), cidr(hole)).iter().map(Cidr::to_string).collect();
            assert_eq!(got, left, "{from} without {hole}");
        }
    }

    #[test]
    fn policies_are_shown_as_lists() {
        let show = |json: &str| shown(&serde_json::from_str(json).unwrap());
        assert_eq!(show("{}"), (true, json!({ "allowOut": [], "denyOut": [] })));
        assert_eq!(
            show(r#"{"egress":"none"}"#),
            (false, json!({ "allowOut": [], "denyOut": ["0.0.0.0/0"] }))
        );
        let listed = json!({ "allowOut": ["a.com"], "denyOut": ["0.0.0.0/0", "1.1.1.1/32"] });
        assert_eq!(show(r#"{"allow":["a.com"],"deny":["1.1.1.1"]}"#), (true, listed));
    }
}
