//! Resetting connections that a copy inherited.
//!
//! Their other end belongs to the machine that was copied: without a reset a child would wait for answers that
//! never come, or worse, both copies would talk on one connection. `SOCK_DESTROY` makes the next read or
//! write fail with ECONNABORTED, so that programs reconnect. Connections inside the machine and those to a port
//! that it listens on are left alone.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

use crate::tcp_table::{SocketState, TcpSocket, read_sockets};

const SOCK_DESTROY: u16 = 21;
const NLMSG_HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = NLMSG_HEADER_BYTES + 56;
const NO_COOKIE: u32 = u32::MAX;

/// Resets every outbound connection. Ignores connections that have already ended.
pub(super) fn reset_outbound() -> io::Result<()> {
    let sockets = read_sockets();
    let outbound = outbound(&sockets);
    if outbound.is_empty() {
        return Ok(());
    }
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    outbound.into_iter().try_for_each(|socket| destroy(&netlink, &socket))
}

fn outbound(sockets: &[TcpSocket]) -> Vec<TcpSocket> {
    let listening: HashSet<u16> = sockets
        .iter()
        .filter(|socket| socket.state == SocketState::Listen)
        .map(|socket| socket.local.port())
        .collect();
    let leaves = |socket: &&TcpSocket| {
        let remote = socket.remote.ip().to_canonical();
        socket.state == SocketState::Active
            && !remote.is_loopback()
            && remote != socket.local.ip().to_canonical()
            && !listening.contains(&socket.local.port())
    };
    sockets.iter().filter(leaves).copied().collect()
}

fn destroy(netlink: &OwnedFd, socket: &TcpSocket) -> io::Result<()> {
    send(netlink.as_raw_fd(), &request(socket), MsgFlags::empty())?;
    let mut answer = [0_u8; 256];
    let count = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // An acknowledgement is an error message with the number 0.
    let code =
        answer.get(NLMSG_HEADER_BYTES..NLMSG_HEADER_BYTES + 4).filter(|_| count >= NLMSG_HEADER_BYTES + 4);
    let code = code.and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
    match -code {
        0 | libc::ENOENT => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(socket: &TcpSocket) -> Vec<u8> {
    let family = if socket.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).unwrap_or_default();
    let mut bytes = Vec::with_capacity(REQUEST_BYTES);
    bytes.extend_from_slice(&u32::try_from(REQUEST_BYTES).unwrap_or_default().to_ne_bytes());
    bytes.extend_from_slice(&SOCK_DESTROY.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[u8::try_from(family).unwrap_or_default(), 6, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(&socket.local.port().to_be_bytes());
    bytes.extend_from_slice(&socket.remote.port().to_be_bytes());
    bytes.extend_from_slice(&address_bytes(&socket.local));
    bytes.extend_from_slice(&address_bytes(&socket.remote));
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&NO_COOKIE.to_ne_bytes());
    bytes.extend_from_slice(&NO_COOKIE.to_ne_bytes());
    bytes
}

fn address_bytes(address: &SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(v4.octets()).for_each(|(to, from)| *to = from);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_external_connections_are_reset() {
        let socket = |local: &str, remote: &str, state| TcpSocket {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            state,
        };
        let leaves = socket("10.0.0.2:50000", "8.8.8.8:443", SocketState::Active);
        let mapped = socket("[::ffff:10.0.0.2]:50001", "[::ffff:8.8.8.8]:443", SocketState::Active);
        let sockets = [
            leaves,
            mapped,
            socket("0.0.0.0:8080", "0.0.0.0:0", SocketState::Listen),
            socket("10.0.0.2:8080", "10.0.0.1:40000", SocketState::Active),
            socket("127.0.0.1:50002", "127.0.0.1:5432", SocketState::Active),
            socket("[::ffff:127.0.0.1]:50003", "[::ffff:127.0.0.1]:5432", SocketState::Active),
            socket("10.0.0.2:50004", "10.0.0.2:5432", SocketState::Active),
            socket("10.0.0.2:50005", "8.8.8.8:443", SocketState::Done),
        ];
        assert_eq!(outbound(&sockets), [leaves, mapped]);
        assert_eq!(request(&leaves).len(), REQUEST_BYTES);
    }
}
