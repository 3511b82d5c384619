//! Detects from an app's files how to install, build and start it, and gives the reasons.
//!
//! ```text
//!   file names --interesting--> texts --View--> detect(view, settings) --> Plan, or the names looked for
//! ```
//!
//! Pure: no I/O. The caller lists an app's files, reads those that [`interesting`] names, and gets
//! a [`Plan`]: commands, with a sentence for each decision. Explicit settings ([`UserSettings`],
//! then `pandastack.toml`) always win over detected ones, and the plan notes it.
//!
//! | looked at | found |
//! |---|---|
//! | `pandastack.toml` | explicit settings |
//! | `Procfile` | the start command |
//! | `package.json` | next, vite, cra, node: module `node` |
//! | requirements.txt, pyproject.toml, uv.lock, ... or a main module | Django, FastAPI, Flask, plain: module `python` |
//! | `Staticfile`, `public/index.html`, `index.html` | static files: module `site` |
//!
//! Callers run the commands, and provide the machine.

#![forbid(unsafe_code)]

mod detect;
mod framework;
mod interesting;
mod limits;
mod local;
mod locks;
mod manifest;
mod node;
mod node_version;
mod plan;
mod procfile;
mod python;
mod python_version;
mod site;
mod undetected;
mod user_settings;
mod view;

pub use detect::{detect, manifest};
pub use framework::Framework;
pub use interesting::interesting;
pub use limits::{DEPTH_MAX, FILES_MAX, TEXT_BYTES_MAX, TEXTS_MAX};
pub use manifest::{MANIFEST, Manifest, ManifestError};
pub use node_version::NodeRequirement;
pub use plan::{Plan, Serve};
pub use python::VENV;
pub use python_version::PythonRequirement;
pub use undetected::Undetected;
pub use user_settings::UserSettings;
pub use view::View;

#[cfg(test)]
mod tests;
