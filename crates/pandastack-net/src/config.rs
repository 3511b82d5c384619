//! Settings of a pool, and the arithmetic that turns a slot's index into its names and addresses.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pandastack_types::network::{Ceiling, Cidr, Mail, Target};
use serde::{Deserialize, Serialize};

use crate::error::{NetError, Result};

/// Most slots of one pool: the /30 blocks of a /16.
pub const SLOTS_PER_HOST_MAX: usize = 16_384;

/// Longest interface name prefix: with `-` and five digits it fills the kernel's 15 characters.
const NAME_PREFIX_CHARS_MAX: usize = 9;

/// Prefix length of one slot's block: network, host side, slot side, broadcast.
const BLOCK_PREFIX: u8 = 30;

/// Index of a slot in its pool. Stable for the life of the lease; the agent stores it to find the
/// slot after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotIndex(pub u16);

impl fmt::Display for SlotIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Resource limits of one slot. Existing slots keep their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    /// Connections that a guest may have, UDP flows of the last half minute included. Further ones get no answer.
    pub connections_max: u32,
    /// Connections that a guest may start per minute, with a burst of as many. `None` for no limit.
    pub connections_per_minute: Option<u32>,
    /// Distinct addresses to which a guest may start connections per minute. `None` for no limit.
    pub destinations_per_minute: Option<u32>,
    /// Bytes a second in each direction, with as many at once; packets beyond it are dropped, and
    /// TCP slows down. `None` for no limit.
    pub bytes_per_second: Option<u64>,
}

/// Default of [`SlotLimits::connections_max`].
pub const CONNECTIONS_PER_SLOT_DEFAULT: u32 = 8192;
/// Default of [`SlotLimits::connections_per_minute`]: a hundred a second. Scanners need more, programs do
/// not.
pub const CONNECTIONS_PER_MINUTE_DEFAULT: u32 = 6000;
/// Default of [`SlotLimits::destinations_per_minute`].
pub const DESTINATIONS_PER_MINUTE_DEFAULT: u32 = 1000;

impl Default for SlotLimits {
    fn default() -> Self {
        SlotLimits {
            connections_max: CONNECTIONS_PER_SLOT_DEFAULT,
            connections_per_minute: Some(CONNECTIONS_PER_MINUTE_DEFAULT),
            destinations_per_minute: Some(DESTINATIONS_PER_MINUTE_DEFAULT),
            bytes_per_second: None,
        }
    }
}

/// Settings of a [`SlotPool`](crate::SlotPool). Two agents on one host differ in all of the first three.
#[derive(Debug, Clone)]
pub struct NetConfig {
    /// Addresses of the slots, /16 to /30; each slot takes a /30.
    pub subnet: Cidr,
    /// Directory that holds the namespaces; lost on reboot, kept across agent restarts (`/run/...`).
    pub runtime_dir: PathBuf,
    /// Start of interface and table names: 1 to 9 of `a-z0-9`.
    pub name_prefix: String,
    /// Number of slots kept ready.
    pub ready_target: usize,
    /// Time that [`take`](crate::SlotPool::take) waits for a slot while no slot is ready.
    pub take_deadline: Duration,
    /// Name server that guests' queries are passed on to; `None` takes the host's own from `resolv.conf`.
    pub resolver: Option<SocketAddr>,
    /// Limits of each slot.
    pub limits: SlotLimits,
    /// Networks that are not the internet and that policies may open. Empty: none.
    pub reachable_private: Vec<Cidr>,
    /// Addresses that the operator opens to guests with internet access.
    pub guest_allow: Vec<Target>,
    /// Host names of the operator's package mirrors.
    pub mirrors: Vec<String>,
    /// Access to outbound mail ports.
    pub mail: Mail,
}

impl NetConfig {
    /// The defaults of a host with one agent.
    pub fn new(runtime_dir: impl Into<PathBuf>) -> Self {
        NetConfig {
            subnet: Cidr::literal([10, 201, 0, 0], 16),
            runtime_dir: runtime_dir.into(),
            name_prefix: "pds".to_owned(),
            ready_target: 16,
            take_deadline: Duration::from_secs(10),
            resolver: None,
            limits: SlotLimits::default(),
            reachable_private: Vec::new(),
            guest_allow: Vec::new(),
            mirrors: Vec::new(),
            mail: Mail::default(),
        }
    }

