//! One row per kind of app and package manager: files in, plan out.

use std::collections::BTreeSet;

use super::*;

struct Row {
    framework: &'static str,
    install: Option<&'static str>,
    build: Option<&'static str>,
    serve: Serve,
    because: &'static str,
}

fn view(files: &[(&str, &str)]) -> View {
    let paths: BTreeSet<String> = files.iter().map(|(path, _)| (*path).to_owned()).collect();
    let wanted = interesting(&paths);
    let texts = files
        .iter()
        .filter(|(path, _)| wanted.iter().any(|wanted| wanted == path))
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    View { files: paths, texts }
}

#[track_caller]
fn check(files: &[(&str, &str)], expect: Row) {
    let plan =
        detect(&view(files), &UserSettings::default()).unwrap_or_else(|error| panic!("{files:?}: {error}"));
    assert_eq!(plan.framework.as_str(), expect.framework, "{files:?}: {:?}", plan.reasons);
    assert_eq!(plan.install.as_deref(), expect.install, "{files:?}");
    assert_eq!(plan.build.as_deref(), expect.build, "{files:?}");
    assert_eq!(plan.serve, expect.serve, "{files:?}");
    let reasons = plan.reasons.join("; ");
    assert!(reasons.contains(expect.because), "{files:?}: {reasons}");
}

fn command(text: &str) -> Serve {
    Serve::Command(text.to_owned())
}

fn served(directory: &str, single_page: bool) -> Serve {
    Serve::Files { directory: directory.to_owned(), single_page }
}

const NPM_CI: Option<&str> = Some("npm ci --include=dev --no-audit --no-fund");
const NPM_INSTALL: Option<&str> = Some("npm install --include=dev --no-audit --no-fund");

