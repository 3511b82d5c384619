//! Apps, deployments, variables and domains.

use pandastack_types::api::{
    AddAppDomain, App, AppDatabase, AppDomain, AppDomainList, AppEnv, AppEnvImported, AppEnvList, AppEnvSet,
    AppMetrics, AppPreview, AttachDatabase, CreateApp, DeployApp, Deployment, ImportAppEnv, KeepAwake,
    Lifecycle, RollbackApp, SetAppEnv, UpdateApp,
};
use pandastack_types::{DatabaseId, DeploymentId, SandboxId};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;

use crate::client::{Call, Client, Events, List, READ_SECONDS, WRITE_SECONDS};
use crate::error::Result;
use crate::files::UPLOAD_SECONDS;

/// Lines of a log, up to its end.
pub struct LineStream(Events);

impl LineStream {
    /// The next line; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<String>> {
        match self.0.next().await? {
            Some(event) if event.name == "done" => Ok(None),
            Some(event) => Ok(Some(event.data)),
            None => Err(self.0.interrupted("the server closed the log early".to_owned())),
        }
    }
}

impl Client {
    fn app_call(&self, method: Method, app: &str, tail: &[&str]) -> Call {
        let limit = if method == Method::GET { READ_SECONDS } else { WRITE_SECONDS };
        let segments: Vec<_> = ["apps", app].into_iter().chain(tail.iter().copied()).collect();
        self.call(method, &segments, limit)
    }

    /// Creates an app.
    pub async fn create_app(&self, request: &CreateApp) -> Result<App> {
        self.call(Method::POST, &["apps"], WRITE_SECONDS).json(request).receive().await
    }

