//! The kernel of Bash.

use super::*;

#[test]
fn variables_functions_and_the_directory_are_kept() {
    check(
        Language::Bash,
        &[
            ("x=41; f() { echo \"f $x\"; }; export Y=7; cd /; alias hi='echo hello'", ""),
            ("f; pwd; sh -c 'echo $Y'; hi", "f 41\n/\n7\nhello\n"),
            ("if true; then\n  cat <<END\nhere $x\nEND\nfi", "here 41\n"),
            ("echo out; echo ü >&2", "out\nü\n"),
            // Nothing to read: the rest of the input is not the cell's.
            ("cat; read line; echo \"$line.\"", ".\n"),
            ("", ""),
        ],
    );
}

#[test]
fn errors_keep_the_shell() {
    let mut kernel = Kernel::start(Language::Bash);
    kernel.run("x=41");
    for (code, status, says) in [
        ("echo before; false", "1", ""),
        ("if then", "2", "syntax error near unexpected token"),
        ("echo \"", "2", "unexpected EOF"),
        ("no-such-command", "127", "no-such-command: command not found"),
        ("(exit 3)", "3", ""),
        ("break; return; false", "1", "only meaningful"),
    ] {
        let ran = kernel.run(code);
        assert_eq!((ran.error("name"), ran.error("value")), ("ExecutionError", status), "{code}: {ran:?}");
        assert!(ran.stderr.contains(says), "{code}: {ran:?}");
        assert_eq!(kernel.run("echo $x").stdout, "41\n", "{code}");
    }
    assert!(kernel.close().success());
}

#[test]
fn the_end_of_the_shell_is_the_end_of_the_context() {
    for (code, status) in [("exit 3", 3), ("exec true", 0), ("kill -9 $$", 128 + 9)] {
        let mut kernel = Kernel::start(Language::Bash);
        assert_eq!(kernel.run(code).error, None);
        assert_eq!(kernel.close().code(), Some(status), "{code}");
    }
}

#[test]
fn an_interrupt_reaches_only_the_foreground() {
    let mut kernel = Kernel::start(Language::Bash);
    // A job ignores interrupts before it becomes another program.
    kernel.run("x=41; sleep 1000 & job=$!; until [ \"$(< /proc/$job/comm)\" = sleep ]; do :; done");
    for endless in [
        "echo; sleep 1000; x=0",
        "echo; while :; do :; done",
        "echo; while :; do sleep 0.01; done; x=0",
        "while :; do echo; done",
    ] {
        assert_eq!(kernel.interrupt(endless).error("name"), "Interrupted", "{endless}");
        assert_eq!(kernel.run("echo $x; kill -0 $job").stdout, "41\n", "{endless}");
    }
    assert_eq!(kernel.run("kill $job").error, None);
    assert!(kernel.close().success());
}

/// The interrupt and the end of the run cross each other somewhere among these.
#[test]
fn an_interrupt_at_the_end_of_a_run_stops_no_later_one() {
    let mut kernel = Kernel::start(Language::Bash);
    for ms in 0..20 {
        kernel.interrupt(&format!("echo; sleep 0.0{ms:02}"));
        assert_eq!(kernel.run("echo 42").stdout, "42\n", "{ms} ms");
    }
    assert!(kernel.close().success());
}

#[test]
fn a_line_that_is_written_in_pieces_is_one_event() {
    let mut kernel = Kernel::start(Language::Bash);
    let run = kernel.begin("sleep 0.7; printf a; sleep 0.2; echo b", &Value::Null);
    let written = std::iter::from_fn(|| kernel.event(&run)).find(|event| event["type"] == "stdout").unwrap();
    assert_eq!(written["text"], "ab\n");
}

#[test]
fn characters_are_whole_wherever_a_read_ends() {
    let mut kernel = Kernel::start(Language::Bash);
    let written = kernel.run("yes é€ | head -n 100000").stdout;
    assert!(written == "é€\n".repeat(100_000), "{} replaced", written.matches('\u{fffd}').count());
    assert_eq!(kernel.run("printf '\\xe2\\x82'; exit 0").stdout, "\u{fffd}");
    assert!(kernel.close().success());
}

#[test]
fn variables_of_a_run_are_its_own() {
    let mut kernel = Kernel::start(Language::Bash);
    let run = kernel.begin("sh -c 'echo \"$CALL\"'", &json!({ "CALL": "it's\n$mine", "not-a name": "x" }));
    assert_eq!(kernel.finish(&run).stdout, "it's\n$mine\n");
    assert_eq!(kernel.run("echo ${CALL-none}").stdout, "none\n");
    let much = kernel.run("head -c 10000000 /dev/zero | tr '\\0' x; echo; echo end >&2");
    assert_eq!((much.stdout.len(), much.stderr.as_str()), (10_000_001, "end\n"));
}
