//! The two forms of an API key.
//!
//! A key is `pds_` and 32 hex digits. Clients of E2B refuse to send keys that do not look like E2B's own,
//! which are `e2b_` and 40 hex digits. So every key has a second form of that shape: its own 32 digits, and
//! 8 digits of a checksum that tell it from a key of E2B.

use std::borrow::Cow;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// The beginning of every API key.
pub const KEY_START: &str = "pds_";
/// The beginning of the form for E2B's clients.
pub const E2B_START: &str = "e2b_";
/// Hex digits of a key.
const KEY_DIGITS: usize = 32;
/// Bytes of the checksum.
const CHECKSUM_BYTES: usize = 4;

/// The form of a key that E2B's clients send; `None` for what is not an API key.
pub fn for_e2b(key: &str) -> Option<String> {
    let digits = key.strip_prefix(KEY_START)?;
    let is_key = digits.len() == KEY_DIGITS && digits.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    is_key.then(|| format!("{E2B_START}{digits}{}", checksum(key)))
}

/// The key itself, given either form. Other text stays as it is.
pub fn canonical(presented: &str) -> Cow<'_, str> {
    let digits = presented.strip_prefix(E2B_START).and_then(|digits| digits.get(..KEY_DIGITS));
    match digits.map(|digits| format!("{KEY_START}{digits}")) {
        Some(key) if for_e2b(&key).as_deref() == Some(presented) => Cow::Owned(key),
        _ => Cow::Borrowed(presented),
    }
}

fn checksum(key: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(key.as_bytes())[..CHECKSUM_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "pds_0123456789abcdef0123456789abcdef";

    #[test]
    fn the_form_for_e2b_stands_for_its_key() {
        let form = for_e2b(KEY).unwrap();
        assert_eq!(form.len(), "e2b_".len() + 40);
        assert!(form["e2b_".len()..].bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(canonical(&form), KEY);
        assert_eq!(canonical(KEY), KEY);
    }

    #[test]
    fn other_text_stands_for_itself() {
        let form = for_e2b(KEY).unwrap();
        let last = if form.ends_with('0') { '1' } else { '0' };
        let wrong = format!("{}{last}", &form[..form.len() - 1]);
        for text in ["", "e2b_", "e2b_é", "hunter2", &wrong, &format!("{form}0"), &form.to_uppercase()] {
            assert_eq!(canonical(text), text);
        }
        for text in ["", "pds_", "pds_01", "pds_0123456789ABCDEF0123456789ABCDEF", &form] {
            assert_eq!(for_e2b(text), None, "{text}");
        }
    }
}
