//! Secrets of a build: files that a step finds, and that are in no layer.
//!
//! ```text
//!  /run/pandastack-secrets/0       content, in a file system of the machine's memory
//!  /root/.netrc -> the same        a link, from where the step expects it
//! ```
//!
//! After the step, whether it failed or not, files and links are removed and the machine boots again from its
//! disk, because its memory may contain what the step has read. Only then is anything kept of it.

use std::collections::BTreeMap;

use axum::body::Body;
use pandastack_sandboxes::machine::{LineSink, Machine};
use pandastack_sandboxes::output::Exit;
use pandastack_types::api::{BuildSecret, SetAttributes, StartProcess};
use pandastack_types::limits::{BUILD_SECRET_BYTES_MAX, BUILD_SECRET_ID_BYTES_MAX, BUILD_SECRETS_MAX};
use pandastack_types::{Error, ErrorCode, Result};

use crate::build::Build;
use crate::build_error::BuildError;
use crate::machines::UNPACK_WAIT;
use crate::scope::Scope;
use crate::stage::Head;

/// Directory of the files, in the machine's memory.
const DIR: &str = "/run/pandastack-secrets";
/// Directory in which steps find their secrets.
const TARGET_DIR: &str = "/run/secrets";
const OPTIONS: &str = "use type, id, target, env, required, mode, uid and gid";

/// One `--mount=type=secret` of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretMount {
    /// As it was written.
    pub(crate) text: String,
    id: String,
    /// Path at which the step finds the file.
    target: Option<String>,
    /// Variable that has the content.
    env: Option<String>,
    is_required: bool,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl SecretMount {
    /// The secrets among the mounts of a step. A cache directory is an ordinary directory here: a layer that
    /// has run is not run again.
    pub(crate) fn of(scope: &Scope, mounts: &[String]) -> Result<Vec<Self>, BuildError> {
        let mut found = Vec::new();
        for written in mounts {
            let text = scope.expand(written)?;
            match text.split(',').find_map(|part| part.strip_prefix("type=")) {
                Some("cache") => {}
                Some("secret") => found.push(Self::parse(scope, &text)?),
                _ => {
                    let why = format!(
                        "RUN --mount={written} is not supported; only type=cache and type=secret are"
                    );
                    return Err(BuildError::new(why));
                }
            }
        }
        Ok(found)
    }

    fn parse(scope: &Scope, text: &str) -> Result<Self, BuildError> {
        let wrong = |part: &str, hint: &str| {
            BuildError::new(format!("`{part}` in RUN --mount={text} is not supported; {hint}"))
        };
        let (mut id, mut target, mut env) = (None, None, None);
        let (mut is_required, mut mode, mut uid, mut gid) = (false, 0o400, 0, 0);
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, "true"));
            let number = |radix| u32::from_str_radix(value, radix).map_err(|_| wrong(part, "use a number"));
            match name {
                "type" => {}
                "id" => id = Some(value.to_owned()),
                "target" | "dst" | "destination" => target = Some(scope.absolute(value)),
                "env" => env = Some(value.to_owned()),
                "required" => {
                    is_required = value.parse().map_err(|_| wrong(part, "use `true` or `false`"))?;
                }
                "mode" => mode = number(8).map(|mode| mode & 0o7777)?,
                "uid" => uid = number(10)?,
                "gid" => gid = number(10)?,
                _ => return Err(wrong(part, OPTIONS)),
            }
        }
        let of_target = || target.as_deref()?.rsplit('/').next().map(str::to_owned);
        let Some(id) = id.or_else(of_target).filter(|id| is_name(id)) else {
            return Err(wrong(text, "name the secret with id=NAME"));
        };
        if target.is_none() && env.is_none() {
            target = Some(format!("{TARGET_DIR}/{id}"));
        }
        Ok(Self { text: text.to_owned(), id, target, env, is_required, mode, uid, gid })
    }

    /// Content of the secret. Without it, the step runs as if it had not asked, unless it must not.
    fn value<'a>(&self, secrets: &'a [BuildSecret]) -> Result<Option<&'a str>, BuildError> {
        match secrets.iter().find(|secret| secret.id == self.id) {
            Some(secret) => Ok(Some(&secret.value)),
            None if self.is_required => Err(BuildError::new(format!(
                "secret `{0}` is missing; pass it with --secret id={0}",
                self.id
            ))),
            None => Ok(None),
        }
    }
}

