//! Keys of layers: a hash of everything that a step's result depends on.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// Changes when steps behave differently for the same Dockerfile.
const FORMAT: &str = "layers 2";

/// The key of a build's base.
pub(crate) fn base(parts: &[&str]) -> String {
    hash(std::iter::once(FORMAT).chain(parts.iter().copied()))
}

/// The key of a step on top of another.
pub(crate) fn step(parent: &str, parts: &[&str]) -> String {
    hash(std::iter::once(parent).chain(parts.iter().copied()))
}

/// Hashes each part with its length, so that `a`, `bc` differs from `ab`, `c`.
fn hash<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    HEXLOWER.encode(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_layer_key() {
        assert_eq!(base(&["base"]), base(&["base"]));
        assert_ne!(base(&["a", "bc"]), base(&["ab", "c"]));
        assert_ne!(step("k", &["RUN a"]), step("k", &["RUN b"]));
        assert_ne!(step("k", &["RUN a"]), step("l", &["RUN a"]));
        assert_eq!(base(&[]).len(), 64);
    }
}
