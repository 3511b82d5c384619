//! Functions over HTTP: `fn-<id>.<domain>`, any method and path, as the AWS function URL's payload 2.0.
//!
//! The `Host` header is checked for a function's host name before the API's own routes. A function
//! that is not public takes the workspace's API key, which the handler does not get to see.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use pandastack_function_proto::{ANSWER_BYTES_MAX, Head, Outcome};
use pandastack_rest::ApiError;
use pandastack_rest::extract::read_body_within;
use pandastack_store::clock::now;
use pandastack_types::api::RunKind;
use pandastack_types::limits::{EVENT_BYTES_MAX, EVENT_SECONDS_MAX};
use pandastack_types::{Error, ErrorCode, FunctionId, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::functions::Functions;
use crate::invoke::{self, InvokeRequest, OngoingCall, Part};
use crate::versions;

/// Prefix of the host name's first label.
const START: &str = "fn-";
/// Content type with which a handler declares that its response begins with a status and headers.
const INTEGRATION: &str = "application/vnd.awslambda.http-integration-response";
/// Separates those from the body.
const PRELUDE_END: [u8; 8] = [0; 8];
/// Bytes of that beginning. Beyond it: 502.
const PRELUDE_BYTES_MAX: usize = 64 * 1024;
/// Headers that belong to a connection.
const HOP_BY_HOP: [&str; 7] =
    ["connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "content-length"];
/// Longest time for a request's body to arrive.
const EVENT_WAIT: Duration = Duration::from_secs(EVENT_SECONDS_MAX);
/// Prefix of an API key.
const KEY_START: &str = "Bearer pds_";

/// The function that a host name names.
fn named(headers: &HeaderMap, uri: &http::Uri) -> Option<(FunctionId, String)> {
    let host = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = host.or_else(|| Some(headers.get(header::HOST)?.to_str().ok()?.to_owned()))?;
    let (label, _) = host.split_once('.')?;
    let id = label.to_ascii_lowercase().strip_prefix(START)?.parse().ok()?;
    Some((id, host))
}

/// Returns whether a request is for a function's host name.
pub fn is_named(headers: &HeaderMap, uri: &http::Uri) -> bool {
    named(headers, uri).is_some()
}

/// URL of a function, as the client reaches this server.
pub(crate) fn address(headers: &HeaderMap, id: &FunctionId) -> Option<String> {
    let host = headers.get(header::HOST)?.to_str().ok()?;
    let (name, port) = host.rsplit_once(':').map_or((host, ""), |(name, port)| (name, port));
    let port = if port.is_empty() { String::new() } else { format!(":{port}") };
    let domain = match name.parse::<IpAddr>() {
        Ok(_) => "localhost",
        Err(_) => name.strip_prefix("api.").unwrap_or(name),
    };
    let secure = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    let scheme = if secure { "https" } else { "http" };
    Some(format!("{scheme}://{START}{id}.{domain}{port}"))
}

/// Layer before the API: requests to a function's host name go to the function.
pub async fn by_host(State(functions): State<Arc<Functions>>, request: Request, next: Next) -> Response {
    match named(request.headers(), request.uri()) {
        Some((id, host)) => match serve(&functions, &id, &host, request).await {
            Ok(response) => response,
            Err(error) => ApiError(error).into_response(),
        },
        None => next.run(request).await,
    }
}

async fn serve(
    functions: &Arc<Functions>,
    id: &FunctionId,
    host: &str,
    request: Request,
) -> Result<Response> {
    let function = functions.cache.to_call_by_id(functions.store.as_ref(), id).await?;
    let (mut parts, body) = request.into_parts();
    let key =
        parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let key = key.filter(|value| value.starts_with(KEY_START));
    if !function.spec.public {
        functions.admission.check_key(key.as_deref(), &function.workspace, &parts.extensions).await?;
    }
    pandastack_edge::strip_keys(&mut parts);
    functions.admission.check_open(&function.workspace).await?;
    functions.admission.check_rate(&function.workspace)?;
    let qualifier = parts.headers.get("x-function-qualifier").and_then(|value| value.to_str().ok());
    let version = versions::version_for(&function, qualifier)?;
    let body = read_body_within(body, EVENT_BYTES_MAX, EVENT_WAIT).await?;
    let mut request = InvokeRequest::new(RunKind::Http, version, Bytes::new());
    let event = event(&parts, &body, id, host, request.id.as_str());
    request.event = serde_json::to_vec(&event).map_err(Error::internal)?.into();
    let ongoing = invoke::begin(functions, &function, request).await?;
    // The call continues to its end even if the client disconnects.
    let owner = Arc::clone(functions);
    functions.core.background.owned(async move { answer(&owner, ongoing).await }).await
}

/// A request as an event.
pub(crate) fn event(parts: &Parts, body: &Bytes, id: &FunctionId, host: &str, request_id: &str) -> Value {
    let domain = host.split(':').next().unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default();
    let (headers, cookies) = headers_of(&parts.headers);
    let at = now();
    let text = |name: &str| headers.get(name).cloned().unwrap_or_default();
    let is_text = std::str::from_utf8(body).is_ok() && !is_binary(&text("content-type"));
    let mut event = json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": parts.uri.path(),
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": id,
            "domainName": domain,
            "domainPrefix": domain.split('.').next().unwrap_or_default(),
            "http": {
                "method": parts.method.as_str(),
                "path": parts.uri.path(),
                "protocol": format!("{:?}", parts.version),
                "sourceIp": source_ip(parts),
                "userAgent": text("user-agent"),
            },
            "requestId": request_id,
            "routeKey": "$default",
            "stage": "$default",
            "time": at.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string(),
            "timeEpoch": at.as_millisecond(),
        },
        "isBase64Encoded": !is_text,
    });
    if let Some(fields) = event.as_object_mut() {
        if !cookies.is_empty() {
            fields.insert("cookies".to_owned(), json!(cookies));
        }
        let parameters = query_parameters(query);
        if !parameters.is_empty() {
            fields.insert("queryStringParameters".to_owned(), json!(parameters));
        }
        if !body.is_empty() {
            let text =
                if is_text { String::from_utf8_lossy(body).into_owned() } else { STANDARD.encode(body) };
            fields.insert("body".to_owned(), Value::String(text));
        }
    }
    event
}

