//! Making, finding and destroying one slot. Blocking; called from the pool's maker thread and short-lived
//! ones.
//!
//! A slot exists in two places: its namespace file and the host end of its veth pair. Either alone is a
//! leftover of an interrupted make or destroy, and [`destroy`] takes both away from any such state.

use pandastack_types::chain;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::config::{Plan, SlotIndex};
use crate::error::{NetError, Result};
use crate::guest_network::{
    GATEWAY_MAC, GUEST_GATEWAY, GUEST_IP, GUEST_MAC, GUEST_PREFIX, TAP_NAME, UPLINK_NAME,
};
use crate::links::{self, LinkBatch, LinkEvents, VethEnd};
use crate::namespace::{self, NetNs};
use crate::netlink::{Netlink, Subsystem};
use crate::nft::Batch;
use crate::packet_log::PacketLog;
use crate::ruleset::DENIED_GROUP;
use crate::{connections, ruleset, tap};

/// Hardware addresses of the two veth ends. The same everywhere: each pair is a network of its own.
const UPLINK_MAC: [u8; 6] = [0x06, 0x00, 0x0a, 0xc9, 0x01, 0x02];
const HOST_MAC: [u8; 6] = [0x06, 0x00, 0x0a, 0xc9, 0x01, 0x01];

/// Longest time for the kernel to end a batch of namespaces before their links are removed by name.
const NAMESPACE_END_PATIENCE: Duration = Duration::from_secs(1);

/// A finished slot that is not leased yet.
#[derive(Debug)]
pub(crate) struct ReadySlot {
    pub(crate) index: SlotIndex,
    pub(crate) tap: OwnedFd,
    /// Opened inside the namespace: its socket also takes a policy, without entering it again.
    pub(crate) log: PacketLog,
}

/// Creates a slot with the default policy. The calling thread must be in the host's namespace, `host`. On
/// failure nothing is left.
pub(crate) fn make(plan: &Plan, host: &NetNs, index: SlotIndex) -> Result<ReadySlot> {
    let made = namespace::in_new(|| build_inside(plan, host, index)).and_then(|inside| {
        build_outside(plan, index)?;
        inside.events.wait_until_running(inside.uplink_index, UPLINK_NAME)?;
        Ok(inside.ready)
    });
    if made.is_err()
        && let Err(error) = destroy(plan, &[index])
    {
        tracing::warn!(%index, error = %chain(&error), "cannot remove an incomplete network slot");
    }
    made
}

/// Removes all remains of these slots, including their connections in the host's table. The calling
/// thread must be in the host's namespace.
///
/// Unmounting the namespaces is enough in the common case: the kernel then removes all their links
/// at once, while removing links one by one waits for several grace periods each (30 ms measured).
/// A namespace that is kept open must not keep its links alive, so links that stay are removed by
/// name.
pub(crate) fn destroy(plan: &Plan, indexes: &[SlotIndex]) -> Result<()> {
    let events = LinkEvents::open()?;
    for index in indexes {
        namespace::remove(&plan.netns_path(*index))?;
    }
    let names = indexes.iter().map(|index| plan.link_name(*index)).collect();
    for name in events.wait_until_gone(names, NAMESPACE_END_PATIENCE) {
        links::remove(&name)?;
    }
    // Last, when these addresses send no more packets. The slots are gone either way, so a failure
    // here does not keep their indexes; `doctor` reports it.
    let addresses = indexes.iter().map(|index| plan.slot_side(*index)).collect();
    if let Err(error) = connections::forget(&addresses) {
        tracing::warn!(
            error = %chain(&error),
            "cannot remove connections of deleted network slots; they time out"
        );
    }
    Ok(())
}

/// Every slot that exists in full or in part. The calling thread must be in the host's namespace.
pub(crate) fn find_all(plan: &Plan) -> Result<BTreeSet<SlotIndex>> {
    let mut found = BTreeSet::new();
    let links =
        nix::net::if_::if_nameindex().map_err(NetError::io("listing links", "/proc/thread-self/net/dev"))?;
    found.extend(links.iter().filter_map(|link| plan.parse_link_name(link.name().to_str().ok()?)));
    let list = |error| NetError::io("listing network namespaces", &plan.netns_dir)(error);
    for entry in fs::read_dir(&plan.netns_dir).map_err(list)? {
        let name = entry.map_err(list)?.file_name();
        found.extend(name.to_str().and_then(|name| plan.parse_link_name(name)));
    }
    Ok(found)
}

