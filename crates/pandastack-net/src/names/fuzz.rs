//! Fuzz targets: first bytes of web connections of guests, and answers of name servers.

use pandastack_types::network::{Ceiling, NetworkPolicy, is_public};

use super::hello::{HelloName, name_in_http, name_in_tls};
use super::resolver::{ADDRESSES_PER_ANSWER_MAX, learn};

/// The first byte selects the split and the protocol. A name found in the first part stays the same
/// with the rest.
pub fn hello(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let name_in = if first & 1 == 0 { name_in_tls } else { name_in_http };
    let whole = name_in(bytes);
    let part = name_in(&bytes[..bytes.len() * usize::from(*first) / 256]);
    assert!(part == HelloName::Unfinished || part == whole, "{part:?}, then {whole:?}");
    if let HelloName::Name(name) = whole {
        assert!(!name.bytes().any(|byte| byte.is_ascii_uppercase()), "{name:?}");
    }
}

/// An answer of a name server. Only public addresses are opened, and no more than the rules hold.
pub fn dns_answer(data: &[u8]) {
    let policy = NetworkPolicy {
        allow: ["a.example".parse(), "*.b.example:443".parse()].into_iter().flatten().collect(),
        deny: ["*.denied.example:25".parse()].into_iter().flatten().collect(),
        ..NetworkPolicy::none()
    };
    for name in ["a.example", "x.b.example", "x.denied.example"] {
        let Some(learned) = learn(&policy, &Ceiling::default(), name, data) else { continue };
        assert!(learned.open.iter().all(|address| is_public(*address)));
        assert!(learned.open.len().max(learned.shut.len()) <= ADDRESSES_PER_ANSWER_MAX);
    }
}
