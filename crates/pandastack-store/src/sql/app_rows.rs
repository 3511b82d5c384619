//! Rows of apps, deployments and domains.

use pandastack_types::api::DeploymentStatus;

use super::rows::{from_json, id, time, times};
use super::seal::{SealedRow, sealed_row};
use super::sealed_columns::{Column, DEPLOYMENTS};
use crate::apps::UnreportedDeployment;
use crate::apps::record::{AppRecord, DeploymentRecord, DomainRecord};
use crate::{Result, StoreError};

/// A row of `apps`.
#[derive(sqlx::FromRow)]
pub(super) struct AppRow {
    id: String,
    workspace_id: String,
    name: String,
    revision: i64,
    active_deployment_id: Option<String>,
    preview_of: Option<String>,
    created_at_us: i64,
    updated_at_us: i64,
    spec: String,
}

sealed_row!(AppRow, APPS);

impl TryFrom<AppRow> for AppRecord {
    type Error = StoreError;
    fn try_from(row: AppRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            name: row.name,
            revision: row.revision,
            active: row.active_deployment_id.map(id).transpose()?,
            preview_of: row.preview_of.map(id).transpose()?,
            created_at: time(row.created_at_us)?,
            updated_at: time(row.updated_at_us)?,
            spec: from_json("app spec", &row.spec)?,
        })
    }
}

/// A row of `deployments`.
#[derive(sqlx::FromRow)]
pub(super) struct DeploymentRow {
    id: String,
    app_id: String,
    workspace_id: String,
    status: String,
    created_at_us: i64,
    updated_at_us: i64,
    finished_at_us: Option<i64>,
    spec: String,
}

sealed_row!(DeploymentRow, DEPLOYMENTS);

impl TryFrom<DeploymentRow> for DeploymentRecord {
    type Error = StoreError;
    fn try_from(row: DeploymentRow) -> Result<Self> {
        let status = DeploymentStatus::parse(&row.status).ok_or_else(|| StoreError::Corrupt {
            what: "deployment status",
            source: format!("`{}` is not a status", row.status).into(),
        })?;
        Ok(Self {
            id: id(row.id)?,
            app: id(row.app_id)?,
            workspace: id(row.workspace_id)?,
            status,
            created_at: time(row.created_at_us)?,
            updated_at: time(row.updated_at_us)?,
            finished_at: times(row.finished_at_us)?,
            spec: from_json("deployment spec", &row.spec)?,
        })
    }
}

/// A deployment whose start or end was not reported.
#[derive(sqlx::FromRow)]
pub(super) struct UnreportedRow {
    #[sqlx(flatten)]
    deployment: DeploymentRow,
    told: Option<String>,
}

impl SealedRow for UnreportedRow {
    const COLUMN: &'static Column = &DEPLOYMENTS;
    fn parts(&mut self) -> (&str, String, &mut String) {
        self.deployment.parts()
    }
}

impl TryFrom<UnreportedRow> for UnreportedDeployment {
    type Error = StoreError;
    fn try_from(row: UnreportedRow) -> Result<Self> {
        Ok(Self { deployment: row.deployment.try_into()?, is_start_reported: row.told.is_some() })
    }
}

/// A row of `app_domains`.
#[derive(sqlx::FromRow)]
pub(super) struct DomainRow {
    domain: String,
    app_id: String,
    created_at_us: i64,
    verified_at_us: Option<i64>,
}

impl TryFrom<DomainRow> for DomainRecord {
    type Error = StoreError;
    fn try_from(row: DomainRow) -> Result<Self> {
        Ok(Self {
            domain: row.domain,
            app: id(row.app_id)?,
            created_at: time(row.created_at_us)?,
            verified_at: row.verified_at_us.map(time).transpose()?,
        })
    }
}
