//! Kernel arguments for the guest program.
//!
//! ```text
//! pandastack.root=OPTIONS     comma-separated mount options of the root disk, besides rw,noatime
//! pandastack.ip=ADDRESS/BITS  address of eth0; without it there is no network
//! pandastack.gateway=ADDRESS  default route
//! ```

use std::net::Ipv4Addr;

/// Boot arguments from the kernel command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BootArguments {
    pub(super) root_options: String,
    pub(super) network: Option<NetworkArguments>,
}

/// The constants that every guest is baked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetworkArguments {
    pub(super) address: Ipv4Addr,
    pub(super) prefix_bits: u8,
    pub(super) gateway: Option<Ipv4Addr>,
}

impl BootArguments {
    /// Reads `/proc/cmdline`. A malformed argument counts as absent.
    pub(super) fn parse(cmdline: &str) -> Self {
        let value = |name: &str| {
            cmdline
                .split_whitespace()
                .filter_map(|word| word.strip_prefix(name)?.strip_prefix('='))
                .next_back()
        };
        let network = value("pandastack.ip").and_then(|ip| {
            let (address, bits) = ip.split_once('/')?;
            Some(NetworkArguments {
                address: address.parse().ok()?,
                prefix_bits: bits.parse().ok().filter(|bits| *bits <= 32)?,
                gateway: value("pandastack.gateway").and_then(|gateway| gateway.parse().ok()),
            })
        });
        Self { root_options: value("pandastack.root").unwrap_or_default().to_owned(), network }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_arguments_are_parsed_from_the_kernel_command_line() {
        let parsed = BootArguments::parse(
            "console=ttyS0 quiet pandastack.root=discard,commit=60 pandastack.ip=172.30.0.2/30 pandastack.gateway=172.30.0.1\n",
        );
        let network = NetworkArguments {
            address: Ipv4Addr::new(172, 30, 0, 2),
            prefix_bits: 30,
            gateway: Some(Ipv4Addr::new(172, 30, 0, 1)),
        };
        assert_eq!(
            parsed,
            BootArguments { root_options: "discard,commit=60".to_owned(), network: Some(network) }
        );
        for none in ["", "pandastack.ip=1.2.3.4", "pandastack.ip=1.2.3.4/33", "xpandastack.ip=1.2.3.4/8"] {
            assert_eq!(BootArguments::parse(none), BootArguments::default(), "{none}");
        }
    }
}
