//! Tests of the decision whether packages are installed again.

use super::*;

fn plan_of(files: &[(&str, &str)], install: Option<&str>) -> Plan {
    let user_settings = UserSettings { install: install.map(str::to_owned), ..UserSettings::default() };
    detect(&view(files), &user_settings).unwrap()
}

#[test]
fn every_file_read_by_pip_is_an_install_input() {
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
fn packages_in_the_source_tree_are_installed_on_every_build() {
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
fn copied_python_path_dependencies_are_reinstalled_every_build() {
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
fn copied_node_path_dependencies_are_reinstalled_every_build() {
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
fn files_read_by_package_scripts_are_install_inputs() {
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
fn an_install_command_depends_on_named_and_known_files() {
    let manifest = ("pandastack.toml", "[app]\nstart_command = \"./serve\"\n");
    let files = [manifest, ("Gemfile.lock", ""), ("bin/setup", ""), ("bin/other", "")];
    let plan = plan_of(&files, Some("bundle install && sh ./bin/setup"));
    assert_eq!(plan.locks, ["bin/setup", "Gemfile.lock"]);
}
