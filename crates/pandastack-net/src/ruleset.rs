//! The firewall rules: one table on the host, one in every slot's namespace.
//!
//! The slot's table filters the guest; the host's table does not rely on it. Each alone isolates
//! the guest from other slots and the host, so a mistake in one opens nothing.
//!
//! ```text
//!  from the guest                                       to the guest
//!  slot prerouting  forged MAC or source: drop          host output     (a process of this host)
//!                   too many connections: told, drop
//!                   too many bytes: drop                slot prerouting too many bytes: drop
//!                   gateway:53, 5432 -> host's end      slot prerouting slot address -> guest
//!                   `inspect`: web -> the proxy         slot forward    redirected: accept
//!  slot forward     `egress`: in `denied` or `shut`:    slot postroute  source becomes the gateway
//!                   told; in `open`, or in `named`
//!                   and not web: accept; rest: told
//!  slot postroute   source becomes the slot address
//!  host prerouting  source not behind the link: drop
//!                   host's end:53 -> our resolver
//!                   host's end:5432 -> our listener
//!  host forward     to slots, metadata: drop
//!  host input       resolver, answers; rest: drop
//!  host postroute   masquerade
//! ```
//!
//! The agent answers for names and takes connections to databases. While it is restarted the kernel
//! would refuse in its place; those refusals are dropped on their way out, so that guests try
//! again, as they do with a network that loses a packet.
//!
//! Only a slot's policy changes: see [`policy`].

mod policy;
mod slot_table;

use std::time::Duration;

use libc::{
    IPPROTO_TCP, NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING,
    NF_INET_PRE_ROUTING,
};
use pandastack_types::agent_api::EgressLimit;
use pandastack_types::network::{Cidr, NetworkPolicy};

use crate::config::{Plan, SlotIndex};
use crate::guest_network::{GUEST_GATEWAY, GUEST_IP, GUEST_MAC, TAP_NAME, UPLINK_NAME};
use crate::listening_ports::{ListeningPorts, SERVICES};
use crate::nft::{Batch, CT_ESTABLISHED_OR_RELATED, CT_NEW, Hook, Policy, Rule, SetName};
use policy::{CLOSED, EGRESS, INSPECT, NAMED, NAMED_ADDRESSES_MAX, OPEN, fill_policy};
pub(crate) use policy::{
    ListedNames, ResolvedName, element, first_policy, learned, renew_addresses, resolved, slot_policy,
};
pub(crate) use slot_table::{DENIED_GROUP, PROXY_PORT};
use slot_table::{DENY, SLOT_TABLE};

/// Refused packets that are reported each second, so that a guest that floods costs its host
/// nothing.
const DENIED_PER_SECOND: u64 = 20;

/// Bytes of a refused packet that are copied: IPv4 header with options, and ports.
const DENIED_BYTES: u32 = 64;

/// Addresses to which the guest began a connection within a minute.
const RECENT: SetName = SetName("recent", 6);

const LINK_LOCAL: Cidr = Cidr::literal([169, 254, 0, 0], 16);

/// Before connection tracking, so that forged packets cost no table entry.
const PRIORITY_RAW: i32 = -300;
/// After connection tracking, before anything is translated.
const PRIORITY_MANGLE: i32 = -150;
const PRIORITY_DESTINATION_NAT: i32 = -100;
const PRIORITY_FILTER: i32 = 0;
const PRIORITY_SOURCE_NAT: i32 = 100;

fn filter(number: libc::c_int, priority: i32, policy: Policy) -> Hook {
    Hook { kind: "filter", number, priority, policy }
}

fn nat(number: libc::c_int, priority: i32) -> Hook {
    Hook { kind: "nat", number, priority, policy: Policy::Accept }
}

