//! Checks of ID tokens (OpenID Connect Core 1.0, section 3.1.3.7).

use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::signature::{Algorithm, Jwk};

/// Claims of a token.
pub(crate) type Claims = Map<String, Value>;

/// Tolerated difference between the provider's clock and ours.
const LEEWAY_SECONDS: f64 = 60.0;

/// Reason why a token was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IdTokenError {
    /// Its key is not among the known ones, which may be outdated.
    UnknownKey,
    /// A check failed.
    Invalid(String),
}

/// The expected audience of an ID token.
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) client_id: &'a str,
    /// In a browser; a device has none.
    pub(crate) nonce: Option<&'a str>,
}

/// The first part of a token. Keys embedded in it are ignored.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// The claims of a token, if all checks pass.
pub(crate) fn verify(token: &str, keys: &[Jwk], expected: &Expected<'_>) -> Result<Claims, IdTokenError> {
    let invalid = |why: &str| IdTokenError::Invalid(format!("the ID token {why}"));
    let broken = || invalid("is not a signed token");
    let (message, signature) = token.rsplit_once('.').ok_or_else(broken)?;
    let (header, payload) = message.split_once('.').ok_or_else(broken)?;
    let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).map_err(|_| broken())?;
    let header: Header = part(header).ok_or_else(broken)?;
    let unknown =
        || invalid(&format!("is signed with the algorithm {:?}, which is not accepted", header.alg));
    let algorithm = Algorithm::named(&header.alg).ok_or_else(unknown)?;
    if header.crit.is_some() {
        return Err(invalid("has an unknown critical extension"));
    }
    let mut fitting =
        keys.iter().filter(|key| key.fits(&header.alg, algorithm, header.kid.as_deref())).peekable();
    if fitting.peek().is_none() {
        return Err(IdTokenError::UnknownKey);
    }
    if !fitting.any(|key| key.signed(algorithm, message.as_bytes(), &signature)) {
        return Err(invalid("has a wrong signature"));
    }
    let claims: Claims = part(payload).ok_or_else(broken)?;
    check(&claims, expected).map_err(invalid)?;
    Ok(claims)
}

fn part<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_slice(&BASE64URL_NOPAD.decode(text.as_bytes()).ok()?).ok()
}

pub(crate) fn check(claims: &Claims, expected: &Expected<'_>) -> Result<(), &'static str> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let time =
        |name: &str| claims.get(name).map(|value| value.as_f64().ok_or("has a time that is not a number"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64());
    if time("exp").ok_or("has no expiry")?? + LEEWAY_SECONDS < now {
        return Err("has expired");
    }
    if time("nbf").transpose()?.is_some_and(|begin| begin > now + LEEWAY_SECONDS) {
        return Err("is not valid yet");
    }
    if text("iss") != Some(expected.issuer) {
        return Err("is from a different issuer");
    }
    let (to_us, several) = match claims.get("aud") {
        Some(Value::String(one)) => (one == expected.client_id, false),
        Some(Value::Array(all)) => (all.iter().any(|one| one == expected.client_id), all.len() > 1),
        _ => (false, false),
    };
    if !to_us {
        return Err("is for a different client");
    }
    match text("azp") {
        Some(party) if party != expected.client_id => return Err("was issued to a different client (`azp`)"),
        None if several => return Err("has several audiences and no authorized party (`azp`)"),
        _ => {}
    }
    if expected.nonce.is_some() && text("nonce") != expected.nonce {
        return Err("is for a different sign-in (`nonce` does not match)");
    }
    match text("sub") {
        None | Some("") => Err("has no subject"),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
