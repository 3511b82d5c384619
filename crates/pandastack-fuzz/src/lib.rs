//! Fuzz targets: one for every parser of bytes that a tenant, a guest, a client or another server chose.
//!
//! A target is a function of bytes that panics when something does not hold. `cargo xtask fuzz` drives it
//! with libFuzzer, which sees the branches that an input takes. Every run of the tests replays the corpora,
//! with the inputs that once found something.
//!
//! Must hold for every target:
//! - No input makes it panic, hang, or hold more memory than [`Target::memory_max`] allows.
//! - It checks more than that where there is something to compare with: the same bytes in other pieces, what
//!   was read written and read again, another function that must agree.
//!
//! Targets of private parsers are in the parsers' crates, behind their feature `fuzz`.

mod memory;
mod targets;

pub use targets::TARGETS;

/// A parser under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name, also of its corpus.
    pub name: &'static str,
    /// Parses; panics when something does not hold.
    pub parse: fn(&[u8]),
    /// Longest input that is worth trying.
    pub input_bytes_max: usize,
    /// Memory that it may hold at once besides [`Target::memory_per_byte`].
    pub memory_bytes: usize,
    /// Memory that it may hold at once for each byte of the input.
    pub memory_per_byte: usize,
}

impl Target {
    /// The target of this name.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Limit of the memory that a target may hold at once, for an input of `input_bytes`.
    pub fn memory_max(&self, input_bytes: usize) -> usize {
        self.memory_bytes + input_bytes * self.memory_per_byte
    }

    /// Parses an input.
    ///
    /// # Panics
    /// When something does not hold.
    pub fn run(&self, input: &[u8]) {
        let peak = memory::peak_of(|| (self.parse)(input));
        let (name, max) = (self.name, self.memory_max(input.len()));
        assert!(peak <= max, "{name} held {peak} bytes for an input of {}, more than {max}", input.len());
    }
}
