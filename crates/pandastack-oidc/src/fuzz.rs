//! Targets for `cargo xtask fuzz`.

use data_encoding::BASE64URL_NOPAD;

use crate::id_token::{Claims, Expected, check, verify};
use crate::person::Person;
use crate::signature::Jwk;

const EXPECTED: Expected<'_> =
    Expected { issuer: "https://login.example", client_id: "pandastack", nonce: Some("n") };

/// A provider's keys, then a token, then claims, each on a line. No token is accepted, because no key here
/// ever signed one.
pub fn id_token(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == b'\n').map(|part| std::str::from_utf8(part).unwrap_or(""));
    let (keys, token, claims) = (parts.next(), parts.next(), parts.next());
    let keys: Vec<Jwk> = serde_json::from_str(keys.unwrap_or_default()).unwrap_or_default();
    let token = token.unwrap_or_default();
    assert!(verify(token, &keys, &EXPECTED).is_err());
    // The parts of a token need not be written in base64 to be tried.
    if let [header, payload, signature] = token.split('.').collect::<Vec<_>>().as_slice() {
        let encode = |part: &str| BASE64URL_NOPAD.encode(part.as_bytes());
        let encoded = format!("{}.{}.{signature}", encode(header), encode(payload));
        assert!(verify(&encoded, &keys, &EXPECTED).is_err());
    }
    let Ok(claims) = serde_json::from_str::<Claims>(claims.unwrap_or_default()) else { return };
    let Some(person) = Person::from_claims(EXPECTED.issuer, &claims, "realm_access.roles") else { return };
    assert!(!person.subject.is_empty());
    if check(&claims, &EXPECTED).is_ok() {
        assert_eq!(claims.get("iss").and_then(|issuer| issuer.as_str()), Some(EXPECTED.issuer));
        assert_eq!(claims.get("nonce").and_then(|nonce| nonce.as_str()), EXPECTED.nonce);
    }
}
