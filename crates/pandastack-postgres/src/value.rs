//! Values between JSON and PostgreSQL's text.

use serde_json::{Number, Value};

/// Types that have a form of their own in JSON, by number. Their arrays follow.
const BOOL: u32 = 16;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const JSON: u32 = 114;
const FLOAT4: u32 = 700;
const FLOAT8: u32 = 701;
const JSONB: u32 = 3802;

/// Type, its array type, and its name.
const TYPES: &[(u32, u32, &str)] = &[
    (BOOL, 1000, "bool"),
    (17, 1001, "bytea"),
    (18, 1002, "char"),
    (19, 1003, "name"),
    (INT8, 1016, "int8"),
    (INT2, 1005, "int2"),
    (22, 1006, "int2vector"),
    (INT4, 1007, "int4"),
    (24, 1008, "regproc"),
    (TEXT, 1009, "text"),
    (26, 1028, "oid"),
    (27, 1010, "tid"),
    (28, 1011, "xid"),
    (29, 1012, "cid"),
    (30, 1013, "oidvector"),
    (JSON, 199, "json"),
    (142, 143, "xml"),
    (600, 1017, "point"),
    (601, 1018, "lseg"),
    (602, 1019, "path"),
    (604, 1027, "polygon"),
    (628, 629, "line"),
    (650, 651, "cidr"),
    (FLOAT4, 1021, "float4"),
    (FLOAT8, 1022, "float8"),
    (718, 719, "circle"),
    (774, 775, "macaddr8"),
    (790, 791, "money"),
    (829, 1040, "macaddr"),
    (869, 1041, "inet"),
    (1033, 1034, "aclitem"),
    (1042, 1014, "bpchar"),
    (1043, 1015, "varchar"),
    (1082, 1182, "date"),
    (1083, 1183, "time"),
    (1114, 1115, "timestamp"),
    (1184, 1185, "timestamptz"),
    (1186, 1187, "interval"),
    (1266, 1270, "timetz"),
    (1560, 1561, "bit"),
    (1562, 1563, "varbit"),
    (1700, 1231, "numeric"),
    (2205, 2210, "regclass"),
    (2206, 2211, "regtype"),
    (2249, 2287, "record"),
    (2950, 2951, "uuid"),
    (3220, 3221, "pg_lsn"),
    (3614, 3643, "tsvector"),
    (3615, 3645, "tsquery"),
    (JSONB, 3807, "jsonb"),
    (3904, 3905, "int4range"),
    (3906, 3907, "numrange"),
    (3908, 3909, "tsrange"),
    (3910, 3911, "tstzrange"),
    (3912, 3913, "daterange"),
    (3926, 3927, "int8range"),
    (4072, 4073, "jsonpath"),
    (4089, 4090, "regnamespace"),
    (4096, 4097, "regrole"),
    (5069, 271, "xid8"),
];

/// Types without arrays, or whose arrays are written in another way (those of boxes, with `;`).
const OTHER_TYPES: &[(u32, &str)] = &[(194, "pg_node_tree"), (603, "box"), (705, "unknown"), (2278, "void")];

/// Maximum depth of parsed arrays; deeper ones stay text.
const ARRAY_DEPTH_MAX: usize = 6;

/// The type's name, or its number if the type is not a common one.
pub fn type_name(oid: u32) -> String {
    let plain = TYPES.iter().find(|(of, ..)| *of == oid).map(|(.., name)| (*name).to_owned());
    let array = || TYPES.iter().find(|(_, of, _)| *of == oid).map(|(.., name)| format!("{name}[]"));
    let other = || OTHER_TYPES.iter().find(|(of, _)| *of == oid).map(|(_, name)| (*name).to_owned());
    plain.or_else(array).or_else(other).unwrap_or_else(|| oid.to_string())
}

/// A parameter given as JSON, as text. Objects are JSON text, arrays are PostgreSQL's.
pub fn parameter(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        Value::Array(items) => Some(array_text(&items)),
        other => Some(other.to_string()),
    }
}

fn array_text(items: &[Value]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let element = |item: &Value| match item {
        Value::Null => "NULL".to_owned(),
        Value::Array(items) => array_text(items),
        Value::String(text) => quoted(text),
        Value::Object(_) => quoted(&item.to_string()),
        plain => plain.to_string(),
    };
    format!("{{{}}}", items.iter().map(element).collect::<Vec<_>>().join(","))
}

