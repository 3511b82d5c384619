//! Runs the tests of the programs that fetch and unpack images in builder machines.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::process::Command;

#[track_caller]
fn run(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image").join(name);
    let done = Command::new("python3").arg("-B").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}");
    for line in text.lines().filter(|line| line.contains("skipped")) {
        println!("skipped: {line}");
    }
}

#[test]
fn images_are_found_and_checked() {
    run("test_pull.py");
}

#[test]
fn access_keys_of_aws_become_tokens() {
    run("test_ecr.py");
}

#[test]
fn layers_are_unpacked() {
    run("test_unpack.py");
}
