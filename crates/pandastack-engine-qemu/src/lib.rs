//! The QEMU engine: KVM where it works, forked emulator processes elsewhere.
