//! Schedules and their runs.

use pandastack_types::api::{
    CreateSchedule, NextRuns, PatchSchedule, PreviewSchedule, Schedule, ScheduleRun, TriggerSchedule,
};
use pandastack_types::{ScheduleId, ScheduleRunId};
use reqwest::Method;

use crate::client::{Client, List, READ_SECONDS};
use crate::error::Result;

/// Timeout of a trigger that waits for its run.
const TRIGGER_SECONDS: u64 = 24 * 3600 + 180;

impl Client {
    /// Creates a schedule.
    pub async fn create_schedule(&self, request: &CreateSchedule) -> Result<Schedule> {
        self.call(Method::POST, &["schedules"], READ_SECONDS).json(request).receive().await
    }

    /// Every schedule of the workspace.
    pub async fn list_schedules(&self) -> Result<Vec<Schedule>> {
        let list: List<Schedule> = self.call(Method::GET, &["schedules"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the schedule.
    pub async fn get_schedule(&self, id: &ScheduleId) -> Result<Schedule> {
        self.call(Method::GET, &["schedules", id.as_str()], READ_SECONDS).receive().await
    }

    /// Changes a schedule.
    pub async fn patch_schedule(&self, id: &ScheduleId, request: &PatchSchedule) -> Result<Schedule> {
        self.call(Method::PATCH, &["schedules", id.as_str()], READ_SECONDS).json(request).receive().await
    }

    /// Deletes a schedule.
    pub async fn delete_schedule(&self, id: &ScheduleId) -> Result<()> {
        self.call(Method::DELETE, &["schedules", id.as_str()], READ_SECONDS).finish().await
    }

    /// Runs a schedule now; with `wait`, returns when the run has finished.
    pub async fn trigger_schedule(&self, id: &ScheduleId, wait: bool) -> Result<ScheduleRun> {
        let limit = if wait { TRIGGER_SECONDS } else { READ_SECONDS };
        let call = self.call(Method::POST, &["schedules", id.as_str(), "trigger"], limit);
        call.json(&TriggerSchedule { wait: Some(wait) }).receive().await
    }

    /// Runs of a schedule, newest first.
    pub async fn list_schedule_runs(&self, id: &ScheduleId, limit: u32) -> Result<Vec<ScheduleRun>> {
        let call = self.call(Method::GET, &["schedules", id.as_str(), "runs"], READ_SECONDS);
        let list: List<ScheduleRun> = call.query(&[("limit", limit.to_string().as_str())]).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the run.
    pub async fn get_schedule_run(&self, id: &ScheduleId, run: &ScheduleRunId) -> Result<ScheduleRun> {
        let path = ["schedules", id.as_str(), "runs", run.as_str()];
        self.call(Method::GET, &path, READ_SECONDS).receive().await
    }

    /// Cancels a run.
    pub async fn cancel_schedule_run(&self, id: &ScheduleId, run: &ScheduleRunId) -> Result<ScheduleRun> {
        let path = ["schedules", id.as_str(), "runs", run.as_str(), "cancel"];
        self.call(Method::POST, &path, READ_SECONDS).receive().await
    }

    /// The next run times of a schedule.
    pub async fn next_schedule_runs(&self, id: &ScheduleId, count: u32) -> Result<NextRuns> {
        let call = self.call(Method::GET, &["schedules", id.as_str(), "next"], READ_SECONDS);
        call.query(&[("count", count.to_string().as_str())]).receive().await
    }

    /// The run times of a timing.
    pub async fn preview_schedule(&self, request: &PreviewSchedule) -> Result<NextRuns> {
        self.call(Method::POST, &["schedules", "preview"], READ_SECONDS).json(request).receive().await
    }
}