fn is_binary(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let text = kind.is_empty()
        || kind.starts_with("text/")
        || ["json", "xml", "javascript", "x-www-form-urlencoded"].iter().any(|end| kind.ends_with(end));
    !text
}

fn source_ip(parts: &Parts) -> String {
    let client = parts.extensions.get::<pandastack_edge::Client>().map(|client| client.address.to_string());
    client.unwrap_or_else(|| "127.0.0.1".to_owned())
}

/// Headers by small names, repeats joined; cookies apart.
fn headers_of(headers: &HeaderMap) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut plain, mut cookies) = (BTreeMap::<String, String>::new(), Vec::new());
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        if name == header::COOKIE {
            cookies.extend(value.split(';').map(|cookie| cookie.trim().to_owned()));
            continue;
        }
        let known = plain.entry(name.as_str().to_owned());
        known.and_modify(|text| *text = format!("{text},{value}")).or_insert(value);
    }
    (plain, cookies)
}

/// The query by name, repeats joined.
fn query_parameters(query: &str) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::<String, String>::new();
    for (name, value) in ::url::form_urlencoded::parse(query.as_bytes()) {
        let known = parameters.entry(name.into_owned());
        known.and_modify(|text| *text = format!("{text},{value}")).or_insert_with(|| value.into_owned());
    }
    parameters
}

/// The response of a handler.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HandlerResponse {
    status_code: Option<u16>,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
    #[serde(default)]
    cookies: Vec<String>,
    body: Option<Value>,
    #[serde(default)]
    is_base64_encoded: bool,
}

/// Waits for the start of the response; a streaming response is forwarded as it arrives.
async fn answer(functions: &Arc<Functions>, mut ongoing: OngoingCall) -> Result<Response> {
    let mut body = Vec::new();
    loop {
        match ongoing.next().await {
            Ok(Part::Head(head)) if head.streaming => return stream(functions, ongoing, &head).await,
            Ok(Part::Head(_)) => {}
            Ok(Part::Data(part)) if body.len() + part.len() <= ANSWER_BYTES_MAX => {
                body.extend_from_slice(&part);
            }
            Ok(Part::Data(_)) => {
                let error = malformed("it is too large and does not stream");
                ongoing.fail(&error).await;
                return Err(error);
            }
            Ok(Part::End(end)) => {
                let run = ongoing.finish(&end, &body).await;
                return match end.outcome {
                    Outcome::Success => parse_response(&body).map_err(|why| malformed(&why)),
                    Outcome::Timeout => {
                        Err(Error::new(ErrorCode::ExecTimeout, run.error.unwrap_or_default()))
                    }
                    Outcome::Error | Outcome::Crashed => Err(Error::new(
                        ErrorCode::GuestUnavailable,
                        format!("the function failed (run {}); see its log", run.id),
                    )),
                };
            }
            Err(error) => {
                ongoing.fail(&error).await;
                return Err(error);
            }
        }
    }
}

pub(crate) fn malformed(why: &str) -> Error {
    Error::new(ErrorCode::GuestUnavailable, format!("the function's result is not an HTTP response: {why}"))
}

