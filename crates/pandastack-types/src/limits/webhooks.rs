//! Limits of webhooks.

/// Webhooks of one workspace. Beyond it: 429 `quota_exceeded`.
pub const WEBHOOKS_PER_WORKSPACE_MAX: u64 = 20;
/// Bytes of a webhook's description. Beyond it: 400 `bad_request`.
pub const WEBHOOK_DESCRIPTION_BYTES_MAX: usize = 256;
/// Kinds of events that a webhook names. Beyond it: 400 `bad_request`.
pub const WEBHOOK_EVENTS_MAX: usize = 32;
/// Deliveries of one webhook that wait for their next attempt. Beyond it events are not sent to it,
/// and a test message is refused with 429 `quota_exceeded`.
pub const WEBHOOK_PENDING_MAX: u32 = 2_000;
/// Deliveries of one webhook that are kept after their end. Beyond it the oldest are removed,
/// within a minute.
pub const WEBHOOK_DELIVERIES_KEPT: u32 = 1_000;
/// Bytes of metadata in an event for webhooks. Beyond it the event has none.
pub const WEBHOOK_METADATA_BYTES_MAX: usize = 4 * 1024;
/// Attempts of one delivery, over about a day. After the last one it has failed; it can be repeated by hand.
pub const WEBHOOK_ATTEMPTS_MAX: u32 = 10;
/// Days after which a webhook that never accepted a delivery in between is disabled.
pub const WEBHOOK_FAILING_DAYS_MAX: i64 = 3;
/// Days for which deliveries are kept after their end.
pub const WEBHOOK_DELIVERY_DAYS: i64 = 7;
/// Most deliveries in one list. Beyond it: 400 `bad_request`.
pub const WEBHOOK_DELIVERIES_PAGE_MAX: u32 = 500;
