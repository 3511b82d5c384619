//! `pandastack secrets`: the generations of the server secret, on the machine of a control server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use pandastack_types::HostId;
use pandastack_types::agent_api::internal;
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::secret_ring::{GenerationStatus, SecretRing, SecretStatus};
use reqwest::Method;

use crate::failure::Failure;
use crate::output::Output;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use crate::supervise::secret;

/// Time for the control server to answer. It seals every row of the database before it does.
const ANSWER_MAX: Duration = Duration::from_secs(15 * 60);
/// Who asks.
const NAME: &str = "operator";

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the generations of the server secret
    Status(Place),
    /// Change to a new server secret; the old one stays accepted until --finish
    Rotate(RotateArgs),
}

/// Where the secret and the control server are.
#[derive(Debug, clap::Args)]
pub struct Place {
    #[command(flatten)]
    common: CommonArgs,
    /// File with the join secret [default: link-secret in the data directory]
    #[arg(long, env = "PANDASTACK_LINK_SECRET_FILE", value_name = "FILE")]
    link_secret_file: Option<PathBuf>,
}

/// Arguments of a rotation.
#[derive(Debug, clap::Args)]
pub struct RotateArgs {
    #[command(flatten)]
    place: Place,
    /// Only accept the new secret: copy the file to the other control servers, then run this command without
    /// it
    #[arg(long = "prepare", conflicts_with = "finish")]
    stage: bool,
    /// End the overlap: signatures and credentials of the old secret are refused
    #[arg(long)]
    finish: bool,
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let status = match self {
                Command::Status(place) => Server::open(&place)?.call(Method::GET).await?,
                Command::Rotate(args) => rotate(&args, output).await?,
            };
            show(&status, output)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn show(status: &SecretStatus, output: Output) -> Result<()> {
    output.value(status, |status| {
        let line = |one: &GenerationStatus| {
            format!("generation {}  {:<8}  {}", one.generation, one.state.as_str(), one.fingerprint)
        };
        let rows = match status.rows_sealed_with {
            Some(generation) => format!("rows are sealed with generation {generation}"),
            None => "rows are being sealed".to_owned(),
        };
        status.generations.iter().map(line).chain([rows]).collect::<Vec<_>>().join("\n")
    })
}

async fn rotate(args: &RotateArgs, output: Output) -> Result<SecretStatus> {
    let server = Server::open(&args.place)?;
    let mut ring = server.key.ring();
    // The server answers before anything is changed.
    let before = server.call(Method::GET).await?;
    change(&mut ring, args, &before)?;
    secret::write(&server.file, &ring.to_text())?;
    output.note(&format!("wrote {}; update your copies of it", server.file.display()));
    output.note("the control server is sealing secrets with the current generation");
    let status = server.call(Method::POST).await?;
    output.note(&format!("{} rows sealed", status.rows_sealed));
    Ok(status)
}

/// Applies what was asked for to the generations.
fn change(ring: &mut SecretRing, args: &RotateArgs, server: &SecretStatus) -> Result<()> {
    if args.finish {
        if server.rows_sealed_with != Some(ring.current().number) {
            let failure = Failure::new("some rows are still sealed with the old secret");
            return Err(failure.hint("run `pandastack secrets rotate --finish` again in a minute").into());
        }
        return Ok(ring.finish()?);
    }
    let is_interrupted = ring.current().number > 1 && server.rows_sealed_with != Some(ring.current().number);
    if is_interrupted && !args.stage && !ring.has_staged() {
        return Ok(());
    }
    if !ring.has_staged() {
        let fresh = HEXLOWER.decode(secret::generate()?.as_bytes()).context("cannot make a secret")?;
        ring.stage(&fresh)?;
    }
    if !args.stage {
        ring.activate();
    }
    Ok(())
}

/// The control server on this machine.
struct Server {
    client: reqwest::Client,
    key: LinkKey,
    file: PathBuf,
    socket: PathBuf,
}

impl Server {
    fn open(place: &Place) -> Result<Self> {
        let settings = Settings::resolve(&place.common, &ControlArgs::default(), &AgentArgs::default())?;
        let default = || secret::path_in(&settings.data_dir);
        let (file, socket) =
            (place.link_secret_file.clone().unwrap_or_else(default), settings.control_socket());
        let builder = pandastack_http::builder_for("unix:").timeout(ANSWER_MAX).no_proxy();
        let client = builder.unix_socket(socket.as_path()).build().context("cannot make an HTTP client")?;
        Ok(Self { client, key: secret::read(&file)?, file, socket })
    }

    async fn call(&self, method: Method) -> Result<SecretStatus> {
        let (path, now) = (internal::SECRETS, Timestamp::now().as_second());
        let name: HostId = NAME.parse().context("the name of the caller is no host ID")?;
        let signature = self.key.sign(Direction::AgentToControl, &name, method.as_str(), path, now);
        let request = self.client.request(method, format!("http://control{path}"));
        let answer = request.header(LINK_HEADER, signature).send().await.map_err(|error| {
            let socket = self.socket.display();
            Failure::new(format!("cannot reach the control server at {socket}: {error}"))
                .hint("run this command on the machine of the control server, while it runs")
        })?;
        let (status, body) = (answer.status(), answer.text().await.context("the answer was cut off")?);
        if !status.is_success() {
            let said = serde_json::from_str::<pandastack_types::ErrorBody>(&body).map(|body| body.error);
            return Err(Failure::new(said.unwrap_or_else(|_| format!("the server answered {status}"))).into());
        }
        serde_json::from_str(&body).context("the control server sent an answer that cannot be read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: RotateArgs,
    }

    fn args(stage: bool, finish: bool) -> RotateArgs {
        let parsed = <Line as clap::Parser>::try_parse_from(["x"]).unwrap().args;
        RotateArgs { stage, finish, ..parsed }
    }

    fn sealed(rows_sealed_with: u8) -> SecretStatus {
        let rows_sealed_with = Some(rows_sealed_with);
        SecretStatus { generations: Vec::new(), rows_sealed_with, rows_sealed: 0 }
    }

    #[test]
    fn a_rotation_has_an_overlap_and_an_end() {
        let mut ring = SecretRing::new(&[7; 32]).unwrap();
        change(&mut ring, &args(true, false), &sealed(1)).unwrap();
        assert_eq!((ring.current().number, ring.generations().len()), (1, 2));
        change(&mut ring, &args(false, false), &sealed(1)).unwrap();
        assert_eq!((ring.current().number, ring.generations().len()), (2, 2), "the staged one is used");
        assert!(change(&mut ring, &args(false, true), &sealed(1)).is_err(), "rows are still of the first");
        change(&mut ring, &args(false, false), &sealed(1)).unwrap();
        assert_eq!(ring.generations().len(), 2, "an interrupted rotation goes on");
        assert!(change(&mut ring, &args(false, false), &sealed(2)).is_err(), "the overlap is not over");
        change(&mut ring, &args(false, true), &sealed(2)).unwrap();
        assert_eq!(ring.active().count(), 1);
        assert!(change(&mut ring, &args(false, true), &sealed(2)).is_err(), "there is nothing to end");
    }
}
