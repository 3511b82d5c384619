//! The shape of a JSON body: the fields that it may have, and the kinds of their values.
//!
//! The shape comes from the schema of the body's type in the API's description, so every documented
//! field is accepted and no list is kept by hand. Two rules:
//! - A field that no schema names is refused. Where a schema allows any object, every field is accepted.
//! - Serde decides whether a value fits. The schema only supplies the words of the refusal.

use std::any::TypeId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::Value;
use utoipa::ToSchema;

/// Minimum similarity of two names for a suggestion, from 0 to 1: `ttl` is 0.83 like `ttl_seconds`.
const LIKENESS_MIN: f64 = 0.75;
/// Longest text of a request that an error repeats, in characters.
const SHOWN_CHARS_MAX: usize = 60;
/// Deepest nesting of schemas that refer to each other. Beyond it, a value is left to serde.
const NESTING_MAX: usize = 16;

/// Shapes that were needed so far; one per type of body.
static SHAPES: LazyLock<Mutex<HashMap<TypeId, Arc<Shape>>>> = LazyLock::new(Mutex::default);

/// The schema of a body, with the schemas that it refers to.
pub(crate) struct Shape {
    root: Value,
    named: BTreeMap<String, Value>,
}

/// A value of the wrong kind.
pub(crate) struct Mismatch {
    /// Path, in the format of serde's errors: `network.allow[0]`.
    pub path: String,
    /// Describes the expected and the given value.
    pub message: String,
}