    /// Checks the settings and freezes them into the plan that the rest of the crate works from.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let prefix = &self.name_prefix;
        let named = prefix.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if prefix.is_empty() || prefix.len() > NAME_PREFIX_CHARS_MAX || !named {
            return Err(NetError::InvalidConfig(format!(
                "name_prefix {prefix:?} must be 1 to {NAME_PREFIX_CHARS_MAX} lowercase letters and digits"
            )));
        }
        if !(16..=BLOCK_PREFIX).contains(&self.subnet.prefix()) {
            return Err(NetError::InvalidConfig(format!(
                "subnet {} must be between /16 and /30",
                self.subnet
            )));
        }
        if self.ready_target == 0 {
            return Err(NetError::InvalidConfig("ready_target must be at least 1".to_owned()));
        }
        Ok(Plan {
            subnet: self.subnet,
            prefix: prefix.clone(),
            netns_dir: self.runtime_dir.join("netns"),
            limits: self.limits,
            ceiling: Ceiling {
                slots: Some(self.subnet),
                reachable_private: self.reachable_private.clone(),
                guest_allow: self.guest_allow.clone(),
                mirrors: self.mirrors.clone(),
                mail: self.mail,
            },
        })
    }
}

/// Names and addresses of every slot, derived from the index alone.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) subnet: Cidr,
    prefix: String,
    pub(crate) netns_dir: PathBuf,
    pub(crate) limits: SlotLimits,
    /// The most that any policy can open.
    pub(crate) ceiling: Ceiling,
}

impl Plan {
    pub(crate) fn capacity(&self) -> usize {
        (1usize << (BLOCK_PREFIX - self.subnet.prefix())).min(SLOTS_PER_HOST_MAX)
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Prefix of all host interfaces of this pool. The dash keeps `pds` and `pdsb` apart.
    pub(crate) fn link_prefix(&self) -> String {
        format!("{}-", self.prefix)
    }

    /// Host end of the slot's veth pair, and the namespace's file name.
    pub(crate) fn link_name(&self, index: SlotIndex) -> String {
        format!("{}-{index}", self.prefix)
    }

    /// The inverse of [`Plan::link_name`], for names read back from the kernel.
    pub(crate) fn parse_link_name(&self, name: &str) -> Option<SlotIndex> {
        let index = SlotIndex(name.strip_prefix(&self.prefix)?.strip_prefix('-')?.parse().ok()?);
        (usize::from(index.0) < self.capacity() && self.link_name(index) == name).then_some(index)
    }

    pub(crate) fn netns_path(&self, index: SlotIndex) -> PathBuf {
        self.netns_dir.join(self.link_name(index))
    }

    pub(crate) fn table_name(&self) -> String {
        format!("pandastack_{}", self.prefix)
    }

    /// Default port of the resolver: the same for every agent with these names, and below the ports
    /// that kernels hand out.
    pub(crate) fn resolver_port(&self) -> u16 {
        let sum = self.prefix.bytes().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        20_000 + sum % 10_000
    }

    /// The same for connections to databases, distinct from every resolver's port.
    pub(crate) fn database_port(&self) -> u16 {
        self.resolver_port() - 10_000
    }

    /// The host's address on the slot's veth pair.
    pub(crate) fn host_side(&self, index: SlotIndex) -> Ipv4Addr {
        self.block(index, 1)
    }

    /// The slot's own address: where the host reaches the guest.
    pub(crate) fn slot_side(&self, index: SlotIndex) -> Ipv4Addr {
        self.block(index, 2)
    }

    pub(crate) fn block_prefix(&self) -> u8 {
        BLOCK_PREFIX
    }

    fn block(&self, index: SlotIndex, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.subnet.first()) + u32::from(index.0) * 4 + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(prefix: u8) -> Plan {
        let mut config = NetConfig::new("/run/x");
        config.subnet = Cidr::literal([10, 201, 0, 0], prefix);
        config.plan().expect("valid")
    }

    #[test]
    fn a_slash_16_subnet_has_16384_slots() {
        let plan = plan(16);
        assert_eq!(plan.capacity(), SLOTS_PER_HOST_MAX);
        assert_eq!(plan.host_side(SlotIndex(0)), Ipv4Addr::new(10, 201, 0, 1));
        assert_eq!(plan.slot_side(SlotIndex(16_383)), Ipv4Addr::new(10, 201, 255, 254));
        assert_eq!(plan.link_name(SlotIndex(16_383)), "pds-16383");
    }

    #[test]
    fn only_own_link_names_are_parsed() {
        let plan = plan(24);
        for (name, expect) in [
            ("pds-7", Some(SlotIndex(7))),
            ("pds-63", Some(SlotIndex(63))),
            ("pds-64", None),
            ("pds-07", None),
            ("pds-", None),
            ("pdsb-7", None),
            ("eth0", None),
        ] {
            assert_eq!(plan.parse_link_name(name), expect, "{name}");
        }
    }

    #[test]
    fn invalid_network_settings_are_rejected() {
        let mut config = NetConfig::new("/run/x");
        config.name_prefix = "toolongprefix".to_owned();
        assert!(config.plan().is_err());
        config.name_prefix = "a-b".to_owned();
        assert!(config.plan().is_err());
        config.name_prefix = "ab".to_owned();
        config.subnet = Cidr::literal([10, 0, 0, 0], 8);
        assert!(config.plan().is_err());
    }
}