/// A value as JSON: numbers that JSON can hold exactly, booleans, JSON itself and arrays of those; else its text.
pub fn json_of(text: &str, type_oid: u32) -> Value {
    if let Some((element, ..)) = TYPES.iter().find(|(_, array, _)| *array == type_oid) {
        return parse_array(text, *element).unwrap_or_else(|| text.into());
    }
    let as_text = || Value::from(text);
    match type_oid {
        BOOL => Value::Bool(text == "t"),
        INT2 | INT4 => text.parse::<i32>().map_or_else(|_| as_text(), Value::from),
        FLOAT4 | FLOAT8 => {
            let number = text.parse::<f64>().ok().and_then(Number::from_f64);
            number.map_or_else(as_text, Value::Number)
        }
        JSON | JSONB => serde_json::from_str(text).unwrap_or_else(|_| as_text()),
        _ => as_text(),
    }
}

/// `{1,NULL,"a b",{...}}`, perhaps after bounds such as `[0:1]=`.
fn parse_array(text: &str, element: u32) -> Option<Value> {
    let text = match text.starts_with('[') {
        true => text.split_once('=')?.1,
        false => text,
    };
    let mut characters = text.chars().peekable();
    let value = array(&mut characters, element, 1)?;
    characters.next().is_none().then_some(value)
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn array(characters: &mut Characters<'_>, element: u32, depth: usize) -> Option<Value> {
    if characters.next()? != '{' || depth > ARRAY_DEPTH_MAX {
        return None;
    }
    let mut items = Vec::new();
    if characters.next_if_eq(&'}').is_some() {
        return Some(Value::Array(items));
    }
    loop {
        items.push(match characters.peek()? {
            '{' => array(characters, element, depth + 1)?,
            '"' => json_of(&quoted(characters)?, element),
            _ => match plain(characters).as_str() {
                "NULL" => Value::Null,
                text => json_of(text, element),
            },
        });
        match characters.next()? {
            ',' => {}
            '}' => return Some(Value::Array(items)),
            _ => return None,
        }
    }
}

fn quoted(characters: &mut Characters<'_>) -> Option<String> {
    characters.next();
    let mut text = String::new();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            other => text.push(other),
        }
    }
}

fn plain(characters: &mut Characters<'_>) -> String {
    let mut text = String::new();
    while let Some(other) = characters.next_if(|c| !matches!(c, ',' | '}')) {
        match other {
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn postgres_values_become_json() {
        for (text, oid, expect) in [
            ("t", BOOL, json!(true)),
            ("-7", INT4, json!(-7)),
            ("9007199254740993", INT8, json!("9007199254740993")),
            ("1.5", FLOAT8, json!(1.5)),
            ("NaN", FLOAT8, json!("NaN")),
            ("1.50", 1700, json!("1.50")),
            (r#"{"a":[1]}"#, JSONB, json!({"a": [1]})),
            ("2026-01-01", 1082, json!("2026-01-01")),
            ("{1,NULL,3}", 1007, json!([1, null, 3])),
            ("{}", 1007, json!([])),
            ("{{1,2},{3,4}}", 1007, json!([[1, 2], [3, 4]])),
            ("[0:1]={1,2}", 1007, json!([1, 2])),
            (r#"{"a b","c\"d",NULL,"NULL"}"#, 1009, json!(["a b", "c\"d", null, "NULL"])),
            ("{1,", 1007, json!("{1,")),
        ] {
            assert_eq!(json_of(text, oid), expect, "{text}");
        }
        let deep = format!("{}1{}", "{".repeat(100_000), "}".repeat(100_000));
        assert_eq!(json_of(&deep, 1007), json!(deep));
    }

    #[test]
    fn json_parameters_become_postgres_text() {
        for (value, expect) in [
            (json!(null), None),
            (json!("x"), Some("x")),
            (json!(5), Some("5")),
            (json!(true), Some("true")),
            (json!({"a": 1}), Some(r#"{"a":1}"#)),
            (json!([1, "b\"c", null, [2]]), Some(r#"{1,"b\"c",NULL,{2}}"#)),
            (json!([{"a": 1}]), Some(r#"{"{\"a\":1}"}"#)),
        ] {
            assert_eq!(parameter(value.clone()).as_deref(), expect, "{value}");
        }
    }

    #[test]
    fn postgres_type_names_are_found_by_oid() {
        for (oid, name) in [
            (23, "int4"),
            (1007, "int4[]"),
            (19, "name"),
            (1003, "name[]"),
            (2278, "void"),
            (603, "box"),
            (99, "99"),
        ] {
            assert_eq!(type_name(oid), name);
        }
        // A duplicate number would give the second type the name of the first.
        let mut all: Vec<u32> = TYPES.iter().flat_map(|(of, array, _)| [*of, *array]).collect();
        all.extend(OTHER_TYPES.iter().map(|(of, _)| *of));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    }
}
