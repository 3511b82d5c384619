//! Frameworks, package managers and versions of Node.

use super::*;

#[test]
fn nextjs_apps_run_a_server_or_export_static_files() {
    let package = r#"{"dependencies":{"next":"15","react":"19"},"scripts":{"build":"next build","start":"next start"}}"#;
    let row = |serve| Row {
        framework: "next",
        install: NPM_CI,
        build: Some("npm run build"),
        serve,
        because: "depends on next",
    };
    let lock = ("package-lock.json", "{}");
    check(
        &[("package.json", package), lock],
        row(command("exec npx --no-install next start -p $PORT -H 0.0.0.0")),
    );
    let exported = "module.exports = {\n  output: 'export',\n}";
    check(&[("package.json", package), lock, ("next.config.js", exported)], row(served("out", false)));
    let elsewhere = "export default { output: \"export\",\n distDir: 'site' }";
    check(&[("package.json", package), lock, ("next.config.mjs", elsewhere)], row(served("site", false)));
    let plan = detect(
        &view(&[("package.json", package), lock, ("next.config.ts", "const c = { output: 'standalone' }")]),
        &UserSettings::default(),
    )
    .unwrap();
    assert!(matches!(plan.serve, Serve::Command(start) if start.contains(".next/standalone/server.js")));
    assert_eq!(plan.env["NEXT_TELEMETRY_DISABLED"], "1");
}

#[test]
fn vite_apps_are_static_unless_they_include_a_server() {
    let package = r#"{"devDependencies":{"vite":"7"},"scripts":{"build":"vite build"}}"#;
    let row = |directory| Row {
        framework: "vite",
        install: NPM_INSTALL,
        build: Some("npm run build"),
        serve: served(directory, true),
        because: "depends on vite",
    };
    check(&[("package.json", package)], row("dist"));
    check(
        &[("package.json", package), ("vite.config.ts", "export default { build: {\n outDir: 'web' } }")],
        row("web"),
    );
    let flagged =
        r#"{"devDependencies":{"vite":"7"},"scripts":{"build":"tsc && vite build --outDir public_html"}}"#;
    check(&[("package.json", flagged)], row("public_html"));
    let server = r#"{"devDependencies":{"vite":"7","@sveltejs/kit":"2"},"scripts":{"build":"vite build","start":"node build"}}"#;
    check(
        &[("package.json", server), ("vite.config.js", "")],
        Row {
            framework: "node",
            install: NPM_INSTALL,
            build: Some("npm run build"),
            serve: command("exec npm run start"),
            because: "depends on @sveltejs/kit, a server",
        },
    );
    let own = r#"{"devDependencies":{"vite":"7"},"scripts":{"build":"vite build","start":"node server.js"}}"#;
    check(
        &[("package.json", own)],
        Row {
            framework: "node",
            install: NPM_INSTALL,
            build: Some("npm run build"),
            serve: command("exec npm run start"),
            because: "its own start script",
        },
    );
}

#[test]
fn create_react_app_is_served_as_static_files() {
    let package = r#"{"dependencies":{"react-scripts":"5"},"scripts":{"start":"react-scripts start","build":"react-scripts build"}}"#;
    check(
        &[("package.json", package), ("package-lock.json", "{}")],
        Row {
            framework: "cra",
            install: NPM_CI,
            build: Some("npm run build"),
            serve: served("build", true),
            because: "react-scripts",
        },
    );
}

