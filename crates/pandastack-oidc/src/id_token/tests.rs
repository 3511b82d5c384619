//! Tokens that this test signs itself, one check broken at a time.

use data_encoding::BASE64URL_NOPAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::*;

const EXPECTED: Expected<'_> =
    Expected { issuer: "https://login.example.com", client_id: "panda", nonce: Some("n") };

struct Signer(EcdsaKeyPair);

impl Signer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
    }

    fn jwk(&self, kid: &str) -> Value {
        let point = &self.0.public_key().as_ref()[1..];
        let (x, y) = point.split_at(32);
        let coordinate = |bytes| BASE64URL_NOPAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": kid,
            "x": coordinate(x), "y": coordinate(y)})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }
}

fn keys(keys: &[Value]) -> Vec<Jwk> {
    keys.iter().map(|key| serde_json::from_value(key.clone()).unwrap()).collect()
}

fn message(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    format!("{}.{}", part(header), part(claims))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims() -> Value {
    let now = now();
    json!({"iss": "https://login.example.com", "aud": "panda", "sub": "ada", "nonce": "n",
        "iat": now, "exp": now + 600})
}

/// The usual claims with one changed, or removed by `null`.
fn with(name: &str, value: Value) -> Value {
    let mut changed = claims();
    changed[name] = value;
    changed.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    changed
}

#[test]
fn valid_id_tokens_pass_and_invalid_ones_fail() {
    let signer = Signer::new();
    let keys = keys(&[Signer::new().jwk("older"), signer.jwk("k")]);
    let header = json!({"alg": "ES256", "kid": "k"});
    let verified = verify(&signer.sign(&header, &claims()), &keys, &EXPECTED).unwrap();
    assert_eq!(verified["sub"], "ada");
    let now = now();
    let both = with("aud", json!(["panda", "other"]));
    for (what, claims) in [
        ("expired", with("exp", json!(now - 61))),
        ("no end", with("exp", Value::Null)),
        ("not yet", with("nbf", json!(now + 120))),
        ("foreign issuer", with("iss", json!("https://evil.example.com"))),
        ("issuer with a slash", with("iss", json!("https://login.example.com/"))),
        ("several issuers", with("iss", json!(["https://login.example.com", "x"]))),
        ("no issuer", with("iss", Value::Null)),
        ("another client", with("aud", json!("other"))),
        ("no audience", with("aud", Value::Null)),
        ("several audiences", both.clone()),
        ("issued to another", with("azp", json!("other"))),
        ("wrong nonce", with("nonce", json!("m"))),
        ("no nonce", with("nonce", Value::Null)),
        ("a time in words", with("exp", json!("tomorrow"))),
        ("no subject", with("sub", Value::Null)),
        ("empty subject", with("sub", json!(""))),
    ] {
        let refused = verify(&signer.sign(&header, &claims), &keys, &EXPECTED);
        assert!(matches!(refused, Err(IdTokenError::Invalid(_))), "{what}: {refused:?}");
    }
    let mut party = both;
    party["azp"] = json!("panda");
    assert!(verify(&signer.sign(&header, &party), &keys, &EXPECTED).is_ok());
    // Devices have no nonce.
    let device = Expected { nonce: None, ..EXPECTED };
    assert!(verify(&signer.sign(&header, &with("nonce", Value::Null)), &keys, &device).is_ok());
}

#[test]
fn only_signatures_by_a_provider_key_are_accepted() {
    let signer = Signer::new();
    let keys = keys(&[signer.jwk("k")]);
    let invalid = |token: &str| {
        let refused = verify(token, &keys, &EXPECTED);
        assert!(matches!(refused, Err(IdTokenError::Invalid(_))), "{token}: {refused:?}");
    };
    // Unsigned, in each spelling of `none`.
    for alg in ["none", "None", ""] {
        invalid(&format!("{}.", message(&json!({"alg": alg, "kid": "k"}), &claims())));
    }
    // With a symmetric key: the public one, which everybody has.
    let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, signer.0.public_key().as_ref());
    let text = message(&json!({"alg": "HS256", "kid": "k"}), &claims());
    let tag = ring::hmac::sign(&hmac, text.as_bytes());
    invalid(&format!("{text}.{}", BASE64URL_NOPAD.encode(tag.as_ref())));
    // By a foreign key under the name of a known one, and under its own.
    let header = |kid: &str| json!({"alg": "ES256", "kid": kid});
    invalid(&Signer::new().sign(&header("k"), &claims()));
    let unknown = verify(&Signer::new().sign(&header("mine"), &claims()), &keys, &EXPECTED);
    assert_eq!(unknown, Err(IdTokenError::UnknownKey));
    // A key embedded in the token is ignored.
    let own = Signer::new();
    let mut carried = header("k");
    carried["jwk"] = own.jwk("k");
    invalid(&own.sign(&carried, &claims()));
    // A key for encryption, and an extension that must be understood.
    let mut sealing = signer.jwk("k");
    sealing["use"] = json!("enc");
    let unknown = verify(&signer.sign(&header("k"), &claims()), &self::keys(&[sealing]), &EXPECTED);
    assert_eq!(unknown, Err(IdTokenError::UnknownKey));
    let mut critical = header("k");
    critical["crit"] = json!(["exp"]);
    invalid(&signer.sign(&critical, &claims()));
    // Changed after it was signed.
    let good = signer.sign(&header("k"), &claims());
    let other = signer.sign(&header("k"), &with("sub", json!("eve")));
    let parts: Vec<_> = good.split('.').zip(other.split('.')).collect();
    invalid(&format!("{}.{}.{}", parts[0].0, parts[1].1, parts[2].0));
    for bad in ["", "a", "a.b", "a.b.c", "a.b.c.d"] {
        invalid(bad);
    }
}

#[test]
fn ed25519_signatures_are_verified() {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let x = BASE64URL_NOPAD.encode(pair.public_key().as_ref());
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": x});
    let text = message(&json!({"alg": "EdDSA"}), &claims());
    let token = format!("{text}.{}", BASE64URL_NOPAD.encode(pair.sign(text.as_bytes()).as_ref()));
    assert!(verify(&token, &keys(&[jwk]), &EXPECTED).is_ok());
}
