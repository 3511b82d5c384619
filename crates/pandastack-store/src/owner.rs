//! The service that a machine or volume belongs to.

use std::fmt;
use std::str::FromStr;

use pandastack_types::{AppId, DatabaseId, FunctionId, IdError};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The service that owns a machine or volume, which users neither list nor delete.
///
/// Stored as text, such as `app:<id>`: [`Display`](fmt::Display) and [`FromStr`] are the only places that know the
/// format.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// An app: `app:<id>`.
    App(AppId),
    /// A function: `function:<id>`.
    Function(FunctionId),
    /// A database: `database:<id>`.
    Database(DatabaseId),
    /// The copy of a database that is about to take over in a failover: `database:<id>:next`. Volumes only.
    NextDatabase(DatabaseId),
    /// What a failover of a database replaced: `database:<id>:replaced`. Volumes only.
    ReplacedDatabase(DatabaseId),
    /// A trial restore of a database: `drill:<id>`.
    Drill(DatabaseId),
}

impl Owner {
    /// The kind of service, as error messages name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::App(_) => "app",
            Self::Function(_) => "function",
            Self::Database(_) | Self::NextDatabase(_) | Self::ReplacedDatabase(_) => "database",
            Self::Drill(_) => "drill",
        }
    }

    /// The id within that kind.
    pub fn id(&self) -> &str {
        match self {
            Self::App(id) => id.as_str(),
            Self::Function(id) => id.as_str(),
            Self::Database(id) | Self::NextDatabase(id) | Self::ReplacedDatabase(id) | Self::Drill(id) => {
                id.as_str()
            }
        }
    }

    /// The suffix that tells owners of one kind and id apart.
    fn suffix(&self) -> &'static str {
        match self {
            Self::NextDatabase(_) => ":next",
            Self::ReplacedDatabase(_) => ":replaced",
            Self::App(_) | Self::Function(_) | Self::Database(_) | Self::Drill(_) => "",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.kind(), self.id(), self.suffix())
    }
}

/// Text that names no owner.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The kind of service is unknown.
    #[error("`{0}` does not name a service")]
    UnknownKind(String),
    /// The id is malformed.
    #[error(transparent)]
    Id(#[from] IdError),
}

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        let unknown = || OwnerError::UnknownKind(text.chars().take(80).collect());
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let (id, role) = rest.split_once(':').map_or((rest, None), |(id, role)| (id, Some(role)));
        Ok(match (kind, role) {
            ("app", None) => Self::App(id.parse()?),
            ("function", None) => Self::Function(id.parse()?),
            ("database", None) => Self::Database(id.parse()?),
            ("database", Some("next")) => Self::NextDatabase(id.parse()?),
            ("database", Some("replaced")) => Self::ReplacedDatabase(id.parse()?),
            ("drill", None) => Self::Drill(id.parse()?),
            _ => return Err(unknown()),
        })
    }
}

impl Serialize for Owner {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Owner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_keep_their_text() {
        for text in
            ["app:a1", "function:a1", "database:a1", "database:a1:next", "database:a1:replaced", "drill:a1"]
        {
            let owner: Owner = text.parse().unwrap();
            assert_eq!((owner.to_string().as_str(), owner.id()), (text, "a1"));
            let json = serde_json::to_string(&owner).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Owner>(&json).unwrap(), owner);
        }
    }

    #[test]
    fn other_text_names_no_owner() {
        for text in
            ["", "app", "app:", "app:A", "app:a1:next", "drill:a1:replaced", "database:a1:next:next", "x:a1"]
        {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
    }
}
