//! Giving memory back to the host.
//!
//! glibc keeps what was freed: after a hundred sandboxes an agent holds ten MiB that nothing in it uses. Asked to, it gives
//! whole pages back. Nothing tells when a burst of work is over, so it is asked every now and then; that takes a millisecond.

use std::convert::Infallible;
use std::time::Duration;

/// Between two requests.
const EVERY: Duration = Duration::from_secs(20);

/// Runs a server, and gives back the memory that it no longer uses.
pub async fn while_serving<T>(server: impl Future<Output = T>) -> T {
    tokio::select! {
        served = server => served,
        never = give_back() => match never {},
    }
}

async fn give_back() -> Infallible {
    let mut every = tokio::time::interval(EVERY);
    loop {
        every.tick().await;
        if let Err(error) = tokio::task::spawn_blocking(trim).await {
            tracing::warn!(%error, "memory was not given back");
        }
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn trim() {
    // SAFETY: takes no pointer, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give back by themselves.
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
    fn what_was_freed_between_pieces_that_stay_is_given_back() {
        const PIECES: usize = 4000;
        let mut pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; 16 << 10]).collect();
        // Every eighth one stays, so nothing is free at an end.
        let kept: Vec<Vec<u8>> = pieces.iter_mut().step_by(8).map(std::mem::take).collect();
        drop(pieces);
        let before = resident_kib();
        trim();
        let after = resident_kib();
        assert!(after + 30_000 < before, "{before} KiB became {after} KiB");
        assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), PIECES / 8 * (16 << 10));
    }
}