#[test]
fn next_serves_itself_or_is_exported() {
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
fn vite_is_files_unless_a_server_is_in_it() {
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
fn cra_is_files_whatever_its_start_script_says() {
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
fn node_starts_by_script_main_or_index() {
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
fn package_managers_are_told_by_field_then_lock() {
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
fn node_versions_are_told_by_engines_then_files() {
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
fn conditions_on_node_that_name_no_version_are_known() {
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

fn pip(rest: &str) -> String {
    format!(
        "/usr/bin/python3 -m venv --clear --without-pip /srv/venv && /usr/bin/python3 -m pip --python /srv/venv/bin/python install {rest}"
    )
}

#[test]
fn python_servers_are_found_by_their_object() {
    let added =
        |server: &str| format!(" && /usr/bin/python3 -m pip --python /srv/venv/bin/python install {server}");
    for (files, install, start, because) in [
        (
            vec![
                ("requirements.txt", "fastapi\nuvicorn\n"),
                ("main.py", "from fastapi import FastAPI\napi = FastAPI()\n"),
            ],
            pip("-r requirements.txt"),
            "exec uvicorn main:api --host 0.0.0.0 --port $PORT",
            "main.py assigns FastAPI(...) to `api`",
        ),
        (
            vec![
                ("requirements.txt", "fastapi\n"),
                ("app/server.py", "import fastapi\nweb: object = fastapi.FastAPI(title='a.b')\n"),
            ],
            pip("-r requirements.txt") + &added("uvicorn"),
            "exec uvicorn app.server:web --host 0.0.0.0 --port $PORT",
            "uvicorn is added",
        ),
        (
            vec![("requirements.txt", "Flask==3\ngunicorn\n"), ("app.py", "app = Flask(__name__)\n")],
            pip("-r requirements.txt"),
            "exec gunicorn --bind 0.0.0.0:$PORT app:app",
            "Flask(",
        ),
        (
            vec![
                ("requirements.txt", "starlette\nuvicorn[standard]\n"),
                ("app.py", "app = Starlette(routes=[])\n"),
            ],
            pip("-r requirements.txt"),
            "exec uvicorn app:app --host 0.0.0.0 --port $PORT",
            "Starlette(",
        ),
        (
            vec![
                ("requirements.txt", "Django>=5\n"),
                ("manage.py", "x"),
                ("site1/settings.py", "A = 1\nWSGI_APPLICATION = 'site1.wsgi.application'\n"),
            ],
            pip("-r requirements.txt") + &added("gunicorn"),
            "exec gunicorn --bind 0.0.0.0:$PORT site1.wsgi:application",
            "make it Django",
        ),
    ] {
        check(
            &files,
            Row {
                framework: "python",
                install: Some(Box::leak(install.into_boxed_str())),
                build: None,
                serve: command(start),
                because,
            },
        );
    }
    check(
        &[("main.py", "print(1)")],
        Row {
            framework: "python",
            install: None,
            build: None,
            serve: command("exec python3 main.py"),
            because: "run as a program",
        },
    );
}

#[test]
fn python_installers_are_told_by_their_locks() {
    for (files, part) in [
        (vec![("uv.lock", ""), ("pyproject.toml", "[project]")], "uv sync --locked --no-dev"),
        (vec![("poetry.lock", ""), ("pyproject.toml", "")], "poetry install --only main"),
        (vec![("pdm.lock", ""), ("pyproject.toml", "")], "pdm sync --prod"),
        (vec![("Pipfile", "")], "pipenv install"),
        (vec![("pyproject.toml", "[project]\nname='a'")], "python install ."),
        (vec![("requirements.txt", ""), ("uv.lock", "")], "-r requirements.txt"),
    ] {
        let mut files = files;
        files.push(("main.py", ""));
        let plan = detect(&view(&files), &UserSettings::default()).unwrap();
        assert!(plan.install.as_deref().unwrap_or_default().contains(part), "{files:?}: {:?}", plan.install);
    }
}

fn plan_of(files: &[(&str, &str)], install: Option<&str>) -> Plan {
    let user_settings = UserSettings { install: install.map(str::to_owned), ..UserSettings::default() };
    detect(&view(files), &user_settings).unwrap()
}

#[test]
fn everything_that_pip_reads_decides_whether_it_installs_again() {
    let requirements =
        "-r requirements/prod.txt\n--constraint=./deps/pins.txt # of us\n-r ../shared.txt\n-c nowhere.txt\n";
    let plan = plan_of(
        &[
            ("main.py", ""),
            ("requirements.txt", requirements),
            ("requirements-dev.txt", ""),
            ("requirements/prod.txt", ""),
            ("constraints.txt", ""),
            ("deps/pins.txt", ""),
            ("deps/notes.txt", ""),
            ("robots.txt", ""),
            ("pyproject.toml", ""),
        ],
        None,
    );
    assert_eq!(
        plan.locks,
        [
            "requirements.txt",
            "constraints.txt",
            "requirements-dev.txt",
            "requirements/prod.txt",
            "deps/pins.txt",
            "../shared.txt",
            "pyproject.toml"
        ]
    );
    assert!(plan.refresh.is_some(), "what lies outside of the app may name a directory");
}

#[test]
fn packages_that_are_part_of_the_source_are_installed_at_every_build() {
    let pip = "/usr/bin/python3 -m pip --python /srv/venv/bin/python install";
    let main = ("main.py", "");
    let project = plan_of(&[main, ("pyproject.toml", "[project]\nname='a'")], None);
    assert_eq!(project.refresh.unwrap(), format!("{pip} --no-deps ."));
    for (list, included) in
        [("flask\n./lib\n", ""), ("libs/common\n", ""), ("-r requirements/web.txt\n", "./lib")]
    {
        let files = [main, ("requirements.txt", list), ("requirements/web.txt", included)];
        assert_eq!(plan_of(&files, None).refresh, Some(format!("{pip} -r requirements.txt")), "{list}");
    }
    let nested = [
        main,
        ("requirements.txt", "-r requirements/web.txt\n"),
        ("requirements/web.txt", "-r base.txt\n"),
        ("requirements/base.txt", "../lib\n"),
    ];
    assert!(plan_of(&nested, None).refresh.is_some(), "what an included list includes may name anything");
    for linked in ["flask\n-e ./lib\n", "flask==3.1 # and/or\n", "https://example.com/a.whl\n"] {
        assert_eq!(plan_of(&[main, ("requirements.txt", linked)], None).refresh, None, "{linked}");
    }
    let said = plan_of(&[main, ("pyproject.toml", "[project]\nname='a'")], Some("make deps"));
    assert_eq!(said.refresh, None, "whoever says how to install says all of it");
}

#[test]
fn directories_that_installers_copy_are_installed_anew_at_every_build() {
    let check = |lock: &str, list: &str, text: &str, is_copied: bool| {
        let plan = plan_of(&[("main.py", ""), (lock, ""), (list, text)], None);
        assert!(plan.install.is_some(), "{text}");
        assert_eq!(plan.refresh, plan.install.filter(|_| is_copied), "{lock}: {text}");
    };
    let project = "pyproject.toml";
    check("poetry.lock", project, "[tool.poetry.dependencies]\nlib = {path = \"./lib\"}", true);
    check("poetry.lock", project, "[tool.poetry.dependencies]\nlib = [{path = \"./lib\"}]", true);
    check("poetry.lock", project, "[tool.poetry.dependencies.lib]\npath = \"lib\"\ndevelop = true", false);
    check("poetry.lock", project, "[tool.poetry.group.x.dependencies]\nlib = {path = \"lib\"}", true);
    check("poetry.lock", project, "[tool.hatch.version]\npath = \"a.py\"", false);
    check("uv.lock", project, "[tool.uv.sources]\nlib = { path = \"lib\" }", true);
    check("uv.lock", project, "[tool.uv.sources]\nlib = { path = \"lib\", editable = true }", false);
    check("uv.lock", project, "[tool.uv.sources]\nlib = { workspace = true }", false);
    check("uv.lock", project, "[tool.uv.sources]\nlib = { workspace = true, editable = false }", true);
    check("pdm.lock", project, "[project]\ndependencies = [\"lib @ file:///${PROJECT_ROOT}/lib\"]", true);
    check("Pipfile.lock", "Pipfile", "[packages]\nlib = {path = \"./lib\"}\nflask = \"*\"", true);
    check("Pipfile.lock", "Pipfile", "[packages]\nlib = {path = \".\", editable = true}", false);
    check("Pipfile.lock", "Pipfile", "[packages", true);
}

#[test]
fn directories_that_node_managers_copy_are_installed_anew_at_every_build() {
    let check = |lock: &str, version: &str, is_copied: bool| {
        let package = format!(r#"{{"dependencies":{{"lib":"{version}"}},"main":"a.js"}}"#);
        let plan = plan_of(&[("package.json", package.as_str()), (lock, "")], None);
        let install = plan.install.unwrap();
        let expect = is_copied.then(|| format!("rm -rf node_modules && {install}"));
        assert_eq!(plan.refresh, expect, "{lock}: {version}");
    };
    for lock in ["yarn.lock", ".yarnrc.yml", "pnpm-lock.yaml", "bun.lock"] {
        check(lock, "file:./lib", true);
        check(lock, "../lib", true);
        for other in ["~1.2.0", "link:./lib", "portal:./lib", "workspace:*"] {
            check(lock, other, false);
        }
    }
    check("package-lock.json", "file:./lib", false);
}

#[test]
fn what_scripts_of_a_package_read_decides_too() {
    let package = r#"{"dependencies":{"a":"1"},"main":"a.js","scripts":{"preinstall":"node ./tools/get.js","postinstall":"prisma generate && patch-package"}}"#;
    let files = [
        ("package.json", package),
        ("bun.lock", ""),
        (".npmrc", ""),
        ("patches/a+1.0.0.patch", ""),
        ("prisma/schema.prisma", ""),
        ("tools/get.js", ""),
        ("tools/other.js", ""),
    ];
    let plan = plan_of(&files, None);
    assert_eq!(
        plan.locks,
        [
            "package.json",
            "bun.lock",
            ".npmrc",
            "patches/a+1.0.0.patch",
            "prisma/schema.prisma",
            "tools/get.js"
        ]
    );
    assert_eq!(plan.refresh.as_deref(), Some("bun run postinstall"));
    let both =
        r#"{"dependencies":{"a":"1"},"main":"a.js","scripts":{"prepare":"husky","postinstall":"true"}}"#;
    let around =
        r#"{"dependencies":{"a":"1"},"main":"a.js","scripts":{"install":"make","postinstall":"true"}}"#;
    let of = |package, lock| plan_of(&[("package.json", package), (lock, "")], None).refresh.unwrap();
    assert_eq!(of(around, "package-lock.json"), "npm run install", "npm runs the other behind it");
    assert_eq!(of(around, "pnpm-lock.yaml"), "pnpm run install && pnpm run postinstall");
    let refresh = |lock| of(both, lock);
    assert_eq!(refresh("package-lock.json"), "npm run postinstall && npm run prepare");
    assert_eq!(refresh(".yarnrc.yml"), "yarn run postinstall");
    assert_eq!(
        plan_of(&[("package.json", r#"{"dependencies":{"a":"1"},"main":"a.js"}"#)], None).refresh,
        None
    );
}

#[test]
fn a_given_command_uses_the_files_it_names_and_well_known_ones() {
    let manifest = ("pandastack.toml", "[app]\nstart_command = \"./serve\"\n");
    let files = [manifest, ("Gemfile.lock", ""), ("bin/setup", ""), ("bin/other", "")];
    let plan = plan_of(&files, Some("bundle install && sh ./bin/setup"));
    assert_eq!(plan.locks, ["bin/setup", "Gemfile.lock"]);
}

#[test]
fn static_files_come_last() {
    let row = |directory| Row {
        framework: "static",
        install: None,
        build: None,
        serve: served(directory, false),
        because: "detected static",
    };
    check(&[("index.html", "")], row(""));
    check(&[("index.html", ""), ("public/index.html", "")], row("public"));
    check(&[("Staticfile", "root: www/\n"), ("index.html", "")], row("www"));
}

#[test]
fn both_sides_are_told_apart_by_who_starts() {
    let python = ("app.py", "app = Flask(__name__)");
    let plan = detect(
        &view(&[("package.json", r#"{"devDependencies":{"a":"1"}}"#), python]),
        &UserSettings::default(),
    )
    .unwrap();
    assert_eq!(plan.framework, Framework::Python);
    assert!(plan.reasons.last().unwrap().contains("set `framework`"), "{:?}", plan.reasons);
    let starts = ("package.json", r#"{"scripts":{"start":"node a"}}"#);
    let plan = detect(&view(&[starts, python]), &UserSettings::default()).unwrap();
    assert_eq!(plan.framework, Framework::Node);
}

#[test]
fn what_was_said_wins() {
    let user_settings = UserSettings {
        framework: Some("node".into()),
        install: Some("make deps".into()),
        build: Some("make".into()),
        start: Some("./run".into()),
    };
    let files = [("package.json", r#"{"dependencies":{"next":"15"}}"#)];
    let plan = detect(&view(&files), &user_settings).unwrap();
    assert_eq!(
        (plan.framework, plan.install.as_deref(), plan.build.as_deref(), plan.serve),
        (Framework::Node, Some("make deps"), Some("make"), command("./run"))
    );
    let manifest = ("pandastack.toml", "[app]\nstart_command = \"./serve\"\n");
    let plan = detect(&view(&[manifest, ("run.rb", "")]), &UserSettings::default()).unwrap();
    assert_eq!((plan.framework, plan.serve), (Framework::Custom, command("./serve")));
    let unknown = UserSettings { framework: Some("rails".into()), ..UserSettings::default() };
    let error = detect(&view(&files), &unknown).unwrap_err().to_string();
    assert!(error.contains("rails") && error.contains("python"), "{error}");
}

#[test]
fn nothing_known_says_what_was_looked_for() {
    let error = detect(&view(&[("Main.java", "")]), &UserSettings::default()).unwrap_err().to_string();
    for part in ["package.json", "requirements.txt", "index.html", "Main.java", "start_command"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn the_python_that_is_wanted_is_known() {
    let check = |file: &str, text: &str, expect: Option<&str>| {
        let plan = detect(&view(&[("main.py", ""), (file, text)]), &UserSettings::default()).unwrap();
        let expect = expect.map(|version| (version, file));
        assert_eq!(plan.python.as_ref().map(|wish| (wish.wanted.as_str(), wish.file)), expect, "{text}");
    };
    check(".python-version", "3.11.4\n", Some("3.11"));
    check(".python-version", "cpython@3.12", Some("3.12"));
    check("runtime.txt", "python-3.10.1\n", Some("3.10"));
    check(".tool-versions", "nodejs 20.1.0\npython 3.9.2\n", Some("3.9"));
    check("Pipfile", "[requires]\npython_version = \"3.8\"\n", Some("3.8"));
    check("pyproject.toml", "[project]\nname = \"a\"\nrequires-python = \">=3.12\"\n", Some(">=3.12"));
    check("pyproject.toml", "[tool.poetry.dependencies]\npython = \"^3.11\"\n", Some("^3.11"));
    check("pyproject.toml", "[project]\nname = \"a\"\n", None);
    check("pyproject.toml", "not [ toml", None);
    for nothing in ["3", "pypy3.10", ">=3.11", "system", ""] {
        check(".python-version", nothing, None);
    }
}