fn is_name(id: &str) -> bool {
    (1..=BUILD_SECRET_ID_BYTES_MAX).contains(&id.len())
        && id.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
        && !matches!(id, "." | "..")
}

/// Refuses secrets that cannot be mounted.
pub(crate) fn check(secrets: &[BuildSecret]) -> Result<()> {
    if secrets.len() > BUILD_SECRETS_MAX {
        let message = format!("`secrets` must be at most {BUILD_SECRETS_MAX}, not {}", secrets.len());
        return Err(Error::bad_request(message));
    }
    for (index, secret) in secrets.iter().enumerate() {
        let number = index + 1;
        if !is_name(&secret.id) || secret.value.len() > BUILD_SECRET_BYTES_MAX {
            return Err(Error::bad_request(format!(
                "entry {number} of `secrets` needs an `id` of letters, digits, `-`, `_` and `.`, and a \
                 `value` of at most {BUILD_SECRET_BYTES_MAX} bytes"
            )));
        }
        if secrets[..index].iter().any(|earlier| earlier.id == secret.id) {
            let message = format!("entry {number} of `secrets` has the `id` of an earlier one");
            return Err(Error::bad_request(message));
        }
    }
    Ok(())
}

/// Runs a command with secrets.
pub(crate) async fn run(
    build: &Build<'_>,
    head: &mut Head,
    mounts: &[SecretMount],
    mut request: StartProcess,
    log: &impl LineSink,
) -> Result<Exit, BuildError> {
    let mut given = Vec::new();
    for mount in mounts {
        given.extend(mount.value(&build.start.secrets)?.map(|value| (mount, value)));
    }
    let variables = given.iter().filter_map(|(mount, value)| Some((mount.env.clone()?, (*value).to_owned())));
    request.exec.env.get_or_insert_default().extend(variables.collect::<BTreeMap<_, _>>());
    if given.is_empty() {
        return Ok(head.machine(build).await?.run(&request, log).await?);
    }
    head.machine(build).await?;
    let Some(machine) = &mut head.machine else {
        return Err(BuildError::new("the builder machine was lost"));
    };
    let mut links = Vec::new();
    let ran = match mount(machine, &given, &mut links).await {
        Ok(()) => machine.run(&request, log).await,
        Err(error) => Err(error),
    };
    if let Err(error) = forget(machine, &links).await {
        // Nobody may look into it.
        head.end_machine(build).await?;
        return Err(error.into());
    }
    Ok(ran?)
}

/// Writes the files, and links to them where the step expects them.
async fn mount(machine: &Machine, given: &[(&SecretMount, &str)], links: &mut Vec<String>) -> Result<()> {
    machine.make_dir(DIR, UNPACK_WAIT).await?;
    machine.set_mode(DIR, 0o711).await?;
    for (index, (mount, value)) in given.iter().enumerate() {
        let Some(target) = &mount.target else { continue };
        let file = format!("{DIR}/{index}");
        machine.write(&file, Body::from((*value).to_owned())).await?;
        let attributes = SetAttributes {
            mode: Some(format!("{:04o}", mount.mode)),
            user: Some(mount.uid.to_string()),
            group: Some(mount.gid.to_string()),
            recursive: false,
        };
        machine.set_attributes(&file, &attributes).await?;
        if machine.stat(target).await?.is_some() {
            let message = format!("a secret cannot be mounted at `{target}`, where the image has a file");
            return Err(Error::bad_request(message));
        }
        let (above, name) = target.rsplit_once('/').unwrap_or(("", target));
        let archive = link_archive(name, &file)
            .map_err(|error| Error::internal(format!("cannot pack a link to a secret: {error}")))?;
        let above = if above.is_empty() { "/" } else { above };
        machine.unpack(above, Body::from(archive), UNPACK_WAIT).await?;
        links.push(target.clone());
    }
    Ok(())
}

