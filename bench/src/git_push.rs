//! Pushes: a work tree whose commits are pushed to a repository, and the webhook delivery that
//! follows.
//!
//! The delivery has GitHub's signature and the GitHub fields that an app reads.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use pandastack_types::DeploymentId;
use pandastack_types::api::HookAnswer;
use sha2::Sha256;
use tokio::process::Command;

use crate::http::Connection;

/// The branch that is pushed, which is also what apps deploy by default.
const BRANCH: &str = "refs/heads/main";
/// Message of every commit.
const MESSAGE: &str = "change one line";

/// Runs git in a directory, ignoring the host's own git settings.
pub fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(dir).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "bench");
        command.env(format!("GIT_{who}_EMAIL"), "bench@example.com");
    }
    // A proxy on the way out of this host does not know the repository's.
    command.env("no_proxy", "*").env("GIT_TERMINAL_PROMPT", "0");
    command
}

/// Runs git in a directory; returns its output.
pub async fn git(dir: &Path, words: &[&str]) -> Result<String> {
    let output = git_command(dir).args(words).output().await.context("start git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`git {}`: {}", words.join(" "), error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Files, some of which are committed.
pub struct WorkTree<'a> {
    dir: &'a Path,
}

impl<'a> WorkTree<'a> {
    /// Makes one of a directory.
    pub async fn begin(dir: &'a Path, url: &str) -> Result<Self> {
        git(dir, &["init", "--quiet", "--initial-branch=main"]).await?;
        git(dir, &["remote", "add", "origin", url]).await?;
        Ok(Self { dir })
    }

    /// Commits the current contents of these files; returns the commit's id.
    pub async fn commit(&self, files: &[&str]) -> Result<String> {
        git(self.dir, &[&["add", "--"], files].concat()).await?;
        git(self.dir, &["commit", "--quiet", "--message", MESSAGE]).await?;
        git(self.dir, &["rev-parse", "HEAD"]).await
    }

    /// Pushes all commits.
    pub async fn push(&self) -> Result<()> {
        git(self.dir, &["push", "--quiet", "origin", &format!("HEAD:{BRANCH}")]).await.map(drop)
    }
}

/// The webhook of an app.
pub struct Webhook {
    /// URL of the webhook.
    pub url: String,
    /// Secret that signs the repository's deliveries.
    pub secret: String,
}

impl Webhook {
    /// Delivers a push from one commit to the next; returns the deployment that it starts.
    pub async fn deliver_push(&self, before: &str, after: &str) -> Result<DeploymentId> {
        let head = serde_json::json!({"id": after, "message": MESSAGE});
        let body = serde_json::json!({
            "ref": BRANCH, "before": before, "after": after, "forced": false, "deleted": false, "head_commit": head,
        });
        let body = body.to_string();
        let headers = [
            ("Content-Type", "application/json"),
            ("X-GitHub-Event", "push"),
            ("X-GitHub-Delivery", &uuid::Uuid::new_v4().to_string()),
            ("X-Hub-Signature-256", &signature(&self.secret, body.as_bytes())?),
        ];
        let place = self.url.strip_prefix("http://").and_then(|place| place.split_once('/'));
        let (address, path) = place.with_context(|| format!("not a webhook's address: {}", self.url))?;
        let answer = Connection::open(address, address).await?.post(path, &headers, &body).await?;
        ensure!(answer.status == 202, "the webhook answered {}: {}", answer.status, answer.body);
        match serde_json::from_str(&answer.body)? {
            HookAnswer { deployment_id: Some(deployment), .. } => Ok(deployment),
            answer => bail!("the push began no deployment: {answer:?}"),
        }
    }
}

fn signature(secret: &str, body: &[u8]) -> Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())?;
    mac.update(body);
    Ok(format!("sha256={}", HEXLOWER.encode(&mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_signed_as_github_does() {
        // The example of its documentation.
        let expect = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(signature("It's a Secret to Everybody", b"Hello, World!").unwrap(), expect);
    }
}