/// The host's table: the same few rules for one slot and for sixteen thousand.
pub(crate) fn host(plan: &Plan, listening: ListeningPorts) -> Batch {
    let slots = plan.link_prefix();
    let from_slot = || Rule::new().input_links(&slots);
    let mut batch = Batch::new(plan.table_name());
    batch.replace_table();

    batch.add_chain("prerouting", filter(NF_INET_PRE_ROUTING, PRIORITY_RAW, Policy::Accept));
    batch.add_rule("prerouting", from_slot().ipv6().drop());
    batch.add_rule("prerouting", from_slot().source_not_behind_link().drop());

    batch.add_chain("input", filter(NF_INET_LOCAL_IN, PRIORITY_FILTER, Policy::Accept));
    batch.add_rule("input", from_slot().reply().connection_state(CT_ESTABLISHED_OR_RELATED).accept());
    for (protocol, _, port) in listening.each() {
        batch.add_rule("input", from_slot().redirected().destination_port(protocol, port).accept());
        // The host's services for guests are for guests alone.
        batch.add_rule("input", Rule::new().input_links_not(&slots).destination_port(protocol, port).drop());
    }
    batch.add_rule("input", from_slot().drop());

    // While no agent runs, queries time out and are retried, instead of failing at once.
    batch.add_chain("output", filter(NF_INET_LOCAL_OUT, PRIORITY_FILTER, Policy::Accept));
    let to_slot = || Rule::new().output_links(&slots).ipv4();
    batch.add_rule("output", to_slot().refuses_datagram().drop());
    batch.add_rule("output", to_slot().refuses_connection().drop());

    batch.add_chain("resolve", nat(NF_INET_PRE_ROUTING, PRIORITY_DESTINATION_NAT));
    for (protocol, asked, port) in listening.each() {
        let query = from_slot().ipv4().destination_in(plan.subnet).destination_port(protocol, asked);
        batch.add_rule("resolve", query.redirect_to_port(port));
    }

    batch.add_chain("forward", filter(NF_INET_FORWARD, PRIORITY_FILTER, Policy::Accept));
    batch.add_rule("forward", from_slot().output_links(&slots).drop());
    batch.add_rule("forward", from_slot().ipv4().destination_in(plan.subnet).drop());
    batch.add_rule("forward", from_slot().ipv4().destination_in(LINK_LOCAL).drop());
    let to_slot = || Rule::new().output_links(&slots);
    batch.add_rule("forward", to_slot().reply().connection_state(CT_ESTABLISHED_OR_RELATED).accept());
    batch.add_rule("forward", to_slot().drop());

    batch.add_chain("postrouting", nat(NF_INET_POST_ROUTING, PRIORITY_SOURCE_NAT));
    batch.add_rule(
        "postrouting",
        Rule::new().ipv4().source_in(plan.subnet).output_links_not(&slots).masquerade(),
    );
    batch
}

/// Removes [`host`]'s table.
pub(crate) fn host_removal(plan: &Plan) -> Batch {
    let mut batch = Batch::new(plan.table_name());
    batch.delete_table();
    batch
}

/// A slot's table, with the default policy in it, for a fresh namespace.
pub(crate) fn slot(plan: &Plan, index: SlotIndex) -> Batch {
    let mut batch = Batch::new(SLOT_TABLE);
    batch.add_table();
    batch.add_box_set(OPEN);
    batch.add_expiring_set(NAMED, NAMED_ADDRESSES_MAX);
    batch.add_expiring_set(CLOSED, 1);
    batch.add_plain_chain(DENY);
    batch.add_rule(
        DENY,
        Rule::new().at_most_per_second(DENIED_PER_SECOND).log_to(DENIED_GROUP, DENIED_BYTES, ""),
    );
    batch.add_rule(DENY, Rule::new().reject());
    batch.add_plain_chain(INSPECT);
    batch.add_plain_chain(EGRESS);
    fill_policy(&mut batch, &NetworkPolicy::all(), plan);
    add_guard(&mut batch);
    add_limits(&mut batch, plan);
    add_redirects(&mut batch, plan, index);
    add_filters(&mut batch, plan, index);
    batch.add_chain("postrouting", nat(NF_INET_POST_ROUTING, PRIORITY_SOURCE_NAT));
    batch.add_rule("postrouting", Rule::new().output_link(UPLINK_NAME).masquerade());
    // The guest sees the host as its gateway: no address that differs from slot to slot ever enters a
    // snapshot.
    batch.add_rule("postrouting", Rule::new().output_link(TAP_NAME).masquerade());
    batch
}

fn from_guest() -> Rule {
    Rule::new().input_link(TAP_NAME)
}

fn from_host() -> Rule {
    Rule::new().input_link(UPLINK_NAME)
}

/// Drops packets with a forged source.
fn add_guard(batch: &mut Batch) {
    batch.add_chain("guard", filter(NF_INET_PRE_ROUTING, PRIORITY_RAW, Policy::Accept));
    batch.add_rule("guard", Rule::new().ipv6().drop());
    batch.add_rule("guard", from_guest().hardware_source_not(GUEST_MAC).drop());
    batch.add_rule("guard", from_guest().ipv4().source_not(GUEST_IP).drop());
}

