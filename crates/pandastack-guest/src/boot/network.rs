//! The machine's network: one interface with constants that every guest shares; the host's slots
//! distinguish guests. IPv6 is off: slots carry IPv4 only, and half a protocol costs every program
//! a timeout.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::cmdline::NetworkArguments;

nix::ioctl_write_ptr_bad!(set_address, libc::SIOCSIFADDR, libc::ifreq);
nix::ioctl_write_ptr_bad!(set_netmask, libc::SIOCSIFNETMASK, libc::ifreq);
nix::ioctl_write_ptr_bad!(set_flags, libc::SIOCSIFFLAGS, libc::ifreq);
nix::ioctl_write_ptr_bad!(add_route, libc::SIOCADDRT, libc::rtentry);

const INTERFACE: &str = "eth0";

/// Brings up loopback, and eth0 if it has an address.
pub(super) fn configure(network: Option<&NetworkArguments>) -> io::Result<()> {
    for scope in ["all", "default"] {
        // Absent when the kernel has no IPv6.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
    }
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    bring_up(&control, "lo")?;
    let Some(network) = network else { return Ok(()) };
    let mut request = interface_request(INTERFACE);
    request.ifr_ifru.ifru_addr = socket_address(network.address);
    // SAFETY: the kernel reads an initialized request.
    unsafe { set_address(control.as_raw_fd(), &raw const request) }?;
    request.ifr_ifru.ifru_netmask = socket_address(netmask(network.prefix_bits));
    // SAFETY: as above.
    unsafe { set_netmask(control.as_raw_fd(), &raw const request) }?;
    bring_up(&control, INTERFACE)?;
    network.gateway.map_or(Ok(()), |gateway| add_default_route(&control, gateway))
}

fn bring_up(control: &OwnedFd, name: &str) -> io::Result<()> {
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads an initialized request.
    unsafe { set_flags(control.as_raw_fd(), &raw const request) }.map(drop).map_err(|errno| {
        io::Error::new(io::Error::from(errno).kind(), format!("interface {name}: {}", errno.desc()))
    })
}

fn add_default_route(control: &OwnedFd, gateway: Ipv4Addr) -> io::Result<()> {
    // SAFETY: plain numbers and a pointer for which null means any interface.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = socket_address(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    // SAFETY: the kernel reads an initialized request.
    unsafe { add_route(control.as_raw_fd(), &raw const route) }?;
    Ok(())
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: a structure of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte less than the field: the kernel requires a final zero.
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn netmask(prefix_bits: u8) -> Ipv4Addr {
    u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0).into()
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets().map(|octet| octet as libc::c_char);
    libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        // First the port, then the address in network byte order.
        sa_data: [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netmasks_follow_the_prefix() {
        for (bits, mask) in
            [(0, "0.0.0.0"), (8, "255.0.0.0"), (30, "255.255.255.252"), (32, "255.255.255.255")]
        {
            assert_eq!(netmask(bits).to_string(), mask);
        }
    }
}
