//! The emulator's command line.
//!
//! Devices, their order and their ids are frozen into snapshots: a change here is a change of the
//! compatibility key ([`DEVICES_GENERATION`]). Every option that deviates from a default has a
//! comment with the reason.

use std::ffi::OsString;
use std::os::fd::RawFd;

use pandastack_engine::{GUEST_CHANNEL_NAME, GUEST_MAC, Shape, VOLUMES_MAX, volume_serial};

use crate::accelerator::Accelerator;

/// Counts changes of devices and their order. A snapshot loads only into its own generation.
pub(crate) const DEVICES_GENERATION: u32 = 2;
/// Number of the descriptor set of the first volume.
const VOLUME_FDSET_FIRST: usize = 3;
/// Path under which the emulator opens guest memory. The path does not exist: the preloaded library
/// returns a descriptor for it.
pub(crate) const RAM_PATH: &str = "/pandastack/ram";
/// Kernel arguments of every boot. `reboot=t` ends the machine by triple fault, `tsc` needs no calibration against
/// timers that an emulator runs late; guests hold no secrets of one another that mitigations would protect.
const KERNEL_ARGS: &str =
    "console=ttyS0 reboot=t panic=-1 quiet tsc=reliable clocksource=tsc mitigations=off";

/// Numbers of the descriptors that a new process inherits. They are those of the process that starts it: moving them to
/// fixed ones could overwrite a descriptor that the start itself needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InheritedFds {
    /// Listening socket of the preloaded library.
    pub(crate) shim: RawFd,
    /// Process file system.
    pub(crate) processes: RawFd,
    /// Guest memory, for reading.
    pub(crate) ram: RawFd,
    /// Listening socket of the control protocol.
    pub(crate) qmp: RawFd,
    /// Listening socket of the guest stream.
    pub(crate) guest: RawFd,
    /// Disk.
    pub(crate) disk: RawFd,
    /// Console output.
    pub(crate) console: RawFd,
    /// Tap.
    pub(crate) tap: RawFd,
    /// Empty files at the places of volumes.
    pub(crate) volumes: [RawFd; VOLUMES_MAX],
}

impl InheritedFds {
    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = RawFd> {
        let own =
            [self.shim, self.processes, self.ram, self.qmp, self.guest, self.disk, self.console, self.tap];
        own.into_iter().chain(self.volumes)
    }
}

/// The source that the machine starts from.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// A kernel.
    Kernel { kernel: OsString, initrd: OsString, args: String },
    /// A device state that follows over the control protocol.
    State,
    /// No origin: a machine that never runs.
    Empty,
}

