//! Calls on their way into the store, behind the answer. Calls of type `Event` are not among them: the queue commits these
//! itself.

use async_trait::async_trait;

use crate::store::functions::RunRecord;
use crate::store::{self, Store};
use crate::write_behind::{Behind, WriteBehind};

/// Calls on their way.
pub(crate) type RunLog = WriteBehind<RunRecord>;

#[async_trait]
impl Behind for RunRecord {
    const WHAT: &'static str = "calls of functions";

    async fn insert(store: &dyn Store, batch: &[Self]) -> store::Result<()> {
        store.put_runs(batch).await
    }
}
