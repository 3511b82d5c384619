//! Points in time that a database is restored to.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::InvalidValue;

/// Point in time to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RestorePoint {
    /// Everything that was committed: `latest` or `now`.
    Latest,
    /// The state at a time.
    At(Timestamp),
}

impl std::str::FromStr for RestorePoint {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "latest" | "now" => Ok(Self::Latest),
            _ => text
                .parse()
                .map(Self::At)
                .map_err(|_| InvalidValue::new("expected a time such as 2026-01-31T12:00:00Z, or latest")),
        }
    }
}

impl TryFrom<String> for RestorePoint {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<RestorePoint> for String {
    fn from(point: RestorePoint) -> String {
        match point {
            RestorePoint::Latest => "latest".to_owned(),
            RestorePoint::At(at) => at.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CloneDatabase;

    #[test]
    fn a_restore_point_is_a_time_or_the_latest() {
        let of = |text: &str| {
            let body = format!(r#"{{"target_time":{text}}}"#);
            serde_json::from_str::<CloneDatabase>(&body).map(|request| request.target_time)
        };
        assert_eq!(of("\"latest\"").unwrap(), Some(RestorePoint::Latest));
        assert_eq!(of("\"now\"").unwrap(), Some(RestorePoint::Latest));
        let at = "2026-01-31T12:00:00Z".parse().unwrap();
        assert_eq!(of("\"2026-01-31T12:00:00Z\"").unwrap(), Some(RestorePoint::At(at)));
        assert_eq!(of("null").unwrap(), None);
        assert!(of("\"yesterday\"").unwrap_err().to_string().contains("or latest"));
        assert_eq!(String::from(RestorePoint::At(at)), "2026-01-31T12:00:00Z");
    }
}
