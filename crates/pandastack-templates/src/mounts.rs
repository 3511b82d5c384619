//! `RUN --mount`: files that a step has only while it runs.
//!
//! | type | in the machine |
//! |---|---|
//! | `bind` | files of the context, of a stage or of an image, on its disk |
//! | `tmpfs` | an empty directory |
//! | `secret` | a file in a file system of the machine's memory |
//! | `cache` | an ordinary directory, which stays: a layer that has run is not run again |
//!
//! ```text
//!  /pandastack-mounts/0                    files of a bind
//!  /app/go.mod -> /pandastack-mounts/0     a link, from where the step expects them
//!  /pandastack-mounts/aside-0              what the image had there, until the step ends
//! ```
//!
//! After the step, whether it failed or not, its processes, the links and the files are removed. A machine
//! that had a secret boots again from its disk, because its memory may contain what the step has read. Only
//! then is anything kept of it.

use std::collections::BTreeMap;

use axum::body::Body;
use pandastack_sandboxes::machine::{LineSink, Machine};
use pandastack_sandboxes::output::Exit;
use pandastack_types::api::{SetAttributes, StartProcess};
use pandastack_types::{Error, ErrorCode, Result};

use crate::binds::BindMount;
use crate::build::Build;
use crate::build_error::BuildError;
use crate::machines::{STEP_TAG, UNPACK_WAIT};
use crate::scope::Scope;
use crate::secrets::SecretMount;
use crate::stage::Head;

/// Directory of files, on the machine's disk.
const DIR: &str = "/pandastack-mounts";
/// Directory of secrets, in the machine's memory.
const SECRETS_DIR: &str = "/run/pandastack-secrets";

/// The mounts of a step.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    binds: Vec<BindMount>,
    secrets: Vec<SecretMount>,
}

/// A symbolic link to a mount.
struct Link {
    path: String,
    /// Temporary path of the entry that the link replaced; `None` if there was none.
    aside: Option<String>,
    /// Directories that were created above the link, the deepest first.
    made: Vec<String>,
}

impl Mounts {
    /// Reads the mounts of a step.
    pub(crate) fn of(scope: &Scope, mounts: &[String]) -> Result<Self, BuildError> {
        let mut found = Self::default();
        for written in mounts {
            let text = scope.expand(written)?;
            match text.split(',').find_map(|part| part.trim().strip_prefix("type=")).unwrap_or("bind") {
                "cache" => {}
                "bind" => found.binds.push(BindMount::parse(scope, &text, false)?),
                "tmpfs" => {
                    let mount = BindMount::parse(scope, &text, true)?;
                    // These are in memory already, and cannot be moved.
                    if !matches!(mount.target.as_str(), "/run" | "/dev/shm") {
                        found.binds.push(mount);
                    }
                }
                "secret" => found.secrets.push(SecretMount::parse(scope, &text)?),
                _ => {
                    let why = format!(
                        "RUN --mount={written} is not supported; use type=bind, cache, secret or tmpfs"
                    );
                    return Err(BuildError::new(why));
                }
            }
        }
        // A mount above another one comes first.
        found.binds.sort_by(|one, other| one.target.cmp(&other.target));
        Ok(found)
    }

    /// Parts of the step's key: each mount as written, and a hash of its files. Values of secrets are not
    /// included, because the step would be repeated whenever they change.
    pub(crate) async fn key_parts(&self, build: &Build<'_>) -> Result<Vec<String>, BuildError> {
        let mut parts: Vec<String> = self.secrets.iter().map(|mount| mount.text.clone()).collect();
        for bind in &self.binds {
            parts.extend([bind.text.clone(), bind.sum(build).await?]);
        }
        Ok(parts)
    }

    /// Runs a command with the mounts.
    pub(crate) async fn run(
        &self,
        build: &mut Build<'_>,
        head: &mut Head,
        mut request: StartProcess,
        log: &impl LineSink,
    ) -> Result<Exit, BuildError> {
        let start = build.start;
        let mut secrets = Vec::new();
        for mount in &self.secrets {
            secrets.extend(mount.value(&start.secrets)?.map(|value| (mount, value)));
        }
        let variables =
            secrets.iter().filter_map(|(mount, value)| Some((mount.env.clone()?, (*value).to_owned())));
        request.exec.env.get_or_insert_default().extend(variables.collect::<BTreeMap<_, _>>());
        if secrets.is_empty() && self.binds.is_empty() {
            return Ok(head.machine(build).await?.run(&request, log).await?);
        }
        let mut links = Vec::new();
        let ran = match self.attach(build, head, &secrets, &mut links).await {
            Ok(()) => head.machine(build).await?.run(&request, log).await.map_err(BuildError::from),
            Err(error) => Err(error),
        };
        let Some(machine) = &mut head.machine else { return ran };
        if let Err(error) = detach(machine, links, !secrets.is_empty()).await {
            // The machine may still have files or secrets of the mounts: nothing may use it.
            head.end_machine(build).await?;
            return Err(error.into());
        }
        ran
    }

