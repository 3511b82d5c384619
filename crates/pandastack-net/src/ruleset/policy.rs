//! The part of a slot's table that is its policy.
//!
//! A policy is the sets `open` and `denied` and the chains `inspect` and `egress`, replaced together;
//! everything else never changes. Connections that passed by a name are marked with their policy, and
//! continue after the name's address is forgotten, until another policy comes.
//!
//! Must hold: rules that deny come before any rule that allows. `open` has nothing of it, names are
//! resolved later: `denied` keeps their addresses from opening denied networks, and `shut` has the
//! addresses of names that are denied on some ports. Only slots whose policy needs them have these
//! two.

use std::net::Ipv4Addr;
use std::time::Duration;

use libc::{IPPROTO_TCP, IPPROTO_UDP};
use pandastack_types::network::{NetworkPolicy, PortRange};

use super::slot_table::{DENY, PROXY_PORT, SLOT_TABLE};
use crate::config::Plan;
use crate::error::Result;
use crate::netlink::Netlink;
use crate::nft::{Batch, Element, ListedElement, Rule, SetName, list_set};

/// Addresses and ports the guest may open connections to.
pub(super) const OPEN: SetName = SetName("open", 1);

/// Addresses that allowed names were resolved to, by class of ports.
pub(super) const NAMED: SetName = SetName("named", 2);

/// A switch: nothing passes. It closes a fresh slot without rebuilding [`OPEN`], which has no place in a
/// take.
pub(super) const CLOSED: SetName = SetName("closed", 3);

/// Addresses and ports that names do not open.
const DENIED: SetName = SetName("denied", 4);

/// Addresses that names were resolved to which are denied on some ports, by class of these.
const SHUT: SetName = SetName("shut", 5);

/// Most addresses in [`NAMED`], and in [`SHUT`]. When the first is full, further names resolve but their
/// addresses stay closed until older ones are forgotten; when the second is, further names that are denied on
/// some ports do not resolve.
pub(super) const NAMED_ADDRESSES_MAX: u32 = 4096;

/// Ports whose connections carry a host name.
const WEB_PORTS: [u16; 2] = [80, 443];

/// HTTP/3: its name cannot be read on the way, and clients fall back to TCP.
const QUIC_PORT: u16 = 443;

/// Chains that are part of a policy.
pub(super) const INSPECT: &str = "inspect";
pub(super) const EGRESS: &str = "egress";

/// Sets the policy of a new slot. Removing rules costs the kernel milliseconds, which have no place in a
/// take, and those of a policy without names are the default's.
pub(crate) fn first_policy(policy: &NetworkPolicy, plan: &Plan) -> Batch {
    let closed_mail = |policy: &NetworkPolicy| plan.ceiling.closed_mail_ports(policy);
    let opens_mail = closed_mail(policy) != closed_mail(&NetworkPolicy::all());
    if policy.opens_names() || policy.denies_names() || opens_mail {
        return slot_policy(policy, plan, true);
    }
    let (mut batch, openings) = (Batch::new(SLOT_TABLE), policy.openings(&plan.ceiling));
    if openings.is_empty() {
        batch.switch_on(CLOSED);
        return batch;
    }
    batch.flush_set(OPEN);
    batch.fill_box_set(OPEN, &openings);
    batch
}

/// Replaces the policy of an existing slot. Addresses of names are forgotten unless they are this policy's
/// own.
pub(crate) fn slot_policy(policy: &NetworkPolicy, plan: &Plan, names_stay: bool) -> Batch {
    let mut batch = Batch::new(SLOT_TABLE);
    batch.flush_set(CLOSED);
    batch.flush_set(OPEN);
    if !names_stay {
        batch.flush_set(NAMED);
    }
    batch.flush_chain(INSPECT);
    batch.flush_chain(EGRESS);
    // Made here, where they are not there yet: few slots need them, and slots of an earlier version have
    // none.
    if policy.closes_networks() {
        batch.add_box_set(DENIED);
        batch.flush_set(DENIED);
    }
    if !policy.shut_ports().is_empty() {
        batch.add_expiring_set(SHUT, NAMED_ADDRESSES_MAX);
        if !names_stay {
            batch.flush_set(SHUT);
        }
    }
    fill_policy(&mut batch, policy, plan);
    batch
}

/// Addresses of a resolved name.
#[derive(Debug, Default)]
pub(crate) struct ResolvedName {
    /// Opened to the ports of these classes, for so long.
    pub(crate) open: Vec<Ipv4Addr>,
    pub(crate) open_classes: Vec<usize>,
    pub(crate) open_for: Duration,
    /// Closed on the ports of these, for so long.
    pub(crate) shut: Vec<Ipv4Addr>,
    pub(crate) shut_classes: Vec<usize>,
    pub(crate) shut_for: Duration,
}

