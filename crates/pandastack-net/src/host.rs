//! One-time setup of the host for a pool: unique names, a free subnet, forwarding, our nftables table,
//! and room for connections.
//!
//! Safe to repeat. Only our own table is ever touched, and forwarding is switched on but never off, as room is made and not
//! taken back: by the time a pool ends, something else on the host may need it.

use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;

use crate::config::Plan;
use crate::error::{NetError, Result};
use crate::names::Sockets;
use crate::netlink::{Netlink, Subsystem};
use crate::{connections, namespace, ruleset, slot};

/// How long a name may stay taken before somebody else is said to use it.
const CLAIM_PATIENCE: Duration = Duration::from_millis(500);
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

/// Takes away what [`prepare`] made, apart from forwarding and room. There must be no slot left.
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
    let name = format!("pandastack-net/{}", plan.prefix());
    let deadline = Instant::now() + CLAIM_PATIENCE;
    loop {
        let bound =
            SocketAddr::from_abstract_name(&name).and_then(|address| UnixDatagram::bind_addr(&address));
        match bound {
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

/// Refuses a subnet in which the host, or another agent's slots, already have an address.
fn check_subnet(plan: &Plan) -> Result<()> {
    let interfaces = getifaddrs().map_err(NetError::io("listing addresses", "/proc/thread-self/net"))?;
    for interface in interfaces.filter(|interface| plan.parse_link_name(&interface.interface_name).is_none())
    {
        let address =
            interface.address.as_ref().and_then(|address| address.as_sockaddr_in()).map(|v4| v4.ip());
        if let Some(address) = address.filter(|address| plan.subnet.contains(*address)) {
            return Err(NetError::SubnetTaken {
                subnet: plan.subnet.to_string(),
                address: IpAddr::V4(address).to_string(),
                interface: interface.interface_name,
            });
        }
    }
    Ok(())
}
