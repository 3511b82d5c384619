//! Firecracker and QEMU with real guests on KVM, on a host without virtualization hardware.
//!
//! ```text
//!   this host --QEMU, emulated AMD SVM--> outer machine --KVM--> Firecracker or QEMU --> sandboxes
//! ```
//!
//! The outer machine sees the host's files read-only and keeps its own writes in memory, so it
//! needs no image: programs, caches and the `pandastack` program are the host's. Its data
//! directories are on a scratch disk. The tests in it are `tests.py`, which use `lab.py`.
//!
//! The tests prove order of events, formats, confinement and recovery. Speed means nothing:
//! everything is emulated twice. An outer machine that lacks processor time calibrates its clock
//! wrongly, so nothing else should run at the same time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::json;

use crate::host::{as_root, give_back};
use crate::program::run;
use crate::{qemu, tree};

const PREPARE: &str = include_str!("prepare.sh");
const DISK: &str = include_str!("disk.sh");
/// Files that the outer machine reads from the lab's directory.
const SCRIPTS: [(&str, &str); 3] = [
    ("outer.sh", include_str!("outer.sh")),
    ("lab.py", include_str!("lab.py")),
    ("tests.py", include_str!("tests.py")),
];

/// Time limits of the outer machine: for the short form, and for all of it.
const SECONDS_MAX: [u32; 2] = [900, 3600];
/// Memory of the outer machine. It includes the files that the machine writes to its root.
const MEMORY: &str = "6G";
/// Runs the outer machine with priority: a machine that waits for a processor while it boots
/// calibrates its clock wrongly. On a scheduler that groups processes by session, a process's own
/// priority does not count beyond the group, so the group gets it, too.
const FIRST: &str = r#"echo -15 2> /dev/null > /proc/self/autogroup; exec nice -n -15 "$@""#;

/// The lab: an outer machine and its files.
pub struct Lab {
    dir: PathBuf,
    qemu: PathBuf,
    full: bool,
}

impl Lab {
    /// Prepares the outer machine. The error names missing requirements.
    pub fn prepare(firecracker: &Path, full: bool) -> Result<Self> {
        // The processor of older ones disagrees with KVM about the state of the FPU.
        let qemu = qemu::ensure()?;
        let dir = tree::cache_dir().join("kvm-lab");
        // With the script that made it, the lab is created again after every change of the script.
        let made_by = fs::read_to_string(dir.join("prepare.sh"));
        if !made_by.is_ok_and(|script| script == PREPARE) {
            let begun = tree::cache_dir().join("kvm-lab.begun");
            for old in [&begun, &dir] {
                if old.exists() {
                    fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
                }
            }
            let mut prepare = as_root("sh");
            prepare.args(["-c", PREPARE, "prepare"]).arg(&begun);
            run(prepare).context("fetch the kernel of the outer machine")?;
            give_back(&begun)?;
            fs::write(begun.join("prepare.sh"), PREPARE).context("keep the script that made the lab")?;
            fs::rename(&begun, &dir).with_context(|| format!("move the lab to {}", dir.display()))?;
        }
        for (name, text) in SCRIPTS {
            fs::write(dir.join(name), text).with_context(|| format!("write {name} of the outer machine"))?;
        }
        let settings = json!({
            "pandastack": tree::pandastack(),
            "firecracker": firecracker,
            "full": full,
            // For work on a single engine.
            "only": std::env::var("PANDASTACK_TEST_KVM_ENGINE").ok(),
        });
        fs::write(dir.join("settings.json"), settings.to_string())
            .context("write the settings of the outer machine")?;
        let mut disk = as_root("unshare");
        disk.args(["--mount", "sh", "-c", DISK, "disk"]).arg(dir.join("disk")).arg(tree::machine_cache_dir());
        run(disk).context("make the disk of the outer machine")?;
        Ok(Self { dir, qemu, full })
    }

    /// The outer machine. It prints its tests' output, and ends with them.
    pub fn machine(&self) -> Command {
        let dir = self.dir.display();
        let mut machine = qemu::in_place(&self.qemu, Path::new("sh"));
        let seconds = SECONDS_MAX[usize::from(self.full)].to_string();
        machine.args(["-c", FIRST, "first", "timeout", &seconds, "qemu-system-x86_64"]);
        machine.args(["-M", "q35", "-cpu", "EPYC", "-smp", "1"]);
        machine.args(["-accel", "tcg,thread=multi,tb-size=512", "-m", MEMORY]);
        machine.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        machine.arg("-kernel").arg(self.dir.join("vmlinuz")).arg("-initrd").arg(self.dir.join("initrd"));
        machine.args(["-append", &format!("console=ttyS0 quiet mitigations=off panic=-1 lab={dir}")]);
        let shared = "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap";
        machine.args(["-fsdev", shared, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
        machine.args(["-drive", &format!("if=none,id=disk,file={dir}/disk,format=raw,cache=unsafe")]);
        machine.args(["-device", "virtio-blk-pci,drive=disk"]);
        machine.stdin(Stdio::null());
        machine
    }
}

impl Drop for Lab {
    /// The disk is created again for each run, and is large.
    fn drop(&mut self) {
        let mut remove = as_root("rm");
        remove.arg("-f").arg(self.dir.join("disk"));
        if let Err(error) = run(remove) {
            eprintln!("warning: the disk of the outer machine stays behind: {error:#}");
        }
    }
}
