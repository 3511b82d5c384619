//! The accelerator that executes guest code.

use pandastack_engine::Isolation;

/// A way to execute guest code, with everything that snapshots are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accelerator {
    /// Label that users see.
    pub(crate) name: &'static str,
    /// Isolation label.
    pub(crate) isolation: Isolation,
    /// Versioned machine type: the unversioned one changes with the emulator.
    pub(crate) machine: &'static str,
    /// `-accel`.
    pub(crate) option: &'static str,
    /// `-cpu`.
    pub(crate) processor: &'static str,
    /// Kernel arguments that only this accelerator needs.
    pub(crate) kernel_args: &'static str,
    /// Whether guests see the host's processor, so that snapshots are also bound to its model.
    pub(crate) host_processor: bool,
}

impl Accelerator {
    /// Software emulation. The processor is at level x86-64-v3, which common Python wheels need, less what emulation
    /// lacks. Addresses in guest processes are not randomized: translated code is found by its address, so a program that
    /// lands elsewhere each time is translated each time, and starting one costs four times as much. The code buffer must not be split into a writable and an executable view: that one is shared memory, and a
    /// fork would share it.
    pub(crate) const TCG: Self = Self {
        name: "qemu-tcg",
        isolation: Isolation::Emulated,
        machine: "pc-q35-7.2",
        option: "tcg,thread=multi,tb-size=256,split-wx=off",
        processor: "Haswell-noTSX,pcid=off,x2apic=off,tsc-deadline=off,invpcid=off,enforce",
        kernel_args: "norandmaps",
        host_processor: false,
    };

    /// Hardware virtualization.
    pub(crate) const KVM: Self = Self {
        name: "qemu-kvm",
        isolation: Isolation::Hardware,
        machine: "pc-q35-7.2",
        option: "kvm",
        processor: "host,migratable=on",
        kernel_args: "",
        host_processor: true,
    };

    /// Returns whether processes of this accelerator can be forked. KVM's descriptors belong to one
    /// address space.
    pub(crate) fn can_fork(&self) -> bool {
        !self.host_processor
    }
}
