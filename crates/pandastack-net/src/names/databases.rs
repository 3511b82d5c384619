//! Connections of guests to databases, each passed on with its slot.
//!
//! One listener per host takes those of all slots, as the resolver does, and knows a slot by the address that
//! its connections come from, which the host's rules keep from being forged. A connection ends with its slot.
//!
//! Left to others: which database a guest may use, and the protocol.

use std::sync::{Arc, Weak};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::limits::{ACCEPT_PAUSE, DATABASE_CONNECTIONS_MAX};
use super::registry::Registry;
use crate::config::SlotIndex;

/// Connections that wait to be taken. Further ones are closed at once.
const CALLS_WAITING_MAX: usize = 256;

/// A guest's connection to a database.
#[derive(Debug)]
pub struct DatabaseCall {
    /// The slot of the guest.
    pub slot: SlotIndex,
    /// The connection.
    pub stream: TcpStream,
    /// Cancelled when the slot is released, after its guest ended.
    pub ended: CancellationToken,
    _permits: [OwnedSemaphorePermit; 2],
}

pub(super) fn channel() -> (mpsc::Sender<DatabaseCall>, mpsc::Receiver<DatabaseCall>) {
    mpsc::channel(CALLS_WAITING_MAX)
}

/// Takes connections until the pool ends.
pub(super) async fn serve(
    registry: Weak<Registry>,
    stop: CancellationToken,
    listener: TcpListener,
    calls: mpsc::Sender<DatabaseCall>,
) {
    let permits = Arc::new(Semaphore::new(DATABASE_CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((stream, from)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(registry) = registry.upgrade() else { return };
        let Some(slot) = registry.slot_of(from) else { continue };
        let own = Arc::clone(&slot.database_permits).try_acquire_owned();
        let (Ok(own), Ok(common)) = (own, Arc::clone(&permits).try_acquire_owned()) else { continue };
        let call =
            DatabaseCall { slot: slot.index, stream, ended: slot.stop.clone(), _permits: [own, common] };
        // The receiver is too slow: close this one.
        let _ = calls.try_send(call);
    }
}
