//! Tells from an app's files how it is installed, built and started, and why it thinks so.
//!
//! ```text
//!   names of files --interesting--> their texts --View--> detect(view, wishes) --> Plan, or what was looked for
//! ```
//!
//! Pure: no I/O. Who has the files lists them, reads those that [`interesting`] names, and gets a [`Plan`]: commands,
//! with a sentence for each decision. What a person said ([`Wishes`], then `pandastack.toml`) always wins over what is
//! found, and the plan says so.
//!
//! | looked at | found |
//! |---|---|
//! | `pandastack.toml` | whatever it says |
//! | `Procfile` | the start command |
//! | `package.json` | next, vite, cra, node: module `node` |
//! | requirements.txt, pyproject.toml, uv.lock, ... or a main module | Django, FastAPI, Flask, plain: module `python` |
//! | `Staticfile`, `public/index.html`, `index.html` | static files: module `site` |
//!
//! Left to others: running any of it, and the machine it runs in.

#![forbid(unsafe_code)]

mod local;
mod locks;
mod manifest;
mod node;
mod node_version;
mod procfile;
mod python;
mod python_version;
mod site;

use std::collections::{BTreeMap, BTreeSet};

pub use manifest::{MANIFEST, Manifest, ManifestError};
pub use node_version::NodeWish;
pub use python_version::PythonWish;

/// Where Python packages are installed, outside of the source so that a new source leaves them alone.
pub const VENV: &str = "/srv/venv";
/// Levels of directories that are worth listing.
pub const DEPTH_MAX: usize = 3;
/// Names listed at most; an app's entry is never that far down.
pub const FILES_MAX: usize = 4_000;
/// Bytes read of one file.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Files read at most.
pub const TEXTS_MAX: usize = 64;

/// What is known of a source: paths relative to its root, and the texts of some.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Paths of files, without `./`.
    pub files: BTreeSet<String>,
    /// Texts of those that [`interesting`] named.
    pub texts: BTreeMap<String, String>,
}

impl View {
    fn has(&self, path: &str) -> bool {
        self.files.contains(path)
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// The first of some that is there.
    fn first<'a>(&self, paths: &[&'a str]) -> Option<&'a str> {
        paths.iter().find(|path| self.has(path)).copied()
    }
}

/// What a person said; it wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Kind of app.
    pub framework: Option<String>,
    /// Installs dependencies.
    pub install: Option<String>,
    /// Builds.
    pub build: Option<String>,
    /// Starts the server.
    pub start: Option<String>,
}

/// Kind of app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    /// Next.js.
    Next,
    /// Vite, built to files.
    Vite,
    /// Create React App, built to files.
    Cra,
    /// A Node program.
    Node,
    /// A Python program.
    Python,
    /// Files as they are.
    Static,
    /// None of these: the commands were said.
    Custom,
}

impl Framework {
    /// Every kind, as it is written.
    pub const NAMES: [&'static str; 7] = ["next", "vite", "cra", "node", "python", "static", "custom"];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Framework::Next => "next",
            Framework::Vite => "vite",
            Framework::Cra => "cra",
            Framework::Node => "node",
            Framework::Python => "python",
            Framework::Static => "static",
            Framework::Custom => "custom",
        }
    }

    /// The kind of that name.
    pub fn parse(text: &str) -> Option<Self> {
        let all = [
            Framework::Next,
            Framework::Vite,
            Framework::Cra,
            Framework::Node,
            Framework::Python,
            Framework::Static,
            Framework::Custom,
        ];
        // What published clients call it.
        let text = if text == "nextjs" { "next" } else { text };
        all.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// How an app serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serve {
    /// A command that listens on 0.0.0.0 and `$PORT`.
    Command(String),
    /// Files.
    Files {
        /// Their directory within the app.
        directory: String,
        /// Unknown paths get `index.html`: the page finds its own way.
        single_page: bool,
    },
}

/// How to install, build and start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Kind of app.
    pub framework: Framework,
    /// Installs dependencies.
    pub install: Option<String>,
    /// Files whose content decides whether installing again would change anything.
    pub locks: Vec<String>,
    /// Runs instead of `install` where packages were restored: what of it the source itself decides.
    pub refresh: Option<String>,
    /// Builds.
    pub build: Option<String>,
    /// Serves.
    pub serve: Serve,
    /// Variables of build and run.
    pub env: BTreeMap<String, String>,
    /// A Node version that was asked for, its major number.
    pub node_major: Option<u32>,
    /// Conditions on the Node's version that name no one major number.
    pub node: Option<NodeWish>,
    /// The Python that a file asks for.
    pub python: Option<PythonWish>,
    /// Why, a sentence each, for the log.
    pub reasons: Vec<String>,
}

impl Plan {
    fn new(framework: Framework, serve: Serve, reason: String) -> Self {
        Self {
            framework,
            install: None,
            locks: Vec::new(),
            refresh: None,
            build: None,
            serve,
            env: BTreeMap::new(),
            node_major: None,
            node: None,
            python: None,
            reasons: vec![reason],
        }
    }

    fn because(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undetected {
    /// Nothing that is known.
    #[error(
        "no app was found in {where_looked}: looked for package.json (node), requirements.txt, pyproject.toml, uv.lock, \
         poetry.lock, pdm.lock, Pipfile, main.py, app.py, server.py (python), Staticfile, public/index.html and \
         index.html (static), and found {found}; set root_directory if the app is in a subdirectory, or \
         set start_command (in pandastack.toml, with `pandastack app deploy --start ...`, or in the API)"
    )]
    Nothing {
        /// The directory.
        where_looked: String,
        /// What is there.
        found: String,
    },
    /// A kind was found or said, but not how it starts.
    #[error("{0}")]
    NoStart(String),
    /// A kind that there is not.
    #[error("`{0}` is not a framework; use one of {names}", names = Framework::NAMES.join(", "))]
    UnknownFramework(String),
    /// `pandastack.toml` or `package.json` cannot be read.
    #[error("{file} cannot be read: {why}")]
    Unreadable {
        /// Which file.
        file: &'static str,
        /// Why not.
        why: String,
    },
}

