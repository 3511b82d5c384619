//! Secrets and signatures, as <https://www.standardwebhooks.com> defines them, so that receivers can verify
//! deliveries with an existing library.

use data_encoding::BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use pandastack_store::webhooks::WebhookSpecRecord;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Marks a text as a secret of a webhook.
const PREFIX: &str = "whsec_";
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The system gives no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("no random bytes are available")]
pub(crate) struct NoRandom;

/// A new secret.
pub(crate) fn new_secret() -> Result<String, NoRandom> {
    let mut bytes = [0; SECRET_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(format!("{PREFIX}{}", BASE64.encode(&bytes)))
}

/// Headers of an attempt at that time. While a replaced secret is valid, the body is signed with both.
pub(crate) fn headers(spec: &WebhookSpecRecord, event: &str, at: Timestamp, body: &str) -> HeaderMap {
    let seconds = at.as_second().to_string();
    let previous = spec.previous.as_ref().filter(|previous| at < previous.until);
    let secrets = std::iter::once(&spec.secret).chain(previous.map(|previous| &previous.secret));
    let signatures: Vec<String> = secrets.map(|secret| sign(secret, event, &seconds, body)).collect();
    let values = [
        ("webhook-id", event.to_owned()),
        ("webhook-timestamp", seconds),
        ("webhook-signature", signatures.join(" ")),
    ];
    // Ids are letters and digits, and signatures base64.
    let header = |(name, text): (&'static str, String)| {
        Some((HeaderName::from_static(name), HeaderValue::from_str(&text).ok()?))
    };
    values.into_iter().filter_map(header).collect()
}

fn sign(secret: &str, event: &str, seconds: &str, body: &str) -> String {
    let text = secret.strip_prefix(PREFIX).unwrap_or(secret);
    let key = BASE64.decode(text.as_bytes()).unwrap_or_else(|_| text.as_bytes().to_vec());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let tag = hmac::sign(&key, format!("{event}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64.encode(tag.as_ref()))
}

#[cfg(test)]
mod tests {
    use pandastack_store::webhooks::PreviousSecret;

    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const EVENT: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &str = r#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn at() -> Timestamp {
        Timestamp::from_second(1_614_265_330).unwrap()
    }

    /// The example of the specification.
    #[test]
    fn signatures_follow_the_specification() {
        let spec = WebhookSpecRecord { secret: SECRET.to_owned(), ..WebhookSpecRecord::default() };
        let headers = headers(&spec, EVENT, at(), BODY);
        let value = |name: &str| headers.get(name).unwrap().to_str().unwrap();
        assert_eq!(value("webhook-id"), EVENT);
        assert_eq!(value("webhook-timestamp"), "1614265330");
        assert_eq!(value("webhook-signature"), SIGNATURE);
    }

    #[test]
    fn a_replaced_secret_signs_until_its_end() {
        let until = at();
        let previous = Some(PreviousSecret { secret: SECRET.to_owned(), until });
        let spec =
            WebhookSpecRecord { secret: new_secret().unwrap(), previous, ..WebhookSpecRecord::default() };
        let signatures = |seconds: i64| {
            let at = Timestamp::from_second(until.as_second() + seconds).unwrap();
            let headers = headers(&spec, EVENT, at, BODY);
            headers["webhook-signature"].to_str().unwrap().split(' ').count()
        };
        assert_eq!((signatures(-1), signatures(0)), (2, 1));
    }

    #[test]
    fn secrets_are_random_and_long() {
        let (one, other) = (new_secret().unwrap(), new_secret().unwrap());
        assert_ne!(one, other);
        let bytes = BASE64.decode(one.strip_prefix(PREFIX).unwrap().as_bytes()).unwrap();
        assert_eq!(bytes.len(), SECRET_BYTES);
    }
}
