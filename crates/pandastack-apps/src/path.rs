//! Finds the app in a request's path.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use pandastack_rest::{ApiError, ApiResult, Caller};
use pandastack_store::apps::record::{AppRecord, DeploymentRecord};
use pandastack_types::{DeploymentId, Error, Result};

use crate::preview_settings;
use crate::state::Apps;

/// The app of a path, by id or name, and the rest of the path.
pub struct AppPath {
    id: String,
    pub(crate) second: String,
}

impl<S: Send + Sync> FromRequestParts<S> for AppPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let unknown = |_| Error::not_found("app", "?");
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(unknown)?;
        let mut values = params.iter().map(|(_, value)| value.to_owned());
        let (id, second) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
        Ok(Self { id, second })
    }
}

impl AppPath {
    /// The app, if it is the caller's. A preview has the settings of its app.
    pub(crate) async fn find(&self, apps: &Apps, caller: &Caller) -> Result<AppRecord> {
        let unknown = || Error::not_found("app", &self.id);
        let record = apps.store.app(Some(&caller.workspace), &self.id).await?;
        if record.spec.deleting {
            return Err(unknown());
        }
        Ok(preview_settings::effective(apps, record).await?)
    }

    /// The same for a call that changes settings, which a preview has none of its own.
    pub(crate) async fn find_own(&self, apps: &Apps, caller: &Caller) -> Result<AppRecord> {
        let record = self.find(apps, caller).await?;
        match &record.preview_of {
            None => Ok(record),
            Some(of) => Err(Error::conflict(format!(
                "`{}` is a preview and uses the settings of its app; change the settings of `{of}`",
                record.name
            ))),
        }
    }

    /// The deployment of the app that the path names.
    pub(crate) async fn deployment(&self, apps: &Apps, app: &AppRecord) -> Result<DeploymentRecord> {
        let id: DeploymentId =
            self.second.parse().map_err(|_| Error::not_found("deployment", &self.second))?;
        Ok(apps.store.deployment(&app.id, &id).await?)
    }
}