/// All arguments of an emulator process.
pub(crate) fn arguments(
    accelerator: &Accelerator,
    shape: Shape,
    origin: &Origin,
    inherited: &InheritedFds,
) -> Vec<OsString> {
    let mut arguments = Arguments(Vec::new());
    arguments.machine(accelerator, shape);
    arguments.devices(inherited);
    match origin {
        Origin::Kernel { kernel, initrd, args } => {
            arguments.add("-kernel", kernel.clone());
            arguments.add("-initrd", initrd.clone());
            let all =
                [KERNEL_ARGS, accelerator.kernel_args, args].into_iter().filter(|part| !part.is_empty());
            arguments.add("-append", all.collect::<Vec<_>>().join(" "));
        }
        Origin::State => {
            arguments.add("-incoming", "defer");
            // The part of a kernel boot that a saved state refers to: the loader's option ROM, as a memory block.
            arguments.add("-option-rom", "linuxboot_dma.bin");
        }
        Origin::Empty => {}
    }
    arguments.0
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn add(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.extend([name.into(), value.into()]);
    }

    fn machine(&mut self, accelerator: &Accelerator, shape: Shape) {
        let memory = shape.memory_bytes();
        for flag in ["-S", "-nodefaults", "-no-user-config", "-no-reboot"] {
            self.0.push(flag.into());
        }
        self.add("-display", "none");
        self.add(
            "-machine",
            format!("{},memory-backend=ram,sata=off,smbus=off,usb=off,vmport=off", accelerator.machine),
        );
        self.add("-accel", accelerator.option);
        self.add("-cpu", accelerator.processor);
        self.add("-smp", shape.vcpus.to_string());
        self.add("-m", format!("{}M", shape.memory_mib));
        // Declared as shared, so that saved states omit it; the preloaded library still maps it
        // privately.
        self.add("-object", format!("memory-backend-file,id=ram,size={memory},mem-path={RAM_PATH},share=on"));
    }

    fn devices(&mut self, inherited: &InheritedFds) {
        let InheritedFds { qmp, guest, disk, console, tap, .. } = inherited;
        self.add("-add-fd", format!("fd={disk},set=1"));
        self.add("-add-fd", format!("fd={console},set=2"));
        self.add("-chardev", format!("socket,id=qmp,fd={qmp},server=on,wait=off"));
        self.add("-mon", "chardev=qmp,mode=control");
        self.add("-chardev", "file,id=console,path=/dev/fdset/2,append=on");
        self.add("-serial", "chardev:console");
        // No flushes: a machine does not outlive its host's memory, and the agent syncs snapshots.
        // No locks: no other process has the file. No dropping of the page cache when a state is
        // loaded.
        self.add(
            "-blockdev",
            "driver=raw,node-name=disk0,discard=unmap,cache.no-flush=on,file.driver=file,file.filename=/dev/fdset/1,\
             file.locking=off,file.drop-cache=off,file.discard=unmap,file.cache.no-flush=on",
        );
        // Errors go to the guest, also when the host's disk is full: stopping instead would look like a hang. ioeventfd
        // rebuilds the memory dispatch on every resume: 70 to 230 ms of processor time instead of 0.4.
        self.add("-device", "virtio-blk-pci,drive=disk0,ioeventfd=off,werror=report,rerror=report");
        self.add("-netdev", format!("tap,id=net0,fd={tap},vhost=off"));
        self.add("-device", format!("virtio-net-pci,netdev=net0,mac={GUEST_MAC},romfile=,ioeventfd=off"));
        self.add("-object", "rng-random,id=rng0,filename=/dev/urandom");
        self.add("-device", "virtio-rng-pci,rng=rng0,ioeventfd=off");
        // One port more than needed; the default of 31 costs 64 queues.
        self.add("-device", "virtio-serial-pci,id=serial0,ioeventfd=off,max_ports=2");
        self.add("-chardev", format!("socket,id=guest,fd={guest},server=on,wait=off"));
        self.add("-device", format!("virtserialport,bus=serial0.0,chardev=guest,name={GUEST_CHANNEL_NAME}"));
        self.volumes(inherited);
    }

    /// The places of durable disks. All exist from boot on, backed by empty files: attaching a
    /// volume replaces the file's descriptor with its own ([`crate::volume`]), so a fork, a restore
    /// and a boot attach it in the same way, without hotplug. Flushes reach the host's disk. A
    /// write that finds the host's disk full stops the machine; other errors go to the guest.
    fn volumes(&mut self, inherited: &InheritedFds) {
        for (place, fd) in inherited.volumes.iter().enumerate() {
            let (set, node) = (VOLUME_FDSET_FIRST + place, volume_serial(place));
            self.add("-add-fd", format!("fd={fd},set={set}"));
            self.add(
                "-blockdev",
                format!(
                    "driver=raw,node-name={node},discard=unmap,file.driver=file,file.filename=/dev/fdset/{set},\
                     file.locking=off,file.drop-cache=off,file.discard=unmap"
                ),
            );
            self.add(
                "-device",
                format!("virtio-blk-pci,drive={node},serial={node},ioeventfd=off,num-queues=1,werror=enospc,rerror=report"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_and_restore_have_the_same_devices() {
        let shape = Shape { vcpus: 2, memory_mib: 512 };
        let kernel = Origin::Kernel { kernel: "k".into(), initrd: "i".into(), args: "quiet".into() };
        let inherited = InheritedFds {
            shim: 3,
            processes: 4,
            ram: 5,
            qmp: 6,
            guest: 7,
            disk: 8,
            console: 9,
            tap: 10,
            volumes: [11, 12, 13, 14],
        };
        let devices = |origin: &Origin| {
            let arguments = arguments(&Accelerator::TCG, shape, origin, &inherited);
            let text: Vec<String> =
                arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect();
            let end =
                text.iter().position(|argument| argument == "-kernel" || argument == "-incoming").unwrap();
            text[..end].to_vec()
        };
        assert_eq!(devices(&kernel), devices(&Origin::State));
    }
}