impl Shape {
    /// The shape of a type, computed once.
    pub fn of<T: ToSchema + 'static>() -> Arc<Self> {
        let mut shapes = SHAPES.lock().unwrap_or_else(PoisonError::into_inner);
        let shape = shapes.entry(TypeId::of::<T>()).or_insert_with(|| {
            let mut schemas = Vec::new();
            T::schemas(&mut schemas);
            let json = |schema| serde_json::to_value(schema).unwrap_or_default();
            let named = schemas.into_iter().map(|(name, schema)| (name, json(schema)));
            Arc::new(Self { named: named.collect(), root: json(T::schema()) })
        });
        Arc::clone(shape)
    }

    /// The refusal of the first field that the shape does not have.
    pub fn unknown_field(&self, body: &Value) -> Option<String> {
        self.unknown_below("", body, &self.plain(&self.root))
    }

    fn unknown_below(&self, path: &str, value: &Value, schemas: &[&Value]) -> Option<String> {
        match value {
            Value::Object(fields) => {
                let objects: Vec<&Value> =
                    schemas.iter().copied().filter(|schema| has_type(schema, "object")).collect();
                let open = objects.is_empty() || objects.iter().any(|schema| allows_any_field(schema));
                fields.iter().find_map(|(name, value)| {
                    let below = self.field(&objects, name);
                    match below.is_empty() {
                        true if open => None,
                        true => Some(refuse_field(path, name, &objects)),
                        false => self.unknown_below(&joined(path, name), value, &below),
                    }
                })
            }
            Value::Array(values) => {
                let items = self.items(schemas);
                let mut values = values.iter().enumerate();
                values.find_map(|(n, value)| self.unknown_below(&format!("{path}[{n}]"), value, &items))
            }
            _ => None,
        }
    }

    /// Values of the wrong kind, in the order of the body.
    pub fn mismatches(&self, body: &Value) -> Vec<Mismatch> {
        let mut found = Vec::new();
        self.mismatches_below("", body, &self.plain(&self.root), &mut found);
        found
    }

    fn mismatches_below(&self, path: &str, value: &Value, schemas: &[&Value], found: &mut Vec<Mismatch>) {
        if schemas.is_empty() {
            return;
        }
        if !schemas.iter().any(|schema| accepts(schema, value)) {
            let message =
                format!("{path} must be {}, not {}", expected(schemas), describe_value(value, schemas));
            return found.push(Mismatch { path: path.to_owned(), message });
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.mismatches_below(&joined(path, name), value, &self.field(schemas, name), found);
                }
            }
            Value::Array(values) => {
                let items = self.items(schemas);
                for (n, value) in values.iter().enumerate() {
                    self.mismatches_below(&format!("{path}[{n}]"), value, &items, found);
                }
            }
            _ => {}
        }
    }

    /// Schemas without references and alternatives: each remaining one has a type, or allows
    /// anything.
    fn plain<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let mut plain = Vec::new();
        self.add_plain(schema, NESTING_MAX, &mut plain);
        plain
    }

    fn add_plain<'a>(&'a self, schema: &'a Value, nesting: usize, plain: &mut Vec<&'a Value>) {
        let Some(nesting) = nesting.checked_sub(1) else { return };
        if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
            if let Some(schema) = self.named.get(name) {
                self.add_plain(schema, nesting, plain);
            }
            return;
        }
        let parts = ["oneOf", "anyOf", "allOf"].iter().find_map(|of| schema[*of].as_array());
        match parts {
            Some(parts) => parts.iter().for_each(|part| self.add_plain(part, nesting, plain)),
            None => plain.push(schema),
        }
    }

    /// Schemas of a field's value; none for an unknown field.
    fn field<'a>(&'a self, schemas: &[&'a Value], name: &str) -> Vec<&'a Value> {
        let of = |schema: &&'a Value| {
            let named: Option<&'a Value> = schema.get("properties").and_then(|fields| fields.get(name));
            named.or_else(|| schema.get("additionalProperties").filter(|schema| schema.is_object()))
        };
        schemas.iter().filter_map(of).flat_map(|schema| self.plain(schema)).collect()
    }

    fn items<'a>(&'a self, schemas: &[&'a Value]) -> Vec<&'a Value> {
        let items = schemas.iter().filter_map(|schema| schema.get("items"));
        items.filter(|items| items.is_object()).flat_map(|schema| self.plain(schema)).collect()
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The types that a schema allows; none means all.
fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn has_type(schema: &Value, name: &str) -> bool {
    let types = types(schema);
    types.is_empty() || types.contains(&name)
}

fn allows_any_field(schema: &Value) -> bool {
    let additional = &schema["additionalProperties"];
    let unlimited = additional.is_null() || additional.as_bool() == Some(true);
    unlimited && schema.get("properties").is_none()
}

fn accepts(schema: &Value, value: &Value) -> bool {
    let types = types(schema);
    let fits = |name: &str| match (name, value) {
        ("null", Value::Null) | ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => true,
        ("array", Value::Array(_)) | ("object", Value::Object(_)) => true,
        ("integer", Value::Number(number)) => match (number.as_i64(), schema["minimum"].as_i64()) {
            (Some(number), Some(minimum)) => number >= minimum,
            (None, _) => number.is_u64(),
            (Some(_), None) => true,
        },
        ("string", Value::String(_)) => {
            schema["enum"].as_array().is_none_or(|allowed| allowed.contains(value))
        }
        _ => false,
    };
    types.is_empty() || types.into_iter().any(fits)
}

/// Describes the values that the schemas accept: `a positive integer`.
fn expected(schemas: &[&Value]) -> String {
    let mut words: Vec<String> = Vec::new();
    let names: Vec<&str> = enum_names(schemas);
    if !names.is_empty() {
        words.push(format!("one of {}", names.join(", ")));
    }
    for schema in schemas {
        for name in types(schema) {
            let word = match (name, schema["minimum"].as_i64(), schema["format"].as_str()) {
                ("integer", Some(1..), _) => "a positive integer",
                ("integer", Some(0), _) => "a non-negative integer",
                ("integer", ..) => "an integer",
                ("number", ..) => "a number",
                ("boolean", ..) => "true or false",
                ("string", _, Some("date-time")) => "a time such as 2026-01-31T00:00:00Z",
                ("string", ..) if schema["enum"].is_array() => continue,
                ("string", ..) => "a string",
                ("array", ..) => "an array",
                ("object", ..) => "an object",
                _ => continue,
            };
            if !words.iter().any(|known| known == word) {
                words.push(word.to_owned());
            }
        }
    }
    words.join(" or ")
}

fn enum_names<'a>(schemas: &[&'a Value]) -> Vec<&'a str> {
    let lists = schemas.iter().filter_map(|schema| schema["enum"].as_array());
    lists.flatten().filter_map(Value::as_str).collect()
}

/// Describes the given value. Strings are not repeated, because they may be secret, except where a name is
/// expected.
fn describe_value(value: &Value, schemas: &[&Value]) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if !enum_names(schemas).is_empty() => format!("`{}`", shown(text)),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

fn refuse_field(path: &str, name: &str, schemas: &[&Value]) -> String {
    let known = schemas.iter().filter_map(|schema| schema["properties"].as_object());
    let known: Vec<&str> = known.flat_map(|fields| fields.keys().map(String::as_str)).collect();
    let wanted = name.to_ascii_lowercase();
    let likeness = known.iter().map(|known| (strsim::jaro_winkler(&wanted, known), *known));
    let nearest =
        likeness.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness >= LIKENESS_MIN);
    let field = joined(path, &shown(name));
    match nearest {
        Some((_, near)) => format!("unknown field `{field}`; did you mean `{}`?", joined(path, near)),
        None if known.is_empty() => format!("unknown field `{field}`; no field is accepted here"),
        None => format!("unknown field `{field}`; known fields are {}", known.join(", ")),
    }
}
