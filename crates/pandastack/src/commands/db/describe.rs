//! Formats databases.

use pandastack_types::api::{Database, DatabaseStats};

use crate::output::{fields, size};

/// A row of the list.
pub fn row(database: &Database, age: String) -> [String; 5] {
    [
        database.id.to_string(),
        database.name.as_ref().or(database.label.as_ref()).cloned().unwrap_or_else(|| "-".to_owned()),
        database.status.as_str().to_owned(),
        database.size.clone(),
        age,
    ]
}

/// All details of a database.
pub fn details(database: &Database) -> String {
    let mut pairs = vec![
        ("id", database.id.to_string()),
        ("status", database.status.as_str().to_owned()),
        ("size", database.size.clone()),
        ("always on", database.always_on.to_string()),
        ("protected", database.protected.to_string()),
    ];
    pairs.extend(database.name.clone().map(|name| ("name", name)));
    pairs.extend(database.step.clone().map(|step| ("step", step)));
    pairs.extend(database.label.clone().map(|label| ("label", label)));
    pairs.extend(database.cloned_from.as_ref().map(|id| ("copied from", id.to_string())));
    pairs.extend(database.error.clone().map(|error| ("error", error)));
    if let Some(connection) = &database.connection {
        pairs.push(("url", connection.connection_url.clone()));
        pairs.push(("pooled url", connection.pooled_url.clone()));
    }
    fields(&pairs)
}

/// Statistics of a database.
pub fn stats(stats: &DatabaseStats) -> String {
    fields(&[
        ("version", stats.version.clone()),
        ("size", size(stats.size_bytes)),
        ("storage", format!("{} of {}", size(stats.storage_used_bytes), size(stats.storage_bytes))),
        (
            "connections",
            format!("{} of {}, {} active", stats.connections, stats.connections_max, stats.active),
        ),
        ("commits", stats.commits.to_string()),
        ("rollbacks", stats.rollbacks.to_string()),
        ("cache hits", format!("{}%", stats.cache_hit_percent)),
    ])
}
