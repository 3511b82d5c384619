//! The toy guest, built from its source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Boot files of a machine.
#[derive(Debug)]
pub struct ToyGuest {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

/// No library, no vector registers, no interrupts: what runs where instructions are emulated one by one.
const FLAGS: &[&str] = &[
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-pic",
    "-no-pie",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-tree-loop-distribute-patterns",
    "-nostdlib",
    "-static",
    "-Wl,-Ttext=0x101000,--build-id=none,-z,max-page-size=4096,-z,noexecstack",
];

impl ToyGuest {
    /// Compiles the guest into a directory.
    pub fn build(dir: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guest");
        let guest = Self { kernel: dir.join("toy"), initrd: dir.join("initrd") };
        let mut compiler = Command::new("gcc");
        compiler.args(FLAGS).arg("-o").arg(&guest.kernel);
        compiler.args([source.join("start.S"), source.join("toy.c")]);
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
        // The guest does not use it, but every machine has one.
        fs::write(&guest.initrd, [0; 4096]).unwrap();
        guest
    }
}
