//! Destination of the audit log export.
//!
//! | sink | written as |
//! |---|---|
//! | `file:///path` | JSON lines, appended and synced |
//! | `http://...`, `https://...` | JSON lines, a batch each `POST` |
//! | `otlp+http://...`, `otlp+https://...` | OTLP log records in JSON, to `/v1/logs` |

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pandastack_types::InvalidValue;
use pandastack_types::audit::AuditLine;
use serde_json::{Value, json};
use url::Url;

/// Longest time for the receiver to accept a batch.
const SEND_WAIT: Duration = Duration::from_secs(30);
/// Bytes read from the end of a file to find its last line. A line has at most a few kilobytes.
const TAIL_BYTES: u64 = 64 * 1024;

/// A destination of the audit log. A URL may contain a password, which [`std::fmt::Debug`] leaves out.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct AuditSink(Sink);

#[derive(Clone, PartialEq, Eq)]
enum Sink {
    File(PathBuf),
    Http(Url),
    Otlp(Url),
}

impl std::str::FromStr for AuditSink {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (rest, is_otlp) = text.strip_prefix("otlp+").map_or((text, false), |rest| (rest, true));
        let url = Url::parse(rest).map_err(|error| InvalidValue::new(format!("not a URL: {error}")))?;
        match (url.scheme(), is_otlp) {
            ("file", false) => {
                let path = url.to_file_path();
                let path = path.map_err(|()| InvalidValue::new("a file needs an absolute path"))?;
                Ok(Self(Sink::File(path)))
            }
            ("http" | "https", false) => Ok(Self(Sink::Http(url))),
            ("http" | "https", true) => {
                let mut url = url;
                if url.path() == "/" {
                    url.set_path("/v1/logs");
                }
                Ok(Self(Sink::Otlp(url)))
            }
            _ => {
                let expected = "must begin with file://, http://, https://, otlp+http:// or otlp+https://";
                Err(InvalidValue::new(expected))
            }
        }
    }
}

impl TryFrom<String> for AuditSink {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl AuditSink {
    /// The sink as the setting names it, with its password.
    pub fn expose(&self) -> String {
        match &self.0 {
            Sink::File(path) => format!("file://{}", path.display()),
            Sink::Http(url) => url.to_string(),
            Sink::Otlp(url) => format!("otlp+{url}"),
        }
    }

    /// The file that entries are appended to, if it is a file.
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            Sink::File(path) => Some(path),
            Sink::Http(_) | Sink::Otlp(_) => None,
        }
    }

    /// Sends a batch. Fails unless all of it has arrived.
    pub(crate) async fn send(&self, client: &reqwest::Client, lines: &[AuditLine]) -> Result<(), SinkError> {
        match &self.0 {
            Sink::File(path) => {
                let (path, lines) = (path.clone(), lines.to_vec());
                let written = tokio::task::spawn_blocking(move || append(&path, &lines));
                Ok(written.await.map_err(|error| std::io::Error::other(error.to_string()))??)
            }
            Sink::Http(url) => {
                let body = json_lines(lines)?;
                post(client, url, "application/x-ndjson", body).await
            }
            Sink::Otlp(url) => {
                let body = serde_json::to_vec(&log_records(lines)).map_err(std::io::Error::from)?;
                post(client, url, "application/json", body).await
            }
        }
    }
}

impl std::fmt::Debug for AuditSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Sink::File(path) => write!(f, "file://{}", path.display()),
            Sink::Http(url) => write!(f, "http at {}", url.host_str().unwrap_or_default()),
            Sink::Otlp(url) => write!(f, "otlp at {}", url.host_str().unwrap_or_default()),
        }
    }
}

/// Reason why a batch was not delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SinkError {
    #[error("cannot write the file")]
    File(#[from] std::io::Error),
    #[error("cannot call the server")]
    Call(#[from] reqwest::Error),
    #[error("the server answered {0}")]
    Refused(reqwest::StatusCode),
}

async fn post(client: &reqwest::Client, url: &Url, kind: &str, body: Vec<u8>) -> Result<(), SinkError> {
    let request = client.post(url.clone()).header(http::header::CONTENT_TYPE, kind).timeout(SEND_WAIT);
    let status = request.body(body).send().await.map_err(reqwest::Error::without_url)?.status();
    if status.is_success() { Ok(()) } else { Err(SinkError::Refused(status)) }
}

fn json_lines(lines: &[AuditLine]) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut body, line)?;
        body.push(b'\n');
    }
    Ok(body)
}

/// Appends lines that the file does not have yet: a server that ended between the write and its record of it
/// sends them again. A line that was cut by a full disk or a crash is removed first.
fn append(path: &Path, lines: &[AuditLine]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let last = last_id(&mut file)?;
    let new: Vec<_> = lines.iter().filter(|line| line.entry.id > last).cloned().collect();
    file.write_all(&json_lines(&new)?)?;
    file.sync_data()
}

