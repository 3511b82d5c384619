//! References to templates: `python`, `python:3.12`, `python@BUILD`, and `acme/python` for a template that
//! workspace `acme` shares.

use std::fmt;
use std::str::FromStr;

use pandastack_types::{BuildId, Error, ErrorCode, Result, WorkspaceId};

use crate::template_readers::TemplateReaderStore;
use crate::templates::{BuildRecord, BuildState, LATEST, TemplateRecord, TemplateStore};

/// Longest template name.
const NAME_BYTES_MAX: usize = 64;

/// A reference to a version of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRef {
    /// The workspace that shares the template. `None` means the caller's, or the platform.
    pub workspace: Option<WorkspaceId>,
    /// The template's name.
    pub name: String,
    /// The version.
    pub version: VersionRef,
}

/// A version of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionRef {
    /// The version that a tag points to.
    Tag(String),
    /// The version of a build.
    Build(BuildId),
}

impl FromStr for TemplateRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (workspace, rest) = match text.split_once('/') {
            Some((workspace, rest)) => (Some(workspace_id(workspace)?), rest),
            None => (None, text),
        };
        let (name, version) = match (rest.split_once('@'), rest.split_once(':')) {
            (Some((name, build)), _) => (name, VersionRef::Build(build_id(build)?)),
            (None, Some((name, tag))) => {
                template_tag(tag)?;
                (name, VersionRef::Tag(tag.to_owned()))
            }
            (None, None) => (rest, VersionRef::Tag(LATEST.to_owned())),
        };
        template_name(name)?;
        Ok(Self { workspace, name: name.to_owned(), version })
    }
}

/// Checks the name of a template.
pub fn template_name(name: &str) -> Result<()> {
    check("name", name)
}

/// Checks the tag of a template.
pub fn template_tag(tag: &str) -> Result<()> {
    check("tag", tag)
}

/// Checks a reference to a template.
pub fn template_reference(reference: &str) -> Result<()> {
    reference.parse::<TemplateRef>().map(drop)
}

fn check(what: &str, text: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    match (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(good) {
        true => Ok(()),
        false => Err(Error::bad_request(format!(
            "invalid template {what}; use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`"
        ))),
    }
}

fn workspace_id(text: &str) -> Result<WorkspaceId> {
    text.parse().map_err(|error| Error::bad_request(format!("invalid template: {error}")))
}

fn build_id(text: &str) -> Result<BuildId> {
    text.parse().map_err(|error| Error::bad_request(format!("invalid template: {error}")))
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(workspace) = &self.workspace {
            write!(f, "{workspace}/")?;
        }
        f.write_str(&self.name)?;
        match &self.version {
            VersionRef::Tag(tag) if tag == LATEST => Ok(()),
            VersionRef::Tag(tag) => write!(f, ":{tag}"),
            VersionRef::Build(build) => write!(f, "@{build}"),
        }
    }
}

impl TemplateRef {
    /// The template, without a version.
    pub fn template(&self) -> Self {
        Self { version: VersionRef::Tag(LATEST.to_owned()), ..self.clone() }
    }

    /// Returns whether the reference names the newest version.
    pub fn is_latest(&self) -> bool {
        matches!(&self.version, VersionRef::Tag(tag) if tag == LATEST)
    }

    /// The template, if `reader` may use it: its own, or one that another workspace shares.
    pub async fn find<S>(&self, store: &S, reader: &WorkspaceId) -> Result<Option<TemplateRecord>>
    where
        S: TemplateReaderStore + ?Sized,
    {
        let owner = self.workspace.as_ref().unwrap_or(reader);
        Ok(store.readable_template(reader, owner, &self.name).await?)
    }

    /// The version of that template. A template exists from the start of its first build, and may not have
    /// one yet.
    pub async fn version<S>(&self, store: &S, template: &TemplateRecord) -> Result<Option<BuildRecord>>
    where
        S: TemplateStore + ?Sized,
    {
        let build = match &self.version {
            VersionRef::Tag(tag) => return Ok(store.tagged_build(&template.id, tag).await?),
            VersionRef::Build(id) => store.build(&template.workspace, id).await,
        };
        match build.map_err(Error::from) {
            Err(error) if error.code == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(build) => {
                Ok(Some(build).filter(|one| one.template == template.id && one.state == BuildState::Done))
            }
        }
    }

    /// The error for a version that does not exist.
    pub fn no_version(&self) -> Error {
        let name = self.template();
        let message = match &self.version {
            VersionRef::Tag(tag) if tag == LATEST && self.workspace.is_some() => {
                format!("template `{name}` has no finished build")
            }
            VersionRef::Tag(tag) if tag == LATEST => {
                format!("template `{name}` has no finished build; run `pandastack template build`")
            }
            VersionRef::Tag(tag) => {
                format!(
                    "template `{name}` has no tag `{tag}`; `pandastack template get {name}` lists its tags"
                )
            }
            VersionRef::Build(build) => format!("template `{name}` has no version of build `{build}`"),
        };
        Error::new(ErrorCode::NotFound, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_parsed_and_printed() {
        for text in ["python", "python:3.12", "acme/python", "acme/Py_thon.x:v-1", "acme/python@b-1", "py@b1"]
        {
            assert_eq!(text.parse::<TemplateRef>().unwrap().to_string(), text);
        }
        let latest: TemplateRef = "acme/python:latest".parse().unwrap();
        assert!(latest.is_latest());
        assert_eq!(latest.to_string(), "acme/python");
        let pinned: TemplateRef = "acme/python@b-1".parse().unwrap();
        assert_eq!((pinned.template().to_string().as_str(), pinned.is_latest()), ("acme/python", false));
    }

    #[test]
    fn invalid_references_are_refused() {
        for text in
            ["", "/python", "acme/", "a/b/c", "Acme/python", "py:", "py@", "py@B", "py:a:b", "py@b:c", "a b"]
        {
            let error = text.parse::<TemplateRef>().unwrap_err();
            assert_eq!(error.code, ErrorCode::BadRequest, "{text}");
        }
    }
}
