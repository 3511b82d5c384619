//! Node: package.json, its package manager, and what its dependencies make of it.

mod package;
mod package_manager;

use crate::framework::Framework;
use crate::plan::{Plan, Serve};
use crate::undetected::Undetected;
use crate::view::View;
use crate::{locks, node_version, procfile};
use package::Package;
use package_manager::{PackageManager, PackageManagerKind};

/// Packages that use Vite but build a server, not static files.
const VITE_SERVERS: [&str; 8] = [
    "@sveltejs/kit",
    "@tanstack/react-start",
    "@tanstack/solid-start",
    "@react-router/node",
    "@remix-run/node",
    "nuxt",
    "nitropack",
    "@astrojs/node",
];

const VITE_CONFIGS: [&str; 4] = ["vite.config.js", "vite.config.mjs", "vite.config.ts", "vite.config.mts"];
const NEXT_CONFIGS: [&str; 3] = ["next.config.js", "next.config.mjs", "next.config.ts"];
/// Modules to start by default.
const MAINS: [&str; 6] = ["server.js", "index.js", "index.mjs", "app.js", "index.ts", "server.ts"];

/// Returns whether package.json itself defines the start.
pub(crate) fn names_start(view: &View) -> bool {
    Package::read(view).is_ok_and(|package| {
        package.script("start").is_some() || package.main.is_some() || package.needs("next")
    })
}

/// The plan; `kind` is the configured framework, if any.
pub(crate) fn plan(view: &View, start: Option<&str>, kind: Option<Framework>) -> Result<Plan, Undetected> {
    let package = Package::read(view)?;
    let manager = PackageManager::of(view, &package);
    let web = procfile::web(view);
    let start = start.or(web.as_deref());
    let (kind, reason) = match kind {
        Some(kind) => (kind, "framework is set".to_owned()),
        None => kind_of(view, &package),
    };
    let mut plan = match kind {
        Framework::Next => next(view, &manager),
        Framework::Vite => files(kind, vite_directory(view, &package)),
        Framework::Cra => files(kind, "build".to_owned()),
        _ => Plan::new(Framework::Node, node_start(view, &package, &manager, start)?, String::new()),
    };
    plan.reasons = vec![format!("detected {} because {reason}", plan.framework.as_str())];
    if let Some(web) = web {
        plan.because("Procfile has a `web` process");
        plan.serve = Serve::Command(web);
    }
    plan.build = build(&package, &manager, kind);
    if package.has_dependencies() {
        plan.install = Some(manager.install());
        plan.locks = manager.locks(view);
        plan.locks
            .extend(locks::node(view, locks::NODE_SCRIPTS.iter().filter_map(|name| package.script(name))));
        plan.refresh = refresh(&package, &manager);
        plan.because(format!("{} installs, because {}", manager.kind.as_str(), manager.reason));
    }
    plan.env.insert("NODE_ENV".to_owned(), "production".to_owned());
    if kind == Framework::Next {
        plan.env.insert("NEXT_TELEMETRY_DISABLED".to_owned(), "1".to_owned());
    }
    let engines = package.engines.get("node").and_then(|value| value.as_str());
    if let Some((major, from)) = node_version::major(view, engines) {
        plan.because(format!("Node {major} is wanted by {from}"));
        plan.node_major = Some(major);
    }
    plan.node = node_version::condition(view, engines);
    Ok(plan)
}

fn kind_of(view: &View, package: &Package) -> (Framework, String) {
    if package.needs("next") {
        return (Framework::Next, "package.json depends on next".to_owned());
    }
    let builds_with = |tool: &str| package.script("build").is_some_and(|script| script.contains(tool));
    if package.needs("react-scripts") && builds_with("react-scripts build") {
        return (Framework::Cra, "package.json depends on react-scripts and builds with it".to_owned());
    }
    let config = view.first(&VITE_CONFIGS);
    if package.needs("vite")
        && package.script("build").is_some()
        && (config.is_some() || builds_with("vite build"))
    {
        if let Some(server) = package.needs_any(&VITE_SERVERS) {
            return (
                Framework::Node,
                format!("package.json builds with vite, but depends on {server}, a server"),
            );
        }
        let starts_server = package.script("start").is_some_and(|start| !start.contains("vite"));
        if starts_server {
            return (
                Framework::Node,
                "package.json builds with vite, but has its own start script".to_owned(),
            );
        }
        let by = config.map_or("its build script runs it".to_owned(), |config| format!("there is {config}"));
        return (Framework::Vite, format!("package.json depends on vite and {by}"));
    }
    (Framework::Node, "there is package.json".to_owned())
}

fn files(kind: Framework, directory: String) -> Plan {
    Plan::new(kind, Serve::Files { directory, single_page: true }, String::new())
}