/// An answer that is all there, whether it was streamed (then its content type is known) or not.
pub(crate) fn collected(bytes: &[u8], content_type: &str) -> Result<Response, String> {
    if content_type.is_empty() {
        return parse_response(bytes);
    }
    if content_type != INTEGRATION {
        let headers = [("content-type".to_owned(), Value::String(content_type.to_owned()))].into();
        return begun(&HandlerResponse { headers, ..HandlerResponse::default() }, Body::from(bytes.to_vec()));
    }
    let at = bytes.windows(PRELUDE_END.len()).position(|window| window == PRELUDE_END);
    let (prelude, rest) = bytes.split_at(at.ok_or("it ended before the end of its headers")?);
    let answer: HandlerResponse = serde_json::from_slice(prelude).map_err(|error| error.to_string())?;
    begun(&answer, Body::from(rest.get(PRELUDE_END.len()..).unwrap_or_default().to_vec()))
}

/// An answer of payload 2.0; any other value is 200 with its JSON.
fn parse_response(bytes: &[u8]) -> Result<Response, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if value.get("statusCode").is_none_or(serde_json::Value::is_null) {
        let mut response = match value {
            Value::String(text) => text.into_bytes(),
            _ => bytes.to_vec(),
        }
        .into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Ok(response);
    }
    let answer: HandlerResponse = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let body = match answer.body.clone().unwrap_or_default() {
        Value::Null => Vec::new(),
        Value::String(text) if answer.is_base64_encoded => {
            STANDARD.decode(text).map_err(|error| format!("its body is not base64: {error}"))?
        }
        Value::String(text) => text.into_bytes(),
        other => other.to_string().into_bytes(),
    };
    begun(&answer, Body::from(body))
}

/// A response with status, headers and cookies of an answer.
fn begun(answer: &HandlerResponse, body: Body) -> Result<Response, String> {
    let code = answer.status_code.unwrap_or(200);
    let status = StatusCode::from_u16(code).ok().filter(|status| status.as_u16() >= 200);
    let mut response = Response::new(body);
    *response.status_mut() = status.ok_or_else(|| format!("{code} is not a valid status"))?;
    let headers = response.headers_mut();
    for (name, value) in &answer.headers {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if HOP_BY_HOP.contains(&name.to_ascii_lowercase().as_str()) {
            continue;
        }
        let name = name.parse::<HeaderName>().map_err(|_| format!("`{name}` is not a valid header name"))?;
        let value =
            HeaderValue::from_str(&text).map_err(|_| format!("the header `{name}` has a line break"))?;
        headers.append(name, value);
    }
    for cookie in &answer.cookies {
        let cookie = HeaderValue::from_str(cookie).map_err(|_| "a cookie has a line break".to_owned())?;
        headers.append(header::SET_COOKIE, cookie);
    }
    if !headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    // Other functions and apps have names beside this one.
    pandastack_edge::confine_cookies(headers, false);
    Ok(response)
}

/// Passes an answer on in parts.
async fn stream(functions: &Arc<Functions>, mut ongoing: OngoingCall, head: &Head) -> Result<Response> {
    let mut first = Vec::new();
    let mut answer = HandlerResponse::default();
    if head.content_type == INTEGRATION {
        loop {
            if let Some(at) = first.windows(PRELUDE_END.len()).position(|window| window == PRELUDE_END) {
                let rest = first.split_off(at + PRELUDE_END.len());
                let prelude = first.get(..at).unwrap_or_default();
                answer = serde_json::from_slice(prelude).map_err(|error| malformed(&error.to_string()))?;
                first = rest;
                break;
            }
            let part = ongoing.next().await;
            match part {
                Ok(Part::Data(part)) if first.len() <= PRELUDE_BYTES_MAX => first.extend_from_slice(&part),
                Ok(_) => {
                    let error = malformed("it ended before the end of its headers");
                    ongoing.fail(&error).await;
                    return Err(error);
                }
                Err(error) => {
                    ongoing.fail(&error).await;
                    return Err(error);
                }
            }
        }
    } else {
        answer.headers.insert("content-type".to_owned(), Value::String(head.content_type.clone()));
    }
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(4);
    functions.core.background.tasks.spawn(pass_on(ongoing, first, sender));
    let parts = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|part| (part, receiver))
    });
    begun(&answer, Body::from_stream(parts)).map_err(|why| malformed(&why))
}

