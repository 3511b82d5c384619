//! The probe's guest: a dozen instructions of 64-bit code, and the processor state to run them in.
//!
//! ```text
//!  guest memory  0x1000 PML4 -> 0x2000 PDPT -> 0x3000 PD: one 2 MiB page, addresses map to themselves
//!                0x4000 code     0x5000 16 bytes for cmpxchg16b
//! ```

use std::fmt::Display;
use std::time::Duration;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::time::{ClockId, clock_gettime};

const MEMORY_BYTES: usize = 2 * 1024 * 1024;

const PML4: usize = 0x1000;
const PDPT: usize = 0x2000;
const PD: usize = 0x3000;
const CODE: usize = 0x4000;
const OPERAND: usize = 0x5000;

const PAGE_PRESENT_WRITABLE: u64 = 0b11;
const PAGE_LARGE: u64 = 1 << 7;

const CR0_PROTECTED: u64 = 1;
const CR0_PAGING: u64 = 1 << 31;
const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
const EFER_LONG_MODE_ENABLED: u64 = 1 << 8;
const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;

/// Bit 1 of the flags register is always set.
const RFLAGS_RESERVED: u64 = 2;

/// Turns of the loop: a millisecond or two on a processor, most of a second in an emulator.
const LOOP_TURNS: u64 = 1 << 20;

/// Processor time within which the guest must end. A working KVM needs milliseconds.
const GUEST_PROCESSOR_TIME_MAX: Duration = Duration::from_secs(1);

/// Port for the guest's report, and its values for success and failure.
const PORT: u8 = 0xf4;
const MAGIC: u8 = 0x5a;
const WRONG: u8 = 0x21;

/// Memory before the exchange (`BEFORE`) and after it (`AFTER`); low half first.
const BEFORE: [u64; 2] = [0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00];
const AFTER: [u64; 2] = [0x0f1e_2d3c_4b5a_6978, 0x8796_a5b4_c3d2_e1f0];

/// All constants come in registers, see [`set_registers`].
#[rustfmt::skip]
const PROGRAM: [u8; 25] = [
    0x48, 0xff, 0xc9,             // turn:  dec rcx
    0x75, 0xfb,                   //        jnz turn
    0x4c, 0x89, 0xc1,             //        mov rcx, r8
    0xf0, 0x48, 0x0f, 0xc7, 0x0e, //        lock cmpxchg16b [rsi]
    0x74, 0x05,                   //        jz equal
    0xb0, WRONG,                  //        mov al, WRONG
    0xe6, PORT,                   //        out PORT, al
    0xf4,                         //        hlt
    0xb0, MAGIC,                  // equal: mov al, MAGIC
    0xe6, PORT,                   //        out PORT, al
    0xf4,                         //        hlt
];

/// Runs the guest to its end in this process. May never return, or take the process along: see [`super`].
pub(super) fn run_guest_program() -> Result<(), String> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT => {
            "there is no /dev/kvm; enable virtualization in the firmware or the hypervisor".to_owned()
        }
        libc::EACCES => "no permission to open /dev/kvm; run as root or join the group kvm".to_owned(),
        _ => format!("opening /dev/kvm failed: {error}"),
    })?;
    let mut memory = GuestMemory::allocate()?;
    load(memory.as_mut_slice());
    let vm = kvm.create_vm().map_err(failed("creating a machine"))?;
    // SAFETY: `memory` is a mapping of exactly this size. It is declared before the descriptors that use it, so it is
    // unmapped after they are closed, and nothing touches it while the processor runs.
    unsafe { attach_memory(&vm, &memory) }?;
    let mut vcpu = vm.create_vcpu(0).map_err(failed("creating a processor"))?;
    let cpuid =
        kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(failed("reading processor features"))?;
    vcpu.set_cpuid2(&cpuid).map_err(failed("setting processor features"))?;
    set_registers(&vcpu)?;
    let used = processor_time();
    run(&mut vcpu)?;
    judge_speed(processor_time().saturating_sub(used))?;
    drop((vcpu, vm));
    match memory.operand() {
        AFTER => Ok(()),
        found => Err(format!("cmpxchg16b left {found:x?} in memory instead of {AFTER:x?}")),
    }
}

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Judges by processor time: on a loaded host wall-clock time is long even if KVM works well.
fn judge_speed(used: Duration) -> Result<(), String> {
    if used <= GUEST_PROCESSOR_TIME_MAX {
        return Ok(());
    }
    Err(format!("guest code took {} ms of processor time, as under emulation", used.as_millis()))
}

fn failed<E: Display>(step: &'static str) -> impl FnOnce(E) -> String {
    move |error| format!("{step} failed: {error}")
}

/// Page tables, code and operand.
fn load(memory: &mut [u8]) {
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    put(PML4, &(PDPT as u64 | PAGE_PRESENT_WRITABLE).to_le_bytes());
    put(PDPT, &(PD as u64 | PAGE_PRESENT_WRITABLE).to_le_bytes());
    put(PD, &(PAGE_LARGE | PAGE_PRESENT_WRITABLE).to_le_bytes());
    put(CODE, &PROGRAM);
    put(OPERAND, &BEFORE[0].to_le_bytes());
    put(OPERAND + 8, &BEFORE[1].to_le_bytes());
}

