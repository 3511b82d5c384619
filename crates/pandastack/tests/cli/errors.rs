//! A representative error of each kind, compared with `golden/errors.txt`.

use pandastack_types::ErrorCode;

use crate::{Program, api_errors, check_snapshot, text};

/// A failing command: environment variables and arguments. `HOME` in an argument is the home directory.
struct Case {
    env: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
}

const fn case(args: &'static [&'static str]) -> Case {
    Case { env: &[], args }
}

const fn with_env(env: &'static [(&'static str, &'static str)], args: &'static [&'static str]) -> Case {
    Case { env, args }
}

/// An id that no sandbox has.
const ABSENT: &str = "00000000-0000-4000-8000-000000000000";
const ANOTHER_HOME: &[(&str, &str)] = &[("HOME", "HOME/broken")];

const KINDS: &[(&str, &[Case])] = &[
    (
        "Configuration",
        &[
            with_env(&[("PANDASTACK_API_KEY", "")], &["whoami"]),
            with_env(ANOTHER_HOME, &["whoami"]),
            with_env(&[("PANDASTACK_API_URL", "ftp://server")], &["whoami"]),
        ],
    ),
    (
        "Connection and responses",
        &[
            with_env(&[("PANDASTACK_API_URL", "http://127.0.0.1:1")], &["whoami"]),
            with_env(&[("PANDASTACK_API_KEY", "pds_wrong")], &["whoami"]),
            case(&["sandbox", "get", ABSENT]),
            case(&["sandbox", "get", ABSENT, "--json"]),
            case(&["template", "build", "proxy"]),
            case(&["template", "build", "garbage"]),
            case(&["run", "--", "cut"]),
            case(&["run", "--", "slow"]),
        ],
    ),
    (
        "Usage",
        &[
            case(&["sandbox", "get"]),
            case(&["sandbox", "get", "3f2b", "--nope"]),
            case(&["sandbox", "nope"]),
            case(&["sandbox", "get", "--json"]),
            case(&["sandbox", "create", "--memory", "much"]),
            case(&["sandbox", "create", "--volume", "data:x"]),
            case(&["sandbox", "create", "--network", "some"]),
            case(&["sandbox", "create", "--preset", "nope"]),
            case(&["sandbox", "create", "--env", "secret"]),
            case(&["sandbox", "lifecycle", "3f2b", "--on-timeout", "nope"]),
            case(&["quota", "set", "--cpu", "many"]),
            case(&["app", "deploy", "--previews", "nope"]),
            case(&["app", "deploy", "--git-host", "nope"]),
            case(&["app", "env", "set", "shop", "A=1", "--scope", "nope"]),
            case(&["app", "env", "set", "shop", "A=1", "--stage", "nope"]),
            case(&["db", "restore", "orders", "--at", "yesterday"]),
            case(&["schedule", "create", "nightly", "--every", "60", "--overlap", "nope"]),
            case(&["schedule", "create", "nightly", "--every", "60", "--missed", "nope"]),
            case(&["schedule", "create", "nightly", "--every", "60", "--function", "hello", "--input", "{"]),
            case(&["forward", "3f2b", "http:80"]),
            case(&["up", "--backups", "ftp://server/path"]),
            case(&["up", "--config", "/dev/null", "--postgres-domain", "10.0.0.1"]),
        ],
    ),
    (
        "Names that match nothing",
        &[
            case(&["sandbox", "get", "ffff"]),
            case(&["sandbox", "get", "NO_SUCH"]),
            case(&["snapshot", "rm", "NO_SUCH"]),
            case(&["db", "get", "nope"]),
            case(&["schedule", "get", "nope"]),
            case(&["fn", "redrive", "hello", "NO_SUCH"]),
            case(&["image", "build", "nope"]),
        ],
    ),
    (
        "Sandboxes",
        &[
            case(&["sandbox", "cp", "a", "b"]),
            case(&["sandbox", "cp", "HOME/file", "3f2b:srv"]),
            case(&["sandbox", "cp", "HOME/nope", "3f2b:/srv"]),
            case(&["sandbox", "cat", "3f2b:srv"]),
            case(&["sandbox", "network", "set", "3f2b"]),
            case(&["volume", "rm", "kept"]),
            case(&["bench", "--", "false"]),
        ],
    ),
    (
        "Apps and functions",
        &[
            case(&["app", "init", "HOME/app"]),
            case(&["app", "deploy", "fresh", "--dir", "HOME/nope"]),
            case(&["app", "deploy", "fresh", "--ref", "v1"]),
            case(&["app", "deploy", "fresh", "--git-token", "@HOME/nope"]),
            case(&["app", "exec", "draft", "--", "true"]),
            case(&["app", "cancel", "draft"]),
            case(&["app", "logs", "draft", "--deploy"]),
            case(&["app", "rm", "shop"]),
            case(&["app", "rm", "shop", "--json"]),
            case(&["fn", "init", "HOME/function"]),
            case(&["fn", "deploy", "fresh", "HOME/file", "--runtime", "ruby"]),
            case(&["fn", "invoke", "hello", "{name: you}"]),
        ],
    ),
    (
        "Server roles",
        &[
            case(&["control", "--config", "HOME/nope.toml"]),
            case(&["control", "--config", "HOME/bad.toml"]),
            case(&["control", "--config", "/dev/null", "--data-dir", "HOME/data"]),
            with_env(&[("PANDASTACK_LOG_FORMAT", "xml")], &["control", "--config", "/dev/null"]),
            case(&["down", "--config", "/dev/null", "--data-dir", "HOME/data"]),
        ],
    ),
];

/// Files that the cases refer to.
fn prepare(home: &std::path::Path) {
    for (file, content) in [
        ("broken/.config/pandastack/config.json", "[]"),
        ("app/pandastack.toml", ""),
        ("function/main.py", ""),
        ("bad.toml", "[agent]\nsubnett = 'x'\n"),
        ("file", ""),
    ] {
        let path = home.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=".contains(c);
    if word.chars().all(is_plain) && !word.is_empty() { word.to_owned() } else { format!("'{word}'") }
}

#[test]
fn errors_match_the_snapshot() {
    let program = Program::new();
    let home = program.home.path().display().to_string();
    prepare(program.home.path());
    let run = |env: &[(&str, &str)], args: &[&str]| {
        let words: Vec<String> = args.iter().map(|word| word.replace("HOME", &home)).collect();
        let mut command = program.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        command.envs(env.iter().map(|(name, value)| (*name, value.replace("HOME", &home))));
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let shown: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let line: Vec<String> = args.iter().map(|word| quoted(word)).collect();
        let printed = text(&output.stderr).replace(&home, "HOME").replace(&program.server.url(), "SERVER");
        let code = output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string());
        let (shown, line, printed) = (shown.concat(), line.join(" "), printed.trim_end());
        format!("$ {shown}pandastack {line}\n{printed}\nexit code: {code}\n\n")
    };
    let mut seen = String::new();
    for (kind, cases) in KINDS {
        seen.push_str(&format!("# {kind}\n\n"));
        cases.iter().for_each(|case| seen.push_str(&run(case.env, case.args)));
    }
    seen.push_str("# Codes of the API\n\n");
    for code in ErrorCode::ALL {
        let key = api_errors::key(*code);
        seen.push_str(&run(&[("PANDASTACK_API_KEY", key.as_str())], &["whoami"]));
    }
    check_snapshot("crates/pandastack/tests/cli/golden/errors.txt", &seen);
}