    /// Every app of the workspace.
    pub async fn list_apps(&self) -> Result<Vec<App>> {
        let list: List<App> = self.call(Method::GET, &["apps"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the app, by id or name.
    pub async fn get_app(&self, app: &str) -> Result<App> {
        self.app_call(Method::GET, app, &[]).receive().await
    }

    /// Changes settings of an app.
    pub async fn update_app(&self, app: &str, update: &UpdateApp) -> Result<App> {
        self.app_call(Method::PATCH, app, &[]).json(update).receive().await
    }

    /// Keeps an app awake for `seconds`; 0 ends the lease. Returns the lifecycle of its first instance.
    pub async fn keep_app_awake(&self, app: &str, seconds: u64) -> Result<Lifecycle> {
        self.app_call(Method::POST, app, &["keep-awake"]).json(&KeepAwake { seconds }).receive().await
    }

    /// Deletes an app.
    pub async fn delete_app(&self, app: &str) -> Result<()> {
        self.app_call(Method::DELETE, app, &[]).finish().await
    }

    /// Deploys from the repository or from a sandbox.
    pub async fn deploy_app(&self, app: &str, request: &DeployApp) -> Result<Deployment> {
        self.app_call(Method::POST, app, &["deploys"]).json(request).receive().await
    }

    /// Deploys an archive; `clear_cache` builds without the cache.
    pub async fn deploy_archive(
        &self,
        app: &str,
        body: impl Into<reqwest::Body>,
        clear_cache: bool,
    ) -> Result<Deployment> {
        let call = self.call(Method::POST, &["apps", app, "deploys"], UPLOAD_SECONDS);
        let call = if clear_cache { call.query(&[("clear_cache", "1")]) } else { call };
        call.with(|builder| builder.header(CONTENT_TYPE, "application/x-tar").body(body)).receive().await
    }

    /// Deployments of an app, newest first.
    pub async fn list_deployments(&self, app: &str) -> Result<Vec<Deployment>> {
        let list: List<Deployment> = self.app_call(Method::GET, app, &["deploys"]).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the deployment, with its log.
    pub async fn get_deployment(&self, app: &str, id: &DeploymentId) -> Result<Deployment> {
        self.app_call(Method::GET, app, &["deploys", id.as_str()]).receive().await
    }

    /// Follows the log of a deployment until it ends.
    pub async fn follow_deployment(&self, app: &str, id: &DeploymentId) -> Result<LineStream> {
        let call = self.open_ended_call(Method::GET, &["apps", app, "deploys", id.as_str(), "logs"]);
        call.events().await.map(LineStream)
    }

    /// Cancels a deployment.
    pub async fn cancel_deployment(&self, app: &str, id: &DeploymentId) -> Result<Deployment> {
        self.app_call(Method::POST, app, &["deploys", id.as_str(), "cancel"]).receive().await
    }

    /// Rolls back to an earlier deployment.
    pub async fn rollback_app(&self, app: &str, request: &RollbackApp) -> Result<Deployment> {
        self.app_call(Method::POST, app, &["rollback"]).json(request).receive().await
    }

    /// Restarts the live deployment in a new instance.
    pub async fn restart_app(&self, app: &str) -> Result<Deployment> {
        self.app_call(Method::POST, app, &["restart"]).receive().await
    }

    /// Logs of an instance, by default the first.
    pub async fn app_logs(
        &self,
        app: &str,
        follow: bool,
        search: Option<&str>,
        instance: Option<&SandboxId>,
    ) -> Result<LineStream> {
        let call = self.open_ended_call(Method::GET, &["apps", app, "runtime-logs"]);
        let mut query = vec![("follow", if follow { "1" } else { "0" })];
        query.extend(search.map(|search| ("search", search)));
        query.extend(instance.map(|instance| ("instance", instance.as_str())));
        call.query(&query).events().await.map(LineStream)
    }

    /// Current resource usage of an app.
    pub async fn app_metrics(&self, app: &str) -> Result<AppMetrics> {
        self.app_call(Method::GET, app, &["metrics"]).receive().await
    }

    /// Previews of an app.
    pub async fn app_previews(&self, app: &str) -> Result<Vec<AppPreview>> {
        let list: List<AppPreview> = self.app_call(Method::GET, app, &["previews"]).receive().await?;
        Ok(list.into_vec())
    }

    /// The preview of one pull request.
    pub async fn app_preview(&self, app: &str, number: u32) -> Result<AppPreview> {
        self.app_call(Method::GET, app, &["previews", &number.to_string()]).receive().await
    }

    /// Removes the preview of a pull request.
    pub async fn remove_app_preview(&self, app: &str, number: u32) -> Result<()> {
        self.app_call(Method::DELETE, app, &["previews", &number.to_string()]).finish().await
    }

    /// Variables of an app.
    pub async fn app_env(&self, app: &str) -> Result<Vec<AppEnv>> {
        let list: AppEnvList = self.app_call(Method::GET, app, &["env"]).receive().await?;
        Ok(list.env)
    }

    /// Sets a variable.
    pub async fn set_app_env(&self, app: &str, key: &str, value: &SetAppEnv) -> Result<AppEnvSet> {
        self.app_call(Method::PUT, app, &["env", key]).json(value).receive().await
    }

    /// Removes a variable.
    pub async fn unset_app_env(&self, app: &str, key: &str) -> Result<()> {
        self.app_call(Method::DELETE, app, &["env", key]).finish().await
    }

    /// Sets many variables.
    pub async fn import_app_env(&self, app: &str, request: &ImportAppEnv) -> Result<AppEnvImported> {
        self.app_call(Method::POST, app, &["env", "import"]).json(request).receive().await
    }

    /// Attaches a database.
    pub async fn attach_database(
        &self,
        app: &str,
        database: &DatabaseId,
        request: &AttachDatabase,
    ) -> Result<AppDatabase> {
        let call = self.app_call(Method::PUT, app, &["databases", database.as_str()]);
        call.json(request).receive().await
    }

    /// Detaches a database.
    pub async fn detach_database(&self, app: &str, database: &DatabaseId) -> Result<()> {
        self.app_call(Method::DELETE, app, &["databases", database.as_str()]).finish().await
    }

    /// Custom domains of an app.
    pub async fn app_domains(&self, app: &str) -> Result<Vec<AppDomain>> {
        let list: AppDomainList = self.app_call(Method::GET, app, &["domains"]).receive().await?;
        Ok(list.domains)
    }

    /// Adds a custom domain.
    pub async fn add_app_domain(&self, app: &str, domain: &str) -> Result<AppDomain> {
        let request = AddAppDomain { domain: domain.to_owned() };
        self.app_call(Method::POST, app, &["domains"]).json(&request).receive().await
    }

    /// Removes a custom domain.
    pub async fn remove_app_domain(&self, app: &str, domain: &str) -> Result<()> {
        self.app_call(Method::DELETE, app, &["domains", domain]).finish().await
    }
}