/// Drops packets beyond the slot's limits, and reports refused connections. Runs before any
/// translation, so that connections to the proxy count under their destination.
fn add_limits(batch: &mut Batch, plan: &Plan) {
    for limit in EgressLimit::ALL {
        let word = limit.as_str();
        batch.add_plain_chain(word);
        let reported = Rule::new().at_most_per_second(DENIED_PER_SECOND);
        batch.add_rule(word, reported.log_to(DENIED_GROUP, DENIED_BYTES, word));
        batch.add_rule(word, Rule::new().drop());
    }
    batch.add_chain("limit", filter(NF_INET_PRE_ROUTING, PRIORITY_MANGLE, Policy::Accept));
    // Name queries go to the gateway, which leads nowhere else.
    let begun = || from_guest().ipv4().destination_not(GUEST_GATEWAY).begins_connection();
    if let Some(count) = plan.limits.destinations_per_minute {
        batch.add_recent_set(RECENT, count);
        let stranger = begun().not_among_recent(RECENT, Duration::from_secs(60));
        batch.add_rule("limit", stranger.jump(EgressLimit::DestinationsPerMinute.as_str()));
    }
    if let Some(count) = plan.limits.connections_per_minute {
        let too_fast = begun().more_than_per_minute(count);
        batch.add_rule("limit", too_fast.jump(EgressLimit::ConnectionsPerMinute.as_str()));
    }
    let too_many = from_guest().connection_state(CT_NEW).more_connections_than(plan.limits.connections_max);
    batch.add_rule("limit", too_many.jump(EgressLimit::ConnectionsMax.as_str()));
    if let Some(bytes) = plan.limits.bytes_per_second {
        batch.add_rule("limit", from_guest().more_than_bytes_per_second(bytes).drop());
        batch.add_rule("limit", from_host().more_than_bytes_per_second(bytes).drop());
    }
}

/// Names and databases to the host, the host to the guest, web connections to the proxy.
fn add_redirects(batch: &mut Batch, plan: &Plan, index: SlotIndex) {
    batch.add_chain("redirect", nat(NF_INET_PRE_ROUTING, PRIORITY_DESTINATION_NAT));
    for (protocol, port) in SERVICES {
        let query = from_guest().ipv4().destination(GUEST_GATEWAY).destination_port(protocol, port);
        batch.add_rule("redirect", query.redirect_to(plan.host_side(index)));
    }
    let inbound = from_host().ipv4().source(plan.host_side(index)).destination(plan.slot_side(index));
    batch.add_rule("redirect", inbound.redirect_to(GUEST_IP));
    batch.add_rule("redirect", from_guest().ipv4().protocol(IPPROTO_TCP).jump(INSPECT));
}

/// Filters incoming packets, those to the proxy, and those that pass in either direction.
fn add_filters(batch: &mut Batch, plan: &Plan, index: SlotIndex) {
    let answers = || Rule::new().reply().connection_state(CT_ESTABLISHED_OR_RELATED).accept();
    batch.add_chain("input", filter(NF_INET_LOCAL_IN, PRIORITY_FILTER, Policy::Drop));
    batch.add_rule("input", answers());
    let proxied = from_guest().redirected().destination_port(IPPROTO_TCP, PROXY_PORT);
    batch.add_rule("input", proxied.accept());
    // While no agent runs, the ports have no listener: dropping the kernel's refusals makes
    // connections wait and retry, instead of failing at once.
    batch.add_chain("output", filter(NF_INET_LOCAL_OUT, PRIORITY_FILTER, Policy::Accept));
    batch.add_rule("output", Rule::new().output_link(TAP_NAME).ipv4().refuses_connection().drop());

    batch.add_chain("forward", filter(NF_INET_FORWARD, PRIORITY_FILTER, Policy::Drop));
    // Only replies pass by connection: packets from the guest are checked one by one, so that a
    // policy change also applies to open connections.
    batch.add_rule("forward", answers());
    batch.add_rule("forward", from_host().redirected().accept());
    for (protocol, port) in SERVICES {
        let query = from_guest().redirected().ipv4().destination(plan.host_side(index));
        batch.add_rule("forward", query.destination_port(protocol, port).accept());
    }
    batch.add_rule("forward", from_guest().output_link(UPLINK_NAME).ipv4().jump(EGRESS));
}
