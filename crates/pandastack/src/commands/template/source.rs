//! Source of `pandastack template build`: a Dockerfile with its directory, or a container image.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pandastack_dockerfile::Dockerfile;
use pandastack_types::api::RegistryCredentials;
use pandastack_types::image::ImageReference;

use super::authfile;
use crate::failure::Failure;

/// A Dockerfile for the image in the build files.
pub(super) const FROM_FILES: &str = "FROM oci-layout://.\n";

/// Arguments that name an image.
#[derive(Debug, clap::Args)]
pub(super) struct SourceArgs {
    /// Container image to build from, instead of a Dockerfile, such as python:3.12
    #[arg(long, value_name = "IMAGE", requires = "name", conflicts_with_all = ["target", "file"])]
    from_image: Option<ImageReference>,
    /// Archive with one image to build from: an OCI layout, or written by `docker save`
    #[arg(
        long,
        value_name = "FILE",
        requires = "name",
        conflicts_with_all = ["target", "file", "from_image"]
    )]
    from_archive: Option<PathBuf>,
    /// File with credentials for registries, as `docker login` and `podman login` write it
    #[arg(long, value_name = "FILE", requires = "name")]
    authfile: Option<PathBuf>,
    /// Registry to reach over HTTP instead of HTTPS, such as registry.local:5000; can be repeated
    #[arg(long, value_name = "REGISTRY", requires = "name")]
    pub(super) plain_http: Vec<String>,
}

/// Files that a build needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Upload {
    /// None.
    Nothing,
    /// The contents of a directory.
    Directory(PathBuf),
    /// An archive as it is.
    Archive(PathBuf),
}

impl SourceArgs {
    /// The Dockerfile, and the files to upload.
    pub(super) fn find(&self, directory: &Path, file: Option<&Path>) -> Result<(String, Upload)> {
        if let Some(image) = &self.from_image {
            return Ok((format!("FROM {image}\n"), Upload::Nothing));
        }
        if let Some(archive) = &self.from_archive {
            return Ok((FROM_FILES.to_owned(), Upload::Archive(archive.clone())));
        }
        let file = file.map_or_else(|| directory.join("Dockerfile"), Path::to_owned);
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((text, Upload::Directory(directory.to_owned())))
    }

    /// Credentials for the registries that a Dockerfile names. A name with a variable may be any.
    pub(super) fn credentials(&self, dockerfile: &Dockerfile) -> Result<Vec<RegistryCredentials>> {
        let Some(path) = &self.authfile else { return Ok(Vec::new()) };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let all = authfile::parse(&text).with_context(|| format!("cannot read {}", path.display()))?;
        let bases = dockerfile.stages.iter().map(|stage| stage.from.as_str());
        let copied = dockerfile.copied_images().into_iter().map(|(image, _)| image);
        let names: Vec<&str> = bases.chain(copied).collect();
        let images: Vec<ImageReference> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let is_any = names.iter().any(|name| name.contains('$'));
        let is_wanted =
            |one: &RegistryCredentials| is_any || images.iter().any(|image| image.registry == one.registry);
        let wanted: Vec<RegistryCredentials> = all.into_iter().filter(is_wanted).collect();
        match wanted.is_empty() {
            true => Err(Failure::new(format!("{} has no credentials for these images", path.display()))
                .hint("credential helpers are not supported; `podman login --authfile` writes such a file")
                .into()),
            false => Ok(wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(image: Option<&str>, archive: Option<&str>, authfile: Option<PathBuf>) -> SourceArgs {
        SourceArgs {
            from_image: image.map(|image| image.parse().unwrap()),
            from_archive: archive.map(PathBuf::from),
            authfile,
            plain_http: Vec::new(),
        }
    }

    #[test]
    fn images_need_no_directory() {
        let nowhere = Path::new("/nowhere");
        let (text, files) = args(Some("python:3.12"), None, None).find(nowhere, None).unwrap();
        assert_eq!((text.as_str(), files), ("FROM docker.io/library/python:3.12\n", Upload::Nothing));
        let (text, files) = args(None, Some("image.tar"), None).find(nowhere, None).unwrap();
        let archive = Upload::Archive(PathBuf::from("image.tar"));
        assert_eq!((text.as_str(), files), ("FROM oci-layout://.\n", archive));
        assert!(args(None, None, None).find(nowhere, None).is_err());
    }

    #[test]
    fn only_credentials_of_registries_in_the_file_are_sent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let auths =
            r#"{"auths": {"ghcr.io": {"auth": "bWU6cGFzcw=="}, "quay.io": {"auth": "bWU6cGFzcw=="}}}"#;
        std::fs::write(file.path(), auths).unwrap();
        let args = args(None, None, Some(file.path().to_owned()));
        let registries = |text: &str| {
            let found = args.credentials(&pandastack_dockerfile::parse(text).unwrap());
            found.map(|found| found.into_iter().map(|one| one.registry).collect::<Vec<_>>())
        };
        assert_eq!(registries("FROM ghcr.io/team/app\n").unwrap(), ["ghcr.io"]);
        assert_eq!(registries("FROM base\nCOPY --from=quay.io/a /b /c\n").unwrap(), ["quay.io"]);
        assert_eq!(registries("ARG A\nFROM $A\n").unwrap(), ["ghcr.io", "quay.io"]);
        assert!(registries("FROM python\n").unwrap_err().to_string().contains("no credentials"));
    }
}