/// # Safety
/// `memory` must stay mapped until `vm` and its processors are closed.
unsafe fn attach_memory(vm: &VmFd, memory: &GuestMemory) -> Result<(), String> {
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY_BYTES as u64,
        userspace_addr: memory.0.addr() as u64,
    };
    // SAFETY: the region is a live, private mapping of `memory_size` bytes; the caller keeps it so.
    unsafe { vm.set_user_memory_region(region) }.map_err(failed("giving the machine memory"))
}

/// Long mode from the first instruction, and the program's constants.
fn set_registers(vcpu: &VcpuFd) -> Result<(), String> {
    let mut special = vcpu.get_sregs().map_err(failed("reading registers"))?;
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..Default::default() };
    special.cs = kvm_segment { selector: 8, type_: 0b1011, l: 1, ..flat };
    for segment in [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss] {
        *segment = kvm_segment { selector: 16, type_: 0b0011, db: 1, ..flat };
    }
    special.cr3 = PML4 as u64;
    special.cr4 = CR4_PHYSICAL_ADDRESS_EXTENSION;
    special.cr0 |= CR0_PROTECTED | CR0_PAGING;
    special.efer = EFER_LONG_MODE_ENABLED | EFER_LONG_MODE_ACTIVE;
    vcpu.set_sregs(&special).map_err(failed("entering long mode"))?;
    let general = kvm_regs {
        rip: CODE as u64,
        rflags: RFLAGS_RESERVED,
        rcx: LOOP_TURNS,
        rsi: OPERAND as u64,
        rax: BEFORE[0],
        rdx: BEFORE[1],
        rbx: AFTER[0],
        r8: AFTER[1],
        ..Default::default()
    };
    vcpu.set_regs(&general).map_err(failed("setting registers"))
}

/// Runs to the halt; right only if the magic value came before it.
fn run(vcpu: &mut VcpuFd) -> Result<(), String> {
    let mut said_magic = false;
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(port, [MAGIC])) if port == u16::from(PORT) => said_magic = true,
            Ok(VcpuExit::IoOut(_, data)) => {
                return Err(format!("guest code computed a wrong result ({data:x?})"));
            }
            Ok(VcpuExit::Hlt) if said_magic => return Ok(()),
            Ok(VcpuExit::Hlt) => return Err("guest code halted before it was done".to_owned()),
            Ok(VcpuExit::InternalError) => {
                return Err(
                    "KVM could not emulate an instruction of guest code (no hardware virtualization)"
                        .to_owned(),
                );
            }
            Ok(exit) => return Err(format!("guest code ended unexpectedly ({exit:?})")),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
            Err(error) => return Err(format!("running guest code failed: {error}")),
        }
    }
}

/// Zeroed, page-aligned memory of [`MEMORY_BYTES`].
struct GuestMemory(*mut u8);

impl GuestMemory {
    fn allocate() -> Result<Self, String> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), MEMORY_BYTES, protection, MapFlags::PRIVATE) };
        address.map(|address| GuestMemory(address.cast())).map_err(failed("allocating guest memory"))
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is MEMORY_BYTES long, initialized to zero, and ours alone while `self` is borrowed: no
        // machine has it before the first `attach_memory`.
        unsafe { std::slice::from_raw_parts_mut(self.0, MEMORY_BYTES) }
    }

    /// The 16 bytes that the guest exchanged.
    fn operand(&self) -> [u64; 2] {
        // SAFETY: inside the mapping and aligned to 16 bytes. Volatile, because the guest wrote it behind the
        // compiler's back; it no longer runs.
        unsafe { self.0.add(OPERAND).cast::<[u64; 2]>().read_volatile() }
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: `allocate` made the mapping with this length, and no borrow of it remains. A
        // failure leaves it mapped, which is harmless.
        let _ = unsafe { munmap(self.0.cast(), MEMORY_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_kvm_probe_selects_emulation() {
        assert!(judge_speed(Duration::from_millis(1_000)).is_ok());
        let refused = judge_speed(Duration::from_millis(1_001)).unwrap_err();
        assert!(refused.contains("1001 ms") && refused.contains("emulation"), "{refused}");
        let before = processor_time();
        let mut sum = 0_u64;
        while processor_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(processor_time() > before);
    }

    #[test]
    fn the_probe_program_has_correct_jump_offsets() {
        // jnz goes back to the first instruction, jz lands on the one that reports success.
        assert_eq!(PROGRAM[4] as i8, -5);
        assert_eq!(PROGRAM[15 + usize::from(PROGRAM[14])..][..2], [0xb0, MAGIC]);
        assert_eq!(OPERAND % 16, 0);
    }

    #[test]
    fn page_tables_identity_map_the_probe_code() {
        let mut memory = GuestMemory::allocate().expect("memory");
        load(memory.as_mut_slice());
        let entry = |at: usize, memory: &mut GuestMemory| {
            let bytes = memory.as_mut_slice()[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes) & !0xfff
        };
        assert_eq!(entry(PML4, &mut memory), PDPT as u64);
        assert_eq!(entry(PDPT, &mut memory), PD as u64);
        assert_eq!(entry(PD, &mut memory), 0);
        assert_eq!(memory.operand(), BEFORE);
    }
}
