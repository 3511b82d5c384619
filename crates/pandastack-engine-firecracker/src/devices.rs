//! Devices of every machine, and the names of its files.
//!
//! Devices, their order and these names are part of every snapshot: a change here needs a new
//! [`DEVICES_GENERATION`]. Names are relative to the root, which is the process's working directory
//! with or without a jail.

use pandastack_engine::{GUEST_MAC, Shape, VOLUMES_MAX, volume_serial};

use crate::api::types::{
    BootSource, CacheType, Drive, DriveUpdate, Entropy, Logger, MachineConfig, Metrics, NetworkInterface,
    NetworkOverride, Serial, TokenBucket, Vsock,
};
use crate::api::{Api, ApiError};
use crate::limits::{BOOT_MAX, COMMAND_MAX, SERIAL_BURST_BYTES, SERIAL_BYTES_PER_SECOND};

/// Version of the device layout, part of the compatibility key.
pub(crate) const DEVICES_GENERATION: u32 = 1;

/// Socket of the API.
pub(crate) const API_SOCKET: &str = "api.sock";
/// Unix socket that leads to the guest's vsock ports.
pub(crate) const VSOCK_SOCKET: &str = "v.sock";
/// Root disk.
pub(crate) const DISK: &str = "disk";
/// Serial output.
pub(crate) const CONSOLE: &str = "console";
/// Metrics.
pub(crate) const METRICS: &str = "metrics";
/// Kernel to boot.
pub(crate) const KERNEL: &str = "kernel";
/// Initial ramdisk to boot.
pub(crate) const INITRD: &str = "initrd";
/// Device state to load.
pub(crate) const STATE: &str = "state";
/// Memory to load.
pub(crate) const MEMORY: &str = "memory";
/// Device state to save to.
pub(crate) const SAVED_STATE: &str = "saved-state";
/// Memory to save to.
pub(crate) const SAVED_MEMORY: &str = "saved-memory";

/// Name of the only network interface.
const INTERFACE: &str = "eth0";
/// The guest's vsock address. Each machine has its own socket, so all use the same.
const GUEST_CID: u32 = 3;
/// Kernel arguments of every boot. `reboot=k` makes Firecracker exit on a reboot; the others skip
/// probes for hardware that does not exist. Devices are listed by ACPI.
const KERNEL_ARGS: &str =
    "console=ttyS0 reboot=k panic=-1 quiet pci=off i8042.noaux i8042.nomux i8042.dumbkbd";

/// Sets log level and metrics, which need no machine. The log itself stays on standard output.
pub(crate) async fn set_outputs(api: &Api) -> Result<(), ApiError> {
    api.put("/logger", &Logger { level: "Warning" }, COMMAND_MAX).await?;
    api.put("/metrics", &Metrics { metrics_path: METRICS.to_owned() }, COMMAND_MAX).await
}

/// Configures the console. A snapshot does not contain it, so every machine configures it.
pub(crate) async fn set_console(api: &Api) -> Result<(), ApiError> {
    let limiter = TokenBucket {
        size: SERIAL_BYTES_PER_SECOND,
        refill_time: 1_000,
        one_time_burst: Some(SERIAL_BURST_BYTES),
    };
    let serial = Serial { serial_out_path: CONSOLE.to_owned(), rate_limiter: Some(limiter) };
    api.put("/serial", &serial, COMMAND_MAX).await
}

/// Configures a machine to boot from the files in its root.
pub(crate) async fn configure(
    api: &Api,
    shape: Shape,
    kernel_args: &str,
    tap: Option<&str>,
) -> Result<(), ApiError> {
    let machine = MachineConfig {
        vcpu_count: shape.vcpus,
        mem_size_mib: shape.memory_mib,
        smt: false,
        track_dirty_pages: true,
    };
    let boot = BootSource {
        kernel_image_path: KERNEL.to_owned(),
        initrd_path: Some(INITRD.to_owned()),
        boot_args: format!("{KERNEL_ARGS} {kernel_args}").trim_end().to_owned(),
    };
    api.put("/machine-config", &machine, COMMAND_MAX).await?;
    api.put("/boot-source", &boot, BOOT_MAX).await?;
    put_drive(api, DISK, CacheType::Unsafe).await?;
    for place in 0..VOLUMES_MAX {
        put_volume(api, place).await?;
    }
    if let Some(tap) = tap {
        let interface = NetworkInterface {
            iface_id: INTERFACE.to_owned(),
            host_dev_name: tap.to_owned(),
            guest_mac: GUEST_MAC.to_owned(),
            rx_rate_limiter: None,
            tx_rate_limiter: None,
        };
        api.put(&format!("/network-interfaces/{INTERFACE}"), &interface, COMMAND_MAX).await?;
    }
    let vsock = Vsock { guest_cid: GUEST_CID, uds_path: VSOCK_SOCKET.to_owned() };
    api.put("/vsock", &vsock, COMMAND_MAX).await?;
    api.put("/entropy", &Entropy {}, COMMAND_MAX).await
}

/// Configures the volume at a place before the machine starts. Guest flushes reach the host's disk.
pub(crate) async fn put_volume(api: &Api, place: usize) -> Result<(), ApiError> {
    put_drive(api, &volume_serial(place), CacheType::Writeback).await
}

async fn put_drive(api: &Api, name: &str, cache_type: CacheType) -> Result<(), ApiError> {
    let drive = Drive {
        drive_id: name.to_owned(),
        path_on_host: name.to_owned(),
        is_root_device: false,
        is_read_only: false,
        cache_type,
        // The other engine is a preview and adds up to a tenth of a second for each device.
        io_engine: "Sync",
        rate_limiter: None,
    };
    api.put(&format!("/drives/{name}"), &drive, COMMAND_MAX).await
}

/// Reopens the volume at a place and tells the guest its size.
pub(crate) async fn announce_volume(api: &Api, place: usize) -> Result<(), ApiError> {
    let name = volume_serial(place);
    let update = DriveUpdate { drive_id: name.clone(), path_on_host: name.clone() };
    api.patch(&format!("/drives/{name}"), &update, COMMAND_MAX).await
}

/// Overrides the tap named in a snapshot.
pub(crate) fn tap_override(tap: Option<&str>) -> Vec<NetworkOverride> {
    let of_tap =
        |tap: &str| NetworkOverride { iface_id: INTERFACE.to_owned(), host_dev_name: tap.to_owned() };
    tap.map(of_tap).into_iter().collect()
}