/// Returns whether the slot is complete. The calling thread must be in the host's namespace.
pub(crate) fn is_whole(plan: &Plan, index: SlotIndex) -> bool {
    namespace::is_kept(&plan.netns_path(index)) && links::index_of(&plan.link_name(index)).is_ok()
}

/// Opens the tap of an existing slot again.
pub(crate) fn open_tap(plan: &Plan, index: SlotIndex) -> Result<OwnedFd> {
    NetNs::open(&plan.netns_path(index))?.run(|| tap::open(TAP_NAME))
}

/// Changes the rules of an existing slot.
pub(crate) fn apply(plan: &Plan, index: SlotIndex, batch: Batch) -> Result<()> {
    let socket = NetNs::open(&plan.netns_path(index))?.run(|| Netlink::open(Subsystem::Netfilter))?;
    batch.commit(&socket)
}

/// Names that the rules of an existing slot hold.
pub(crate) fn resolved(plan: &Plan, index: SlotIndex) -> Result<ruleset::ListedNames> {
    let socket = NetNs::open(&plan.netns_path(index))?.run(|| Netlink::open(Subsystem::Netfilter))?;
    ruleset::resolved(&socket)
}

/// Disconnects an existing slot from the network, regardless of its rules. The calling thread must
/// be in the host's namespace.
pub(crate) fn close(plan: &Plan, index: SlotIndex) -> Result<()> {
    let name = plan.link_name(index);
    let mut links = LinkBatch::default();
    links.set_down(links::index_of(&name)?);
    links.commit(&name)
}

/// A slot whose host end is still missing.
struct GuestSide {
    ready: ReadySlot,
    uplink_index: u32,
    events: LinkEvents,
}

/// Builds everything inside the new namespace, which the calling thread has entered.
fn build_inside(plan: &Plan, host: &NetNs, index: SlotIndex) -> Result<GuestSide> {
    let name = plan.link_name(index);
    namespace::keep_current(&plan.netns_path(index))?;
    // Before any link exists, so that none ever gets an IPv6 address.
    for scope in ["all", "default"] {
        set_sysctl_if_present(&format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1")?;
    }
    set_sysctl("/proc/sys/net/ipv4/ip_forward", "1")?;
    // Rules before links, so that no packet ever passes unfiltered.
    ruleset::slot(plan, index).commit(&Netlink::open(Subsystem::Netfilter)?)?;

    let tap = tap::open(TAP_NAME)?;
    let mut links = LinkBatch::default();
    let here = VethEnd { name: UPLINK_NAME, mac: UPLINK_MAC };
    links.add_veth(here, VethEnd { name: &name, mac: HOST_MAC }, host.as_fd());
    links.commit(&name)?;

    let events = LinkEvents::open()?;
    let (uplink, tap_link) = (links::index_of(UPLINK_NAME)?, links::index_of(TAP_NAME)?);
    let mut links = LinkBatch::default();
    links.set_mac(tap_link, GATEWAY_MAC);
    links.add_address(tap_link, GUEST_GATEWAY, GUEST_PREFIX);
    links.set_up(tap_link);
    links.add_neighbour(tap_link, GUEST_IP, GUEST_MAC);
    links.add_address(uplink, plan.slot_side(index), plan.block_prefix());
    links.set_up(uplink);
    links.add_neighbour(uplink, plan.host_side(index), HOST_MAC);
    links.add_default_route(plan.host_side(index));
    links.commit(&name)?;
    let ready = ReadySlot { index, tap, log: PacketLog::open(DENIED_GROUP)? };
    Ok(GuestSide { ready, uplink_index: uplink, events })
}

/// The host's end of the slot.
fn build_outside(plan: &Plan, index: SlotIndex) -> Result<()> {
    let name = plan.link_name(index);
    set_sysctl_if_present(&format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1")?;
    let link = links::index_of(&name)?;
    let mut links = LinkBatch::default();
    links.add_address(link, plan.host_side(index), plan.block_prefix());
    links.set_up(link);
    links.add_neighbour(link, plan.slot_side(index), UPLINK_MAC);
    links.commit(&name)
}

/// Writes a kernel setting of the calling thread's namespace.
pub(crate) fn set_sysctl(path: &str, value: &str) -> Result<()> {
    fs::write(path, value).map_err(NetError::io("writing kernel setting", path))
}

/// For settings of a protocol that the kernel may be without.
fn set_sysctl_if_present(path: &str, value: &str) -> Result<()> {
    if Path::new(path).exists() { set_sysctl(path, value) } else { Ok(()) }
}
