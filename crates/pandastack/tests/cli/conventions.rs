//! Conventions of command lines: formats, quiet output, several names, the client's own
//! configuration.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::server::{ID, KEY, PRIVATE, SWITCHED_OFF};
use crate::services::DATABASE;
use crate::{Program, text};

fn json_of(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn run_needs_no_dashes_and_a_missing_program_exits_with_127() {
    let program = Program::new();
    program.check(&["run", "ls", "-la"], 0, "out ä\n", "err\n");
    let exec = program.server.body_of(&format!("POST /v1/sandboxes/{ID}/exec/stream?encoding=base64"));
    assert_eq!(exec["argv"], json!(["ls", "-la"]));
    let missing = "error: cannot run \"nosuch\": No such file or directory\n";
    program.check(&["run", "--", "nosuch", "arg"], 127, "", missing);
    program.check(&["sandbox", "exec", ID, "nosuch", "arg"], 127, "", missing);
    let output = program.run(&["run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("<CMD>..."), "{output:?}");
}

#[test]
fn a_list_supports_every_output_format() {
    let program = Program::new();
    for form in [&["--json"][..], &["-o", "json"], &["--output=json"]] {
        let output = program.run(&[&["sandbox", "list"], form].concat());
        assert_eq!(json_of(&output)[0]["id"], ID, "{form:?}");
    }
    program.check(&["sandbox", "list", "--quiet"], 0, &format!("{ID}\n"), "");
    program.check(&["-q", "app", "ls"], 0, "shop\n", "");
    let wide = text(&program.run(&["sandbox", "list", "-o", "wide"]).stdout);
    let header = wide.lines().next().unwrap_or_default();
    assert!(header.ends_with("HOST  CPU  ENGINE    ADDRESS     PARENT  METADATA"), "{wide}");
    assert!(wide.contains("box   1    qemu-tcg  10.201.0.2  -       task=x"), "{wide}");
    let output = program.run(&["sandbox", "list", "-o", "xml"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = program.run(&["sandbox", "nope", "-o", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&output.stderr).unwrap()["code"], "usage");
}

#[test]
fn several_resources_are_shown_at_once() {
    let program = Program::new();
    let output = program.run(&["app", "get", "shop", "draft"]);
    let stdout = text(&output.stdout);
    let names: Vec<&str> = stdout.lines().filter(|line| line.starts_with("name:")).collect();
    assert_eq!(names, ["name:          shop", "name:          draft"], "{stdout}");
    let one = json_of(&program.run(&["app", "get", "shop", "--json"]));
    assert_eq!(one["name"], "shop");
    let output = program.run(&["app", "get", "shop", "none", "draft", "--json"]);
    let both = json_of(&output);
    assert_eq!(
        (output.status.code(), &both[0]["name"], &both[1]["name"]),
        (Some(1), &json!("shop"), &json!("draft"))
    );
}

#[test]
fn an_app_shows_its_databases() {
    let stdout = text(&Program::new().run(&["app", "get", "shop"]).stdout);
    let expected = "databases:     dddd0000-0000-4000-8000-000000000001 (DATABASE_URL)";
    assert!(stdout.lines().any(|line| line == expected), "{stdout}");
}

#[test]
fn a_port_url_is_signed_for_a_private_sandbox() {
    let program = Program::new();
    program.check(&["sandbox", "url", ID, "8000"], 0, &format!("http://8000-{ID}.localhost:8080/\n"), "");
    let note = "the sandbox is private; the URL works until 2030-01-01T00:00:00Z\n";
    let signed = format!("http://8000-{PRIVATE}.localhost:8080/?pandastack_preview=signed\n");
    program.check(&["sandbox", "url", PRIVATE, "8000", "--expires-in", "60"], 0, &signed, note);
    let request = program.server.body_of(&format!("POST /v1/sandboxes/{PRIVATE}/preview-token"));
    assert_eq!(request, json!({"port": 8000, "ttl_seconds": 60}));
    let off = program.run(&["sandbox", "url", SWITCHED_OFF, "8000"]);
    assert!(text(&off.stderr).contains("their visibility is `off`"), "{off:?}");
    // No browser in a test: the URL is printed all the same.
    let opened =
        program.command(&["sandbox", "open", ID, "8000"]).env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(text(&opened.stdout), format!("http://8000-{ID}.localhost:8080/\n"));
    assert_eq!(text(&opened.stderr), "no browser found on this machine; open the URL yourself\n");
    let output = program.run(&["sandbox", "url", ID, "8000", "--json"]);
    assert_eq!(json_of(&output)["visibility"], "unlisted");
}

#[test]
fn sandbox_create_prints_the_lifetime() {
    let program = Program::new();
    let note =
        format!("expires in 1h; to change that, run `pandastack sandbox lifecycle {ID} --ttl SECONDS`\n");
    program.check(&["sandbox", "create"], 0, &format!("{ID}\n"), &note);
    program.check(&["sandbox", "create", "-q"], 0, &format!("{ID}\n"), "");
    let help = text(&program.run(&["sandbox", "create", "--help"]).stdout);
    assert!(help.contains("deleted one hour after its creation"), "{help}");
}

#[test]
fn usage_is_summed_by_day_and_rows_are_limited() {
    let program = Program::new();
    let period = ["--since", "2026-01-01T00:00:00Z", "--until", "2026-01-03T12:00:00Z"];
    let output = program.run(&[&["usage", "--by", "day", "--limit", "2"][..], &period].concat());
    let stdout = text(&output.stdout);
    let days: Vec<&str> = stdout.lines().filter_map(|line| line.split("  ").next()).skip(2).collect();
    assert_eq!(
        days,
        ["DAY", "all", "2026-01-03", "2026-01-02", "1 earlier days are not shown; `all` includes them"]
    );
    let calls = program.server.calls();
    let day = "GET /v1/usage?from=2026-01-02T00%3A00%3A00Z&to=2026-01-03T00%3A00%3A00Z";
    assert!(calls.iter().any(|call| call == day), "{calls:?}");
    let output = program.run(&[&["usage", "--by", "day", "--json"][..], &period].concat());
    assert_eq!(json_of(&output)["days"].as_array().map(Vec::len), Some(3));
    let functions = text(&program.run(&["usage", "--by", "function"]).stdout);
    assert!(functions.contains("FUNCTION  CALLS  BILLED"), "{functions}");
}

#[test]
fn quota_show_explains_machines_missing_from_the_list() {
    let output = Program::new().run(&["quota", "show"]);
    let expected = "3 of 4 sandboxes are machines of apps, functions, databases and builds, which \
                    `pandastack sandbox list` does not show\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn the_json_option_prints_logs_as_json_lines() {
    let program = Program::new();
    let output = program.run(&["sandbox", "logs", ID, "--json"]);
    assert_eq!(text(&output.stdout), "{\"line\":\"booted\"}\n{\"line\":\"login:\"}\n");
    program.check(&["sandbox", "logs", ID], 0, "booted\nlogin:\n", "");
}

#[test]
fn the_client_configuration_is_shown_and_changed() {
    let program = Program::new();
    let config = |args: &[&str]| {
        let mut command = program.command(&[&["config"][..], args].concat());
        command.env_remove("PANDASTACK_API_URL").env_remove("PANDASTACK_API_KEY").output().unwrap()
    };
    let path = program.home.path().join(".config/pandastack/config.json");
    assert_eq!(text(&config(&["path"]).stdout), format!("{}\n", path.display()));
    assert_eq!(text(&config(&["get", "api_url"]).stdout), "http://127.0.0.1:8080\n");
    let missing = config(&["get", "token"]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    assert!(config(&["set", "api_url", &program.server.url()]).status.success());
    assert!(config(&["set", "token", KEY]).status.success());
    let shown: Value = json_of(&config(&["show", "--json"]));
    assert_eq!(
        (&shown["api_url"], &shown["token"]),
        (&json!(program.server.url()), &json!("pds_01234567..."))
    );
    let mut whoami = program.command(&["whoami"]);
    let whoami = whoami.env_remove("PANDASTACK_API_URL").env_remove("PANDASTACK_API_KEY").output().unwrap();
    assert!(whoami.status.success(), "the client uses it: {whoami:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "it contains a key");
    assert!(config(&["unset", "token"]).status.success());
    assert!(!std::fs::read_to_string(&path).unwrap().contains("token"));
    let bad = config(&["set", "api_url", "ftp://server"]);
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    // The environment wins, and the command prints that.
    let output = program.run(&["config", "set", "token", KEY]);
    assert!(
        text(&output.stderr).contains("PANDASTACK_API_URL and PANDASTACK_API_KEY in the environment"),
        "{output:?}"
    );
}

#[test]
fn client_and_server_versions_are_shown() {
    let program = Program::new();
    let seen = json_of(&program.run(&["version", "--json"]));
    assert_eq!((&seen["client"], &seen["server"]), (&json!(env!("CARGO_PKG_VERSION")), &json!("9.9.9")));
    let mut command = program.command(&["version"]);
    let output = command.env("PANDASTACK_API_URL", "http://127.0.0.1:1").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "the client's version is known without a server");
    assert!(text(&output.stdout).contains("cannot reach PandaStack"), "{output:?}");
}

#[test]
fn ctrl_c_says_what_continues_and_how_to_follow_it() {
    let program = Program::new();
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("main.py"), "def handler(event):\n    return event\n").unwrap();
    let source = source.path().to_str().unwrap();
    let app = "if the deployment has started, it continues; `pandastack app deploys shop` shows it";
    let restore = "if the restore has started, it continues; `pandastack db list` shows it";
    let sandbox = format!("to see its state, run `pandastack sandbox get {ID}`");
    let database = format!("to see its state, run `pandastack db get {DATABASE}`");
    for (args, unanswered, hint) in [
        (&["template", "build", "slow"][..], "GET /v1/templates/builds/", "run `pandastack template logs "),
        (&["sandbox", "create"], "POST /v1/sandboxes", "`pandastack sandbox list` shows it"),
        (&["sandbox", "wake", ID], "POST /v1/sandboxes/", &sandbox),
        (&["sandbox", "fork", ID], "POST /v1/sandboxes/", "`pandastack sandbox list`"),
        (&["sandbox", "snapshot", ID], "POST /v1/sandboxes/", "`pandastack snapshot"),
        (&["app", "deploy", "shop", "--dir", source], "POST /v1/apps/", app),
        (&["app", "delete", "shop", "--yes"], "DELETE /v1/apps/", "`pandastack app list` shows"),
        (&["db", "create"], "POST /v1/databases", "`pandastack db list` shows it"),
        (&["db", "restore", DATABASE, "--at", "now"], "POST /v1/databases/", restore),
        (&["db", "wake", DATABASE], "POST /v1/databases/", &database),
        (
            &["db", "delete", DATABASE],
            "DELETE /v1/databases/",
            "the deletion continues; `pandastack db list`",
        ),
        (&["fn", "deploy", "hello", source], "POST /v1/functions/", "run `pandastack fn get hello`"),
        (&["fn", "invoke", "hello"], "POST /v1/functions/", "run `pandastack fn runs hello`"),
        (&["schedule", "run", "nightly"], "POST /v1/schedules/", "run `pandastack schedule runs nightly`"),
    ] {
        *program.server.api.unanswered.lock().unwrap() = Some(unanswered.to_owned());
        let mut command = program.command(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        program.server.wait_for_command();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let told = text(&output.stderr);
        let line = told.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
        assert_eq!(output.status.code(), Some(130), "{args:?}: {told}");
        assert!(told.contains("error: interrupted\n") && line.contains(hint), "{args:?}: {told}");
    }
}

#[test]
fn a_first_database_shows_what_it_waits_for_and_a_restore_its_steps() {
    let program = Program::new();
    let output = program.run(&["db", "create", "orders"]);
    assert_eq!(text(&output.stderr), "install Debian packages\nboot\n");
    assert!(output.status.success() && text(&output.stdout).contains(DATABASE), "{output:?}");
    let output = program.run(&["db", "restore", DATABASE, "--at", "latest"]);
    assert_eq!(text(&output.stderr), "Restoring: replaying WAL\n");
    assert!(output.status.success() && text(&output.stdout).contains("running"), "{output:?}");
    let asked = program.server.body_of(&format!("POST /v1/databases/{DATABASE}/clone"));
    assert_eq!(asked["target_time"], "latest");
}
