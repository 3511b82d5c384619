//! Resource usage of a sandbox.

use pandastack_types::agent_api::Usage;

/// Usage between two totals. A total that decreased started again at zero.
pub fn usage_since(before: Usage, now: Usage) -> Usage {
    let since = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    Usage {
        cpu_ms: since(before.cpu_ms, now.cpu_ms),
        memory_mb_seconds: since(before.memory_mb_seconds, now.memory_mb_seconds),
        asleep_seconds: since(before.asleep_seconds, now.asleep_seconds),
        sent_bytes: since(before.sent_bytes, now.sent_bytes),
        received_bytes: since(before.received_bytes, now.received_bytes),
    }
}
