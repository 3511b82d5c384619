//! Targets for `cargo xtask fuzz`.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use crate::backend::Backend;
use crate::endpoint::{Endpoint, Listener, split_options};
use crate::errors::{Errors, Piece, code_of, with_hint};
use crate::keyword::keyword;
use crate::limits::{ERROR_BYTES_MAX, RESULT_BYTES_MAX, STARTUP_BYTES_MAX};
use crate::login::{Credentials, Session};
use crate::neon::parse_connection;
use crate::query::{SqlError, row};
use crate::startup::{Packet, read};
use crate::value::{json_of, parameter};
use crate::wire::{Frames, take};

/// Statements whose results are read.
const STATEMENTS: usize = 16;
/// Type of an array of text.
const TEXT_ARRAY: u32 = 1009;

/// The result of work on bytes in memory, which never waits.
fn now<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("bytes in memory never wait"),
    }
}

/// The first packet of a client. Parsing stops at its end, and the server gets the same parameters.
pub fn startup(data: &[u8]) {
    let mut rest = data;
    let packet = now(read(&mut rest));
    assert!(data.len() - rest.len() <= STARTUP_BYTES_MAX + 4);
    let Ok(Packet::Startup(startup)) = packet else { return };
    let written = startup.encode();
    let again = now(read(&mut written.as_ref()));
    let Ok(Packet::Startup(again)) = again else { unreachable!("{startup:?} became {again:?}") };
    assert_eq!((again.parameters, again.newer), (startup.parameters.clone(), None));
    if let Some(answer) = startup.negotiation() {
        let mut answer = BytesMut::from(&answer[..]);
        assert!(matches!(take(&mut answer, STARTUP_BYTES_MAX), Ok(Some((b'v', _)))) && answer.is_empty());
    }
    let options = startup.parameters.get("options").map_or("", String::as_str);
    let (kept, named) = split_options(options);
    assert!(kept.len() <= options.len());
    // The option that was removed does not occur a second time.
    assert!(split_options(&kept).1.is_none(), "{options:?} named {named:?} and kept {kept:?}");
}

fn kinds(stream: &[u8], piece_bytes: usize) -> Vec<(u8, Option<u8>)> {
    let (mut frames, mut kinds) = (Frames::default(), Vec::new());
    for piece in stream.chunks(piece_bytes) {
        frames.pass(piece, |head| kinds.push((head.kind, head.first)));
    }
    kinds
}

/// Whole errors of a stream, and everything in it in its order.
fn cut(stream: &[u8], piece_bytes: usize) -> (Vec<Bytes>, Vec<u8>) {
    let (mut errors, mut found, mut all) = (Errors::default(), Vec::new(), Vec::new());
    for piece in stream.chunks(piece_bytes) {
        for part in errors.cut(piece) {
            match part {
                Piece::Other(bytes) => all.extend_from_slice(bytes),
                Piece::TooLong(bytes) => all.extend_from_slice(&bytes),
                Piece::Error(bytes) => {
                    all.extend_from_slice(&bytes);
                    found.push(bytes);
                }
            }
        }
    }
    (found, all)
}

/// A server's side of a session. The first byte is the size of the pieces: the messages are the same however
/// they are cut, nothing is lost, and an error with a hint is still one message.
pub fn server_stream(data: &[u8]) {
    let Some((piece, stream)) = data.split_first() else { return };
    let (piece, whole) = (usize::from(*piece) + 1, stream.len().max(1));
    assert_eq!(kinds(stream, whole), kinds(stream, piece));
    let (errors, all) = cut(stream, whole);
    assert_eq!((&errors, &all), (&cut(stream, piece).0, &cut(stream, piece).1));
    assert!(stream.starts_with(&all), "bytes were changed on their way");
    assert!(stream.len() - all.len() <= ERROR_BYTES_MAX + 5, "too many bytes are held back");
    for error in errors {
        let _ = code_of(&error);
        let mut hinted = BytesMut::from(&with_hint(&error, "do")[..]);
        let message = take(&mut hinted, 2 * ERROR_BYTES_MAX);
        let Ok(Some((b'E', body))) = message else { unreachable!("{error:?} became {message:?}") };
        assert!(hinted.is_empty() && SqlError::parse(&body).field('H') == Some("do"), "{body:?}");
    }
}

/// A login at a server that is a tenant's machine, and the result of a statement.
pub fn session(data: &[u8]) {
    let stream = |data: &[u8]| {
        let server = std::io::Cursor::new(data.to_vec());
        Backend::uncounted(Box::new(tokio::io::join(server, tokio::io::sink())))
    };
    let credentials = Credentials {
        user: "app".to_owned(),
        password: "secret".to_owned(),
        database: "app".to_owned(),
        parameters: Default::default(),
    };
    let mut session = Session::resumed(stream(data));
    assert!(now(session.log_in(&credentials)).is_err(), "no server here knows the password");
    let _ = now(Session::resumed(stream(data)).read_greeting());
    if let Ok(outcomes) = now(Session::resumed(stream(data)).collect(STATEMENTS)) {
        let rows = outcomes.iter().flat_map(|outcome| &outcome.rows);
        let bytes: usize = rows.flatten().flatten().map(String::len).sum();
        assert!(bytes <= RESULT_BYTES_MAX.min(3 * data.len()));
    }
    let _ = row(Bytes::copy_from_slice(data));
}

/// Values as text. Arrays of text round-trip.
pub fn values(data: &[u8]) {
    let Some((kind, text)) = data.split_first_chunk::<2>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let value = json_of(text, u32::from(u16::from_le_bytes(*kind)));
    let _ = parameter(value);
    let items = Value::Array(text.split('\n').map(Value::from).collect());
    let written = parameter(items.clone()).unwrap_or_default();
    assert_eq!(json_of(&written, TEXT_ARRAY), items, "{written:?}");
}

/// A statement, a connection string and a host name, on a line each.
pub fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.splitn(3, '\n');
    let (host, url, sql) = (lines.next(), lines.next(), lines.next());
    assert!(keyword(sql.unwrap_or_default()).bytes().all(|byte| byte.is_ascii_uppercase()));
    let named = host.and_then(|host| Endpoint::from_host(host, Some("pg.example")));
    let of_url = parse_connection(url.unwrap_or_default(), host, Some("pg.example"));
    for Endpoint { database, listener } in named.into_iter().chain(of_url.map(|(endpoint, _)| endpoint)) {
        assert!(database.len() <= 63 && !database.is_empty());
        let suffix = if listener == Listener::Pooler { "-pooler" } else { "" };
        let again = Endpoint::from_label(&format!("{database}{suffix}"));
        assert_eq!(again, Some(Endpoint { database, listener }));
    }
}
