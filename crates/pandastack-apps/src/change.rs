//! Changing the record of an app.

use pandastack_store::apps::record::AppRecord;
use pandastack_store::clock::now;
use pandastack_types::{AppId, Error, Result};

use crate::state::Apps;

/// Tries to note something on an app that others change at the same time.
const PUT_TRIES: u32 = 8;

/// Changes an app's settings, also if others do at the same time.
pub(crate) async fn change(
    apps: &Apps,
    id: &AppId,
    mut change: impl FnMut(&mut AppRecord),
) -> Result<AppRecord> {
    for _ in 0..PUT_TRIES {
        let mut record = apps.store.app(None, id.as_str()).await?;
        change(&mut record);
        record.updated_at = now();
        if apps.store.put_app(&record).await? {
            record.revision += 1;
            return Ok(record);
        }
    }
    Err(Error::conflict("other requests are changing the app; try again"))
}
