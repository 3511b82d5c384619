//! Template builds, versions and tags.

use pandastack_types::BuildId;
use pandastack_types::api::{
    Build, CreateBuild, PublishTemplate, SetTemplateTag, StartBuild, Template, TemplateSharing, TemplateTag,
};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;

use crate::client::{Client, List, READ_SECONDS};
use crate::error::Result;

/// Longest time to upload the files of a build.
const FILES_SECONDS: u64 = 3600;

impl Client {
    /// Starts a template build.
    pub async fn create_build(&self, request: &CreateBuild) -> Result<Build> {
        self.call(Method::POST, &["templates", "builds"], READ_SECONDS).json(request).receive().await
    }

    /// Adds a tar archive to the files of a build.
    pub async fn add_build_files(&self, id: &BuildId, body: impl Into<reqwest::Body>) -> Result<()> {
        let call = self.call(Method::PUT, &["templates", "builds", id.as_str(), "files"], FILES_SECONDS);
        call.with(|builder| builder.header(CONTENT_TYPE, "application/x-tar").body(body)).finish().await
    }

    /// Starts a build.
    pub async fn start_build(&self, id: &BuildId, request: &StartBuild) -> Result<Build> {
        let call = self.call(Method::POST, &["templates", "builds", id.as_str(), "start"], READ_SECONDS);
        call.json(request).receive().await
    }

    /// Cancels a build.
    pub async fn cancel_build(&self, id: &BuildId) -> Result<()> {
        self.call(Method::POST, &["templates", "builds", id.as_str(), "cancel"], READ_SECONDS).finish().await
    }

    /// Builds, newest first.
    pub async fn list_builds(&self) -> Result<Vec<Build>> {
        let list: List<Build> =
            self.call(Method::GET, &["templates", "builds"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Publishes a snapshot as a version of a template.
    pub async fn publish_template(&self, request: &PublishTemplate) -> Result<Build> {
        self.call(Method::POST, &["templates", "publish"], READ_SECONDS).json(request).receive().await
    }

    /// Builds a version of a template again.
    pub async fn rebuild_template(&self, name: &str) -> Result<Build> {
        self.call(Method::POST, &["templates", name, "rebuild"], READ_SECONDS).receive().await
    }

    /// Deletes a template with all its versions.
    pub async fn delete_template(&self, name: &str) -> Result<()> {
        self.call(Method::DELETE, &["templates", name], READ_SECONDS).finish().await
    }

    /// Replaces the workspaces that may use a template.
    pub async fn share_template(&self, name: &str, sharing: &TemplateSharing) -> Result<Template> {
        self.call(Method::PUT, &["templates", name, "sharing"], READ_SECONDS).json(sharing).receive().await
    }

    /// Tags of a template.
    pub async fn list_template_tags(&self, name: &str) -> Result<Vec<TemplateTag>> {
        let list: List<TemplateTag> =
            self.call(Method::GET, &["templates", name, "tags"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Points a tag to a build.
    pub async fn set_template_tag(&self, name: &str, tag: &str, build_id: BuildId) -> Result<()> {
        let call = self.call(Method::PUT, &["templates", name, "tags", tag], READ_SECONDS);
        call.json(&SetTemplateTag { build_id }).finish().await
    }

    /// Deletes a tag.
    pub async fn delete_template_tag(&self, name: &str, tag: &str) -> Result<()> {
        self.call(Method::DELETE, &["templates", name, "tags", tag], READ_SECONDS).finish().await
    }
}
