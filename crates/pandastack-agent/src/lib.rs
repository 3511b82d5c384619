//! The per-host agent: machines, slots, disks, bakes, snapshots.
