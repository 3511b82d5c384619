//! Targets for `cargo xtask fuzz`.

use std::fmt::Write as _;

use crate::check::is_env_name;
use crate::dotenv::parse;

/// Round-trips a `.env` file: its variables, written out, parse to the same variables.
pub fn dotenv(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(pairs) = parse(text) else { return };
    let mut written = String::new();
    for pair in &pairs {
        assert!(is_env_name(&pair.key), "{:?}", pair.key);
        assert!((1..=text.len()).contains(&pair.line), "line {}", pair.line);
        let quoted = pair.value.replace('\\', "\\\\").replace('"', "\\\"").replace('\r', "\\r");
        let _ = writeln!(written, "{}=\"{quoted}\"", pair.key);
    }
    let plain = |pairs: &[crate::dotenv::Pair]| {
        pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect::<Vec<_>>()
    };
    let again = parse(&written);
    assert_eq!(again.as_deref().map(plain).ok(), Some(plain(&pairs)), "{written:?}");
}
