//! References to container images, such as `python:3.12` or `ghcr.io/team/app@sha256:...`.
//!
//! Pure: text in, parts out. Short names mean Docker Hub, as everywhere.

use std::fmt;
use std::str::FromStr;

/// The registry of names without one.
pub const DOCKER_HUB: &str = "docker.io";
/// Host that serves the images of Docker Hub.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";
/// Other names of Docker Hub.
const DOCKER_HUB_NAMES: [&str; 2] = ["index.docker.io", DOCKER_HUB_HOST];
/// Tag of references without a tag and without a digest.
const TAG_DEFAULT: &str = "latest";
/// Longest name, with its registry.
const NAME_BYTES_MAX: usize = 255;
/// Longest tag.
const TAG_BYTES_MAX: usize = 128;
/// Digits of a digest.
const DIGEST_DIGITS: usize = 64;

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageReference {
    /// Registry as users name it, with its port: `docker.io`, `localhost:5000`.
    pub registry: String,
    /// Repository: `library/python`.
    pub repository: String,
    /// Tag. `None` if there is only a digest.
    pub tag: Option<String>,
    /// Digest of the manifest: `sha256:...`. It wins over the tag.
    pub digest: Option<String>,
}

/// Why a text is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid image `{text}`: {why}")]
pub struct ImageReferenceError {
    text: String,
    why: &'static str,
}

impl ImageReference {
    /// Host and port that serve the registry's images.
    pub fn host(&self) -> &str {
        if self.registry == DOCKER_HUB { DOCKER_HUB_HOST } else { &self.registry }
    }
}

/// The name under which a registry is known here: all names of Docker Hub are `docker.io`. Addresses of
/// credential files, such as `https://index.docker.io/v1/`, are understood.
pub fn registry_name(text: &str) -> String {
    let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let host = text.split('/').next().unwrap_or_default().to_ascii_lowercase();
    if DOCKER_HUB_NAMES.contains(&host.as_str()) { DOCKER_HUB.to_owned() } else { host }
}

impl FromStr for ImageReference {
    type Err = ImageReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|why| ImageReferenceError { text: text.chars().take(300).collect(), why })
    }
}

fn parse(text: &str) -> Result<ImageReference, &'static str> {
    if text.contains("://") {
        return Err("write it without a scheme, such as `registry.example.com/name:tag`");
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(checked_digest(digest)?)),
        None => (text, None),
    };
    // A colon before the last slash is that of a port.
    let name_from = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[name_from..].find(':') {
        Some(colon) => (&rest[..name_from + colon], Some(checked_tag(&rest[name_from + colon + 1..])?)),
        None => (rest, None),
    };
    let (registry, path) = match name.split_once('/') {
        Some((first, path)) if is_registry(first) => (checked_registry(first)?, path),
        _ => (DOCKER_HUB.to_owned(), name),
    };
    if !path.split('/').all(is_component) {
        return Err("a name has lowercase letters and digits, separated by `.`, `_`, `-` or `/`");
    }
    let is_official = registry == DOCKER_HUB && !path.contains('/');
    let repository = if is_official { format!("library/{path}") } else { path.to_owned() };
    if registry.len() + repository.len() > NAME_BYTES_MAX {
        return Err("the name is longer than 255 characters");
    }
    let tag = tag.or_else(|| digest.is_none().then(|| TAG_DEFAULT.to_owned()));
    Ok(ImageReference { registry, repository, tag, digest })
}

/// Whether the first part of a name is a registry, and not a user of Docker Hub.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':'])
}

fn checked_registry(text: &str) -> Result<String, &'static str> {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let is_char = |char: char| char.is_ascii_alphanumeric() || char == '-';
        !label.is_empty() && label.chars().all(is_char) && !label.starts_with('-') && !label.ends_with('-')
    };
    let has_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    if !host.split('.').all(is_label) || !port.is_none_or(has_port) {
        return Err("the registry is not a host name or address with an optional port");
    }
    Ok(registry_name(text))
}