    /// Writes the files, and links to them from where the step expects them.
    async fn attach(
        &self,
        build: &mut Build<'_>,
        head: &mut Head,
        secrets: &[(&SecretMount, &str)],
        links: &mut Vec<Link>,
    ) -> Result<(), BuildError> {
        make_dir(head.machine(build).await?, DIR).await?;
        for (index, bind) in self.binds.iter().enumerate() {
            let name = index.to_string();
            bind.write(build, head, DIR, &name).await?;
            link(head.machine(build).await?, &format!("{DIR}/{name}"), &bind.target, links).await?;
        }
        if secrets.is_empty() {
            return Ok(());
        }
        let machine = head.machine(build).await?;
        make_dir(machine, SECRETS_DIR).await?;
        if machine.stat(SECRETS_DIR).await?.is_some_and(|entry| entry.link_target.is_some()) {
            let why = format!("a mount at `{SECRETS_DIR}` would put secrets on the disk; use another path");
            return Err(BuildError::new(why));
        }
        for (index, (mount, value)) in secrets.iter().enumerate() {
            let Some(target) = &mount.target else { continue };
            let file = format!("{SECRETS_DIR}/{index}");
            write_secret(machine, &file, mount, value).await?;
            link(machine, &file, target, links).await?;
        }
        Ok(())
    }
}

/// Removes links and files, and boots a machine again that had secrets.
async fn detach(machine: &mut Machine, links: Vec<Link>, had_secrets: bool) -> Result<()> {
    // Processes that the step left running would write into the mounts.
    machine.end_steps(STEP_TAG).await?;
    // The last link first: it may be inside an earlier one.
    for link in links.into_iter().rev() {
        remove(machine, &link.path).await?;
        if let Some(aside) = &link.aside {
            machine.rename(aside, &link.path).await?;
        }
        for directory in &link.made {
            machine.remove_empty(directory, UNPACK_WAIT).await?;
        }
    }
    for directory in [DIR, SECRETS_DIR] {
        remove(machine, directory).await?;
    }
    match had_secrets {
        true => machine.restart().await,
        false => Ok(()),
    }
}

/// Makes a directory that every user can use, and only root can list.
async fn make_dir(machine: &Machine, directory: &str) -> Result<()> {
    machine.make_dir(directory, UNPACK_WAIT).await?;
    machine.set_mode(directory, 0o711).await
}

async fn write_secret(machine: &Machine, file: &str, mount: &SecretMount, value: &str) -> Result<()> {
    machine.write(file, Body::from(value.to_owned())).await?;
    let attributes = SetAttributes {
        mode: Some(format!("{:04o}", mount.mode)),
        user: Some(mount.uid.to_string()),
        group: Some(mount.gid.to_string()),
        ..SetAttributes::default()
    };
    machine.set_attributes(file, &attributes).await
}

async fn link(machine: &Machine, to: &str, path: &str, links: &mut Vec<Link>) -> Result<()> {
    let aside = format!("{DIR}/aside-{}", links.len());
    // Not after a `stat`, which does not see a link to nothing.
    let aside = match machine.rename(path, &aside).await {
        Ok(()) => Some(aside),
        Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::FileNotFound) => None,
        Err(error) => return Err(error),
    };
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let (mut made, mut parent) = (Vec::new(), above);
    while aside.is_none() && !parent.is_empty() && machine.stat(parent).await?.is_none() {
        made.push(parent.to_owned());
        parent = parent.rsplit_once('/').map_or("", |(above, _)| above);
    }
    links.push(Link { path: path.to_owned(), aside, made });
    let archive = link_archive(name, to)
        .map_err(|error| Error::internal(format!("cannot pack a link to a mount: {error}")))?;
    let above = if above.is_empty() { "/" } else { above };
    machine.unpack(above, Body::from(archive), UNPACK_WAIT).await
}

/// Removes a path that the step may have removed.
async fn remove(machine: &Machine, path: &str) -> Result<()> {
    match machine.remove(path, UNPACK_WAIT).await {
        Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::FileNotFound) => Ok(()),
        removed => removed,
    }
}

fn link_archive(name: &str, to: &str) -> std::io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_link(&mut header, name, to)?;
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use pandastack_types::api::ImageConfig;

    use super::*;

    #[test]
    fn mounts_have_a_type() {
        let read = |text: &str| {
            let found = Mounts::of(&Scope::new(ImageConfig::default(), '\\'), &[text.to_owned()]);
            found.map(|found| (found.binds.len(), found.secrets.len())).map_err(|error| error.message)
        };
        for (text, expect) in [
            ("type=cache,target=/root/.cache", (0, 0)),
            ("target=/src", (1, 0)),
            ("type=bind,target=/src", (1, 0)),
            ("type=tmpfs,target=/tmp/x", (1, 0)),
            ("type=tmpfs,target=/run", (0, 0)),
            ("type=secret,id=a", (0, 1)),
        ] {
            assert_eq!(read(text), Ok(expect), "{text}");
        }
        assert!(read("type=ssh").unwrap_err().contains("use type=bind, cache, secret or tmpfs"));
    }

    #[test]
    fn a_mount_above_another_comes_first() {
        let written = ["target=/src/deep", "target=/src"].map(str::to_owned);
        let found = Mounts::of(&Scope::new(ImageConfig::default(), '\\'), &written).unwrap();
        let targets: Vec<&str> = found.binds.iter().map(|bind| bind.target.as_str()).collect();
        assert_eq!(targets, ["/src", "/src/deep"]);
    }
}
