//! The address of the API and the network names of an installation, where the operator gave none.
//!
//! Two installations on one machine must differ in all of them. An installation keeps what it had before:
//! its machines are found by these names. A new one in the default data directory takes the documented
//! defaults, or the next that are free; in another data directory its names follow from the directory, so
//! that they also differ from those of an installation that is stopped now.

use std::net::{SocketAddr, TcpListener};

use anyhow::Result;
use pandastack_net::{Cidr, prefix_is_free, subnet_is_free};

use super::lock::{Holder, UpLock};
use crate::failure::Failure;
use crate::settings::Settings;

/// Ports to try from the default on.
const PORTS_TRIED: u16 = 100;
/// Second bytes of the subnets to try: 10.201.0.0/16 is the default, the others follow it.
const SUBNETS: std::ops::RangeInclusive<u8> = 201..=254;
/// Interface name prefixes to try in the default data directory, after the default one.
const PREFIXES: [&str; 4] = ["pdsb", "pdsc", "pdsd", "pdse"];
/// Digits of the data directory's hash in a prefix.
const HASH_DIGITS: usize = 7;

/// Chooses addresses and names that were not set. Does nothing for a running installation.
pub fn choose(settings: &mut Settings) -> Result<()> {
    let before = match UpLock::last_holder(&settings.data_dir)? {
        Some((_, true)) => return Ok(()),
        Some((holder, false)) => Some(holder),
        None => None,
    };
    let probe = Probe { port: &port_is_free, prefix: &prefix_is_free, subnet: &subnet_is_free };
    choose_with(settings, before.as_ref(), &probe)
}

/// Checks what is free on this machine.
struct Probe<'a> {
    port: &'a dyn Fn(SocketAddr) -> bool,
    prefix: &'a dyn Fn(&str) -> bool,
    subnet: &'a dyn Fn(&Cidr) -> bool,
}

fn choose_with(settings: &mut Settings, before: Option<&Holder>, probe: &Probe<'_>) -> Result<()> {
    if !settings.explicit.listen {
        let earlier = before.and_then(|holder| holder.api_url.strip_prefix("http://")?.parse().ok());
        settings.listen = listen(settings, earlier, probe)?;
    }
    if !settings.explicit.net_prefix {
        settings.net_prefix = match before {
            Some(holder) => holder.net_prefix.clone(),
            None => prefix(settings, probe)?,
        };
    }
    if !settings.explicit.subnet {
        settings.subnet = match before {
            Some(holder) => holder.subnet.clone(),
            None => subnet(settings, probe)?,
        };
    }
    Ok(())
}

/// Another data directory than the default one keeps its port, because its clients are configured for it.
fn listen(settings: &Settings, earlier: Option<SocketAddr>, probe: &Probe<'_>) -> Result<SocketAddr> {
    let default = settings.listen;
    let earlier = earlier.filter(|_| settings.suffix().is_some());
    let from_default = (0..PORTS_TRIED).map(|step| SocketAddr::new(default.ip(), default.port() + step));
    let found = earlier.into_iter().chain(from_default).find(|address| (probe.port)(*address));
    found.ok_or_else(|| {
        Failure::new(format!("cannot listen on {default}, nor on the {PORTS_TRIED} ports after it"))
            .hint("choose an address with --listen")
            .into()
    })
}

fn prefix(settings: &Settings, probe: &Probe<'_>) -> Result<String> {
    let own = settings.suffix().map(|hash| format!("p{}", &hash[..HASH_DIGITS]));
    let candidates = match own {
        Some(own) => vec![own],
        None => {
            [settings.net_prefix.clone()].into_iter().chain(PREFIXES.map(str::to_owned)).collect::<Vec<_>>()
        }
    };
    let found = candidates.into_iter().find(|prefix| (probe.prefix)(prefix));
    found.ok_or_else(|| {
        Failure::new("the names for network interfaces are in use by other installations on this machine")
            .hint("choose others with --net-prefix, and a subnet with --subnet")
            .into()
    })
}

