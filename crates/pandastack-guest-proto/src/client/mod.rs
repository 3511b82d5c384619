//! The host's end of the guest channel.
//!
//! Owns one connection to one guest: a reader task, a writer task, and the table of open calls between
//! them. A [`GuestClient`] is a cheap handle on it; the tasks end with the last handle or stream.
//!
//! Invariants:
//! - Nothing the guest sends makes the host allocate more than [`crate::limits`] allow: every queued frame
//!   is paid for by credit that the host granted, and a guest that overdraws is disconnected.
//! - The reader never waits for a consumer, so a slow reader does not delay others.
//! - A call whose future or stream is dropped is cancelled in the guest (processes keep running).
//! - When the connection is lost every call fails at once with [`ClientError::Disconnected`].
//!
//! Callers reconnect, and keep the offset at which to resume.

mod call;
mod connect;
mod error;
mod files;
mod link;
mod machine;
mod processes;
mod trees;

use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

pub use error::{ClientError, ErrorKind};
pub use files::{FileReader, FileWriter};
pub use processes::{CollectedOutput, Collector, ProcessEvent, ProcessStream, StdinWriter};
pub use trees::{ArchiveReader, SearchResults, WatchStream};

use crate::message::{Event, Hello, Request};
use call::{Call, Inbound};
use link::Connection;

/// A connection to a guest. Clones share it.
#[derive(Clone, Debug)]
pub struct GuestClient {
    connection: Arc<Connection>,
    hello: Arc<Hello>,
    /// Permits for listings that the host keeps whole.
    listings: Arc<Semaphore>,
}

impl GuestClient {
    /// The guest's description of itself.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// True once the connection is lost; every further call fails.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.connection.shared.closed_reason().is_some()
    }

    /// Waits until the connection is lost, and returns the reason.
    pub async fn closed(&self) -> ClientError {
        self.connection.shared.closed().await
    }

    async fn open(&self, request: &Request) -> Result<Call, ClientError> {
        Call::open(&self.connection, request).await
    }

    /// A call that answers with one reply and nothing before it.
    async fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        self.begin(request).await?.wait().await
    }

    /// Sends a request that is answered with one reply, which need not be waited for.
    async fn begin<T>(&self, request: &Request) -> Result<Answer<T>, ClientError> {
        Ok(Answer { call: self.open(request).await?, content: PhantomData })
    }

    /// A call that answers with pages of items, then an empty reply. `keep` is given each page and the
    /// length of its JSON; when it returns false the call is cancelled. Returns whether items are missing.
    async fn each_page<T>(
        &self,
        request: &Request,
        pick: impl Fn(Event) -> Option<Vec<T>>,
        mut keep: impl FnMut(Vec<T>, usize) -> bool,
    ) -> Result<bool, ClientError> {
        let mut call = self.open(request).await?;
        let mut truncated = false;
        loop {
            match call.next().await? {
                Inbound::Event(event) => match call.parse_event(&event)? {
                    Event::WalkEnded { truncated: cut, .. } => truncated = cut,
                    page => {
                        let Some(page) = pick(page) else {
                            return Err(call.protocol_violation("sent an event of another kind"));
                        };
                        if !keep(page, event.len()) {
                            return Ok(true);
                        }
                    }
                },
                Inbound::Reply(reply) => {
                    let _: crate::message::Done = call.finish(&reply)?;
                    return Ok(truncated);
                }
                Inbound::Data { .. } => return Err(call.protocol_violation("sent data in a listing")),
            }
        }
    }

    /// The items of all pages, within the limits of a listing, and whether the guest left some out.
    /// Others that list wait until one of [`LISTINGS_MAX`] has ended.
    async fn all_pages<T>(
        &self,
        request: &Request,
        bytes_max: usize,
        pick: impl Fn(Event) -> Option<Vec<T>>,
    ) -> Result<(Vec<T>, bool), ClientError> {
        // The semaphore is never closed.
        let _listing = self.listings.acquire().await.ok();
        let (mut items, mut bytes, mut is_too_long) = (Vec::new(), 0, false);
        let keep = |page: Vec<T>, page_bytes| {
            bytes += page_bytes;
            is_too_long = bytes > bytes_max || items.len() + page.len() > LIST_ITEMS_MAX;
            if !is_too_long {
                items.extend(page);
            }
            !is_too_long
        };
        let truncated = self.each_page(request, pick, keep).await?;
        match is_too_long {
            true => Err(ClientError::TooLong { items_max: LIST_ITEMS_MAX, bytes_max }),
            false => Ok((items, truncated)),
        }
    }
}

/// A pending reply. The guest handles requests in order: a later one does not start before this
/// one. Dropping it cancels the call.
#[derive(Debug)]
pub struct Answer<T> {
    call: Call,
    content: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Answer<T> {
    /// Waits for it.
    ///
    /// # Errors
    /// When the guest refuses, misbehaves or cannot be reached any more.
    pub async fn wait(mut self) -> Result<T, ClientError> {
        match self.call.next().await? {
            Inbound::Reply(reply) => self.call.finish(&reply),
            Inbound::Event(_) | Inbound::Data { .. } => {
                Err(self.call.protocol_violation("sent more than a reply"))
            }
        }
    }
}

/// Most entries that a listing may have. The guest decides how many it sends, the host how many it keeps.
pub const LIST_ITEMS_MAX: usize = 100_000;

/// Most bytes of JSON that a listing of files may have, where its caller does not count them itself.
pub const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The same for a list of processes or ports.
pub const TABLE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Listings of one guest that the host keeps at the same time.
pub const LISTINGS_MAX: usize = 4;