fn next(view: &View, manager: &PackageManager) -> Plan {
    let config = view.first(&NEXT_CONFIGS).and_then(|path| view.text(path)).unwrap_or_default();
    let output = setting(config, "output");
    match output.as_deref() {
        Some("export") => {
            let directory = setting(config, "distDir").unwrap_or_else(|| "out".to_owned());
            Plan::new(Framework::Next, Serve::Files { directory, single_page: false }, String::new())
        }
        Some("standalone") => {
            // The standalone server has neither the public files nor the built ones beside it.
            let start = "mkdir -p .next/standalone/.next && cp -r .next/static .next/standalone/.next/ && \
                         { [ ! -d public ] || cp -r public .next/standalone/; } && \
                         HOSTNAME=0.0.0.0 exec node .next/standalone/server.js";
            Plan::new(Framework::Next, Serve::Command(start.to_owned()), String::new())
        }
        _ => {
            let start = format!("exec {} next start -p $PORT -H 0.0.0.0", manager.kind.runner());
            Plan::new(Framework::Next, Serve::Command(start), String::new())
        }
    }
}

/// The text given to a key in a configuration written as code, such as `output: "export"`.
fn setting(code: &str, key: &str) -> Option<String> {
    for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let Some(at) = line.find(key) else { continue };
        let rest = line[at + key.len()..].trim_start().trim_start_matches(['"', '\'']).trim_start();
        let Some(value) = rest.strip_prefix(':') else { continue };
        let value = value.trim_start();
        let quote = value.chars().next().filter(|first| ['"', '\'', '`'].contains(first))?;
        return value[1..].split(quote).next().map(|text| text.trim_matches('/').to_owned());
    }
    None
}

fn vite_directory(view: &View, package: &Package) -> String {
    let script = package.script("build").unwrap_or_default();
    let mut words = script.split_whitespace();
    while let Some(word) = words.next() {
        if let Some(directory) = word.strip_prefix("--outDir=") {
            return directory.to_owned();
        }
        if word == "--outDir"
            && let Some(directory) = words.next()
        {
            return directory.to_owned();
        }
    }
    let config = view.first(&VITE_CONFIGS).and_then(|path| view.text(path));
    config.and_then(|config| setting(config, "outDir")).unwrap_or_else(|| "dist".to_owned())
}

fn node_start(
    view: &View,
    package: &Package,
    manager: &PackageManager,
    start: Option<&str>,
) -> Result<Serve, Undetected> {
    if let Some(start) = start {
        return Ok(Serve::Command(start.to_owned()));
    }
    if package.script("start").is_some() {
        return Ok(Serve::Command(format!("exec {} run start", manager.kind.program())));
    }
    let main =
        package.main.as_deref().map(|main| main.trim_start_matches("./")).filter(|main| !main.is_empty());
    match main.or_else(|| view.first(&MAINS)) {
        Some(main) => Ok(Serve::Command(format!("exec node {main}"))),
        None => Err(Undetected::NoStart(format!(
            "package.json has neither a `start` script nor `main`, and none of {} exists; add one, or set start_command",
            MAINS.join(", ")
        ))),
    }
}

fn build(package: &Package, manager: &PackageManager, kind: Framework) -> Option<String> {
    if package.script("build").is_some() {
        return Some(format!("{} run build", manager.kind.program()));
    }
    match kind {
        Framework::Next => Some(format!("{} next build", manager.kind.runner())),
        Framework::Vite => Some(format!("{} vite build", manager.kind.runner())),
        Framework::Cra => Some(format!("{} react-scripts build", manager.kind.runner())),
        _ => None,
    }
}

/// Runs the package's own scripts again after packages were restored: the files that they write
/// into the source were removed with the old source. Packages copied from the source are installed
/// again, together with all others: managers would keep existing copies, and have their downloads
/// cached.
fn refresh(package: &Package, manager: &PackageManager) -> Option<String> {
    if manager.kind.copies_directories() && package.names_directory() {
        return Some(format!("rm -rf node_modules && {}", manager.install()));
    }
    // Berry runs `prepare` only on publishing.
    let runs: &[&str] = match manager.kind {
        PackageManagerKind::Berry => &["install", "postinstall"],
        _ => &["install", "postinstall", "prepare"],
    };
    let has = |name: &str| package.script(name).is_some();
    // These managers run `postinstall` after `install` themselves.
    let is_run_behind =
        has("install") && !matches!(manager.kind, PackageManagerKind::Berry | PackageManagerKind::Pnpm);
    let own = runs.iter().filter(|name| has(name) && !(is_run_behind && **name == "postinstall"));
    let steps: Vec<_> = own.map(|name| format!("{} run {name}", manager.kind.program())).collect();
    (!steps.is_empty()).then(|| steps.join(" && "))
}
