//! Functions: deploying, calling, following.

use pandastack_types::RunId;
use pandastack_types::api::{
    Alias, CreateFunction, Function, FunctionMetrics, FunctionVersion, InvokeFunction, PatchFunction,
    Redriven, RollbackFunction, Run,
};
use reqwest::Method;

use crate::client::{CHANGE_SECONDS, Events, LOOK_SECONDS, List};
use crate::{Client, Result};

/// Longest that a call of a function is waited for: its longest timeout, and the line before it.
const INVOKE_SECONDS: u64 = 2 * 3600;

/// What functions print, as they print it.
pub struct FunctionLogs(Events);

impl FunctionLogs {
    /// The stream it went to and what was printed; `None` when the server closed the stream.
    pub async fn next(&mut self) -> Result<Option<(String, String)>> {
        let Some(event) = self.0.next().await? else { return Ok(None) };
        let text = serde_json::from_str::<serde_json::Value>(&event.data)
            .ok()
            .and_then(|line| line.get("text")?.as_str().map(str::to_owned));
        Ok(Some((event.name, text.unwrap_or_default())))
    }
}

impl Client {
    /// Makes a function; with `code`, deploys it.
    pub async fn create_function(&self, request: &CreateFunction) -> Result<Function> {
        self.call(Method::POST, &["functions"], CHANGE_SECONDS).json(request).receive().await
    }

    /// Every function, by name.
    pub async fn list_functions(&self) -> Result<Vec<Function>> {
        let list: List<Function> = self.call(Method::GET, &["functions"], LOOK_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// One function, by id or name.
    pub async fn get_function(&self, name: &str) -> Result<Function> {
        self.call(Method::GET, &["functions", name], LOOK_SECONDS).receive().await
    }

    /// Changes a function.
    pub async fn patch_function(&self, name: &str, request: &PatchFunction) -> Result<Function> {
        self.call(Method::PATCH, &["functions", name], CHANGE_SECONDS).json(request).receive().await
    }

    /// Deletes a function with everything that belongs to it.
    pub async fn delete_function(&self, name: &str) -> Result<()> {
        self.call(Method::DELETE, &["functions", name], CHANGE_SECONDS).finish().await
    }

    /// Deploys a bundle, a gzip-compressed tar archive. Answers after a while also when the deploy is still under way.
    pub async fn deploy_function(&self, name: &str, bundle: Vec<u8>) -> Result<Function> {
        let call = self.call(Method::POST, &["functions", name, "deploy"], CHANGE_SECONDS);
        let call = call.with(|builder| builder.header("content-type", "application/gzip").body(bundle));
        call.receive().await
    }

    /// Versions of a function, newest first.
    pub async fn function_versions(&self, name: &str) -> Result<Vec<FunctionVersion>> {
        let call = self.call(Method::GET, &["functions", name, "versions"], LOOK_SECONDS);
        Ok(call.receive::<List<FunctionVersion>>().await?.into_vec())
    }

    /// What a deploy printed.
    pub async fn function_deploy_log(&self, name: &str, version: u32) -> Result<String> {
        let version = version.to_string();
        self.call(Method::GET, &["functions", name, "versions", &version, "log"], LOOK_SECONDS)
            .receive_text()
            .await
    }

    /// Calls a function: waits for it, or queues it. The qualifier is a version or an alias.
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
        let call = self.call(Method::GET, &["functions", name, "runs"], LOOK_SECONDS);
        Ok(call.receive::<List<Run>>().await?.into_vec())
    }

    /// Calls that were given up, newest first.
    pub async fn function_dead_letters(&self, name: &str) -> Result<Vec<Run>> {
        let call = self.call(Method::GET, &["functions", name, "runs"], LOOK_SECONDS);
        let call = call.with(|builder| builder.query(&[("dead_letter", "true")]));
        Ok(call.receive::<List<Run>>().await?.into_vec())
    }

    /// Queues a call that was given up again.
    pub async fn redrive_function_run(&self, name: &str, run: &RunId) -> Result<Run> {
        let path = ["functions", name, "runs", run.as_str(), "redrive"];
        self.call(Method::POST, &path, LOOK_SECONDS).receive().await
    }

    /// Queues all of them again.
    pub async fn redrive_function(&self, name: &str) -> Result<Redriven> {
        self.call(Method::POST, &["functions", name, "redrive"], CHANGE_SECONDS).receive().await
    }

    /// One call.
    pub async fn function_run(&self, name: &str, run: &RunId) -> Result<Run> {
        self.call(Method::GET, &["functions", name, "runs", run.as_str()], LOOK_SECONDS).receive().await
    }

    /// What the last calls printed.
    pub async fn function_logs(&self, name: &str, limit: u32) -> Result<String> {
        let call = self.call(Method::GET, &["functions", name, "logs"], LOOK_SECONDS);
        call.query(&[("limit", &limit.to_string())]).receive_text().await
    }

    /// What is printed from now on.
    pub async fn follow_function(&self, name: &str) -> Result<FunctionLogs> {
        let call = self.open_ended_call(Method::GET, &["functions", name, "logs"]);
        call.query(&[("follow", "1")]).events().await.map(FunctionLogs)
    }

    /// Figures of the last hours.
    pub async fn function_metrics(&self, name: &str, hours: u64) -> Result<FunctionMetrics> {
        let call = self.call(Method::GET, &["functions", name, "metrics"], LOOK_SECONDS);
        call.query(&[("period", &hours.to_string())]).receive().await
    }

    /// Calls an earlier version from now on.
    pub async fn rollback_function(&self, name: &str, request: &RollbackFunction) -> Result<Function> {
        self.call(Method::POST, &["functions", name, "rollback"], LOOK_SECONDS).json(request).receive().await
    }

    /// Makes a name stand for a version, or for two by weight.
    pub async fn set_function_alias(&self, name: &str, alias: &str, to: &Alias) -> Result<Function> {
        self.call(Method::PUT, &["functions", name, "aliases", alias], LOOK_SECONDS).json(to).receive().await
    }
}
