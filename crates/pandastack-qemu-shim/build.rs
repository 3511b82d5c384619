//! Declares the one switch of this crate: `pandastack_preload` turns it into the library that is preloaded.
//!
//! A cfg and not a feature, because features are switched on by others (`--all-features`, unification), and then the
//! exported `open` and `mmap` would end up inside programs that only wanted the protocol types.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(pandastack_preload)");
    println!("cargo::rerun-if-changed=build.rs");
}
