//! One row per kind of app and package manager: files in, plan out.

mod installs;
mod node;
mod python;

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

fn pip(rest: &str) -> String {
    format!(
        "/usr/bin/python3 -m venv --clear --without-pip /srv/venv && /usr/bin/python3 -m pip --python /srv/venv/bin/python install {rest}"
    )
}

#[test]
fn static_sites_are_detected_last() {
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
fn a_start_script_decides_between_node_and_python() {
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
fn user_settings_override_detection() {
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
fn a_failed_detection_lists_the_expected_files() {
    let error = detect(&view(&[("Main.java", "")]), &UserSettings::default()).unwrap_err().to_string();
    for part in ["package.json", "requirements.txt", "index.html", "Main.java", "start_command"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