/// The id of the last complete line; 0 if the file has none.
fn last_id(file: &mut File) -> std::io::Result<i64> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let Some(end) = tail.iter().rposition(|byte| *byte == b'\n') else {
        // The file has no complete line; nothing is lost if it is empty.
        if start == 0 {
            file.set_len(0)?;
        }
        return Ok(0);
    };
    file.set_len(start + end as u64 + 1)?;
    let whole = &tail[..end];
    let line = &whole[whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)..];
    let line: AuditLine = serde_json::from_slice(line).map_err(|error| {
        std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("its last line is no entry of an audit log ({error}); name another file"),
        )
    })?;
    Ok(line.entry.id)
}

/// <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>
fn log_records(lines: &[AuditLine]) -> Value {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let records: Vec<Value> = lines
        .iter()
        .map(|line| {
            let AuditLine { workspace, entry, previous, hash } = line;
            let sandbox = entry.sandbox_id.as_ref().map(|id| text("pandastack.sandbox", id.as_str()));
            let attributes = [
                text("pandastack.workspace", workspace.as_str()),
                text("pandastack.audit.id", &entry.id.to_string()),
                text("pandastack.audit.previous", previous),
                text("pandastack.audit.hash", hash),
                text("pandastack.key.prefix", &entry.token_prefix),
                text("pandastack.key.label", &entry.token_label),
                text("pandastack.request_id", &entry.request_id),
                text("http.request.method", &entry.method),
                text("http.route", &entry.route),
                text("url.path", &entry.path),
                text("http.response.status_code", &entry.status.to_string()),
                text("pandastack.took_ms", &entry.took_ms.to_string()),
            ];
            json!({
                "timeUnixNano": entry.at.as_nanosecond().to_string(),
                "severityNumber": 9,
                "severityText": "INFO",
                "body": {"stringValue": format!("{} {} {}", entry.method, entry.path, entry.status)},
                "attributes": attributes.into_iter().chain(sandbox).collect::<Vec<_>>(),
            })
        })
        .collect();
    let resource = json!({"attributes": [text("service.name", "pandastack-control")]});
    let scope = json!({"name": "pandastack.audit"});
    json!({"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": scope, "logRecords": records}]}]})
}

#[cfg(test)]
mod tests {
    use pandastack_types::WorkspaceId;
    use pandastack_types::api::AuditEntry;

    use super::*;

    fn line(id: i64) -> AuditLine {
        let entry = AuditEntry {
            id,
            at: jiff::Timestamp::from_second(1_700_000_000).unwrap(),
            token_prefix: "pds_12345678".to_owned(),
            token_label: "ci".to_owned(),
            method: "POST".to_owned(),
            route: "/v1/run".to_owned(),
            path: "/v1/run".to_owned(),
            sandbox_id: None,
            status: 200,
            request_id: String::new(),
            took_ms: 1,
        };
        let (previous, hash) = (format!("{}", id - 1), id.to_string());
        AuditLine { workspace: WorkspaceId::default_workspace(), entry, previous, hash }
    }

    #[test]
    fn audit_sinks_are_urls_and_hide_their_passwords() {
        for good in
            ["file:///var/log/a", "http://10.0.0.1/x", "https://u:p@e.com/", "otlp+http://c:4318/v1/logs"]
        {
            let sink: AuditSink = good.parse().unwrap();
            assert_eq!(sink.expose(), good);
        }
        for bad in ["", "/var/log/a", "ftp://e.com/", "otlp+file:///a", "file://relative"] {
            assert!(bad.parse::<AuditSink>().is_err(), "{bad}");
        }
        let sink: AuditSink = "https://user:hunter2@e.com/x".parse().unwrap();
        assert!(!format!("{sink:?}").contains("hunter2"), "{sink:?}");
        let sink: AuditSink = "otlp+http://collector:4318".parse().unwrap();
        assert_eq!(sink.expose(), "otlp+http://collector:4318/v1/logs");
    }

    #[test]
    fn the_audit_file_has_no_duplicate_or_partial_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        append(&path, &[line(1), line(2)]).unwrap();
        append(&path, &[line(2), line(3)]).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}{{\"workspace\":\"de")).unwrap();
        append(&path, &[line(3), line(4)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let ids: Vec<i64> =
            text.lines().map(|line| serde_json::from_str::<AuditLine>(line).unwrap().entry.id).collect();
        assert_eq!(ids, [1, 2, 3, 4]);
        std::fs::write(&path, "something else\n").unwrap();
        assert!(append(&path, &[line(1)]).is_err(), "a foreign file is left alone");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "something else\n");
    }

    #[test]
    fn otlp_records_include_the_hash_chain() {
        let shown = log_records(&[line(7)]);
        let record = &shown["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        assert_eq!(record["body"]["stringValue"], "POST /v1/run 200");
        assert_eq!(record["timeUnixNano"], "1700000000000000000");
        let has = |key: &str, value: &str| {
            let all = record["attributes"].as_array().unwrap();
            all.iter().any(|one| one["key"] == key && one["value"]["stringValue"] == value)
        };
        assert!(has("pandastack.audit.hash", "7") && has("pandastack.audit.previous", "6"), "{record}");
    }
}