async fn pass_on(
    mut ongoing: OngoingCall,
    first: Vec<u8>,
    client: tokio::sync::mpsc::Sender<Result<Bytes, std::io::Error>>,
) {
    let mut part = Some(first);
    loop {
        if let Some(bytes) = part.take().filter(|bytes| !bytes.is_empty()) {
            // A client that went away does not stop the call: it ends by itself, or by its timeout.
            let _ = client.send(Ok(bytes.into())).await;
        }
        match ongoing.next().await {
            Ok(Part::Head(_)) => {}
            Ok(Part::Data(bytes)) => part = Some(bytes),
            Ok(Part::End(end)) => {
                if end.outcome != Outcome::Success {
                    // Abort the body instead of ending it, so that the client notices the failure.
                    let _ = client.send(Err(std::io::Error::other("the function failed"))).await;
                }
                ongoing.finish(&end, &[]).await;
                return;
            }
            Err(error) => {
                let _ = client.send(Err(std::io::Error::other(error.message.clone()))).await;
                ongoing.fail(&error).await;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55";

    fn request(uri: &str, lines: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method("POST").uri(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_function_request_uses_payload_version_2() {
        let lines = [
            ("host", "fn-x.localhost:80"),
            ("cookie", "a=1; b=2"),
            ("x-twice", "1"),
            ("x-twice", "2"),
            ("content-type", "application/json"),
            ("user-agent", "test"),
        ];
        let parts = request("/a%20b/c?q=1&q=2&r=%C3%A9", &lines);
        let event =
            event(&parts, &Bytes::from_static(b"{}"), &ID.parse().unwrap(), "fn-x.localhost:80", "r1");
        assert_eq!(event["version"], "2.0");
        assert_eq!(event["rawPath"], "/a%20b/c");
        assert_eq!(event["rawQueryString"], "q=1&q=2&r=%C3%A9");
        assert_eq!(event["cookies"], json!(["a=1", "b=2"]));
        assert_eq!(event["headers"]["x-twice"], "1,2");
        assert_eq!(event["headers"].get("cookie"), None);
        assert_eq!(event["queryStringParameters"], json!({"q": "1,2", "r": "é"}));
        assert_eq!(event["requestContext"]["http"]["method"], "POST");
        assert_eq!(event["requestContext"]["domainName"], "fn-x.localhost");
        assert_eq!(event["requestContext"]["requestId"], "r1");
        assert_eq!((&event["body"], &event["isBase64Encoded"]), (&json!("{}"), &json!(false)));
    }

    #[test]
    fn a_function_cannot_set_cookies_for_other_domains() {
        let answer = json!({
            "statusCode": 200,
            "headers": {"set-cookie": "a=1; domain=example.com"},
            "cookies": ["session=x; Domain=example.com; Path=/", "own=1; Secure"],
        });
        let response = begun(&serde_json::from_value(answer).unwrap(), Body::empty()).unwrap();
        let cookies: Vec<_> = response.headers().get_all(header::SET_COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1", "session=x; Path=/", "own=1; Secure"]);
    }

    #[test]
    fn binary_bodies_are_base64_encoded() {
        let parts = request("/", &[("content-type", "image/png")]);
        let event = event(&parts, &Bytes::from_static(b"\xff\x00"), &ID.parse().unwrap(), "h", "r");
        assert_eq!((&event["body"], &event["isBase64Encoded"]), (&json!("/wA="), &json!(true)));
    }

    #[test]
    fn function_results_become_responses_unless_malformed() {
        let cookies = br#"{"statusCode":201,"headers":{"x-a":"1","Content-Length":"99"},"cookies":["a=1","b=2"],"body":"aGk=","isBase64Encoded":true}"#;
        let response = parse_response(cookies).unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers().get_all("set-cookie").iter().count(), 2);
        assert_eq!(response.headers().get("content-length"), None);
        assert_eq!(parse_response(b"{\"a\":1}").unwrap().status(), 200);
        assert_eq!(parse_response(b"\"text\"").unwrap().status(), 200);
        for bad in [
            &b"not json"[..],
            br#"{"statusCode":9999}"#,
            br#"{"statusCode":200,"headers":{"a b":"1"}}"#,
            br#"{"statusCode":200,"headers":{"a":"1\n2"}}"#,
            br#"{"statusCode":200,"body":"%%","isBase64Encoded":true}"#,
        ] {
            assert!(parse_response(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn host_names_resolve_to_functions() {
        let headers = |host: &str| HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        let uri = http::Uri::from_static("/");
        let found = |host: &str| named(&headers(host), &uri).map(|(id, _)| id.to_string());
        assert_eq!(found(&format!("fn-{ID}.localhost:8080")).as_deref(), Some(ID));
        assert_eq!(found(&format!("FN-{}.example.com", ID.to_uppercase())).as_deref(), Some(ID));
        assert_eq!(found("localhost:8080"), None);
        assert_eq!(found("fn-.localhost"), None);
        let id: FunctionId = ID.parse().unwrap();
        let url = |host: &str| address(&headers(host), &id).unwrap();
        assert_eq!(url("127.0.0.1:8080"), format!("http://fn-{ID}.localhost:8080"));
        assert_eq!(url("api.example.com"), format!("http://fn-{ID}.example.com"));
    }
}
