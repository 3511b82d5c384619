use std::collections::VecDeque;
use std::convert::Infallible;

use futures::stream;
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};

use super::*;

type TestBody = UnsyncBoxBody<Bytes, BodyError>;

/// Script of a guest, one step for every read.
enum Step {
    Say(Vec<u8>),
    Wait,
    Break,
}

/// A guest that follows its script, closes at the end of it, and records its input.
#[derive(Default)]
struct Guest {
    script: VecDeque<Step>,
    told: Vec<u8>,
    /// Longest write that it takes.
    gulp: Option<usize>,
}

impl Guest {
    fn saying(pieces: &[&[u8]]) -> Self {
        let script = pieces.iter().flat_map(|piece| [Step::Wait, Step::Say(piece.to_vec())]).collect();
        Self { script, ..Self::default() }
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut().script.pop_front() {
            None => Poll::Ready(Ok(())),
            Some(Step::Say(bytes)) => {
                buffer.put_slice(&bytes);
                Poll::Ready(Ok(()))
            }
            Some(Step::Break) => Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into())),
            Some(Step::Wait) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Guest {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let guest = self.get_mut();
        let taken = bytes.len().min(guest.gulp.unwrap_or(usize::MAX));
        if taken == 0 {
            return Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()));
        }
        guest.told.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn nothing() -> TestBody {
    Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A body in pieces, of no known length.
fn pieces(pieces: &[&'static str]) -> TestBody {
    let frames: Vec<_> =
        pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes())))).collect();
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

fn head(method: Method) -> Parts {
    Request::builder().method(method).uri("/x").body(()).unwrap().into_parts().0
}

fn client() -> Client {
    Client::new([203, 0, 113, 9].into(), 80, false)
}

/// A whole answer, and whether its connection may be used again.
async fn ask(
    guest: Guest,
    method: Method,
    body: TestBody,
) -> (Result<(u16, String), UpstreamError>, Upstream<Guest, TestBody>) {
    let mut upstream = Upstream::new(guest);
    upstream.begin(&head(method), &client(), body);
    let answer = read_answer(&mut upstream).await;
    (answer, upstream)
}

async fn read_answer(upstream: &mut Upstream<Guest, TestBody>) -> Result<(u16, String), UpstreamError> {
    let response = std::future::poll_fn(|context| upstream.poll_answer(context)).await?;
    let mut text = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| upstream.poll_frame(context)).await {
        if let Ok(data) = frame?.into_data() {
            text.extend_from_slice(&data);
        }
    }
    Ok((response.status().as_u16(), String::from_utf8(text).unwrap()))
}

const LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const CHUNKED: &str =
    "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n";
const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const CLOSED: &str = "HTTP/1.1 200 OK\nX: bare line feeds\n\nhello";

#[tokio::test]
async fn a_response_parses_at_any_split() {
    for (text, status, reusable) in
        [(LENGTH, 200, true), (CHUNKED, 201, true), (INTERIM, 200, true), (CLOSED, 200, false)]
    {
        for at in 0..text.len() {
            let guest = Guest::saying(&[&text.as_bytes()[..at], &text.as_bytes()[at..]]);
            // An empty piece is the end of a connection.
            let guest = if at == 0 { Guest::saying(&[text.as_bytes()]) } else { guest };
            let (answer, upstream) = ask(guest, Method::GET, nothing()).await;
            assert_eq!(answer.unwrap(), (status, "hello".to_owned()), "{text:?} at {at}");
            assert_eq!(upstream.is_reusable(), reusable, "{text:?} at {at}");
        }
        let bytes: Vec<_> = text.as_bytes().chunks(1).collect();
        let (answer, _) = ask(Guest::saying(&bytes), Method::GET, nothing()).await;
        assert_eq!(answer.unwrap(), (status, "hello".to_owned()), "{text:?}");
    }
}

#[tokio::test]
async fn a_truncated_response_is_incomplete() {
    for text in [LENGTH, CHUNKED, INTERIM] {
        for at in 1..text.len() {
            let (answer, upstream) =
                ask(Guest::saying(&[&text.as_bytes()[..at]]), Method::GET, nothing()).await;
            assert!(matches!(answer, Err(UpstreamError::Incomplete)), "{text:?} at {at}: {answer:?}");
            assert!(!upstream.is_reusable());
        }
    }
    let mut guest = Guest::saying(&[CLOSED.as_bytes()]);
    guest.script.push_back(Step::Break);
    let (answer, _) = ask(guest, Method::GET, nothing()).await;
    assert!(matches!(answer, Err(UpstreamError::Incomplete)), "broken is not closed: {answer:?}");
}

