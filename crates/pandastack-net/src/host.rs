//! One-time setup of the host for a pool: unique names, a free subnet, forwarding, our nftables table,
//! and room for connections.
//!
//! Safe to repeat. Only our own table is ever changed. Forwarding is switched on but never off, and
//! the connection limit is raised but never lowered: when a pool ends, other programs on the host
//! may need them.

use std::io;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use pandastack_types::network::Cidr;

use crate::config::Plan;
use crate::error::{NetError, Result};
use crate::names::Sockets;
use crate::netlink::{Netlink, Subsystem};
use crate::{connections, namespace, ruleset, slot};

/// Time that a name may stay taken before another agent is assumed to use it.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);
const CLAIM_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Held as long as the pool lives: a second pool with the same names cannot get it.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: UnixDatagram,
}

/// Prepares the calling thread's namespace to be the host of slots.
pub(crate) fn prepare(plan: &Plan) -> Result<(Claim, Sockets)> {
    let socket = claim_prefix(plan)?;
    check_subnet(plan)?;
    let sockets = Sockets::bind(plan)?;
    namespace::prepare_directory(&plan.netns_dir)?;
    slot::set_sysctl("/proc/sys/net/ipv4/ip_forward", "1")?;
    ruleset::host(plan, sockets.ports()?).commit(&Netlink::open(Subsystem::Netfilter)?)?;
    // After our rules, which load what tracks connections.
    connections::enlarge_table(plan.capacity(), plan.limits.connections_max);
    Ok((Claim { _socket: socket }, sockets))
}

/// Removes what [`prepare`] created, apart from forwarding and table sizes. There must be no slot left.
pub(crate) fn restore(plan: &Plan) -> Result<()> {
    let removed =
        Netlink::open(Subsystem::Netfilter).and_then(|socket| ruleset::host_removal(plan).commit(&socket));
    removed.and(namespace::remove_directory(&plan.netns_dir))
}

/// Names are claimed by an abstract socket: scoped to the host's network namespace like the links themselves, and
/// freed by the kernel however the process ends.
///
/// A name found taken is retried for a moment: a child process of a killed agent holds its descriptors until it
/// executes its program, and nothing tells when.
fn claim_prefix(plan: &Plan) -> Result<UnixDatagram> {
    let name = claim_name(plan.prefix());
    let deadline = Instant::now() + CLAIM_PATIENCE;
    loop {
        match bind_claim(&name) {
            Ok(claim) => return Ok(claim),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(NetError::io("claiming the slot names", name)(error));
            }
            Err(_) if Instant::now() >= deadline => {
                return Err(NetError::PrefixTaken { prefix: plan.prefix().to_owned() });
            }
            #[expect(clippy::disallowed_methods, reason = "nothing tells when a name is free")]
            Err(_) => thread::sleep(CLAIM_RETRY_PAUSE),
        }
    }
}

fn claim_name(prefix: &str) -> String {
    format!("pandastack-net/{prefix}")
}

fn bind_claim(name: &str) -> io::Result<UnixDatagram> {
    SocketAddr::from_abstract_name(name).and_then(|address| UnixDatagram::bind_addr(&address))
}

/// Whether no agent of this host runs with these interface names, or has left interfaces behind.
pub fn prefix_is_free(prefix: &str) -> bool {
    let is_left = |name: String| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('-'));
    let is_used = getifaddrs().is_ok_and(|mut all| all.any(|interface| is_left(interface.interface_name)));
    !is_used && bind_claim(&claim_name(prefix)).is_ok()
}

/// Whether no interface of this host has an address in the subnet.
pub fn subnet_is_free(subnet: &Cidr) -> bool {
    address_in(subnet, |_| false).is_ok_and(|found| found.is_none())
}

/// An address of this host in the subnet, and its interface, except interfaces that are `own`.
fn address_in(subnet: &Cidr, own: impl Fn(&str) -> bool) -> Result<Option<(Ipv4Addr, String)>> {
    let interfaces = getifaddrs().map_err(NetError::io("listing addresses", "/proc/thread-self/net"))?;
    let mut others = interfaces.filter(|interface| !own(&interface.interface_name));
    Ok(others.find_map(|interface| {
        let address = interface.address.as_ref()?.as_sockaddr_in()?.ip();
        subnet.contains(address).then_some((address, interface.interface_name))
    }))
}

/// Refuses a subnet in which the host, or another agent's slots, already have an address.
fn check_subnet(plan: &Plan) -> Result<()> {
    match address_in(&plan.subnet, |name| plan.parse_link_name(name).is_some())? {
        None => Ok(()),
        Some((address, interface)) => Err(NetError::SubnetTaken {
            subnet: plan.subnet.to_string(),
            address: address.to_string(),
            interface,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_subnets_in_use_are_not_free() {
        let prefix = format!("f{}", std::process::id() % 1_000_000);
        assert!(prefix_is_free(&prefix));
        let claim = bind_claim(&claim_name(&prefix)).expect("free");
        assert!(!prefix_is_free(&prefix), "another agent runs with it");
        drop(claim);
        assert!(prefix_is_free(&prefix));
        assert!(!subnet_is_free(&Cidr::literal([127, 0, 0, 0], 8)), "loopback has an address in it");
        assert!(subnet_is_free(&Cidr::literal([203, 0, 113, 0], 24)), "reserved for documentation");
    }
}