/// Files whose text decides something, of those that are there.
pub fn interesting(files: &BTreeSet<String>) -> Vec<String> {
    const NAMED: [&str; 22] = [
        MANIFEST,
        "package.json",
        "Procfile",
        "Staticfile",
        "requirements.txt",
        "pyproject.toml",
        "Pipfile",
        ".nvmrc",
        ".node-version",
        ".tool-versions",
        ".python-version",
        "next.config.js",
        "next.config.mjs",
        "next.config.ts",
        "vite.config.js",
        "vite.config.mjs",
        "vite.config.ts",
        "vite.config.mts",
        "react-router.config.ts",
        "astro.config.mjs",
        "manage.py",
        "runtime.txt",
    ];
    let named = NAMED.iter().filter(|name| files.contains(**name)).map(|name| (*name).to_owned());
    let read = files.iter().filter(|path| locks::is_list(path) || python::may_hold_app(path)).cloned();
    named.chain(read.filter(|path| !NAMED.contains(&path.as_str()))).take(TEXTS_MAX).collect()
}

/// What `pandastack.toml` says; nothing, where there is none.
pub fn manifest(view: &View) -> Result<Manifest, Undetected> {
    let unreadable = |error: ManifestError| Undetected::Unreadable { file: MANIFEST, why: error.to_string() };
    view.text(MANIFEST)
        .map_or_else(|| Ok(Manifest::default()), |text| Manifest::parse(text).map_err(unreadable))
}

/// How the app is installed, built and started.
pub fn detect(view: &View, wishes: &Wishes) -> Result<Plan, Undetected> {
    let manifest = manifest(view)?;
    let said = |wish: &Option<String>, told: &Option<String>| wish.clone().or_else(|| told.clone());
    let wishes = Wishes {
        framework: said(&wishes.framework, &manifest.framework),
        install: said(&wishes.install, &manifest.install_command),
        build: said(&wishes.build, &manifest.build_command),
        start: said(&wishes.start, &manifest.start_command),
    };
    let mut plan = found(view, &wishes)?;
    apply(&mut plan, view, wishes);
    Ok(plan)
}

/// The plan by the files alone; a kind that was said is not looked for.
fn found(view: &View, wishes: &Wishes) -> Result<Plan, Undetected> {
    let start = wishes.start.as_deref();
    let kind = match wishes.framework.as_deref() {
        Some(text) => Some(
            Framework::parse(text)
                .ok_or_else(|| Undetected::UnknownFramework(text.chars().take(40).collect()))?,
        ),
        None => None,
    };
    match kind {
        Some(Framework::Python) => return python::plan(view, start),
        Some(Framework::Static) => return site::plan(view).ok_or_else(|| nothing(view)),
        Some(Framework::Custom) => {
            let missing = || {
                Undetected::NoStart("framework `custom` needs a start command; set start_command".to_owned())
            };
            return start.map(custom).ok_or_else(missing);
        }
        Some(kind) => return node::plan(view, start, Some(kind)),
        None => {}
    }
    if view.has("package.json") && python::is_there(view) {
        return both(view, start);
    }
    if view.has("package.json") {
        return node::plan(view, start, None);
    }
    if python::is_there(view) {
        return python::plan(view, start);
    }
    match (site::plan(view), start) {
        (_, Some(start)) => Ok(custom(start)),
        (Some(plan), None) => Ok(plan),
        (None, None) => Err(nothing(view)),
    }
}

/// A source with a Node and a Python side: the one that says how it starts.
fn both(view: &View, start: Option<&str>) -> Result<Plan, Undetected> {
    let (node, python) = (node::plan(view, start, None), python::plan(view, start));
    let node_starts = node::names_start(view);
    let (mut plan, other) = match (node, python) {
        (Ok(plan), Err(_)) => (plan, "Python"),
        (Err(_), Ok(plan)) => (plan, "Node"),
        (Ok(plan), Ok(_)) if node_starts => (plan, "Python"),
        (Ok(_), Ok(plan)) => (plan, "Node"),
        (Err(error), Err(_)) => return Err(error),
    };
    plan.because(format!(
        "found Node and Python files, but no start command for {other}; to use {other}, set `framework` and \
         start_command"
    ));
    Ok(plan)
}

fn custom(start: &str) -> Plan {
    Plan::new(
        Framework::Custom,
        Serve::Command(start.to_owned()),
        "start_command is set, and no known framework was detected".to_owned(),
    )
}

/// What was said replaces what was found.
fn apply(plan: &mut Plan, view: &View, wishes: Wishes) {
    if let Some(install) = wishes.install {
        plan.because("install_command is set");
        locks::said(&mut plan.locks, view, &install);
        plan.refresh = None;
        plan.install = Some(install);
    }
    if let Some(build) = wishes.build {
        plan.because("build_command is set");
        plan.build = Some(build);
    }
    if let Some(start) = wishes.start
        && plan.serve != Serve::Command(start.clone())
    {
        plan.because("start_command is set");
        plan.serve = Serve::Command(start);
    }
}

fn nothing(view: &View) -> Undetected {
    let mut found: Vec<_> = view.files.iter().filter(|path| !path.contains('/')).take(8).cloned().collect();
    if found.is_empty() {
        found.push("no files".to_owned());
    }
    Undetected::Nothing { where_looked: "the source".to_owned(), found: found.join(", ") }
}

#[cfg(test)]
mod tests;
