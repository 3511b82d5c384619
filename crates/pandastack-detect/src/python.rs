//! Python: its installer, and the object that serves.

use crate::framework::Framework;
use crate::plan::{Plan, Serve};
use crate::undetected::Undetected;
use crate::view::View;
use crate::{local, locks, procfile, python_version};

/// Directory of installed Python packages, outside of the source so that a new source leaves them
/// alone.
pub const VENV: &str = "/srv/venv";
/// Path of the Python that has pip. The app's own Python comes first in a build's `PATH`, and has
/// no pip.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";
/// Modules to start by default.
const MAINS: [&str; 6] = ["main.py", "app.py", "server.py", "start.py", "bot.py", "hello.py"];
const SIGNS: [&str; 7] =
    ["requirements.txt", "pyproject.toml", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile", "manage.py"];
/// Directories in which the object may be, beside the root.
const CODE_DIRECTORIES: [&str; 4] = ["app", "src", "api", "server"];

/// Returns whether the text of a file may hold the object that serves.
pub(crate) fn may_hold_app(path: &str) -> bool {
    let Some(stem) = path.strip_suffix(".py") else { return false };
    match stem.split_once('/') {
        None => true,
        Some((directory, rest)) => {
            let settings = rest == "settings" || rest == "wsgi" || rest == "asgi";
            !rest.contains('/') && (CODE_DIRECTORIES.contains(&directory) || settings)
        }
    }
}

pub(crate) fn is_there(view: &View) -> bool {
    view.first(&SIGNS).is_some() || view.first(&MAINS).is_some()
}

pub(crate) fn plan(view: &View, start: Option<&str>) -> Result<Plan, Undetected> {
    let sign = view.first(&SIGNS).or_else(|| view.first(&MAINS)).unwrap_or("a Python file");
    let (serve, server, why) = serving(view, start)?;
    let mut plan = Plan::new(
        Framework::Python,
        Serve::Command(serve),
        format!("detected python because there is {sign}"),
    );
    plan.because(why);
    let installer = Installer::of(view);
    let missing = server.filter(|server| !mentions(view, server));
    if installer.is_some() || missing.is_some() {
        let mut steps = vec![format!("{SYSTEM_PYTHON} -m venv --clear --without-pip {VENV}")];
        if let Some(installer) = &installer {
            steps.push(installer.command());
            plan.because(format!("{} installs, because there is {}", installer.name(), installer.file()));
        }
        if let Some(server) = missing {
            steps.push(pip(server));
            plan.because(format!("{server} is added because the app lists no server"));
        }
        let install = steps.join(" && ");
        plan.refresh = installer.as_ref().and_then(|installer| installer.refresh(view, &install));
        plan.install = Some(install);
        plan.locks = locks::python(view);
    }
    plan.env.insert("PYTHONUNBUFFERED".to_owned(), "1".to_owned());
    plan.python = python_version::required(view);
    Ok(plan)
}

fn pip(what: &str) -> String {
    format!("{SYSTEM_PYTHON} -m pip --python {VENV}/bin/python install {what}")
}

enum Installer {
    Requirements,
    Uv,
    Poetry,
    Pdm,
    Pipenv,
    Project,
}

impl Installer {
    fn of(view: &View) -> Option<Self> {
        let has = |path| view.has(path);
        if has("requirements.txt") {
            Some(Installer::Requirements)
        } else if has("uv.lock") {
            Some(Installer::Uv)
        } else if has("poetry.lock") {
            Some(Installer::Poetry)
        } else if has("pdm.lock") {
            Some(Installer::Pdm)
        } else if has("Pipfile") {
            Some(Installer::Pipenv)
        } else if view.text("pyproject.toml").is_some_and(|text| text.contains("[project]")) {
            Some(Installer::Project)
        } else {
            None
        }
    }

    fn file(&self) -> &'static str {
        match self {
            Installer::Requirements => "requirements.txt",
            Installer::Uv => "uv.lock",
            Installer::Poetry => "poetry.lock",
            Installer::Pdm => "pdm.lock",
            Installer::Pipenv => "Pipfile",
            Installer::Project => "[project] in pyproject.toml",
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Installer::Requirements | Installer::Project => "pip",
            Installer::Uv => "uv",
            Installer::Poetry => "poetry",
            Installer::Pdm => "pdm",
            Installer::Pipenv => "pipenv",
        }
    }

    /// Installs packages of the source again, after packages were restored for new code. `install`
    /// installs everything, for installers that would keep existing copies and so must start empty.
    /// Downloads are in the installers' caches.
    fn refresh(&self, view: &View, install: &str) -> Option<String> {
        match self {
            // pip reinstalls directories each time, and keeps packages that are already installed.
            Installer::Requirements => may_name_directory(view).then(|| self.command()),
            _ if local::is_in_python(view) => Some(install.to_owned()),
            Installer::Project => Some(pip("--no-deps .")),
            // These do not install the app itself, or link to its directory.
            Installer::Uv | Installer::Poetry | Installer::Pdm | Installer::Pipenv => None,
        }
    }

    fn command(&self) -> String {
        // The tool itself is installed into the system's Python, so that it is not part of the app.
        let tool = |tool: &str, run: &str| {
            format!(
                "{SYSTEM_PYTHON} -m pip install --quiet {tool} && VIRTUAL_ENV={VENV} PATH={VENV}/bin:$PATH {run}"
            )
        };
        match self {
            Installer::Requirements => pip("-r requirements.txt"),
            Installer::Project => pip("."),
            Installer::Uv => tool("uv", &format!("UV_PROJECT_ENVIRONMENT={VENV} uv sync --locked --no-dev")),
            Installer::Poetry => tool("poetry", "poetry install --only main --no-root --no-interaction"),
            Installer::Pdm => tool("pdm", "pdm sync --prod --no-self"),
            Installer::Pipenv => {
                tool("pipenv", "PIPENV_VERBOSITY=-1 pipenv install --deploy --ignore-pipfile")
            }
        }
    }
}

