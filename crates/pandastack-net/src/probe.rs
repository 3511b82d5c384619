//! Tests whether this host can give machines a network: everything is tried for real, in a namespace
//! that is thrown away.

use std::collections::BTreeSet;

use pandastack_types::chain;

use crate::config::{CONNECTIONS_PER_SLOT_DEFAULT, NetConfig, SlotIndex};
use crate::connections::TableSpace;
use crate::error::Result;
use crate::listening_ports::ListeningPorts;
use crate::netlink::{Netlink, Subsystem};
use crate::{connections, names, namespace, ruleset, tap};

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// Whether the check passed.
    pub ok: bool,
    /// Result, in a sentence.
    pub detail: String,
    /// Remedy; `None` if the check passed.
    pub remedy: Option<&'static str>,
}

/// Tries namespaces, tap devices, nftables, connection tracking and the resolver. Blocks for some
/// milliseconds; changes nothing.
pub fn probe() -> Vec<Check> {
    vec![
        check(
            "network namespaces",
            "a network namespace can be made",
            "run as root, on a kernel with CONFIG_NET_NS",
            namespace::in_new(|| Ok(())),
        ),
        check(
            "tap devices",
            "a tap device can be made",
            "run as root and load the module: modprobe tun",
            namespace::in_new(|| tap::open("probe0").map(drop)),
        ),
        check(
            "nftables",
            "the rules of the host and of a slot load",
            "use kernel 5.6 or newer and load the modules: modprobe -a nf_tables nft_chain_nat nft_masq nft_fib_inet nft_redir \
             nft_limit nft_log nft_reject_inet nfnetlink_log",
            namespace::in_new(load_rulesets),
        ),
        check(
            "connection tracking",
            "connections of a sandbox that is gone can be forgotten",
            "load the module: modprobe nf_conntrack_netlink",
            namespace::in_new(|| connections::forget(&BTreeSet::new())),
        ),
        check_room(connections::table_space()),
        check_resolver(),
    ]
}

fn load_rulesets() -> Result<()> {
    let plan = NetConfig::new("/").plan()?;
    let resolver = ListeningPorts { udp: 53, tcp: 53, databases: 53 };
    ruleset::host(&plan, resolver).commit(&Netlink::open(Subsystem::Netfilter)?)?;
    ruleset::slot(&plan, SlotIndex(0)).commit(&Netlink::open(Subsystem::Netfilter)?)
}

fn check(name: &'static str, works: &str, remedy: &'static str, outcome: Result<()>) -> Check {
    match outcome {
        Ok(()) => Check { name, ok: true, detail: works.to_owned(), remedy: None },
        Err(error) => Check { name, ok: false, detail: chain(&error), remedy: Some(remedy) },
    }
}

/// Checks the connection table: when it is nearly full, the kernel drops packets of new
/// connections, the host's included.
fn check_room(room: Option<TableSpace>) -> Check {
    let name = "room for connections";
    let Some(TableSpace { used, max }) = room else {
        let detail = "the kernel tracks no connections yet".to_owned();
        return Check { name, ok: true, detail, remedy: None };
    };
    let per_slot = u64::from(CONNECTIONS_PER_SLOT_DEFAULT);
    let filling = max / per_slot;
    let detail =
        format!("{used} of {max} tracked connections; {filling} sandboxes at the usual {per_slot} fill it");
    if used < max / 10 * 9 {
        return Check { name, ok: true, detail, remedy: None };
    }
    let remedy = "raise net.netfilter.nf_conntrack_max with sysctl, or lower the agent's `connections_max`";
    Check { name, ok: false, detail, remedy: Some(remedy) }
}

fn check_resolver() -> Check {
    let name = "name resolution for guests";
    match names::host_resolvers().first() {
        Some(server) => {
            let detail = format!("guests' queries are passed on to {}", server.ip());
            Check { name, ok: true, detail, remedy: None }
        }
        None => Check {
            name,
            ok: false,
            detail: "/etc/resolv.conf has no DNS server, so guests cannot resolve names".to_owned(),
            remedy: Some("name one in /etc/resolv.conf, or in the agent's `resolver`"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nearly_full_connection_table_is_reported() {
        let check = |used, max| check_room(Some(TableSpace { used, max }));
        assert!(check(322, 262_144).ok);
        assert!(check(322, 262_144).detail.contains("32 sandboxes"), "{:?}", check(322, 262_144));
        assert!(!check(262_000, 262_144).ok && check(262_000, 262_144).remedy.is_some());
        assert!(check_room(None).ok, "nothing is tracked before the first rule");
    }
}
