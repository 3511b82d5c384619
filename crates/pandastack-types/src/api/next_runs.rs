//! When a schedule runs next.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Next run times of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextRuns {
    /// Times, earliest first.
    #[schema(value_type = Vec<String>)]
    pub items: Vec<Timestamp>,
    /// The same times in the schedule's time zone.
    pub local: Vec<String>,
    /// Time zone of `local`.
    pub timezone: String,
}
