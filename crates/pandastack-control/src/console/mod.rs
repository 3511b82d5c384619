//! Signing in to the web console.
//!
//! A session is a random cookie that represents an API key. The server stores its SHA-256 and the
//! key's public part.
//!
//! - The key itself is sent once, to sign in, and is kept by neither browser nor server.
//! - The cookie is `__Host-`, `HttpOnly`, `Secure` and `SameSite=Strict`: no script reads it, and no other
//!   host sets it.
//! - [`guard`] checks each request that has it: only the console's own pages may use it.
//! - A session works where its key works: the key's networks are checked at each use.
//! - A session ends when it is signed out or revoked, when its key is deleted or expires, after
//!   [`UNUSED_HOURS`] without use, and after [`SESSION_DAYS`].

pub(crate) mod events;
mod guard;
pub(crate) mod routes;

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, Uri, header};
use jiff::{SignedDuration, Timestamp};
use pandastack_rest::Caller;
use pandastack_store::Store;
use pandastack_store::clock::now;
use pandastack_store::console::ConsoleSession;
use pandastack_types::{Error, ErrorCode, Result};
use sha2::{Digest, Sha256};

use crate::auth::Keys;

pub(crate) use guard::protect;

/// The cookie's name. `__Host-` makes browsers insist on `Secure`, on the whole host and on no other host.
/// Chromium and Firefox keep such cookies on loopback addresses without TLS, too.
const COOKIE: &str = "__Host-pandastack-console";
/// Random bytes of a cookie.
const SECRET_BYTES: usize = 32;
/// Random bytes of a session's public id.
const ID_BYTES: usize = 8;
/// A session ends after so long, however much it is used.
const SESSION_DAYS: i64 = 7;
/// Time after which an unused session ends.
const UNUSED_HOURS: i64 = 24;
/// Uses are noted at most this often.
const TOUCH_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Length to which a browser's name for itself is cut.
const BROWSER_CHARS_MAX: usize = 200;

/// The secret of the session that a request shows, if any.
pub(crate) fn presented(headers: &HeaderMap) -> Option<&str> {
    cookie_named(headers, COOKIE)
}

/// The value of a cookie.
pub(crate) fn cookie_named<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

/// The caller of a session's request, and the session's id. Refuses requests of other pages.
pub(crate) async fn caller(
    store: &dyn Store,
    keys: &Keys,
    (uri, headers): (&Uri, &HeaderMap),
    secret: &str,
    from: Option<IpAddr>,
) -> Result<(Caller, String)> {
    guard::check(uri, headers)?;
    let (session, at) = (find(store, secret).await?, now());
    if session.last_used_at.checked_add(TOUCH_AFTER).is_ok_and(|due| at >= due) {
        store.touch_console_session(&session.id, at).await?;
    }
    let caller = keys.caller_of(&session.token_prefix, from).await?.ok_or_else(over)?;
    Ok((caller, session.id))
}

/// The session of a cookie.
async fn find(store: &dyn Store, secret: &str) -> Result<ConsoleSession> {
    let (session, at) = (store.console_session(&hash(secret)).await?.ok_or_else(over)?, now());
    if at >= session.expires_at || session.last_used_at < unused_since(at) {
        return Err(over());
    }
    Ok(session)
}

/// Opens a session; returns its cookie.
pub(crate) async fn open(store: &dyn Store, caller: &Caller, browser: &str) -> Result<String> {
    let (secret, id) = (random_hex::<SECRET_BYTES>()?, random_hex::<ID_BYTES>()?);
    let at = now();
    let session = ConsoleSession {
        hash: hash(&secret),
        id,
        workspace: caller.workspace.clone(),
        token_prefix: caller.prefix.clone(),
        browser: browser.chars().take(BROWSER_CHARS_MAX).collect(),
        created_at: at,
        last_used_at: at,
        expires_at: at.checked_add(SignedDuration::from_hours(24 * SESSION_DAYS)).unwrap_or(Timestamp::MAX),
    };
    store.insert_console_session(&session).await?;
    Ok(secret)
}

/// Removes sessions that are over.
pub(crate) async fn prune(store: &dyn Store) -> Result<()> {
    let at = now();
    store.prune_console_sessions(at, unused_since(at)).await?;
    Ok(())
}

fn unused_since(at: Timestamp) -> Timestamp {
    at.checked_sub(SignedDuration::from_hours(UNUSED_HOURS)).unwrap_or(Timestamp::MIN)
}

fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

fn random_hex<const BYTES: usize>() -> Result<String> {
    let mut random = [0_u8; BYTES];
    getrandom::fill(&mut random).map_err(|error| Error::internal(error.to_string()))?;
    Ok(data_encoding::HEXLOWER.encode(&random))
}

/// A cookie that holds a session for its longest life.
pub(crate) fn cookie(secret: &str) -> Result<HeaderValue> {
    let seconds = SESSION_DAYS * 24 * 3600;
    set_cookie(secret, seconds)
}

/// A cookie that takes a session away.
fn no_cookie() -> Result<HeaderValue> {
    set_cookie("", 0)
}

fn set_cookie(value: &str, seconds: i64) -> Result<HeaderValue> {
    let text = format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&text).map_err(Error::internal)
}

fn over() -> Error {
    Error::new(ErrorCode::Unauthorized, "the console session has ended; sign in again")
}
