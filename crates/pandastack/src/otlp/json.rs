//! OTLP messages in JSON: <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>.
//! 64-bit numbers are strings and ids are hexadecimal.

use std::collections::HashMap;
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use super::span::Span;

/// `SPAN_KIND_SERVER` and `SPAN_KIND_INTERNAL`.
const SERVER: u32 = 2;
const INTERNAL: u32 = 1;
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u32 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: u32 = 2;
/// Name of the span of a request.
const REQUEST: &str = "request";

fn nanoseconds(at: SystemTime) -> String {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn resource(role: &str) -> Value {
    let system = rustix::system::uname();
    json!({"attributes": [
        text("service.name", &format!("pandastack-{role}")),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("host.name", &system.nodename().to_string_lossy()),
    ]})
}

fn scope() -> Value {
    json!({"name": "pandastack"})
}

/// A message with spans.
pub(super) fn traces(role: &str, spans: &[Span]) -> Value {
    let spans: Vec<_> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{"resource": resource(role), "scopeSpans": [{"scope": scope(), "spans": spans}]}]})
}

fn span(span: &Span) -> Value {
    let attributes: Vec<_> = span.fields.iter().map(|(name, value)| text(name, value)).collect();
    let failed = span.fields.iter().any(|(name, value)| *name == "status" && value.starts_with('5'));
    let mut shown = json!({
        "traceId": HEXLOWER.encode(&span.trace),
        "spanId": HEXLOWER.encode(&span.id),
        "name": span.name,
        "kind": if span.name == REQUEST { SERVER } else { INTERNAL },
        "startTimeUnixNano": nanoseconds(span.began),
        "endTimeUnixNano": nanoseconds(span.ended),
        "attributes": attributes,
        "status": if failed { json!({"code": ERROR}) } else { json!({}) },
    });
    if let Some(parent) = span.parent {
        shown["parentSpanId"] = HEXLOWER.encode(&parent).into();
    }
    shown
}

/// A message with the metrics of a page in the Prometheus text format. Counters and histogram
/// series become sums, all others gauges.
pub(super) fn metrics(role: &str, page: &str, at: SystemTime) -> Value {
    let types: HashMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name, kind.trim()))
        .collect();
    let mut found: Vec<(&str, Vec<Value>)> = Vec::new();
    for (name, labels, value) in page.lines().filter_map(sample) {
        let attributes: Vec<_> = labels.iter().map(|(key, value)| text(key, value)).collect();
        let point = json!({"timeUnixNano": nanoseconds(at), "asDouble": value, "attributes": attributes});
        match found.last_mut().filter(|(last, _)| *last == name) {
            Some((_, points)) => points.push(point),
            None => found.push((name, vec![point])),
        }
    }
    let metric = |(name, points): (&str, Vec<Value>)| match is_sum(name, &types) {
        true => json!({"name": name, "sum": {"dataPoints": points, "isMonotonic": true,
                       "aggregationTemporality": CUMULATIVE}}),
        false => json!({"name": name, "gauge": {"dataPoints": points}}),
    };
    let metrics: Vec<_> = found.into_iter().map(metric).collect();
    json!({"resourceMetrics": [{"resource": resource(role),
           "scopeMetrics": [{"scope": scope(), "metrics": metrics}]}]})
}

fn is_sum(name: &str, types: &HashMap<&str, &str>) -> bool {
    let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|part| name.strip_suffix(part));
    let of_histogram = parts.into_iter().any(|base| types.get(base).is_some_and(|kind| *kind == "histogram"));
    of_histogram || types.get(name).is_some_and(|kind| *kind == "counter")
}

/// Label names and values.
type Labels = Vec<(String, String)>;

/// Name, labels and value of a sample line; `None` for any other line.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let (head, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    let Some((name, labels)) = head.split_once('{') else { return Some((head, Vec::new(), value)) };
    Some((name, parse_labels(labels.strip_suffix('}')?), value))
}

/// Parses `a="b",c="d"`; values may contain commas and escaped quotes.
fn parse_labels(text: &str) -> Labels {
    let (mut labels, mut rest) = (Vec::new(), text);
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut end = after.len();
        let mut characters = after.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                '"' => {
                    end = at + 1;
                    break;
                }
                other => value.push(other),
            }
        }
        labels.push((name.trim_start_matches(',').to_owned(), value));
        rest = after.get(end..).unwrap_or_default();
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_metrics_becomes_sums_and_gauges() {
        let page = "# HELP a requests\n# TYPE a counter\na{route=\"/v1/{id}\",say=\"x, \\\"y\\\"\"} 3\na{route=\"/b\"} 4\n\
                    # TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 0.5\n# TYPE g gauge\ng 1\nnonsense\nbad NaN\n";
        let message = metrics("control", page, SystemTime::UNIX_EPOCH);
        let found = message["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let names: Vec<_> = found.iter().map(|metric| metric["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "h_bucket", "h_sum", "g"]);
        let points = found[0]["sum"]["dataPoints"].as_array().unwrap();
        assert_eq!(points.len(), 2);
        assert_eq!(points[0]["asDouble"], 3.0);
        assert_eq!(points[0]["attributes"][0]["value"]["stringValue"], "/v1/{id}");
        assert_eq!(points[0]["attributes"][1]["value"]["stringValue"], "x, \"y\"");
        assert_eq!(found[1]["sum"]["isMonotonic"], true);
        assert_eq!(found[3]["gauge"]["dataPoints"][0]["asDouble"], 1.0);
    }
}