/// Returns whether requirements.txt may have a directory of the source among its packages, itself
/// or in a list that it includes.
fn may_name_directory(view: &View) -> bool {
    let is_directory = |line: &str| {
        let (line, _) = line.split_once('#').unwrap_or((line, ""));
        let is_path = line.starts_with('.') || line.contains("file:");
        !line.starts_with('-') && (is_path || (line.contains('/') && !line.contains("://")))
    };
    let includes = |line: &str| line.starts_with("-r") || line.starts_with("--requirement");
    // A list that cannot be read may name a directory, and so may a list that an included one
    // includes.
    let may_name = |list: &str, is_included: bool| {
        let Some(text) = view.text(list) else { return true };
        text.lines().map(str::trim).any(|line| is_directory(line) || (is_included && includes(line)))
    };
    may_name("requirements.txt", false) || locks::included(view).iter().any(|list| may_name(list, true))
}

/// Returns whether any list of dependencies names the package.
fn mentions(view: &View, package: &str) -> bool {
    let lists = ["requirements.txt", "pyproject.toml", "Pipfile"];
    lists.iter().filter_map(|list| view.text(list)).any(|text| {
        text.to_ascii_lowercase()
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
            .any(|word| word == package)
    })
}

/// The start command, the server program it needs, and why.
fn serving(view: &View, start: Option<&str>) -> Result<(String, Option<&'static str>, String), Undetected> {
    if let Some(start) = start {
        return Ok((start.to_owned(), None, "start_command is set".to_owned()));
    }
    if let Some(web) = procfile::web(view) {
        return Ok((web, None, "Procfile has a `web` process".to_owned()));
    }
    if view.has("manage.py")
        && let Some(module) = django_module(view)
    {
        let start = format!("exec gunicorn --bind 0.0.0.0:$PORT {module}");
        return Ok((start, Some("gunicorn"), format!("manage.py and {module} make it Django")));
    }
    for (class, asgi) in [("FastAPI(", true), ("Starlette(", true), ("Flask(", false)] {
        let Some((path, object)) = object_of(view, class) else { continue };
        let module = path.trim_end_matches(".py").replace('/', ".");
        let why = format!("{path} assigns {class}...) to `{object}`");
        return Ok(match asgi {
            true => {
                (format!("exec uvicorn {module}:{object} --host 0.0.0.0 --port $PORT"), Some("uvicorn"), why)
            }
            false => (format!("exec gunicorn --bind 0.0.0.0:$PORT {module}:{object}"), Some("gunicorn"), why),
        });
    }
    match view.first(&MAINS) {
        Some(main) => Ok((format!("exec python3 {main}"), None, format!("{main} is run as a program"))),
        None => Err(Undetected::NoStart(format!(
            "found a Python app without a start command; looked for Procfile, manage.py, an assignment of \
             FastAPI(...), Starlette(...) or Flask(...), and {}; set start_command",
            MAINS.join(", ")
        ))),
    }
}

/// `mysite.wsgi:application` of WSGI_APPLICATION, or of the wsgi module that exists.
fn django_module(view: &View) -> Option<String> {
    for (path, text) in view.texts.iter().filter(|(path, _)| path.ends_with("settings.py")) {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("WSGI_APPLICATION"));
        let value = line.and_then(|line| line.split(['"', '\'']).nth(1));
        if let Some((module, object)) = value.and_then(|value| value.rsplit_once('.')) {
            return Some(format!("{module}:{object}"));
        }
        if let Some(directory) = path.strip_suffix("/settings.py") {
            return Some(format!("{}.wsgi:application", directory.replace('/', ".")));
        }
    }
    let wsgi = view.files.iter().find(|path| path.ends_with("/wsgi.py"))?;
    Some(format!("{}:application", wsgi.trim_end_matches(".py").replace('/', ".")))
}

/// The first `name = Class(` at the beginning of a line; the usual names of modules first.
fn object_of<'a>(view: &'a View, class: &str) -> Option<(&'a str, &'a str)> {
    let rank =
        |path: &str| (MAINS.iter().position(|main| path.ends_with(main)).unwrap_or(MAINS.len()), path.len());
    let mut texts: Vec<_> = view.texts.iter().filter(|(path, _)| path.ends_with(".py")).collect();
    texts.sort_by_key(|(path, _)| rank(path));
    for (path, text) in texts {
        for line in text.lines() {
            let Some((name, value)) = line.split_once('=') else { continue };
            let name = name.split(':').next().unwrap_or(name).trim_end();
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let value = value.trim_start();
            let called = value
                .split_once('.')
                .filter(|(before, _)| before.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
            if is_name
                && (value.starts_with(class) || called.is_some_and(|(_, call)| call.starts_with(class)))
            {
                return Some((path, name));
            }
        }
    }
    None
}
