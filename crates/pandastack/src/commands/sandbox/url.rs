//! `pandastack sandbox url` and `open`: the URL of a port, signed if the sandbox is private.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::SignPreview;
use pandastack_types::preview::Visibility;
use serde::Serialize;

use super::resolve::resolve;
use crate::commands::browser;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Port that a server in the sandbox listens on
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Seconds until the URL of a private sandbox expires [default: 3600]
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u64>,
}

/// A URL as printed with `--json`.
#[derive(Debug, Serialize)]
struct PortUrl {
    url: String,
    sandbox_id: SandboxId,
    port: u16,
    visibility: Visibility,
    /// When the URL stops working; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<jiff::Timestamp>,
}

/// Prints the URL.
pub async fn print(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let found = find(client, &args).await?;
    output.value(&found, |found| found.url.clone())?;
    if let Some(expires) = found.expires_at {
        output.note(&format!("the sandbox is private; the URL works until {expires:.0}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the URL and opens it in a browser.
pub async fn open(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let found = find(client, &args).await?;
    output.value(&found, |found| found.url.clone())?;
    browser::open(&found.url, output);
    Ok(ExitCode::SUCCESS)
}

/// The server creates every URL, because it knows its own host names.
async fn find(client: &Client, args: &Args) -> Result<PortUrl> {
    let id = resolve(client, &args.id).await?;
    let visibility = client.get_preview(&id).await?.visibility;
    if visibility == Visibility::Off {
        let failure =
            Failure::new(format!("the ports of sandbox {id} have no URLs: their visibility is `off`"));
        return Err(failure.hint("use `pandastack forward`, which ignores the visibility").into());
    }
    let request = SignPreview { port: args.port, ttl_seconds: args.expires_in };
    let signed = client.sign_preview(&id, &request).await?;
    let is_private = visibility == Visibility::Private;
    let url = if is_private { signed.url } else { without_signature(&signed.url).to_owned() };
    let expires_at = is_private.then_some(signed.expires_at);
    Ok(PortUrl { url, sandbox_id: id, port: args.port, visibility, expires_at })
}

/// An unlisted port opens without a signature, and for longer.
fn without_signature(url: &str) -> &str {
    url.split_once('?').map_or(url, |(plain, _)| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_url_carries_no_signature() {
        assert_eq!(without_signature("http://80-a.localhost:8080/?token=x"), "http://80-a.localhost:8080/");
        assert_eq!(without_signature("http://80-a.localhost:8080/"), "http://80-a.localhost:8080/");
    }
}
