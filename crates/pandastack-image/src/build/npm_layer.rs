//! npm packages: the host's npm installs them from the lock outside the tree, then the needed files
//! are moved in.
//!
//! Registry packages carry whole toolchains (Node itself, Bun, mise); only the files that the
//! recipe places are kept. Install scripts never run.

use std::path::Path;

use crate::command::Program;
use crate::error::ImageError;
use crate::recipe::Recipe;

/// Fields of npm's lock that do not affect the installation; addresses stay the host's own
/// business.
const DROPPED_FIELDS: &[&str] = &["resolved", "funding", "license", "engines", "deprecated"];

/// Installs what `npm.place` names into `root`.
pub(super) fn install(root: &Path, download: &Path, recipe: &Recipe) -> Result<(), ImageError> {
    let dir = download.join("npm");
    write_project(&dir, recipe)?;
    let lock = dir.join("package-lock.json");
    std::fs::write(&lock, &recipe.lock.npm).map_err(ImageError::io("write", &lock))?;
    npm(&dir, "download npm packages").args(["ci", "--omit=dev"]).run()?;
    super::place::copy(root, &dir.join("node_modules"), &recipe.npm.place)
}

fn write_project(dir: &Path, recipe: &Recipe) -> Result<(), ImageError> {
    std::fs::create_dir_all(dir).map_err(ImageError::io("create", dir))?;
    let project = serde_json::json!({
        "name": recipe.name, "version": "0.0.0", "private": true, "dependencies": recipe.npm.packages,
    });
    let path = dir.join("package.json");
    std::fs::write(&path, project.to_string()).map_err(ImageError::io("write", &path))
}

fn npm(dir: &Path, purpose: &str) -> Program {
    Program::new("npm", purpose).args(["--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(dir)
}

/// npm's lock for the recipe's packages as of today, or nothing if there are none.
pub(crate) fn resolve(work: &Path, recipe: &Recipe) -> Result<String, ImageError> {
    if recipe.npm.packages.is_empty() {
        return Ok(String::new());
    }
    let dir = work.join("npm");
    write_project(&dir, recipe)?;
    npm(&dir, "resolve npm packages").args(["install", "--package-lock-only"]).run()?;
    let path = dir.join("package-lock.json");
    let text = std::fs::read_to_string(&path).map_err(ImageError::io("read", &path))?;
    strip_lock(&text)
}

fn strip_lock(text: &str) -> Result<String, ImageError> {
    let malformed = |error: &dyn std::fmt::Display| ImageError::malformed("npm's lock", error.to_string());
    let mut lock: serde_json::Value = serde_json::from_str(text).map_err(|error| malformed(&error))?;
    let packages = lock["packages"].as_object_mut().ok_or_else(|| malformed(&"it has no packages"))?;
    for (path, package) in packages.iter_mut() {
        let Some(package) = package.as_object_mut() else { continue };
        package.retain(|field, _| !DROPPED_FIELDS.contains(&field.as_str()));
        let bundled = package.get("inBundle").is_some();
        if !path.is_empty() && !bundled && !package.contains_key("integrity") {
            return Err(malformed(&format!("{path} has no digest")));
        }
    }
    serde_json::to_string_pretty(&lock).map(|text| text + "\n").map_err(|error| malformed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_stripping_drops_urls_and_keeps_digests() {
        let lock = r#"{"packages": {"": {}, "node_modules/a": {"version": "1", "integrity": "sha512-x",
            "resolved": "https://registry.example/a.tgz"}}}"#;
        let stripped = strip_lock(lock).unwrap();
        assert!(!stripped.contains("registry.example") && stripped.contains("sha512-x"), "{stripped}");
    }

    #[test]
    fn a_package_without_digest_is_refused() {
        let error = strip_lock(r#"{"packages": {"node_modules/a": {"version": "1"}}}"#).unwrap_err();
        assert!(error.to_string().contains("node_modules/a"), "{error}");
    }
}