/// Lowercase letters and digits, in groups separated by one of `.`, `_`, `__` or dashes.
fn is_component(text: &str) -> bool {
    let is_word = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
    let is_ok = text.chars().all(|char| is_word(char) || matches!(char, '.' | '_' | '-'));
    let mut separators = text.split(is_word).filter(|part| !part.is_empty());
    let is_separator = |part: &str| matches!(part, "." | "_" | "__") || part.chars().all(|char| char == '-');
    is_ok && text.starts_with(is_word) && text.ends_with(is_word) && separators.all(is_separator)
}

fn checked_tag(text: &str) -> Result<String, &'static str> {
    let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let is_ok = text.starts_with(is_word)
        && text.len() <= TAG_BYTES_MAX
        && text.chars().all(|char| is_word(char) || matches!(char, '.' | '-'));
    match is_ok {
        true => Ok(text.to_owned()),
        false => {
            Err("a tag has up to 128 letters, digits, `_`, `.` and `-`, and starts with none of the last two")
        }
    }
}

fn checked_digest(text: &str) -> Result<String, &'static str> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match text.strip_prefix("sha256:") {
        Some(digits) if digits.len() == DIGEST_DIGITS && digits.bytes().all(is_digit) => Ok(text.to_owned()),
        _ => Err("a digest is `sha256:` and 64 hexadecimal digits in lowercase"),
    }
}

impl fmt::Display for ImageReference {
    /// The whole reference, with its registry.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn read(text: &str) -> ImageReference {
        text.parse().unwrap()
    }

    #[test]
    fn short_names_mean_docker_hub() {
        for (given, whole) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
            ("bitnami/redis", "docker.io/bitnami/redis:latest"),
            ("docker.io/python", "docker.io/library/python:latest"),
            ("index.docker.io/library/python:3", "docker.io/library/python:3"),
            ("ghcr.io/team/app/web:v1.0", "ghcr.io/team/app/web:v1.0"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("10.0.0.5:5000/a__b/c-d--e.f", "10.0.0.5:5000/a__b/c-d--e.f:latest"),
            ("Registry.Example.com/app", "registry.example.com/app:latest"),
        ] {
            assert_eq!(read(given).to_string(), whole, "{given}");
            assert_eq!(read(whole).to_string(), whole, "{given}");
        }
        assert_eq!(read("python").host(), "registry-1.docker.io");
        assert_eq!(read("ghcr.io/a").host(), "ghcr.io");
    }

    #[test]
    fn a_digest_needs_no_tag() {
        let pinned = read(&format!("python@{DIGEST}"));
        assert_eq!((pinned.tag.as_deref(), pinned.digest.as_deref()), (None, Some(DIGEST)));
        let both = format!("ghcr.io:8443/a/b:v1@{DIGEST}");
        assert_eq!(read(&both).to_string(), both);
    }

    #[test]
    fn wrong_references_are_refused_with_a_reason() {
        for (given, why) in [
            ("", "lowercase"),
            ("Python", "lowercase"),
            ("a//b", "lowercase"),
            ("a/", "lowercase"),
            ("-a", "lowercase"),
            ("a..b", "lowercase"),
            ("a___b", "lowercase"),
            ("ghcr.io/../a", "lowercase"),
            ("a b", "lowercase"),
            ("a:", "a tag"),
            ("a:.x", "a tag"),
            ("a:b:c", "a tag"),
            ("a@sha256:00", "a digest"),
            ("a@md5:00", "a digest"),
            ("https://ghcr.io/a", "scheme"),
            ("ex_ample.com:x/a", "the registry"),
            ("example.com:0/a", "the registry"),
            ("example.com:+5/a", "the registry"),
            ("[::1]:5000/a", "the registry"),
            (&"a".repeat(240), "longer"),
        ] {
            let refused = given.parse::<ImageReference>().unwrap_err().to_string();
            assert!(refused.contains(why), "{given}: {refused}");
        }
        let upper = format!("a@{}", DIGEST.to_ascii_uppercase().replace("SHA", "sha"));
        assert!(upper.parse::<ImageReference>().is_err());
    }

    #[test]
    fn registries_of_credential_files_are_found() {
        for (given, name) in [
            ("https://index.docker.io/v1/", "docker.io"),
            ("docker.io", "docker.io"),
            ("registry-1.docker.io", "docker.io"),
            ("https://GHCR.io", "ghcr.io"),
            ("localhost:5000/v2/", "localhost:5000"),
        ] {
            assert_eq!(registry_name(given), name, "{given}");
        }
    }
}
