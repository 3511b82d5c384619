//! Capabilities of an engine on a host.

use serde::{Deserialize, Serialize};

use crate::volume_serial;

/// Strength of the wall between guest and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Hardware virtualization.
    Hardware,
    /// Software emulation: for development and CI, not for tenants who distrust each other.
    Emulated,
}

impl Isolation {
    /// The label users see.
    pub fn as_str(self) -> &'static str {
        match self {
            Isolation::Hardware => "hardware",
            Isolation::Emulated => "emulated",
        }
    }
}

/// Format of the kernel image that an engine boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFormat {
    /// Compressed, with its own loader: what distributions ship.
    Bzimage,
    /// Uncompressed ELF.
    Elf,
}

/// How a guest identifies a durable disk by its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeNaming {
    /// By the device's serial number, which is [`volume_serial`].
    Serial,
    /// By the order of devices: the root disk comes first, then the places.
    Order,
}

/// Capabilities of an engine on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Label users see, such as `qemu-tcg`.
    pub name: &'static str,
    /// Version of the engine, as it prints it.
    pub version: String,
    /// Isolation label of every machine it runs.
    pub isolation: Isolation,
    /// Format of [`Boot::kernel`](crate::Boot::kernel).
    pub kernel_format: KernelFormat,
    /// [`Machine::fork`](crate::Machine::fork) works. Otherwise `fork_reason` says why, and callers
    /// save and restore instead.
    pub fork: bool,
    /// Reason why [`Machine::fork`](crate::Machine::fork) is unavailable; `None` if it is
    /// available.
    pub fork_reason: Option<String>,
    /// How guests identify their durable disks.
    pub volume_naming: VolumeNaming,
    /// A durable disk can be attached for reading only.
    pub read_only_volumes: bool,
    /// A stream of [`Machine::connect_guest`](crate::Machine::connect_guest) survives a pause and a save.
    /// Otherwise callers reconnect before each resume.
    pub keeps_guest_streams: bool,
    /// [`Engine::spare`](crate::Engine::spare) works, and a restore into such a process is quicker.
    pub spares: bool,
    /// Environment that a snapshot is bound to: engine, version, machine type, processor model.
    pub compatibility_key: String,
    /// Keys that earlier releases of ours wrote on a host that is in everything the same.
    pub earlier_keys: Vec<String>,
}

impl Capabilities {
    /// Returns whether a snapshot with this key loads here.
    pub fn loads(&self, key: &str) -> bool {
        key == self.compatibility_key || self.earlier_keys.iter().any(|earlier| earlier == key)
    }

    /// Identifier of the durable disk in this slot, for the guest: a serial number or a device
    /// name.
    pub fn volume_device(&self, place: usize) -> String {
        match self.volume_naming {
            VolumeNaming::Serial => volume_serial(place),
            // `vda` is the root disk. There are few places, so one letter is enough.
            VolumeNaming::Order => {
                let letters = ('b'..='z').nth(place).map(String::from).unwrap_or_default();
                format!("vd{letters}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_devices_are_named_by_serial_number_or_order() {
        let named = |volume_naming| Capabilities {
            name: "test",
            version: String::new(),
            isolation: Isolation::Emulated,
            kernel_format: KernelFormat::Bzimage,
            fork: true,
            fork_reason: None,
            volume_naming,
            read_only_volumes: true,
            keeps_guest_streams: true,
            spares: false,
            compatibility_key: String::new(),
            earlier_keys: Vec::new(),
        };
        assert_eq!(named(VolumeNaming::Serial).volume_device(1), "volume1");
        assert_eq!(named(VolumeNaming::Order).volume_device(0), "vdb");
        assert_eq!(named(VolumeNaming::Order).volume_device(3), "vde");
    }
}
