//! The errors when no plan can be made.

use crate::framework::Framework;

/// Reason why an app was not detected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undetected {
    /// The source holds no known kind of app.
    #[error(
        "no app was found in {where_looked}: looked for package.json (node), requirements.txt, pyproject.toml, uv.lock, poetry.lock, pdm.lock, Pipfile, main.py, app.py, server.py (python), Staticfile, public/index.html and index.html (static), and found {found}; set root_directory if the app is in a subdirectory, or set start_command (in pandastack.toml, with `pandastack app deploy --start ...`, or in the API)"
    )]
    Nothing {
        /// The directory.
        where_looked: String,
        /// Files that exist.
        found: String,
    },
    /// The kind of app is known, but its start command is not.
    #[error("{0}")]
    NoStart(String),
    /// An unknown kind.
    #[error("`{0}` is not a framework; use one of {names}", names = Framework::NAMES.join(", "))]
    UnknownFramework(String),
    /// `pandastack.toml` or `package.json` cannot be read.
    #[error("{file} cannot be read: {why}")]
    Unreadable {
        /// The file.
        file: &'static str,
        /// Reason.
        why: String,
    },
}
