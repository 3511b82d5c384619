//! The service that owns a machine or volume.
//!
//! Stored and shown as `app:<id>`, `function:<id>` and so on; this is the one place that writes and reads that form.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{AppId, BuildId, DatabaseId, FunctionId};

/// The resource of a service that a machine or a volume belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// An app: its builds and its instances.
    App(AppId),
    /// A function: its builds and the machines of its pool.
    Function(FunctionId),
    /// A database: its machine and the volume with its data.
    Database(DatabaseId),
    /// The volume of a machine that is about to become a database's.
    NextDatabase(DatabaseId),
    /// The volume of a machine that was a database's until another took over.
    ReplacedDatabase(DatabaseId),
    /// The trial restore of a database's backups.
    Drill(DatabaseId),
    /// A template build: the machines that run its steps and hold its files.
    Build(BuildId),
}

impl Owner {
    /// The kind of service, as error messages name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::App(_) => "app",
            Self::Function(_) => "function",
            Self::Database(_) | Self::NextDatabase(_) | Self::ReplacedDatabase(_) => "database",
            Self::Drill(_) => "drill",
            Self::Build(_) => "template build",
        }
    }

    /// The id within that kind.
    pub fn id(&self) -> &str {
        match self {
            Self::App(id) => id.as_str(),
            Self::Function(id) => id.as_str(),
            Self::Build(id) => id.as_str(),
            Self::Database(id) | Self::NextDatabase(id) | Self::ReplacedDatabase(id) | Self::Drill(id) => {
                id.as_str()
            }
        }
    }

    /// The database whose data the machine has. No user may enter such a machine: root there is the
    /// server's superuser.
    pub fn sealed_for(&self) -> Option<&DatabaseId> {
        match self {
            Self::Database(id) | Self::NextDatabase(id) | Self::ReplacedDatabase(id) | Self::Drill(id) => {
                Some(id)
            }
            Self::App(_) | Self::Function(_) | Self::Build(_) => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::App(id) => write!(f, "app:{id}"),
            Self::Function(id) => write!(f, "function:{id}"),
            Self::Database(id) => write!(f, "database:{id}"),
            Self::NextDatabase(id) => write!(f, "database:{id}:next"),
            Self::ReplacedDatabase(id) => write!(f, "database:{id}:replaced"),
            Self::Drill(id) => write!(f, "drill:{id}"),
            Self::Build(id) => write!(f, "build:{id}"),
        }
    }
}

/// The text names no owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid owner; use a form such as app:<id>")]
pub struct OwnerError(String);

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        let parse = || {
            let (kind, id) = text.split_once(':')?;
            Some(match (kind, id.split_once(':')) {
                ("app", None) => Self::App(id.parse().ok()?),
                ("function", None) => Self::Function(id.parse().ok()?),
                ("build", None) => Self::Build(id.parse().ok()?),
                ("drill", None) => Self::Drill(id.parse().ok()?),
                ("database", None) => Self::Database(id.parse().ok()?),
                ("database", Some((id, "next"))) => Self::NextDatabase(id.parse().ok()?),
                ("database", Some((id, "replaced"))) => Self::ReplacedDatabase(id.parse().ok()?),
                _ => return None,
            })
        };
        parse().ok_or_else(|| OwnerError(text.chars().take(80).collect()))
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
    fn a_resource_owner_round_trips_through_text() {
        for text in [
            "app:a1",
            "function:f",
            "database:d",
            "database:d:next",
            "database:d:replaced",
            "drill:d",
            "build:b",
        ] {
            let owner: Owner = text.parse().unwrap();
            assert_eq!(owner.to_string(), text);
            assert_eq!(serde_json::to_string(&owner).unwrap(), format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Owner>(&format!("\"{text}\"")).unwrap(), owner);
        }
        for bad in ["", "app", "app:", "host:a", "database:d:other", "app:a:next"] {
            assert!(bad.parse::<Owner>().is_err(), "{bad}");
        }
    }

    #[test]
    fn machines_with_database_data_are_sealed() {
        for (text, sealed) in
            [("database:a1", true), ("drill:a1", true), ("app:a1", false), ("function:a1", false)]
        {
            assert_eq!(text.parse::<Owner>().unwrap().sealed_for().is_some(), sealed, "{text}");
        }
    }
}
