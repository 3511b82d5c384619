//! The source of a Vite app, with the packages that it installs: fetched once by this host's npm, so that building
//! it measures no registry. They are those of the tests' sample, by its lock file: `npm ci` refuses one that a registry
//! without every platform's packages helped to write.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::process::Command;

/// Directory of the packages in the source of the first deployment. Later deployments find them
/// installed, so they are not committed.
const CACHE: &str = "npm-cache";
/// Installs from there.
pub const INSTALL: &str = "npm ci --include=dev --offline --cache npm-cache --no-audit --no-fund";

const FILES: [(&str, &str); 5] = [
    (
        "package.json",
        r#"{"name": "bench", "version": "1.0.0", "private": true, "type": "module", "scripts": {"build": "vite build"},
            "dependencies": {"react": "19.3.1", "react-dom": "19.3.1"},
            "devDependencies": {"vite": "8.3.4", "@vitejs/plugin-react": "6.1.2"}}"#,
    ),
    ("package-lock.json", include_str!("../../tests/e2e/python/sample_locks/vite/package-lock.json")),
    ("vite.config.js", "import react from '@vitejs/plugin-react';\nexport default { plugins: [react()] };\n"),
    (
        "index.html",
        "<!doctype html><div id=\"root\"></div><script type=\"module\" src=\"/main.jsx\"></script>\n",
    ),
    PAGE,
];

/// The file that differs from deployment to deployment.
const PAGE: (&str, &str) = (
    "main.jsx",
    "import { createRoot } from 'react-dom/client';\n\
     createRoot(document.getElementById('root')).render(<h1>hello</h1>);\n",
);

/// The source in a directory of its own.
pub struct Source(tempfile::TempDir);

impl Source {
    /// Writes it and fetches its packages.
    pub async fn prepare() -> Result<Self> {
        let dir = tempfile::tempdir().context("make a directory for the source")?;
        for (name, text) in FILES {
            std::fs::write(dir.path().join(name), text)?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--include=dev", "--no-audit", "--no-fund", "--cache", CACHE]);
        let output = npm.current_dir(dir.path()).output().await.context("start npm")?;
        ensure!(output.status.success(), "npm: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_dir_all(dir.path().join("node_modules")).context("remove what npm unpacked")?;
        Ok(Self(dir))
    }

    /// Directory of the project.
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    /// Files of the project, without packages.
    pub fn files() -> [&'static str; FILES.len()] {
        FILES.map(|(name, _)| name)
    }

    /// Changes one line.
    pub fn change(&self, round: u32) -> Result<()> {
        let text = PAGE.1.replace("hello", &format!("hello {round}"));
        std::fs::write(self.dir().join(PAGE.0), text).context("change the source")
    }

    /// An archive of it, with its packages.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for name in Self::files() {
            archive.append_path_with_name(self.dir().join(name), name)?;
        }
        archive.append_dir_all(CACHE, self.dir().join(CACHE))?;
        Ok(archive.into_inner()?.finish()?)
    }
}
