//! Signatures of tokens (RFC 7515, 7517 and 7518), checked by `ring`.

use data_encoding::BASE64URL_NOPAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;

/// Use of a key that signs.
const SIGNING: &str = "sig";
/// First byte of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// A public key, as a provider publishes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// An asymmetric signature algorithm. `none` is not accepted, nor are algorithms with a shared
/// secret, which others than the provider know.
#[derive(Clone, Copy)]
pub(crate) enum Algorithm {
    Rsa(&'static RsaParameters),
    Curve { kty: &'static str, crv: &'static str, check: &'static dyn VerificationAlgorithm },
}

impl Algorithm {
    /// The algorithm of a token's header.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let curve = |kty, crv, check| Algorithm::Curve { kty, crv, check };
        Some(match name {
            "RS256" => Algorithm::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Algorithm::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Algorithm::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            "PS256" => Algorithm::Rsa(&RSA_PSS_2048_8192_SHA256),
            "PS384" => Algorithm::Rsa(&RSA_PSS_2048_8192_SHA384),
            "PS512" => Algorithm::Rsa(&RSA_PSS_2048_8192_SHA512),
            "ES256" => curve("EC", "P-256", &ECDSA_P256_SHA256_FIXED),
            "ES384" => curve("EC", "P-384", &ECDSA_P384_SHA384_FIXED),
            "EdDSA" | "Ed25519" => curve("OKP", "Ed25519", &ED25519),
            _ => return None,
        })
    }
}

impl Jwk {
    /// Whether a token with this header can be signed by this key.
    pub(crate) fn fits(&self, name: &str, algorithm: Algorithm, kid: Option<&str>) -> bool {
        let kind = match algorithm {
            Algorithm::Rsa(_) => self.kty == "RSA",
            Algorithm::Curve { kty, crv, .. } => self.kty == kty && self.crv.as_deref() == Some(crv),
        };
        kind && kid.is_none_or(|kid| self.kid.as_deref() == Some(kid))
            && self.alg.as_deref().is_none_or(|own| own == name)
            && self.purpose.as_deref().is_none_or(|purpose| purpose == SIGNING)
    }

    /// Whether a signature is valid under this key.
    pub(crate) fn signed(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let checked = match algorithm {
            Algorithm::Rsa(parameters) => {
                let (Some(n), Some(e)) = (bytes(&self.n), bytes(&self.e)) else { return false };
                // Leading zeros are no part of a number.
                let n: Vec<u8> = n.into_iter().skip_while(|byte| *byte == 0).collect();
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            Algorithm::Curve { kty, check, .. } => {
                let Some(x) = bytes(&self.x) else { return false };
                let key = match (kty, bytes(&self.y)) {
                    ("EC", Some(y)) => [vec![UNCOMPRESSED], x, y].concat(),
                    ("OKP", None) => x,
                    _ => return false,
                };
                UnparsedPublicKey::new(check, key).verify(message, signature)
            }
        };
        checked.is_ok()
    }
}

fn bytes(text: &Option<String>) -> Option<Vec<u8>> {
    BASE64URL_NOPAD.decode(text.as_ref()?.as_bytes()).ok()
}
