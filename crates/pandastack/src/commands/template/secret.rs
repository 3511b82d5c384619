//! `--secret`: where a build's secrets come from.

use std::path::PathBuf;

use anyhow::Result;
use pandastack_types::api::BuildSecret;

use crate::failure::Failure;

const FORM: &str = "expected id=NAME, with src=FILE or env=VARIABLE";

/// A secret as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretArg {
    id: String,
    source: Source,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    File(PathBuf),
    Variable(String),
}

/// Reads one `--secret`.
pub(super) fn parse(text: &str) -> Result<SecretArg, String> {
    let (mut id, mut source) = (None, None);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("id", value)) if !value.is_empty() => id = Some(value.to_owned()),
            Some(("src" | "source", value)) => source = Some(Source::File(value.into())),
            Some(("env", value)) => source = Some(Source::Variable(value.to_owned())),
            Some(("type", "file" | "env")) => {}
            _ => return Err(FORM.to_owned()),
        }
    }
    let id = id.ok_or(FORM)?;
    // As `docker build` does it.
    let source = source.unwrap_or_else(|| Source::Variable(id.clone()));
    Ok(SecretArg { id, source })
}

/// Reads the contents.
pub(super) fn read(secrets: &[SecretArg]) -> Result<Vec<BuildSecret>> {
    secrets.iter().map(|secret| Ok(BuildSecret { id: secret.id.clone(), value: secret.value()? })).collect()
}

impl SecretArg {
    fn value(&self) -> Result<String, Failure> {
        let cannot = |why: String| Failure::new(format!("cannot read secret `{}`: {why}", self.id));
        match &self.source {
            Source::File(path) => {
                std::fs::read_to_string(path).map_err(|error| cannot(format!("{}: {error}", path.display())))
            }
            Source::Variable(name) => std::env::var(name).map_err(|error| {
                cannot(format!("variable `{name}`: {error}")).hint("name a file with src=FILE")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_files_and_variables() {
        let variable =
            |id: &str, name: &str| SecretArg { id: id.to_owned(), source: Source::Variable(name.to_owned()) };
        assert_eq!(parse("id=token").unwrap(), variable("token", "token"));
        assert_eq!(parse("id=token,env=CI_TOKEN").unwrap(), variable("token", "CI_TOKEN"));
        let file = parse("type=file,id=npmrc,src=/tmp/x=y").unwrap();
        assert_eq!(file.source, Source::File("/tmp/x=y".into()));
        for wrong in ["token", "src=a", "id=", "id=a,mode=1"] {
            assert_eq!(parse(wrong).unwrap_err(), FORM, "{wrong}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let wanted = parse(&format!("id=a,src={}", path.display())).unwrap();
        let missing = read(std::slice::from_ref(&wanted)).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read secret `a`: "), "{missing}");
        std::fs::write(&path, "s3cret\n").unwrap();
        assert_eq!(read(&[wanted]).unwrap()[0].value, "s3cret\n");
    }
}
