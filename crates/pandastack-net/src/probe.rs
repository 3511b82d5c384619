//! Whether this host can give machines a network: everything is tried for real, in a namespace that is thrown away.

use crate::config::{NetConfig, SlotIndex};
use crate::error::Result;
use crate::netlink::{Netlink, Subsystem};
use crate::ruleset::ListeningPorts;
use crate::{names, namespace, ruleset, tap};

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it works.
    pub ok: bool,
    /// What was found, in a sentence.
    pub detail: String,
    /// What to do about it; `None` when it works.
    pub remedy: Option<&'static str>,
}

/// Tries namespaces, tap devices, nftables and the resolver. Blocks for some milliseconds; changes nothing.
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
        Err(error) => Check { name, ok: false, detail: error.to_string(), remedy: Some(remedy) },
    }
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
            detail: "/etc/resolv.conf names no server, so guests cannot resolve names".to_owned(),
            remedy: Some("name one in /etc/resolv.conf, or in the agent's `resolver`"),
        },
    }
}
