//! What the rules say: one table on the host, one in every slot's namespace.
//!
//! The slot's table knows the guest; the host's table does not trust it to. Each would hold the guest alone against
//! other slots and the host, so a mistake in one is not an open door.
//!
//! ```text
//!  from the guest                                       to the guest
//!  slot prerouting  forged MAC or source: drop          host output     (a process of this host)
//!                   gateway:53 -> resolver              slot prerouting slot address -> guest
//!  slot forward     destination in `open`, or           slot forward    redirected: accept
//!                   resolver in `resolver`: accept      slot postroute  source becomes the gateway
//!  slot postroute   source becomes the slot address
//!  host prerouting  source not behind the link: drop
//!  host forward     to slots, metadata: drop
//!  host input       resolver port, answers; rest: drop
//!  host postroute   masquerade
//! ```

use std::net::Ipv4Addr;

use libc::{
    IPPROTO_TCP, IPPROTO_UDP, NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_POST_ROUTING, NF_INET_PRE_ROUTING,
};

use crate::config::{Plan, SlotIndex};
use crate::error::Result;
use crate::nft::{Batch, CT_ESTABLISHED_OR_RELATED, Hook, Policy, Rule, SetName};
use crate::policy::{Cidr, EgressPolicy, Range};
use crate::slot::UPLINK_NAME;
use crate::{GUEST_DNS, GUEST_IP, GUEST_MAC, TAP_NAME};

const SLOT_TABLE: &str = "slot";

/// Addresses the guest may open connections to.
const OPEN: SetName = SetName("open", 1);

/// The resolver, while the policy lets the guest resolve names.
const RESOLVER: SetName = SetName("resolver", 2);

const LINK_LOCAL: Cidr = Cidr::literal([169, 254, 0, 0], 16);

const DNS_PORT: u16 = 53;

/// Before connection tracking, so that forged packets cost no table entry.
const PRIORITY_RAW: i32 = -300;
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
pub(crate) fn host(plan: &Plan, resolver: Option<Ipv4Addr>) -> Batch {
    let slots = plan.link_prefix();
    let from_slot = || Rule::new().input_links(&slots);
    let mut batch = Batch::new(plan.table_name());
    batch.replace_table();

    batch.add_chain("prerouting", filter(NF_INET_PRE_ROUTING, PRIORITY_RAW, Policy::Accept));
    batch.add_rule("prerouting", from_slot().ipv6().drop());
    batch.add_rule("prerouting", from_slot().source_not_behind_link().drop());

    batch.add_chain("input", filter(NF_INET_LOCAL_IN, PRIORITY_FILTER, Policy::Accept));
    batch.add_rule("input", from_slot().reply().connection_state(CT_ESTABLISHED_OR_RELATED).accept());
    if let Some(resolver) = resolver {
        for protocol in [IPPROTO_UDP, IPPROTO_TCP] {
            batch.add_rule(
                "input",
                from_slot().ipv4().destination(resolver).destination_port(protocol, DNS_PORT).accept(),
            );
        }
    }
    batch.add_rule("input", from_slot().drop());

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
pub(crate) fn slot(plan: &Plan, index: SlotIndex, resolver: Option<Ipv4Addr>) -> Result<Batch> {
    let from_guest = || Rule::new().input_link(TAP_NAME);
    let from_host = || Rule::new().input_link(UPLINK_NAME);
    let mut batch = Batch::new(SLOT_TABLE);
    batch.add_table();
    batch.add_set(OPEN);
    batch.add_set(RESOLVER);
    fill_sets(&mut batch, &EgressPolicy::internet(), plan, resolver)?;

    batch.add_chain("guard", filter(NF_INET_PRE_ROUTING, PRIORITY_RAW, Policy::Accept));
    batch.add_rule("guard", Rule::new().ipv6().drop());
    batch.add_rule("guard", from_guest().hardware_source_not(GUEST_MAC).drop());
    batch.add_rule("guard", from_guest().ipv4().source_not(GUEST_IP).drop());

    batch.add_chain("redirect", nat(NF_INET_PRE_ROUTING, PRIORITY_DESTINATION_NAT));
    if let Some(resolver) = resolver {
        for protocol in [IPPROTO_UDP, IPPROTO_TCP] {
            let query = from_guest().ipv4().destination(GUEST_DNS).destination_port(protocol, DNS_PORT);
            batch.add_rule("redirect", query.redirect_to(resolver));
        }
    }
    let inbound = from_host().ipv4().source(plan.host_side(index)).destination(plan.slot_side(index));
    batch.add_rule("redirect", inbound.redirect_to(GUEST_IP));

    batch.add_chain("input", filter(NF_INET_LOCAL_IN, PRIORITY_FILTER, Policy::Drop));

    batch.add_chain("forward", filter(NF_INET_FORWARD, PRIORITY_FILTER, Policy::Drop));
    // Only answers pass by connection: what the guest asks is checked packet by packet, so that a policy change holds
    // for connections that were open before it.
    batch.add_rule("forward", Rule::new().reply().connection_state(CT_ESTABLISHED_OR_RELATED).accept());
    batch.add_rule("forward", from_host().redirected().accept());
    batch.add_rule("forward", from_guest().redirected().ipv4().destination_in_set(RESOLVER).accept());
    batch.add_rule("forward", from_guest().output_link(UPLINK_NAME).ipv4().destination_in_set(OPEN).accept());

    batch.add_chain("postrouting", nat(NF_INET_POST_ROUTING, PRIORITY_SOURCE_NAT));
    batch.add_rule("postrouting", Rule::new().output_link(UPLINK_NAME).masquerade());
    // The guest sees the host as its gateway: no address that differs from slot to slot ever enters a snapshot.
    batch.add_rule("postrouting", Rule::new().output_link(TAP_NAME).masquerade());
    Ok(batch)
}

/// Replaces the policy of an existing slot.
pub(crate) fn slot_policy(policy: &EgressPolicy, plan: &Plan, resolver: Option<Ipv4Addr>) -> Result<Batch> {
    let mut batch = Batch::new(SLOT_TABLE);
    batch.flush_set(OPEN);
    batch.flush_set(RESOLVER);
    fill_sets(&mut batch, policy, plan, resolver)?;
    Ok(batch)
}

fn fill_sets(
    batch: &mut Batch,
    policy: &EgressPolicy,
    plan: &Plan,
    resolver: Option<Ipv4Addr>,
) -> Result<()> {
    batch.fill_set(OPEN, &policy.ranges(plan.subnet)?);
    if let Some(resolver) = resolver.filter(|_| policy.resolves_names()) {
        let address = u32::from(resolver);
        batch.fill_set(RESOLVER, &[Range { first: address, last: address }]);
    }
    Ok(())
}