#[test]
fn node_apps_start_by_script_main_or_index() {
    let row = |start: &str| Row {
        framework: "node",
        install: None,
        build: None,
        serve: command(start),
        because: "package.json",
    };
    check(&[("package.json", r#"{"scripts":{"start":"node x"}}"#)], row("exec npm run start"));
    check(&[("package.json", r#"{"main":"./lib/a.js"}"#)], row("exec node lib/a.js"));
    check(&[("package.json", "{}"), ("index.js", "")], row("exec node index.js"));
    check(
        &[("package.json", "{}"), ("Procfile", "worker: x\nweb: node w.js\n"), ("index.js", "")],
        row("node w.js"),
    );
    let none = detect(&view(&[("package.json", "{}")]), &UserSettings::default()).unwrap_err().to_string();
    assert!(none.contains("`start` script") && none.contains("start_command"), "{none}");
    let broken = detect(&view(&[("package.json", "{")]), &UserSettings::default()).unwrap_err().to_string();
    assert!(broken.starts_with("package.json cannot be read"), "{broken}");
}

#[test]
fn package_managers_come_from_the_field_then_the_lock_file() {
    let package = r#"{"dependencies":{"a":"1"},"main":"a.js"}"#;
    let named = |version: &str| {
        format!(r#"{{"dependencies":{{"a":"1"}},"main":"a.js","packageManager":"{version}"}}"#)
    };
    for (package, lock, install) in [
        (package.to_owned(), "package-lock.json", "npm ci --include=dev --no-audit --no-fund"),
        (
            package.to_owned(),
            "pnpm-lock.yaml",
            "npm install --global --no-audit --no-fund pnpm@10 && pnpm install --prod=false --frozen-lockfile",
        ),
        (package.to_owned(), "bun.lock", "bun install --frozen-lockfile"),
        (package.to_owned(), "bun.lockb", "bun install --frozen-lockfile"),
        (
            package.to_owned(),
            "yarn.lock",
            "npm install --global --no-audit --no-fund yarn@1 && yarn install --production=false --frozen-lockfile",
        ),
        (
            named("yarn@4.5.0"),
            "yarn.lock",
            "npm install --global --no-audit --no-fund @yarnpkg/cli-dist@4.5.0 && yarn install --immutable",
        ),
        (
            named("pnpm@9.1.0+sha512.abc"),
            "package-lock.json",
            "npm install --global --no-audit --no-fund pnpm@9.1.0 && pnpm install --prod=false --frozen-lockfile",
        ),
    ] {
        let plan =
            detect(&view(&[("package.json", &package), (lock, "")]), &UserSettings::default()).unwrap();
        assert_eq!(plan.install.as_deref(), Some(install), "{package} {lock}");
        assert_eq!(plan.locks[0], "package.json");
    }
}

#[test]
fn node_versions_come_from_engines_then_version_files() {
    for (engines, file, major) in [
        (r#""engines":{"node":"20.x"},"#, None, Some(20)),
        (r#""engines":{"node":"^22.1.0"},"#, Some((".nvmrc", "18")), Some(22)),
        (r#""engines":{"node":">=18"},"#, None, None),
        ("", Some((".nvmrc", "v18.2.0\n")), Some(18)),
        ("", Some((".nvmrc", "lts/iron\n")), Some(20)),
        ("", Some((".nvmrc", "# as in CI\n\n20 # for now\n")), Some(20)),
        ("", Some((".tool-versions", "ruby 3\nnodejs 21.0.0\n")), Some(21)),
        ("", None, None),
    ] {
        let package = format!(r#"{{{engines}"main":"a.js"}}"#);
        let mut files = vec![("package.json", package.as_str())];
        files.extend(file);
        let plan = detect(&view(&files), &UserSettings::default()).unwrap();
        assert_eq!(plan.node_major, major, "{files:?}");
    }
}

#[test]
fn node_requirements_without_an_exact_version_are_detected() {
    let check = |engines: &str, file: Option<(&str, &str)>, expect: Option<(&str, &str)>| {
        let package = format!(r#"{{"main":"a.js","engines":{{"node":"{engines}"}}}}"#);
        let mut files = vec![("package.json", package.as_str())];
        files.extend(file);
        let plan = detect(&view(&files), &UserSettings::default()).unwrap();
        let found = plan.node.as_ref().map(|wish| (wish.wanted.as_str(), wish.file));
        assert_eq!(found, expect, "{files:?}");
    };
    let engines = "engines in package.json";
    check(">=20 <21", None, Some((">=20 <21", engines)));
    check("18 || 20", Some((".nvmrc", "22")), Some(("18 || 20", engines)));
    check("20.x", Some((".nvmrc", "lts/new")), Some(("lts/new", ".nvmrc")));
    check("^22", Some((".node-version", "lts/iron")), None);
    check("*", Some((".nvmrc", "lts/*\n")), None);
    let long = "^14.17.0 || ^16.13.0 || ^18.12.0 || ^20.9.0 || ^21.1.0 || ^22.11.0 || >=24";
    check(long, None, Some((long, engines)));
}
