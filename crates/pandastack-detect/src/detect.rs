//! Detects an app's framework and applies the user's settings.

use crate::framework::Framework;
use crate::manifest::{MANIFEST, Manifest, ManifestError};
use crate::plan::{Plan, Serve};
use crate::undetected::Undetected;
use crate::user_settings::UserSettings;
use crate::view::View;
use crate::{locks, node, python, site};

/// Reads `pandastack.toml`. Returns an empty manifest if the file does not exist.
pub fn manifest(view: &View) -> Result<Manifest, Undetected> {
    let unreadable = |error: ManifestError| Undetected::Unreadable { file: MANIFEST, why: error.to_string() };
    view.text(MANIFEST)
        .map_or_else(|| Ok(Manifest::default()), |text| Manifest::parse(text).map_err(unreadable))
}

/// Plans how to install, build and start an app.
pub fn detect(view: &View, user_settings: &UserSettings) -> Result<Plan, Undetected> {
    let manifest = manifest(view)?;
    let first =
        |setting: &Option<String>, manifest: &Option<String>| setting.clone().or_else(|| manifest.clone());
    let user_settings = UserSettings {
        framework: first(&user_settings.framework, &manifest.framework),
        install: first(&user_settings.install, &manifest.install_command),
        build: first(&user_settings.build, &manifest.build_command),
        start: first(&user_settings.start, &manifest.start_command),
    };
    let mut plan = found(view, &user_settings)?;
    apply(&mut plan, view, user_settings);
    Ok(plan)
}

/// Plans from the files. A framework set by the user is not detected.
fn found(view: &View, user_settings: &UserSettings) -> Result<Plan, Undetected> {
    let start = user_settings.start.as_deref();
    let kind = match user_settings.framework.as_deref() {
        Some(text) => Some(
            Framework::parse(text)
                .ok_or_else(|| Undetected::UnknownFramework(text.chars().take(40).collect()))?,
        ),
        None => None,
    };
    match kind {
        Some(Framework::Python) => return python::plan(view, start),
        Some(Framework::Static) => return site::plan(view).ok_or_else(|| undetected(view)),
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
        return node_and_python(view, start);
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
        (None, None) => Err(undetected(view)),
    }
}

/// Plan of a source with a Node and a Python part: the part that defines a start command.
fn node_and_python(view: &View, start: Option<&str>) -> Result<Plan, Undetected> {
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
        "found Node and Python files, but no start command for {other}; to use {other}, set `framework` and start_command"
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

/// Applies the user's settings, which replace detected ones.
fn apply(plan: &mut Plan, view: &View, user_settings: UserSettings) {
    if let Some(install) = user_settings.install {
        plan.because("install_command is set");
        locks::add_command_files(&mut plan.locks, view, &install);
        plan.refresh = None;
        plan.install = Some(install);
    }
    if let Some(build) = user_settings.build {
        plan.because("build_command is set");
        plan.build = Some(build);
    }
    if let Some(start) = user_settings.start
        && plan.serve != Serve::Command(start.clone())
    {
        plan.because("start_command is set");
        plan.serve = Serve::Command(start);
    }
}

fn undetected(view: &View) -> Undetected {
    let mut found: Vec<_> = view.files.iter().filter(|path| !path.contains('/')).take(8).cloned().collect();
    if found.is_empty() {
        found.push("no files".to_owned());
    }
    Undetected::Nothing { where_looked: "the source".to_owned(), found: found.join(", ") }
}
