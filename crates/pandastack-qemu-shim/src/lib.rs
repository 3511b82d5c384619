//! Preloaded library that lets a stopped emulator process be forked.