fn subnet(settings: &Settings, probe: &Probe<'_>) -> Result<String> {
    let hash = settings.suffix().and_then(|hash| usize::from_str_radix(&hash, 16).ok());
    let (first, mut others): (Vec<u8>, Vec<u8>) = (vec![*SUBNETS.start()], SUBNETS.skip(1).collect());
    // The default subnet is the last choice for other data directories.
    let order = match hash {
        None => [first, others].concat(),
        Some(hash) => {
            let start = hash % others.len();
            others.rotate_left(start);
            [others, first].concat()
        }
    };
    let found = order
        .into_iter()
        .map(|second| Cidr::literal([10, second, 0, 0], 16))
        .find(|subnet| (probe.subnet)(subnet));
    found.map(|subnet| subnet.to_string()).ok_or_else(|| {
        Failure::new("no free subnet found for sandboxes: this machine has addresses in all that were tried")
            .hint("choose one with --subnet, such as 172.20.0.0/16")
            .into()
    })
}

fn port_is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::settings::{AgentArgs, CommonArgs, ControlArgs};

    fn settings(data_dir: &str, agent: AgentArgs) -> Settings {
        let common = CommonArgs {
            config: Some("/dev/null".into()),
            data_dir: Some(data_dir.into()),
            ..CommonArgs::default()
        };
        Settings::resolve(&common, &ControlArgs::default(), &agent).unwrap()
    }

    /// Addresses that an installation chooses next to running ones.
    fn chosen(data_dir: &str, before: Option<&Holder>, others: &[Settings]) -> Settings {
        let mut mine = settings(data_dir, AgentArgs::default());
        let probe = Probe {
            port: &|address| others.iter().all(|other| other.listen != address),
            prefix: &|prefix| others.iter().all(|other| other.net_prefix != prefix),
            subnet: &|subnet| others.iter().all(|other| other.subnet != subnet.to_string()),
        };
        choose_with(&mut mine, before, &probe).unwrap();
        mine
    }

    fn holder(settings: &Settings) -> Holder {
        Holder {
            pid: 1,
            api_url: settings.api_url(),
            runtime_dir: settings.runtime_dir.clone(),
            subnet: settings.subnet.clone(),
            net_prefix: settings.net_prefix.clone(),
        }
    }

    fn names(settings: &Settings) -> (SocketAddr, &str, &str) {
        (settings.listen, &settings.net_prefix, &settings.subnet)
    }

    #[test]
    fn a_first_installation_has_the_documented_defaults() {
        let first = chosen(crate::settings::DATA_DIR, None, &[]);
        let default = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        assert_eq!(names(&first), (default, "pds", "10.201.0.0/16"));
    }

    #[test]
    fn installations_get_distinct_and_stable_names_and_ports() {
        let first = chosen(crate::settings::DATA_DIR, None, &[]);
        let second = chosen("/srv/second", None, std::slice::from_ref(&first));
        let third = chosen("/srv/third", None, &[first.clone(), second.clone()]);
        for (one, other) in [(&first, &second), (&first, &third), (&second, &third)] {
            let (a, b) = (names(one), names(other));
            assert!(a.0 != b.0 && a.1 != b.1 && a.2 != b.2, "{a:?} {b:?}");
        }
        // Alone on the machine, it still uses what its machines and clients know.
        let again = chosen("/srv/second", Some(&holder(&second)), &[]);
        assert_eq!(names(&again), names(&second));
        // If the port has been taken since, another is chosen.
        let moved = chosen("/srv/second", Some(&holder(&second)), std::slice::from_ref(&second));
        assert!(moved.listen != second.listen && moved.net_prefix == second.net_prefix);
    }

    #[test]
    fn addresses_given_by_the_operator_are_kept() {
        let agent = AgentArgs {
            subnet: Some("10.9.0.0/16".into()),
            net_prefix: Some("own".into()),
            ..Default::default()
        };
        let mut given = settings("/srv/x", agent);
        let before = Holder { net_prefix: "old".into(), ..holder(&given) };
        let probe = Probe { port: &|_| true, prefix: &|_| false, subnet: &|_| false };
        choose_with(&mut given, Some(&before), &probe).unwrap();
        assert_eq!((given.net_prefix.as_str(), given.subnet.as_str()), ("own", "10.9.0.0/16"));
    }

    #[test]
    fn a_host_without_free_net_prefixes_is_reported() {
        let mut mine = settings("/srv/y", AgentArgs::default());
        let probe = Probe { port: &|_| true, prefix: &|_| false, subnet: &|_| true };
        let error = choose_with(&mut mine, None, &probe).unwrap_err();
        assert!(format!("{error:#}").contains("in use by other installations"), "{error:#}");
    }
}
