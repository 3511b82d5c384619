//! Copy-on-write store, root filesystem builds, kernels, initramfs.