/// Removes the links, and boots the machine again.
async fn forget(machine: &mut Machine, links: &[String]) -> Result<()> {
    for path in links {
        match machine.remove(path, UNPACK_WAIT).await {
            // The step has removed it.
            Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::FileNotFound) => {}
            removed => removed?,
        }
    }
    machine.restart().await
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

    fn mounts(text: &str) -> Result<Vec<SecretMount>, String> {
        let config = ImageConfig { workdir: Some("/app".to_owned()), ..ImageConfig::default() };
        SecretMount::of(&Scope::new(config, '\\'), &[text.to_owned()]).map_err(|error| error.message)
    }

    #[test]
    fn secrets_of_a_step_are_read() {
        let default = mounts("type=secret,id=token").unwrap().remove(0);
        assert_eq!((default.id.as_str(), default.target.as_deref()), ("token", Some("/run/secrets/token")));
        assert_eq!((default.is_required, default.mode, default.uid, default.env), (false, 0o400, 0, None));
        let full = mounts("type=secret,target=.netrc,required,mode=0440,uid=1000,gid=7").unwrap().remove(0);
        assert_eq!((full.id.as_str(), full.target.as_deref()), (".netrc", Some("/app/.netrc")));
        assert_eq!((full.is_required, full.mode, full.uid, full.gid), (true, 0o440, 1000, 7));
        let variable = mounts("type=secret,id=a,env=TOKEN").unwrap().remove(0);
        assert_eq!((variable.target, variable.env.as_deref()), (None, Some("TOKEN")));
        assert_eq!(mounts("type=cache,target=/root/.cache").unwrap(), []);
    }

    #[test]
    fn other_mounts_are_refused_by_name() {
        for (text, part) in [
            ("type=bind,target=/x", "only type=cache and type=secret are"),
            ("type=secret", "name the secret with id=NAME"),
            ("type=secret,id=../x", "name the secret with id=NAME"),
            ("type=secret,id=a,mode=rw", "`mode=rw`"),
            ("type=secret,id=a,from=b", "`from=b`"),
        ] {
            let refused = mounts(text).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_missing_secret_is_an_error_only_if_it_is_required() {
        let secrets = [BuildSecret { id: "a".to_owned(), value: "1".to_owned() }];
        let value =
            |text: &str| mounts(text).unwrap().remove(0).value(&secrets).map(|found| found.map(str::len));
        assert_eq!(value("type=secret,id=a").unwrap(), Some(1));
        assert_eq!(value("type=secret,id=b").unwrap(), None);
        assert!(value("type=secret,id=b,required").unwrap_err().message.contains("--secret id=b"));
    }

    #[test]
    fn secrets_of_a_request_are_checked() {
        let secret = |id: &str, bytes| BuildSecret { id: id.to_owned(), value: "x".repeat(bytes) };
        check(&[secret("a", 5), secret("b.c", BUILD_SECRET_BYTES_MAX)]).unwrap();
        check(&[secret("a", BUILD_SECRET_BYTES_MAX + 1)]).unwrap_err();
        check(&[secret("a/b", 1)]).unwrap_err();
        check(&[secret("a", 1), secret("a", 1)]).unwrap_err();
        check(&vec![secret("a", 1); BUILD_SECRETS_MAX + 1]).unwrap_err();
        assert!(!format!("{:?}", secret("a", 3)).contains("xxx"));
    }
}
