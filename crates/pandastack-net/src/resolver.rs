//! Which name server guests' queries are passed on to.
//!
//! A slot redirects them by address, so the server must be reachable from a namespace: a stub on the host's loopback
//! is not. Where systemd-resolved runs such a stub it also writes down the servers behind it, and those are taken.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// Looked at in this order.
const RESOLV_CONF: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// The first usable IPv4 name server of this host.
pub(crate) fn host_resolver() -> Option<Ipv4Addr> {
    RESOLV_CONF.iter().find_map(|path| usable_server(&fs::read_to_string(Path::new(path)).ok()?))
}

fn usable_server(resolv_conf: &str) -> Option<Ipv4Addr> {
    resolv_conf.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next() != Some("nameserver") {
            return None;
        }
        match words.next()?.parse().ok()? {
            IpAddr::V4(address) if !address.is_loopback() && !address.is_unspecified() => Some(address),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_ipv6_servers_are_passed_over() {
        for (text, expect) in [
            ("nameserver 9.9.9.9\n", Some([9, 9, 9, 9])),
            (
                "# nameserver 1.1.1.1\nsearch lan\nnameserver 127.0.0.53\nnameserver 10.0.0.1\n",
                Some([10, 0, 0, 1]),
            ),
            ("nameserver ::1\nnameserver fe80::1%eth0\n", None),
            ("nameserver\nnameserver x\n", None),
            ("", None),
        ] {
            assert_eq!(usable_server(text), expect.map(Ipv4Addr::from), "{text:?}");
        }
    }
}
