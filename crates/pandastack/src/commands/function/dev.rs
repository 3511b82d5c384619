//! `pandastack fn dev`: runs a function as local processes and restarts it when a file changes.
//!
//! The function runs in the platform's runtime, so a handler behaves as it does when deployed. It is
//! not isolated: it runs as the current user, with that user's files, network and installed packages.
//! `pandastack fn deploy --watch` runs it on the server instead.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pandastack_control::{LocalError, LocalFunction, LocalRuntime, local_router};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::deploy::{entrypoint_of, runtime_of};
use super::watch::watch as watch_files;
use crate::commands::pairs::pairs;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory or file with the code
    #[arg(default_value = ".")]
    source: PathBuf,
    /// Entry point: `module.function` or a file [default: detected]
    #[arg(long)]
    entrypoint: Option<String>,
    /// Runtime: python, nodejs or custom [default: detected]
    #[arg(long)]
    runtime: Option<String>,
    /// Environment variable; can be repeated
    #[arg(long = "env", short = 'e', value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Timeout of a call in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Maximum concurrent calls
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    concurrency: u32,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8787")]
    listen: String,
}

impl Args {
    fn function(&self) -> Result<LocalFunction> {
        let runtime = runtime_of(&self.source, self.runtime.as_deref(), self.entrypoint.as_deref())?;
        let entrypoint = self.entrypoint.clone().unwrap_or_else(|| entrypoint_of(&self.source, runtime));
        let directory = match self.source.parent() {
            Some(parent) if self.source.is_file() => match parent.as_os_str().is_empty() {
                true => PathBuf::from("."),
                false => parent.to_owned(),
            },
            _ => self.source.clone(),
        };
        let env = pairs(&self.env)?.unwrap_or_default();
        let timeout = Duration::from_secs(self.timeout.max(1));
        Ok(LocalFunction { directory, runtime, entrypoint, env, timeout, concurrency: self.concurrency })
    }
}

/// Serves the function until interrupted.
pub async fn run(args: Args) -> Result<ExitCode> {
    let function = args.function()?;
    let mut changes =
        watch_files(&args.source).with_context(|| format!("cannot watch {}", args.source.display()))?;
    let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
    let guest = scratch.path().join("pandastack-guest");
    write_program(&guest).context("cannot write the function runtime")?;
    let (publish, running) = watch::channel(None);
    let listener =
        TcpListener::bind(&args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    eprintln!("warning: not isolated: the handler runs as you, with your files, network and packages");
    eprintln!(
        "http://{address} calls {}; to send an event: curl -H 'X-Invocation-Type: RequestResponse' -d '{{}}' http://{address}",
        function.entrypoint
    );
    let server = tokio::spawn(axum::serve(listener, local_router(running)).into_future());
    let ended = tokio::select! {
        ended = serve(&guest, scratch.path(), &function, &publish, &mut changes) => ended,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot watch for Ctrl-C"),
    };
    server.abort();
    publish.send_replace(None);
    ended.map(|()| ExitCode::SUCCESS)
}

/// Starts the function, and restarts it after each change and whenever its process exits.
async fn serve(
    guest: &std::path::Path,
    scratch: &std::path::Path,
    function: &LocalFunction,
    publish: &watch::Sender<Option<Arc<LocalRuntime>>>,
    changes: &mut mpsc::Receiver<()>,
) -> Result<()> {
    loop {
        let running = match LocalRuntime::start(guest, scratch, function).await {
            Ok(runtime) => {
                eprintln!("ready");
                Some(Arc::new(runtime))
            }
            Err(LocalError::NotReady { why, log }) => {
                eprintln!("{log}error: cannot start the handler: {why}\nwaiting for a change");
                None
            }
            Err(error) => return Err(error.into()),
        };
        publish.send_replace(running.clone());
        let exited = async {
            match &running {
                Some(runtime) => runtime.over().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            change = changes.recv() => match change {
                Some(()) => eprintln!("file changed; restarting"),
                None => return Ok(()),
            },
            () = exited => eprintln!("the handler exited; restarting"),
        }
        publish.send_replace(None);
    }
}

fn write_program(path: &std::path::Path) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(pandastack_agent::guest_program())
}
