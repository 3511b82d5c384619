//! Commands one by one.

use pandastack_types::ErrorCode;
use serde_json::Value;

use crate::server::{ID, SNAPSHOT};
use crate::{Program, api_errors, text};

#[test]
fn run_streams_output_passes_the_exit_code_and_deletes() {
    let program = Program::new();
    program.check(&["run", "--", "echo", "hello"], 0, "out ä\n", "err\n");
    let delete = format!("DELETE /v1/sandboxes/{ID}");
    assert_eq!(program.server.calls().last(), Some(&delete));
    let exec = program.server.body_of(&format!("POST /v1/sandboxes/{ID}/exec/stream?encoding=base64"));
    assert_eq!(exec["argv"], serde_json::json!(["echo", "hello"]));
    program.check(&["run", "--", "fail"], 3, "", "no\n");
    assert_eq!(program.server.calls().iter().filter(|call| **call == delete).count(), 2);
}

#[test]
fn a_platform_error_has_its_own_exit_code() {
    let program = Program::new();
    program.check(
        &["run", "--", "cut"],
        125,
        "half",
        "error: the stream of POST /v1/sandboxes/3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55/exec/stream was interrupted: \
         the exit code was not reported\nhint: run `pandastack host list` to check whether the hosts are reachable\n",
    );
    program.check(&["run", "--", "slow"], 124, "", "error: timeout: the command ran past 1 s\n");
    program.check(
        &["run", "--template", "missing", "--", "true"],
        125,
        "",
        "error: template `missing` not found\n",
    );
}

#[test]
fn run_with_json_output_is_a_single_call() {
    let program = Program::new();
    let output = program.run(&["run", "--json", "--", "python", "-c", "print(2 ** 10)"]);
    assert_eq!(output.status.code(), Some(4));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["stdout"], "1024\n");
    assert_eq!(program.server.calls(), ["POST /v1/run"]);
}

#[test]
fn the_first_use_of_a_template_shows_its_build() {
    let program = Program::new();
    let expected = "install Debian packages\nboot\n";
    program.check(&["run", "--template", "slow", "true"], 0, "out ä\n", &format!("{expected}err\n"));
}

#[test]
fn sandboxes_are_listed_as_a_table_or_as_json() {
    let program = Program::new();
    program.check(
        &["sandbox", "list"],
        0,
        "ID                                    NAME  TEMPLATE  STATUS   AGE  EXPIRES  MEMORY   ISOLATION  HOST\n\
         3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55  -     base      running  1m   in 58m   512 MiB  emulated   box\n",
        "",
    );
    let output = program.run(&["sandbox", "list", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value[0]["id"], ID);
}

#[test]
fn sandbox_get_describes_a_sandbox() {
    let output = Program::new().run(&["sandbox", "get", ID]);
    let stdout = text(&output.stdout);
    for line in [
        "status:      running",
        "engine:      qemu-tcg (emulated isolation)",
        "started by:  fork in 9 ms",
        "metadata:    task=x",
    ] {
        assert!(stdout.lines().any(|seen| seen == line), "{line:?} not in\n{stdout}");
    }
}

#[test]
fn a_unique_prefix_of_an_id_is_enough() {
    let program = Program::new();
    program.check(&["sandbox", "hibernate", "3f2b"], 0, &format!("{ID}\n"), "");
    program.check(
        &["sandbox", "rm", "ffff"],
        1,
        "",
        "error: sandbox `ffff` not found\nhint: run `pandastack sandbox list` to see all IDs\n",
    );
    program.check(
        &["sandbox", "get", "NO_SUCH"],
        1,
        "",
        "error: `NO_SUCH` is not a valid sandbox id; use 1 to 57 lowercase letters, digits and `-`\n\
         hint: run `pandastack sandbox list` to see all IDs\n",
    );
}

#[test]
fn forks_and_snapshots_print_ids() {
    let program = Program::new();
    program.check(&["sandbox", "fork", ID], 0, &format!("{SNAPSHOT}\n"), "");
    program.check(&["sandbox", "snapshot", ID, "--name", "before"], 0, &format!("{SNAPSHOT}\n"), "");
    assert_eq!(program.server.body_of(&format!("POST /v1/sandboxes/{ID}/snapshots"))["name"], "before");
    // A name may be any line.
    program.run(&["sandbox", "create", "--from-snapshot", "before"]);
    assert_eq!(program.server.body_of("POST /v1/sandboxes")["from_snapshot"], SNAPSHOT);
    program.run(&["sandbox", "rollback", ID, "before"]);
    assert_eq!(program.server.body_of(&format!("POST /v1/sandboxes/{ID}/rollback"))["snapshot_id"], SNAPSHOT);
    program.run(&["template", "publish", "before", "--name", "mine"]);
    let published = program.server.calls().into_iter().find(|call| call.ends_with("/publish"));
    let published = program.server.body_of(&published.expect("the name was found"));
    assert_eq!(published["snapshot_id"], SNAPSHOT);
    program.check(
        &["snapshot", "list"],
        0,
        "ID                                    NAME    SANDBOX                               TEMPLATE  SIZE     AGE\n\
         7a0c5a1e-0000-4000-8000-000000000001  before  3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55  base      1.5 MiB  2h\n",
        "",
    );
}

#[test]
fn templates_are_listed_and_built() {
    let program = Program::new();
    program.check(
        &["template", "list"],
        0,
        "NAME  STATUS   CPU  MEMORY   SIZE  DESCRIPTION\n\
         base  ready    1    512 MiB  -     Python and tools\n\
         slow  unbaked  1    512 MiB  -     Python and tools\n",
        "",
    );
    let output = program.run(&["template", "build", "slow"]);
    assert_eq!(text(&output.stderr), "install Debian packages\nboot\n");
    assert!(text(&output.stdout).starts_with("template slow is ready ("), "{output:?}");
}

#[test]
fn errors_say_what_to_do_next() {
    let program = Program::new();
    let mut command = program.command(&["whoami"]);
    let output = command.env("PANDASTACK_API_KEY", "pds_wrong").output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (
            Some(1),
            format!(
                "error: {}\nhint: set PANDASTACK_API_KEY to a valid key, or run `pandastack up` again\n",
                api_errors::message(ErrorCode::Unauthorized)
            )
        )
    );
    let mut command = program.command(&["whoami"]);
    let output = command.env_remove("PANDASTACK_API_KEY").output().unwrap();
    assert!(text(&output.stderr).starts_with("error: no API key configured\nhint: run `pandastack up`"));
    let mut command = program.command(&["whoami"]);
    let output = command.env("PANDASTACK_API_URL", "http://127.0.0.1:1").output().unwrap();
    assert!(
        text(&output.stderr)
            .starts_with("error: cannot reach PandaStack at http://127.0.0.1:1: Connection refused"),
        "{output:?}"
    );
}

#[test]
fn whoami_names_server_and_key() {
    let program = Program::new();
    let expected = format!(
        "server:     {}\nworkspace:  default\nkey:        pds_01234567 (admin)\nrole:       owner\n",
        program.server.url()
    );
    program.check(&["whoami"], 0, &expected, "");
}
