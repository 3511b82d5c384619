//! `pandastack secrets`: the generations of the join secret, on the machine of a control server.

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
/// Name under which this command signs its requests.
const NAME: &str = "operator";

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the generations of the join secret
    Status(SecretArgs),
    /// Change to a new join secret; the old one stays accepted until --finish
    Rotate(RotateArgs),
    /// Replace this machine's copy with a newer one; running processes use it at once
    Install(InstallArgs),
}

/// Arguments of an installation of a copy.
#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    #[command(flatten)]
    place: SecretArgs,
    /// The newer copy
    #[arg(value_name = "FILE")]
    from: PathBuf,
}

/// Arguments that locate the secret and the control server.
#[derive(Debug, clap::Args)]
pub struct SecretArgs {
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
    place: SecretArgs,
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
        if let Command::Install(args) = self {
            install(&args)?;
            return Ok(ExitCode::SUCCESS);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let status = match self {
                Command::Status(place) => Server::open(&place)?.call(Method::GET).await?,
                Command::Rotate(args) => rotate(&args, output).await?,
                Command::Install(_) => return Ok(()),
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
    let _lock = secret::lock(&server.file)?;
    let mut ring = server.key.ring();
    // The server answers before anything is changed.
    let before = server.call(Method::GET).await?;
    check_newest(&server.key, &before)?;
    change(&mut ring, args, &before)?;
    secret::write(&server.file, &ring.to_text())?;
    output.note(&format!("wrote {}; update your copies of it", server.file.display()));
    output.note("the control server is sealing secrets with the current generation");
    let status = server.call(Method::POST).await?;
    output.note(&format!("{} rows sealed", status.rows_sealed));
    Ok(status)
}

/// Refuses a file that lacks a generation: another secret would get the number of one that exists.
fn check_newest(key: &LinkKey, server: &SecretStatus) -> Result<()> {
    let used: Vec<_> = server.generations.iter().map(|one| one.fingerprint.clone()).collect();
    let newest = server.rows_sealed_with.unwrap_or(1);
    if key.fingerprints().starts_with(&used) && key.ring().generation(newest).is_some() {
        return Ok(());
    }
    let failure = Failure::new("the file of the join secret lacks a generation that is in use");
    Err(failure.hint("copy the newest one to this machine with `pandastack secrets install FILE`").into())
}

/// Replaces the file with a newer copy from another machine.
fn install(args: &InstallArgs) -> Result<()> {
    let settings = Settings::resolve(&args.place.common, &ControlArgs::default(), &AgentArgs::default())?;
    let file = args.place.link_secret_file.clone().unwrap_or_else(|| secret::path_in(&settings.data_dir));
    let _lock = secret::lock(&file)?;
    let new = secret::read(&args.from)?;
    if file.exists() && !new.fingerprints().starts_with(&secret::read(&file)?.fingerprints()) {
        let (from, file) = (args.from.display(), file.display());
        let failure = Failure::new(format!("{from} lacks a generation that {file} has"));
        return Err(failure.hint("copy the newest file of the installation").into());
    }
    secret::write(&file, &new.ring().to_text())
}

/// Applies the requested step of a rotation to the generations.
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
    fn open(place: &SecretArgs) -> Result<Self> {
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
        let name: HostId = NAME.parse().context("the caller's name is not a valid host ID")?;
        let signature = self.key.sign(Direction::AgentToControl, &name, method.as_str(), path, now);
        let request = self.client.request(method, format!("http://control{path}"));
        let answer = request.header(LINK_HEADER, signature).send().await.map_err(|error| {
            let socket = self.socket.display();
            Failure::new(format!("cannot reach the control server at {socket}: {error}"))
                .hint("run this command on the machine of the control server, while it runs")
        })?;
        let (status, body) = (answer.status(), answer.text().await.context("the response was truncated")?);
        if !status.is_success() {
            let said = serde_json::from_str::<pandastack_types::ErrorBody>(&body).map(|body| body.error);
            return Err(Failure::new(said.unwrap_or_else(|_| format!("the server answered {status}"))).into());
        }
        serde_json::from_str(&body).context("invalid response of the control server")
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

    #[derive(clap::Parser)]
    struct InstallLine {
        #[command(flatten)]
        args: InstallArgs,
    }

    fn args(stage: bool, finish: bool) -> RotateArgs {
        let parsed = <Line as clap::Parser>::try_parse_from(["x"]).unwrap().args;
        RotateArgs { stage, finish, ..parsed }
    }

    #[test]
    fn a_file_without_a_generation_in_use_is_refused() {
        let (mut new, old) = (SecretRing::new(&[7; 32]).unwrap(), SecretRing::new(&[7; 32]).unwrap());
        new.stage(&[8; 32]).unwrap();
        new.activate();
        let status = |ring: &SecretRing, rows: u8| SecretStatus {
            generations: LinkKey::from(ring.clone()).generations(),
            ..sealed(rows)
        };
        let check = |ring: &SecretRing, status| check_newest(&LinkKey::from(ring.clone()), &status).is_ok();
        assert!(check(&new, status(&new, 2)) && check(&new, status(&old, 1)));
        assert!(!check(&old, status(&new, 2)), "the server has a newer one");
        assert!(!check(&old, status(&old, 2)), "another server sealed the rows with a newer one");
    }

    #[test]
    fn a_copy_is_installed_unless_it_is_older() {
        let dir = tempfile::tempdir().unwrap();
        let (file, copy) = (dir.path().join("link-secret"), dir.path().join("copy"));
        let old = SecretRing::new(&[7; 32]).unwrap();
        let mut new = old.clone();
        new.stage(&[8; 32]).unwrap();
        std::fs::write(&file, old.to_text()).unwrap();
        std::fs::write(&copy, new.to_text()).unwrap();
        let line = ["x", "--link-secret-file", file.to_str().unwrap(), copy.to_str().unwrap()];
        let args = <InstallLine as clap::Parser>::try_parse_from(line).unwrap().args;
        install(&args).unwrap();
        assert_eq!(secret::read(&file).unwrap().ring(), new);
        std::fs::write(&copy, old.to_text()).unwrap();
        assert!(install(&args).unwrap_err().to_string().contains("lacks a generation"));
        assert_eq!(secret::read(&file).unwrap().ring(), new);
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