/// Records the addresses of a name, together with the name: see [`resolved`].
pub(crate) fn learned(of: &ResolvedName, name: &str) -> Batch {
    let elements = |addresses: &[Ipv4Addr], classes: &[usize], lifetime| -> Vec<Element<'_>> {
        let each = addresses.iter().flat_map(|address| classes.iter().map(move |class| (*address, *class)));
        each.map(|(address, class)| element(address, class, lifetime, name)).collect()
    };
    let open = elements(&of.open, &of.open_classes, of.open_for);
    renew_addresses(&open, &elements(&of.shut, &of.shut_classes, of.shut_for))
}

/// An address of a name, on the ports of one of its policy's classes.
pub(crate) fn element(address: Ipv4Addr, class: usize, lifetime: Duration, name: &str) -> Element<'_> {
    Element { address, class: class_number(class), lifetime, note: name }
}

/// Renews allowed and denied addresses, each once per class.
pub(crate) fn renew_addresses(open: &[Element<'_>], shut: &[Element<'_>]) -> Batch {
    let mut batch = Batch::new(SLOT_TABLE);
    batch.renew_elements(SHUT, shut);
    batch.renew_elements(NAMED, open);
    batch
}

/// Resolved names in the rules, read through a socket of the slot's namespace.
#[derive(Debug, Default)]
pub(crate) struct ListedNames {
    pub(crate) open: Vec<ListedElement>,
    pub(crate) shut: Vec<ListedElement>,
}

/// Lists the addresses that are open or closed by a name, and which name that was: the one resolved last,
/// where several share an address and ports.
pub(crate) fn resolved(socket: &Netlink) -> Result<ListedNames> {
    Ok(ListedNames { open: list_set(socket, SLOT_TABLE, NAMED)?, shut: list_set(socket, SLOT_TABLE, SHUT)? })
}

pub(super) fn fill_policy(batch: &mut Batch, policy: &NetworkPolicy, plan: &Plan) {
    batch.fill_box_set(OPEN, &policy.openings(&plan.ceiling));
    batch.fill_box_set(DENIED, &policy.closings());
    fill_inspect(batch, policy);
    fill_egress(batch, policy, plan);
}

/// Redirects new TCP connections to the proxy where the policy needs it.
fn fill_inspect(batch: &mut Batch, policy: &NetworkPolicy) {
    let in_open = || Rule::new().destination_and_port_in_set(OPEN);
    if policy.closes_networks() {
        // Denied destinations do not go to the proxy, whose own connections `egress` does not see.
        batch.add_rule(INSPECT, Rule::new().destination_and_port_in_set(DENIED).accept());
    }
    if policy.denies_names() {
        for port in WEB_PORTS {
            let web = || Rule::new().destination_port_in(PortRange { first: port, last: port });
            batch.add_rule(INSPECT, web().destination_and_port_in_set(OPEN).redirect_to_port(PROXY_PORT));
        }
    }
    if policy.opens_names() {
        // A destination that is open by address needs no name.
        batch.add_rule(INSPECT, in_open().accept());
        for (class, ports) in classes(policy) {
            for port in WEB_PORTS.into_iter().filter(|port| ports.iter().any(|ports| has(*ports, *port))) {
                let web = Rule::new().destination_port_in(PortRange { first: port, last: port });
                batch.add_rule(INSPECT, web.destination_in_class(NAMED, class).redirect_to_port(PROXY_PORT));
            }
        }
    }
}

/// Filters outgoing packets.
fn fill_egress(batch: &mut Batch, policy: &NetworkPolicy, plan: &Plan) {
    batch.add_rule(EGRESS, Rule::new().switched_on(CLOSED).jump(DENY));
    for port in plan.ceiling.closed_mail_ports(policy) {
        batch.add_rule(EGRESS, Rule::new().destination_port(IPPROTO_TCP, port).jump(DENY));
    }
    refuse_denied(batch, policy);
    if policy.denies_names() {
        refuse_uninspected(batch);
    }
    for protocol in [IPPROTO_TCP, IPPROTO_UDP] {
        batch.add_rule(EGRESS, Rule::new().protocol(protocol).destination_and_port_in_set(OPEN).accept());
    }
    let portless = Rule::new().protocol_not(IPPROTO_TCP).protocol_not(IPPROTO_UDP);
    batch.add_rule(EGRESS, portless.destination_in_set(OPEN, 0).accept());
    if policy.opens_names() {
        if !policy.denies_names() {
            refuse_uninspected(batch);
        }
        pass_named(batch, policy);
    }
    batch.add_rule(EGRESS, Rule::new().jump(DENY));
}

