//! Functions, versions, runs and logs.

use pandastack_types::RunId;
use pandastack_types::api::{
    Alias, CreateFunction, Function, FunctionMetrics, FunctionVersion, InvokeFunction, PatchFunction,
    Redriven, RollbackFunction, Run,
};
use reqwest::Method;

use crate::client::{Client, Events, List, READ_SECONDS, WRITE_SECONDS};
use crate::error::Result;

/// Timeout of a call: the maximum timeout of a function plus time in the queue.
const INVOKE_SECONDS: u64 = 2 * 3600;

/// Logs of a function, streamed.
pub struct FunctionLogs(Events);

impl FunctionLogs {
    /// Name of the output stream and its text; `None` if the server closed the connection.
    pub async fn next(&mut self) -> Result<Option<(String, String)>> {
        let Some(event) = self.0.next().await? else { return Ok(None) };
        let text = serde_json::from_str::<serde_json::Value>(&event.data)
            .ok()
            .and_then(|line| line.get("text")?.as_str().map(str::to_owned));
        Ok(Some((event.name, text.unwrap_or_default())))
    }
}

impl Client {
    /// Creates a function; with `code`, deploys it.
    pub async fn create_function(&self, request: &CreateFunction) -> Result<Function> {
        self.call(Method::POST, &["functions"], WRITE_SECONDS).json(request).receive().await
    }

    /// Every function, by name.
    pub async fn list_functions(&self) -> Result<Vec<Function>> {
        let list: List<Function> = self.call(Method::GET, &["functions"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the function, by id or name.
    pub async fn get_function(&self, name: &str) -> Result<Function> {
        self.call(Method::GET, &["functions", name], READ_SECONDS).receive().await
    }

    /// Changes a function.
    pub async fn patch_function(&self, name: &str, request: &PatchFunction) -> Result<Function> {
        self.call(Method::PATCH, &["functions", name], WRITE_SECONDS).json(request).receive().await
    }

    /// Deletes a function with everything that belongs to it.
    pub async fn delete_function(&self, name: &str) -> Result<()> {
        self.call(Method::DELETE, &["functions", name], WRITE_SECONDS).finish().await
    }

    /// Deploys a bundle, a gzip-compressed tar archive. May return while the deployment is still in progress.
    pub async fn deploy_function(&self, name: &str, bundle: Vec<u8>) -> Result<Function> {
        let call = self.call(Method::POST, &["functions", name, "deploy"], WRITE_SECONDS);
        let call = call.with(|builder| builder.header("content-type", "application/gzip").body(bundle));
        call.receive().await
    }

    /// Versions of a function, newest first.
    pub async fn function_versions(&self, name: &str) -> Result<Vec<FunctionVersion>> {
        let call = self.call(Method::GET, &["functions", name, "versions"], READ_SECONDS);
        Ok(call.receive::<List<FunctionVersion>>().await?.into_vec())
    }

    /// Log of a deployment.
    pub async fn function_deploy_log(&self, name: &str, version: u32) -> Result<String> {
        let version = version.to_string();
        self.call(Method::GET, &["functions", name, "versions", &version, "log"], READ_SECONDS)
            .receive_text()
            .await
    }

    /// Calls a function synchronously or asynchronously. The qualifier is a version or an alias.
    pub async fn invoke_function(
        &self,
        name: &str,
        request: &InvokeFunction,
        qualifier: Option<&str>,
    ) -> Result<Run> {
        let call = self.call(Method::POST, &["functions", name, "invoke"], INVOKE_SECONDS);
        let call = match qualifier {
            Some(qualifier) => call.query(&[("qualifier", qualifier)]),
            None => call,
        };
        call.json(request).receive().await
    }

    /// Calls of a function, newest first.
    pub async fn function_runs(&self, name: &str) -> Result<Vec<Run>> {
        let call = self.call(Method::GET, &["functions", name, "runs"], READ_SECONDS);
        Ok(call.receive::<List<Run>>().await?.into_vec())
    }

    /// Asynchronous calls that failed all their retries, newest first.
    pub async fn function_dead_letters(&self, name: &str) -> Result<Vec<Run>> {
        let call = self.call(Method::GET, &["functions", name, "runs"], READ_SECONDS);
        let call = call.with(|builder| builder.query(&[("dead_letter", "true")]));
        Ok(call.receive::<List<Run>>().await?.into_vec())
    }

    /// Requeues a call that failed all its retries.
    pub async fn redrive_function_run(&self, name: &str, run: &RunId) -> Result<Run> {
        let path = ["functions", name, "runs", run.as_str(), "redrive"];
        self.call(Method::POST, &path, READ_SECONDS).receive().await
    }

    /// Requeues all calls that failed all their retries.
    pub async fn redrive_function(&self, name: &str) -> Result<Redriven> {
        self.call(Method::POST, &["functions", name, "redrive"], WRITE_SECONDS).receive().await
    }

    /// Returns the call.
    pub async fn function_run(&self, name: &str, run: &RunId) -> Result<Run> {
        self.call(Method::GET, &["functions", name, "runs", run.as_str()], READ_SECONDS).receive().await
    }

    /// Logs of the latest calls.
    pub async fn function_logs(&self, name: &str, limit: u32) -> Result<String> {
        let call = self.call(Method::GET, &["functions", name, "logs"], READ_SECONDS);
        call.query(&[("limit", &limit.to_string())]).receive_text().await
    }

    /// Follows new logs.
    pub async fn follow_function(&self, name: &str) -> Result<FunctionLogs> {
        let call = self.open_ended_call(Method::GET, &["functions", name, "logs"]);
        call.query(&[("follow", "1")]).events().await.map(FunctionLogs)
    }

    /// Metrics of the last hours.
    pub async fn function_metrics(&self, name: &str, hours: u64) -> Result<FunctionMetrics> {
        let call = self.call(Method::GET, &["functions", name, "metrics"], READ_SECONDS);
        call.query(&[("period", &hours.to_string())]).receive().await
    }

    /// Rolls back to an earlier version.
    pub async fn rollback_function(&self, name: &str, request: &RollbackFunction) -> Result<Function> {
        self.call(Method::POST, &["functions", name, "rollback"], READ_SECONDS).json(request).receive().await
    }

    /// Points an alias to a version, or splits calls between two versions.
    pub async fn set_function_alias(&self, name: &str, alias: &str, to: &Alias) -> Result<Function> {
        self.call(Method::PUT, &["functions", name, "aliases", alias], READ_SECONDS).json(to).receive().await
    }
}
