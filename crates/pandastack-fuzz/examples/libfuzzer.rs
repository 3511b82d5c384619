//! libFuzzer with the target that [`TARGET`] names: `cargo xtask fuzz` builds and runs it.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pandastack_fuzz::Target;

/// Variable with the name of the target.
const TARGET: &str = "PANDASTACK_FUZZ_TARGET";

static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var(TARGET).unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| panic!("{TARGET}={name:?} names no target"))
});

fuzz_target!(|input: &[u8]| CHOSEN.run(input));