/// Refuses the destinations that `deny` names. The proxy handles the web ports of a denied name,
/// because other names share its address.
fn refuse_denied(batch: &mut Batch, policy: &NetworkPolicy) {
    if policy.closes_networks() {
        for protocol in [IPPROTO_TCP, IPPROTO_UDP] {
            let denied = Rule::new().protocol(protocol).destination_and_port_in_set(DENIED);
            batch.add_rule(EGRESS, denied.jump(DENY));
        }
    }
    for (class, ports) in policy.shut_ports().into_iter().enumerate() {
        let tcp = ports.iter().flat_map(|ports| without_web(*ports)).map(|ports| (IPPROTO_TCP, ports));
        for (protocol, ports) in tcp.chain(ports.iter().map(|ports| (IPPROTO_UDP, *ports))) {
            let to = Rule::new().protocol(protocol).destination_port_in(ports);
            batch.add_rule(EGRESS, to.destination_in_class(SHUT, class_number(class)).jump(DENY));
        }
    }
}

/// Addresses of allowed names, on the ports of their classes.
fn pass_named(batch: &mut Batch, policy: &NetworkPolicy) {
    let mark = mark_of(policy);
    batch.add_rule(EGRESS, Rule::new().connection_mark(mark).accept());
    for (class, ports) in classes(policy) {
        for (ports, protocol) in
            ports.into_iter().flat_map(|ports| [IPPROTO_TCP, IPPROTO_UDP].map(|protocol| (ports, protocol)))
        {
            let to = Rule::new().protocol(protocol).destination_port_in(ports);
            let named = to.destination_in_class(NAMED, class);
            batch.add_rule(EGRESS, named.mark_connection(mark).accept());
        }
    }
}

/// Refuses web connections that do not go through the proxy: started under another policy, to an
/// address that no allowed name resolved to, or HTTP/3.
fn refuse_uninspected(batch: &mut Batch) {
    for (protocol, port) in
        WEB_PORTS.map(|port| (IPPROTO_TCP, port)).into_iter().chain([(IPPROTO_UDP, QUIC_PORT)])
    {
        batch.add_rule(EGRESS, Rule::new().destination_port(protocol, port).jump(DENY));
    }
}

/// Classes of allowed names' ports, numbered. A name without ports has all of them.
fn classes(policy: &NetworkPolicy) -> impl Iterator<Item = (u32, Vec<PortRange>)> {
    let all = || vec![PortRange { first: 1, last: u16::MAX }];
    let numbered = policy.name_ports().into_iter().enumerate();
    numbered.map(move |(class, ports)| (class_number(class), if ports.is_empty() { all() } else { ports }))
}

fn class_number(class: usize) -> u32 {
    u32::try_from(class).unwrap_or(u32::MAX)
}

fn has(ports: PortRange, port: u16) -> bool {
    (ports.first..=ports.last).contains(&port)
}

/// A range of ports without the web ports, whose connections carry a host name.
fn without_web(ports: PortRange) -> Vec<PortRange> {
    WEB_PORTS.into_iter().fold(vec![ports], |ranges, web| {
        let cut = |ports: PortRange| {
            let before = PortRange { first: ports.first, last: ports.last.min(web - 1) };
            let behind = PortRange { first: ports.first.max(web + 1), last: ports.last };
            [before, behind].into_iter().filter(|ports| ports.first <= ports.last)
        };
        ranges.into_iter().flat_map(cut).collect()
    })
}

/// The connection mark of a policy. Equal policies have equal marks, also in the next agent of the
/// same build, and never zero, the mark of unmarked connections. If another build's mark differs,
/// connections by name end and are opened again.
fn mark_of(policy: &NetworkPolicy) -> u32 {
    use std::hash::{Hash, Hasher};
    let mut hasher = std::collections::hash_map::DefaultHasher::new();
    policy.hash(&mut hasher);
    (hasher.finish() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_ports_are_excluded_from_ranges() {
        let check = |first, last, expect: &[(u16, u16)]| {
            let cut: Vec<_> =
                without_web(PortRange { first, last }).iter().map(|p| (p.first, p.last)).collect();
            assert_eq!(cut, expect, "{first}-{last}");
        };
        check(22, 22, &[(22, 22)]);
        check(80, 80, &[]);
        check(443, 443, &[]);
        check(79, 81, &[(79, 79), (81, 81)]);
        check(80, 443, &[(81, 442)]);
        check(1, 65535, &[(1, 79), (81, 442), (444, 65535)]);
        check(8000, 8009, &[(8000, 8009)]);
    }
}
