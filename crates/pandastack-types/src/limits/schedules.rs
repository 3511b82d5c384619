//! Limits of schedules.

/// Schedules of one workspace. Beyond it: 429 `quota_exceeded`.
pub const SCHEDULES_PER_WORKSPACE_MAX: u64 = 1_000;
/// Bytes of a schedule's name. Beyond it: 400 `bad_request`.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 256;
/// Bytes of a cron expression. Beyond it: 400 `bad_request`.
pub const CRON_BYTES_MAX: usize = 256;
/// Longest interval of a schedule. Outside 1 to this: 400 `bad_request`.
pub const SCHEDULE_EVERY_SECONDS_MAX: u64 = 366 * 24 * 3600;
/// Longest jitter. Beyond it: 400 `bad_request`.
pub const SCHEDULE_JITTER_SECONDS_MAX: u64 = 3600;
/// Most retries of a run. Beyond it: 400 `bad_request`.
pub const SCHEDULE_RETRIES_MAX: u32 = 20;
/// Longest first delay of a retry. Outside 1 to this: 400 `bad_request`.
pub const SCHEDULE_RETRY_DELAY_SECONDS_MAX: u64 = 3600;
/// Most missed times that one outage makes good with `run_all`. Outside 1 to this: 400 `bad_request`.
pub const SCHEDULE_MISSED_MAX: u32 = 100;
/// Most times in one preview. Outside 1 to this: 400 `bad_request`.
pub const SCHEDULE_PREVIEW_MAX: u32 = 100;
