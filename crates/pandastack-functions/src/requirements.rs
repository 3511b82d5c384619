//! The requirements that pip installs for a bundle: its `requirements.txt`, or else the dependencies of
//! its `pyproject.toml`.

use serde::Deserialize;

use crate::bundle::BundleRefused;

/// Name of the file that wins.
pub(crate) const REQUIREMENTS: &str = "requirements.txt";
/// Name of the file that is read if the other is missing.
pub(crate) const PYPROJECT: &str = "pyproject.toml";

/// The location of the requirements for pip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Requirements {
    /// The bundle has a `requirements.txt` with this content.
    File(Vec<u8>),
    /// Requirements of the bundle's `pyproject.toml`, one per line.
    Listed(String),
}

impl Requirements {
    /// Content of the requirements.
    pub(crate) fn content(&self) -> &[u8] {
        match self {
            Requirements::File(content) => content,
            Requirements::Listed(lines) => lines.as_bytes(),
        }
    }
}

#[derive(Deserialize)]
struct Pyproject {
    project: Option<Project>,
    tool: Option<Tool>,
}

#[derive(Deserialize)]
struct Project {
    #[serde(default)]
    dependencies: Vec<String>,
    #[serde(default)]
    dynamic: Vec<String>,
}

#[derive(Deserialize)]
struct Tool {
    poetry: Option<Poetry>,
}

#[derive(Deserialize)]
struct Poetry {
    dependencies: Option<toml::Table>,
}

/// Requirements of a bundle with these files; `None` when there are none.
pub(crate) fn of(manifests: &[(String, Vec<u8>)]) -> Result<Option<Requirements>, BundleRefused> {
    let file = |name: &str| manifests.iter().find(|(known, _)| known == name).map(|(_, content)| content);
    if let Some(content) = file(REQUIREMENTS) {
        return Ok(Some(Requirements::File(content.clone())));
    }
    let Some(content) = file(PYPROJECT) else { return Ok(None) };
    let lines = listed(content).map_err(BundleRefused::Pyproject)?;
    Ok((!lines.is_empty()).then_some(Requirements::Listed(lines)))
}

fn listed(content: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(content).map_err(|error| error.to_string())?;
    let parsed: Pyproject = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let project = parsed.project.unwrap_or(Project { dependencies: Vec::new(), dynamic: Vec::new() });
    if project.dynamic.iter().any(|name| name == "dependencies") {
        return Err(
            "its dependencies are dynamic; list them under [project], or add a requirements.txt".to_owned()
        );
    }
    let poetry = parsed.tool.and_then(|tool| tool.poetry).and_then(|poetry| poetry.dependencies);
    let only_poetry = poetry.is_some_and(|table| table.keys().any(|name| name != "python"));
    if project.dependencies.is_empty() && only_poetry {
        return Err("[tool.poetry] dependencies are not supported; list them under \
                    [project], or add a requirements.txt"
            .to_owned());
    }
    let mut lines = String::new();
    for dependency in project.dependencies {
        if dependency.chars().any(char::is_control) || dependency.starts_with('-') {
            return Err(format!("`{}` is not a valid dependency", dependency.escape_debug()));
        }
        lines.push_str(&dependency);
        lines.push('\n');
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(files: &[(&str, &str)]) -> Result<Option<Requirements>, BundleRefused> {
        let files: Vec<_> =
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
        of(&files)
    }

    #[test]
    fn pyproject_is_used_without_requirements_txt() {
        let project = "[project]\nname = 'x'\nversion = '1'\ndependencies = ['six>=1', \"tomli; python_version < '3.11'\"]\n";
        let listed = Requirements::Listed("six>=1\ntomli; python_version < '3.11'\n".to_owned());
        assert_eq!(with(&[(PYPROJECT, project)]), Ok(Some(listed)));
        let file = Requirements::File(b"six".to_vec());
        assert_eq!(with(&[(PYPROJECT, project), (REQUIREMENTS, "six")]), Ok(Some(file)));
        assert_eq!(with(&[(PYPROJECT, "[tool.black]\nline-length = 100\n")]), Ok(None));
        assert_eq!(with(&[("package.json", "{}")]), Ok(None));
    }

    #[test]
    fn unsupported_pyproject_files_are_rejected_with_a_hint() {
        for (text, says) in [
            ("[project]\ndynamic = ['dependencies']\n", "requirements.txt"),
            ("[tool.poetry.dependencies]\npython = '^3.11'\nsix = '*'\n", "[tool.poetry]"),
            ("[project]\ndependencies = [\"six\\n--index-url x\"]\n", "not a valid dependency"),
            ("[project]\ndependencies = 'six'\n", "sequence"),
            ("not toml at all [", ""),
        ] {
            let Err(BundleRefused::Pyproject(why)) = with(&[(PYPROJECT, text)]) else { panic!("{text}") };
            assert!(why.contains(says), "{why}");
        }
        assert_eq!(with(&[(PYPROJECT, "[tool.poetry.dependencies]\npython = '^3.11'\n")]), Ok(None));
    }
}
