//! The conversation with the agent about a grant: when the guest is in use, and when it must stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use pandastack_types::grant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::TrafficGrant;
use crate::limits::IDLE_AFTER;

/// Reports to the agent whether the grant is in use, and drains the grant on the agent's request.
pub(super) async fn follow(
    opened: Arc<TrafficGrant>,
    mut stream: TokioIo<Upgraded>,
    shutdown: CancellationToken,
) {
    let mut busy = true;
    loop {
        let report = tokio::select! {
            byte = stream.read_u8() => {
                opened.hold();
                if byte.is_ok_and(|byte| byte == grant::HOLD) {
                    opened.drain(Duration::from_secs(grant::DRAIN_SECONDS)).await;
                    // If the agent is gone, it needs no response.
                    let _ = stream.write_all(&[grant::DRAINED]).await;
                }
                return;
            }
            () = tokio::time::sleep(IDLE_AFTER), if busy => {
                if !opened.is_quiet() {
                    continue;
                }
                opened.idle.store(true, Ordering::SeqCst);
                busy = false;
                grant::IDLE
            }
            () = opened.activity.notified(), if !busy => {
                busy = true;
                grant::BUSY
            }
            // The server has waited for requests; only tunnels are left.
            () = shutdown.cancelled() => {
                opened.hold();
                return opened.cut.cancel();
            }
        };
        if stream.write_all(&[report]).await.is_err() {
            return opened.hold();
        }
    }
}
