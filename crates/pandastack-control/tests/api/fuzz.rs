//! Nonsense for every operation of the API's own description: it is refused in our form, and never with a 500.
//!
//! Proptest chooses an operation, what stands in its path and query, and a body of the operation's
//! own field names with values that do not belong there; a failure is shown as small as it can be
//! made. Failures found this way are also in `input.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use pandastack_control::openapi_json;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use reqwest::{Method, RequestBuilder};
use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use crate::harness::World;

const CASES: u32 = 600;
/// Longest wait for the beginning of an answer. A call that waits longer found something to do.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// An operation of the description.
#[derive(Debug, Clone)]
struct Operation {
    method: String,
    path: String,
    query: Vec<String>,
    fields: Vec<String>,
}

/// Every operation. Those of health are left out: they take nothing.
fn operations() -> Vec<Operation> {
    let api: Value = serde_json::from_str(&openapi_json()).unwrap();
    let mut found = Vec::new();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap().iter().filter(|_| path.starts_with("/v1/")) {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let query = parameters.iter().filter(|parameter| parameter["in"] == "query");
            let query = query.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect();
            let mut fields = BTreeSet::new();
            collect_fields(&api, &operation["requestBody"], &mut fields, 0);
            let fields = fields.into_iter().collect();
            found.push(Operation { method: method.to_uppercase(), path: path.clone(), query, fields });
        }
    }
    found
}

/// Names of fields, at any depth.
fn collect_fields(api: &Value, schema: &Value, into: &mut BTreeSet<String>, depth: u32) {
    if depth > 6 {
        return;
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        collect_fields(api, &api["components"]["schemas"][name], into, depth + 1);
    }
    if let Some(properties) = schema["properties"].as_object() {
        into.extend(properties.keys().cloned());
    }
    for inner in schema.as_object().into_iter().flat_map(Map::values) {
        collect_fields(api, inner, into, depth + 1);
        for item in inner.as_array().into_iter().flatten() {
            collect_fields(api, item, into, depth + 1);
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    let known = select(vec![
        "",
        " ",
        "-1",
        "0",
        "1e999",
        "null",
        "..",
        "../../etc/passwd",
        "/",
        "a\0b",
        "\u{feff}",
        "%00",
        "true",
        "99999999999999999999",
        "00000000-0000-4000-8000-000000000000",
        "base",
        "* * * * *",
        "\u{1f43c}",
        "'; --",
    ]);
    prop_oneof![
        4 => known.prop_map(str::to_owned),
        1 => any::<String>(),
        1 => (1000_usize..20_000).prop_map(|length| "x".repeat(length)),
    ]
}

fn json(fields: Vec<String>) -> impl Strategy<Value = Value> {
    let number = prop_oneof![any::<i64>().prop_map(Value::from), any::<f64>().prop_map(Value::from)];
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        3 => number,
        4 => text().prop_map(Value::from),
    ];
    let names = if fields.is_empty() { vec!["name".to_owned()] } else { fields };
    leaf.prop_recursive(3, 24, 4, move |inner| {
        let pair = (select(names.clone()), inner.clone());
        prop_oneof![
            1 => proptest::collection::vec(inner, 0..4).prop_map(Value::from),
            4 => proptest::collection::vec(pair, 0..6).prop_map(|pairs| Value::from(Map::from_iter(pairs))),
        ]
    })
}

/// A request of an operation.
#[derive(Debug, Clone)]
struct FuzzRequest {
    operation: Operation,
    /// In the place of each name in the path: that, or the sandbox that there is.
    names: Vec<Option<String>>,
    query: Vec<(String, String)>,
    body: Option<Result<Value, Vec<u8>>>,
}

fn invalid_request() -> impl Strategy<Value = FuzzRequest> {
    select(operations()).prop_flat_map(|operation| {
        let names = proptest::collection::vec(proptest::option::weighted(0.4, text()), 4);
        let query_names =
            if operation.query.is_empty() { vec!["q".to_owned()] } else { operation.query.clone() };
        let query = proptest::collection::vec((select(query_names), text()), 0..4);
        let body = prop_oneof![
            6 => json(operation.fields.clone()).prop_map(|value| Some(Ok(value))),
            1 => proptest::collection::vec(any::<u8>(), 0..64).prop_map(|bytes| Some(Err(bytes))),
            1 => Just(None),
        ];
        (Just(operation), names, query, body).prop_map(|(operation, names, query, body)| FuzzRequest {
            operation,
            names,
            query,
            body,
        })
    })
}

impl FuzzRequest {
    fn request(&self, world: &World, sandbox: &str) -> RequestBuilder {
        let mut names = self.names.iter();
        let segments = self.operation.path.split('/').map(|segment| match segment.starts_with('{') {
            false => segment.to_owned(),
            true => {
                let name = names.next().cloned().flatten().unwrap_or_else(|| sandbox.to_owned());
                let safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                name.bytes()
                    .map(
                        |byte| if safe(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") },
                    )
                    .collect()
            }
        });
        let path = segments.collect::<Vec<_>>().join("/");
        let method = Method::from_bytes(self.operation.method.as_bytes()).unwrap();
        let request = world.request(method, &path).query(&self.query);
        match &self.body {
            None => request,
            Some(Ok(value)) => request.json(value),
            Some(Err(bytes)) => request.header("content-type", "application/json").body(bytes.clone()),
        }
    }

    /// Sends the request; returns the problem with the answer.
    async fn check(&self, world: &World, sandbox: &str) -> Result<(), String> {
        let Ok(sent) = tokio::time::timeout(ANSWER_MAX, self.request(world, sandbox).send()).await else {
            return Ok(());
        };
        let response = match sent {
            Ok(response) => response,
            // Not sent: for example, too long for a URL.
            Err(error) if error.is_builder() => return Ok(()),
            Err(error) => return Err(format!("no answer: {error:?}")),
        };
        let status = response.status().as_u16();
        if status < 400 {
            return Ok(());
        }
        let body: Value = response.json().await.map_err(|error| format!("{status} without JSON: {error}"))?;
        let ours = body["error"].is_string() && body["code"].is_string() && body["request_id"].is_string();
        match status {
            500 => Err(format!("500: {body}")),
            _ if !ours => Err(format!("{status} in another form: {body}")),
            _ => Ok(()),
        }
    }
}

#[test]
fn invalid_requests_get_well_formed_errors() {
    let runtime = Runtime::new().unwrap();
    let (world, agent) = runtime.block_on(async {
        let world = World::start_with(|config| config.requests_per_second = None).await;
        let agent = world.agent("host-a", 1 << 20).await;
        (world, agent)
    });
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let sandbox = runtime.block_on(world.create());
    let outcome = runner.run(&invalid_request(), |request| {
        runtime.block_on(request.check(&world, &sandbox)).map_err(TestCaseError::fail)
    });
    drop(agent);
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
