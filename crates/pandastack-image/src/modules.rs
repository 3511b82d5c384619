//! Selects the kernel modules of a machine, and the order in which to load them.
//!
//! Debian's cloud kernel has ext4 built in and the virtio drivers as modules. Those are needed
//! before there is a root disk ([`BOOT_MODULES`]). The rest makes `mount -t overlay`, `docker` or
//! `wg` work inside a sandbox, and is loaded by the guest's own modprobe on demand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::ImageError;

/// Modules that the guest program loads from the initramfs, after their dependencies: drivers for
/// the devices of every engine, and what it needs to reset the connections that a copy of a machine
/// inherited.
pub(crate) const BOOT_MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "vmw_vsock_virtio_transport",
    "inet_diag",
    "tcp_diag",
];

/// Modules kept for later use inside the guest, with their dependencies. A trailing `*` matches any
/// suffix.
const EXTRA_MODULES: &[&str] = &[
    "overlay",
    "fuse",
    "loop",
    "squashfs",
    "tun",
    "veth",
    "bridge",
    "br_netfilter",
    "macvlan",
    "dummy",
    "vxlan",
    "wireguard",
    "nf_tables",
    "nft_*",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nf_log*",
    "nf_reject*",
    "xt_*",
    "ip_tables",
    "iptable_*",
    "ipt_*",
    "ip6_tables",
    "ip6table_*",
    "ip6t_*",
    "sch_fq*",
    "sch_htb",
    "sch_netem",
    "virtio_balloon",
    "virtiofs",
    "binfmt_misc",
];

/// `modules.dep` of a module tree.
#[derive(Debug)]
pub(crate) struct ModuleIndex {
    /// By module name with `_` for `-`; dependencies in the order depmod wrote them (nearest first).
    entries: HashMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    path: PathBuf,
    depends: Vec<PathBuf>,
}

impl ModuleIndex {
    /// Reads `modules.dep` in `tree` (`.../lib/modules/<release>`).
    pub(crate) fn read(tree: &Path) -> Result<ModuleIndex, ImageError> {
        let path = tree.join("modules.dep");
        let text = std::fs::read_to_string(&path).map_err(ImageError::io("read", &path))?;
        Ok(ModuleIndex::parse(&text))
    }

    fn parse(text: &str) -> ModuleIndex {
        let entries = text.lines().filter_map(|line| {
            let (path, depends) = line.split_once(':')?;
            let depends = depends.split_whitespace().map(PathBuf::from).collect();
            Some((name_of(Path::new(path))?, Entry { path: path.into(), depends }))
        });
        ModuleIndex { entries: entries.collect() }
    }

    /// Paths, relative to the tree, to load one after the other so that `names` end up loaded.
    pub(crate) fn load_order(&self, names: &[&str]) -> Result<Vec<PathBuf>, ImageError> {
        let mut order: Vec<PathBuf> = Vec::new();
        for name in names {
            let entry = self.entries.get(*name).ok_or_else(|| {
                ImageError::malformed("the kernel package", format!("it has no module {name}"))
            })?;
            // depmod lists the deepest dependency last.
            for path in entry.depends.iter().rev().chain([&entry.path]) {
                if !order.contains(path) {
                    order.push(path.clone());
                }
            }
        }
        Ok(order)
    }

    /// Paths, relative to the tree, of everything a guest may want.
    pub(crate) fn selection(&self) -> Result<Vec<PathBuf>, ImageError> {
        let mut names: Vec<&str> = self
            .entries
            .keys()
            .map(String::as_str)
            .filter(|name| EXTRA_MODULES.iter().any(|pattern| matches(pattern, name)))
            .chain(BOOT_MODULES.iter().copied())
            .collect();
        names.sort_unstable();
        self.load_order(&names)
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// The name modprobe knows a module file by.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    Some(file.strip_suffix(".ko")?.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/drivers/virtio/virtio.ko:\n\
        kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko\n\
        kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n\
        kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n";

    #[test]
    fn module_dependencies_load_first_and_once() {
        let order = ModuleIndex::parse(DEP).load_order(&["virtio_blk", "virtio_rng"]).unwrap();
        let names: Vec<_> = order.iter().filter_map(|path| name_of(path)).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "virtio_blk", "virtio_rng"]);
    }

    #[test]
    fn a_missing_module_is_named() {
        let error = ModuleIndex::parse(DEP).load_order(&["virtio_net"]).unwrap_err();
        assert!(error.to_string().contains("virtio_net"), "{error}");
    }

    #[test]
    fn patterns_match_by_prefix_only_with_a_star() {
        assert!(matches("nft_*", "nft_nat") && !matches("nft_*", "xnft_nat"));
        assert!(matches("tun", "tun") && !matches("tun", "tunnel4"));
    }
}
