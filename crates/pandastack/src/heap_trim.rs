//! Returns freed heap memory to the host.
//!
//! glibc keeps freed memory: after a hundred sandboxes an agent holds 10 MiB that it does not use.
//! `malloc_trim` returns whole pages. Nothing signals the end of a burst of work, so it runs
//! periodically; a call takes about a millisecond.

use std::convert::Infallible;
use std::time::Duration;

/// Time between two trims.
const INTERVAL: Duration = Duration::from_secs(20);

/// Runs a server and periodically trims the heap.
pub async fn while_serving<T>(server: impl Future<Output = T>) -> T {
    tokio::select! {
        served = server => served,
        never = trim_periodically() => match never {},
    }
}

async fn trim_periodically() -> Infallible {
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        if let Err(error) = tokio::task::spawn_blocking(trim).await {
            tracing::warn!(%error, "cannot trim the heap");
        }
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn trim() {
    // SAFETY: takes no pointer, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators return memory by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::trim;

    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    #[test]
    fn memory_freed_between_live_allocations_is_returned() {
        const PIECES: usize = 4000;
        let mut pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; 16 << 10]).collect();
        // Every eighth one stays, so that the top of the heap is in use.
        let kept: Vec<Vec<u8>> = pieces.iter_mut().step_by(8).map(std::mem::take).collect();
        drop(pieces);
        let before = resident_kib();
        trim();
        let after = resident_kib();
        assert!(after + 30_000 < before, "{before} KiB became {after} KiB");
        assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), PIECES / 8 * (16 << 10));
    }
}