#[tokio::test]
async fn closing_before_and_during_a_response_are_distinct_errors() {
    let (answer, _) = ask(Guest::default(), Method::GET, nothing()).await;
    assert!(matches!(answer, Err(UpstreamError::Closed)));
    let mut upstream = Upstream::new(Guest::saying(&[b"HTTP/1.1 100 Continue\r\n\r\n"]));
    upstream.begin(&head(Method::GET), &client(), nothing());
    assert!(matches!(read_answer(&mut upstream).await, Err(UpstreamError::Incomplete)));
}

#[tokio::test]
async fn surplus_response_bytes_prevent_connection_reuse() {
    let check = async |text: &str, reusable| {
        let (answer, upstream) = ask(Guest::saying(&[text.as_bytes()]), Method::GET, nothing()).await;
        assert!(answer.is_ok());
        assert_eq!(upstream.is_reusable(), reusable, "{text:?}");
    };
    check(LENGTH, true).await;
    check(&format!("{LENGTH}\r\n"), false).await;
    check(&format!("{LENGTH}{LENGTH}"), false).await;
    check("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", false).await;
    check("HTTP/1.1 204 No\r\n\r\n", true).await;
}

#[tokio::test]
async fn a_head_response_leaves_the_connection_reusable() {
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    let (answer, upstream) = ask(Guest::saying(&[text.as_bytes()]), Method::HEAD, nothing()).await;
    assert_eq!(answer.unwrap(), (200, String::new()));
    assert!(upstream.is_reusable());
}

#[tokio::test]
async fn an_oversized_response_head_is_rejected() {
    let fits =
        format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: {}\r\n\r\n", "a".repeat(HEAD_BYTES_MAX / 2));
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: {}\r\n\r\n", "a".repeat(HEAD_BYTES_MAX));
    let parts = |text: &str| Guest::saying(&text.as_bytes().chunks(4096).collect::<Vec<_>>());
    assert!(ask(parts(&fits), Method::GET, nothing()).await.0.is_ok());
    let (answer, _) = ask(parts(&long), Method::GET, nothing()).await;
    assert!(matches!(answer, Err(UpstreamError::Malformed(_))), "{answer:?}");
}

#[tokio::test]
async fn bodies_of_unknown_length_are_chunked_despite_short_writes() {
    let mut expect = b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n".to_vec();
    client().write_lines(&http::HeaderValue::from_static(""), &mut expect);
    expect.extend_from_slice(b"\r\n3\r\none\r\n6\r\n,twice\r\n0\r\n\r\n");
    let expect = String::from_utf8(expect).unwrap();
    for gulp in 1..expect.len() {
        let guest = Guest { gulp: Some(gulp), ..Guest::saying(&[LENGTH.as_bytes()]) };
        let (answer, upstream) = ask(guest, Method::POST, pieces(&["one", "", ",twice"])).await;
        assert!(answer.is_ok() && upstream.is_reusable());
        assert_eq!(String::from_utf8_lossy(&upstream.stream.told), expect, "{gulp}");
    }
}

#[tokio::test]
async fn a_guest_that_stops_reading_may_still_respond() {
    let guest = Guest { gulp: Some(0), ..Guest::saying(&[LENGTH.as_bytes()]) };
    let (answer, upstream) = ask(guest, Method::POST, pieces(&["one"])).await;
    assert_eq!(answer.unwrap().1, "hello");
    assert!(!upstream.is_reusable(), "the guest did not get all of the request");
}

#[tokio::test]
async fn a_client_disconnect_ends_the_request() {
    let frames = [Ok(Frame::data(Bytes::from_static(b"one"))), Err(BodyError::from("gone"))];
    let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
    let (answer, upstream) = ask(Guest::saying(&[LENGTH.as_bytes()]), Method::POST, body).await;
    assert!(matches!(answer, Err(UpstreamError::Client(_))), "{answer:?}");
    let told = String::from_utf8_lossy(&upstream.stream.told).into_owned();
    assert!(!upstream.is_reusable() && !told.contains("0\r\n\r\n"), "{told}");
}

#[tokio::test]
async fn a_closed_or_talking_idle_connection_is_detected() {
    let (answer, mut upstream) = ask(Guest::saying(&[LENGTH.as_bytes()]), Method::GET, nothing()).await;
    assert!(answer.is_ok());
    assert!(!upstream.is_silent(), "closed");
    upstream.stream.script = [Step::Wait, Step::Say(b"x".to_vec()), Step::Break].into();
    assert!(upstream.is_silent());
    assert!(!upstream.is_silent(), "says something");
    assert!(!upstream.is_silent(), "broken");
}

#[tokio::test]
async fn bytes_after_an_upgrade_belong_to_the_new_protocol() {
    let text = "HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\nhello";
    let mut upstream = Upstream::new(Guest::saying(&[text.as_bytes()]));
    upstream.begin(&head(Method::GET), &client(), nothing());
    let response = std::future::poll_fn(|context| upstream.poll_answer(context)).await.unwrap();
    assert_eq!(response.status(), 101);
    assert!(!upstream.is_reusable());
    assert_eq!(upstream.into_stream().1, "hello");
}
