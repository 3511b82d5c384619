//! `pandastack login` and `logout`: user sessions.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use pandastack_client::{Client, Config};
use pandastack_types::api::{DeviceLogin, FinishLogin, LoginSession, LoginStatus};
use pandastack_types::{ErrorCode, WorkspaceId};
use serde::Serialize;
use tokio::time::Instant;

use super::runtime::block_on;
use crate::client_config::{self, InvokingUser};
use crate::failure::Failure;
use crate::output::{Output, fields};

/// How much longer to wait after the server asked to slow down (RFC 8628, section 3.5).
const SLOWER: Duration = Duration::from_secs(5);
/// Environment variables that take precedence over the configuration file.
const KEY_VARIABLES: [&str; 2] = ["PANDASTACK_API_KEY", "PANDASTACK_TOKEN"];

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// URL of the server [default: the server in use]
    #[arg(value_name = "URL")]
    server: Option<String>,
    /// Workspace to sign in to [default: your only one, or `default`]
    #[arg(long, value_name = "NAME")]
    workspace: Option<WorkspaceId>,
}

/// A sign-in, without its credential.
#[derive(Serialize)]
struct SignedIn {
    server: String,
    workspace: WorkspaceId,
    label: String,
    role: pandastack_types::api::Role,
    expires_at: jiff::Timestamp,
}

/// Runs `login`.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let config = Config::from_environment()?;
    // The key in use is for another purpose, and perhaps for another server.
    let api_url = args.server.unwrap_or(config.api_url);
    let client = Client::new(Config { api_url: api_url.clone(), token: None })?;
    block_on(async move {
        let device = client.start_login().await?;
        show(&device);
        let finish = FinishLogin {
            device_code: device.device_code.clone(),
            workspace: args.workspace,
            client: Some(device_name()),
        };
        let session = wait(&client, &device, &finish).await?;
        client_config::sign_in(&InvokingUser::current()?, client.api_url(), &session.token)?;
        let signed_in = SignedIn {
            server: client.api_url().to_owned(),
            workspace: session.workspace,
            label: session.label,
            role: session.role,
            expires_at: session.expires_at,
        };
        output.value(&signed_in, |signed_in| {
            fields(&[
                ("server", signed_in.server.clone()),
                ("workspace", signed_in.workspace.to_string()),
                ("person", signed_in.label.clone()),
                ("role", signed_in.role.to_string()),
                ("expires", signed_in.expires_at.to_string()),
            ])
        })?;
        if let Some(name) = key_variable() {
            eprintln!("{name} is set and takes precedence over this session; unset it to use the session");
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn show(device: &DeviceLogin) {
    let complete = device.verification_uri_complete.as_ref();
    eprintln!("open {} in a browser", complete.unwrap_or(&device.verification_uri));
    eprintln!("and confirm the code {}", device.user_code);
}

/// Polls until the user has confirmed: the provider sends no notification.
async fn wait(client: &Client, device: &DeviceLogin, finish: &FinishLogin) -> Result<LoginSession> {
    let deadline = Instant::now() + Duration::from_secs(device.expires_in);
    let mut every = Duration::from_secs(device.interval.max(1));
    while Instant::now() < deadline {
        tokio::time::sleep(every).await;
        let progress = client.finish_login(finish).await?;
        match (progress.status, progress.session) {
            (LoginStatus::Complete, Some(session)) => return Ok(session),
            (LoginStatus::SlowDown, _) => every += SLOWER,
            (LoginStatus::Pending, _) => {}
            (LoginStatus::Complete, None) => bail!("the server sent no session; update `pandastack`"),
        }
    }
    Err(Failure::new("the sign-in was not confirmed in time").hint("run `pandastack login` again").into())
}

/// Runs `logout`: revokes the session and restores the previous key.
pub fn sign_out(output: Output) -> Result<ExitCode> {
    if let Some(name) = key_variable() {
        let failure = Failure::new(format!("{name} is set, so the session is not in use"));
        return Err(failure.hint(format!("unset {name} and run `pandastack logout` again")).into());
    }
    let user = InvokingUser::current()?;
    let config = Config::from_environment()?;
    let revoked = match config.token {
        Some(_) => block_on(async { Ok(Client::new(config)?.end_login().await) })?,
        None => Ok(()),
    };
    let was_signed_in = client_config::sign_out(&user)?;
    match revoked {
        Ok(()) => {}
        // It has expired or was revoked; only the file still had it.
        Err(error) if was_signed_in && error.is_code(ErrorCode::Unauthorized) => {}
        Err(error) => return Err(error.into()),
    }
    output.value(&serde_json::json!({"signed_out": true}), |_| "signed out".to_owned())?;
    Ok(ExitCode::SUCCESS)
}

fn key_variable() -> Option<&'static str> {
    let is_set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
    KEY_VARIABLES.into_iter().find(is_set)
}

/// Name of the session in lists.
fn device_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("pandastack on {host}")
}
