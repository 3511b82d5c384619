//! Console sessions, and the events of a workspace.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::Event;

use super::Result;

/// Sessions of one key. One more ends the one of that key that was used least recently.
pub const CONSOLE_SESSIONS_PER_KEY_MAX: u32 = 10;

/// A signed-in browser.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsoleSession {
    /// SHA-256 of the cookie.
    pub hash: Vec<u8>,
    /// Names the session in lists; not a credential.
    pub id: String,
    /// The workspace of its key.
    pub workspace: WorkspaceId,
    /// The public part of the API key that it was opened with.
    pub token_prefix: String,
    /// User agent of the browser.
    pub browser: String,
    /// Time at which the session was opened.
    pub created_at: Timestamp,
    /// Time of its last use, within a few minutes.
    pub last_used_at: Timestamp,
    /// End of the session, however much it is used.
    pub expires_at: Timestamp,
}

/// Sessions of the console and the events that it follows.
#[async_trait]
pub trait ConsoleStore: Send + Sync {
    /// Adds a session, and removes the least recently used ones of its key beyond
    /// [`CONSOLE_SESSIONS_PER_KEY_MAX`].
    async fn insert_console_session(&self, session: &ConsoleSession) -> Result<()>;
    /// The session whose cookie has that hash.
    async fn console_session(&self, hash: &[u8]) -> Result<Option<ConsoleSession>>;
    /// The sessions of a workspace, newest first.
    async fn console_sessions(&self, workspace: &WorkspaceId) -> Result<Vec<ConsoleSession>>;
    /// Records when a session was used.
    async fn touch_console_session(&self, id: &str, at: Timestamp) -> Result<()>;
    /// Removes a session.
    async fn delete_console_session(&self, workspace: &WorkspaceId, id: &str) -> Result<()>;
    /// Removes sessions that expired by `at` or were not used since `unused_since`.
    async fn prune_console_sessions(&self, at: Timestamp, unused_since: Timestamp) -> Result<u64>;
    /// Events of a workspace after that id, oldest first, at most `limit`.
    async fn workspace_events_after(
        &self,
        workspace: &WorkspaceId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>>;
    /// The last events of a workspace, oldest first.
    async fn workspace_events_tail(&self, workspace: &WorkspaceId, limit: u32) -> Result<Vec<Event>>;
}
