//! Firecracker with real guests on a host without virtualization hardware.
//!
//! ```text
//!   this host --QEMU, emulated AMD SVM--> outer machine --KVM--> Firecracker --> sandboxes
//! ```
//!
//! The outer machine sees the host's files read-only, with what it writes in memory, so that it needs no
//! image of its own: programs, caches and the `pandastack` program are those of the host. Its data
//! directory is on a scratch disk.
//!
//! What the tests in it show is order of events, formats, confinement and recovery. Speed means
//! nothing: everything is emulated twice. An outer machine that lacks processor time calibrates its
//! clock wrongly, so nothing else should run meanwhile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::{as_root, give_back};
use crate::program::run;
use crate::{qemu, tree};

const PREPARE: &str = include_str!("prepare.sh");
const INSIDE: &str = include_str!("inside.sh");

/// How long the outer machine may take.
const SECONDS_MAX: &str = "3600";
/// Memory of the outer machine. What it writes to its root is in there too.
const MEMORY: &str = "6G";
/// Size of the disk for its data directory; sparse.
const DISK_BYTES: u64 = 16 << 30;

/// What the lab needs of the host.
pub struct Lab {
    dir: PathBuf,
    qemu: PathBuf,
}

impl Lab {
    /// Prepares the outer machine. The error says what is missing.
    pub fn prepare(firecracker: &Path) -> Result<Self> {
        // The processor of older ones disagrees with KVM about the state of the FPU.
        let qemu = qemu::ensure()?;
        let dir = tree::cache_dir().join("kvm-lab");
        if !dir.join("initrd").exists() {
            let begun = tree::cache_dir().join("kvm-lab.begun");
            if begun.exists() {
                fs::remove_dir_all(&begun).context("remove what an interrupted preparation left")?;
            }
            let mut prepare = as_root("sh");
            prepare.args(["-c", PREPARE, "prepare"]).arg(&begun);
            run(prepare).context("fetch the kernel of the outer machine")?;
            give_back(&begun)?;
            fs::rename(&begun, &dir).with_context(|| format!("move the lab to {}", dir.display()))?;
        }
        fs::write(dir.join("inside.sh"), INSIDE).context("write the script of the outer machine")?;
        let settings = format!(
            "PANDASTACK='{}'\nCACHE='{}'\nFIRECRACKER='{}'\n",
            tree::pandastack().display(),
            tree::machine_cache_dir().display(),
            firecracker.display()
        );
        fs::write(dir.join("settings.sh"), settings).context("write the settings of the outer machine")?;
        let disk = File::create(dir.join("disk")).context("make the disk of the outer machine")?;
        disk.set_len(DISK_BYTES).context("size the disk of the outer machine")?;
        Ok(Self { dir, qemu })
    }

    /// The outer machine. It prints what its tests say, and ends with them.
    pub fn machine(&self) -> Command {
        let dir = self.dir.display();
        let mut machine = qemu::in_place(&self.qemu, Path::new("timeout"));
        machine.args([SECONDS_MAX, "qemu-system-x86_64", "-M", "q35", "-cpu", "EPYC", "-smp", "1"]);
        machine.args(["-accel", "tcg,thread=multi,tb-size=512", "-m", MEMORY]);
        machine.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        machine.arg("-kernel").arg(self.dir.join("vmlinuz")).arg("-initrd").arg(self.dir.join("initrd"));
        machine.args(["-append", &format!("console=ttyS0 quiet mitigations=off panic=-1 lab={dir}")]);
        let shared = "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap";
        machine.args(["-fsdev", shared, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
        machine.args(["-drive", &format!("if=none,id=disk,file={dir}/disk,format=raw,cache=unsafe")]);
        machine.args(["-device", "virtio-blk-pci,drive=disk"]);
        machine
    }
}
