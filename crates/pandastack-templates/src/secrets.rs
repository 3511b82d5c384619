//! Secrets of a build: those that a step mounts, and the values in a request.

use pandastack_types::api::BuildSecret;
use pandastack_types::limits::{BUILD_SECRET_BYTES_MAX, BUILD_SECRET_ID_BYTES_MAX, BUILD_SECRETS_MAX};
use pandastack_types::{Error, Result};

use crate::build_error::BuildError;
use crate::scope::Scope;

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
    pub(crate) target: Option<String>,
    /// Variable that has the content.
    pub(crate) env: Option<String>,
    is_required: bool,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl SecretMount {
    /// Reads a mount of type `secret`.
    pub(crate) fn parse(scope: &Scope, text: &str) -> Result<Self, BuildError> {
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
    pub(crate) fn value<'a>(&self, secrets: &'a [BuildSecret]) -> Result<Option<&'a str>, BuildError> {
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

#[cfg(test)]
mod tests {
    use pandastack_types::api::ImageConfig;

    use super::*;

    fn read(text: &str) -> Result<SecretMount, String> {
        let config = ImageConfig { workdir: Some("/app".to_owned()), ..ImageConfig::default() };
        SecretMount::parse(&Scope::new(config, '\\'), text).map_err(|error| error.message)
    }

    #[test]
    fn secrets_of_a_step_are_read() {
        let default = read("type=secret,id=token").unwrap();
        assert_eq!((default.id.as_str(), default.target.as_deref()), ("token", Some("/run/secrets/token")));
        assert_eq!((default.is_required, default.mode, default.uid, default.env), (false, 0o400, 0, None));
        let full = read("type=secret,target=.netrc,required,mode=0440,uid=1000,gid=7").unwrap();
        assert_eq!((full.id.as_str(), full.target.as_deref()), (".netrc", Some("/app/.netrc")));
        assert_eq!((full.is_required, full.mode, full.uid, full.gid), (true, 0o440, 1000, 7));
        let variable = read("type=secret,id=a,env=TOKEN").unwrap();
        assert_eq!((variable.target, variable.env.as_deref()), (None, Some("TOKEN")));
    }

    #[test]
    fn unknown_options_are_refused_by_name() {
        for (text, part) in [
            ("type=secret", "name the secret with id=NAME"),
            ("type=secret,id=../x", "name the secret with id=NAME"),
            ("type=secret,id=a,mode=rw", "`mode=rw`"),
            ("type=secret,id=a,from=b", "`from=b`"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_missing_secret_is_an_error_only_if_it_is_required() {
        let secrets = [BuildSecret { id: "a".to_owned(), value: "1".to_owned() }];
        let value = |text: &str| read(text).unwrap().value(&secrets).map(|found| found.map(str::len));
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
