//! `sandbox cp`, both ways.

use crate::server::ID;
use crate::{Program, text};

#[test]
fn a_file_is_copied_to_and_from_a_sandbox() {
    let program = Program::new();
    let local = program.home.path().join("a.txt");
    std::fs::write(&local, "hello").unwrap();
    let local = local.to_str().unwrap();
    program.check(
        &["sandbox", "cp", local, &format!("{ID}:/srv")],
        0,
        "",
        &format!("copied 5 B to {ID}:/srv/a.txt\n"),
    );
    program.check(
        &["sandbox", "cp", local, &format!("{ID}:/tmp/b")],
        0,
        "",
        &format!("copied 5 B to {ID}:/tmp/b\n"),
    );
    let back = program.home.path().join("back.txt");
    let source = format!("{ID}:/srv/a.txt");
    let output = program.run(&["sandbox", "cp", &source, back.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read(&back).unwrap(), b"hello");
}

#[test]
fn a_directory_is_uploaded_as_one_archive() {
    let program = Program::new();
    let dir = program.home.path().join("project");
    std::fs::create_dir_all(dir.join("src")).unwrap();
    std::fs::write(dir.join("src/main.py"), "print(1)").unwrap();
    let output = program.run(&["sandbox", "cp", dir.to_str().unwrap(), &format!("{ID}:/srv")]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains(":/srv/project"), "{output:?}");
    let files = program.server.api.files.lock().unwrap().clone();
    assert_eq!(files["/srv/project/src/main.py"], b"print(1)");
    let puts = program.server.calls().iter().filter(|call| call.starts_with("PUT ")).count();
    assert_eq!(puts, 1);
}

#[test]
fn a_directory_is_copied_from_a_sandbox() {
    let program = Program::new();
    let target = program.home.path().join("out");
    let output = program.run(&["sandbox", "cp", &format!("{ID}:/srv/dir"), target.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read(target.join("inside.txt")).unwrap(), b"hello");
}

#[test]
fn exactly_one_side_of_a_copy_is_a_sandbox_path() {
    Program::new().check(
        &["sandbox", "cp", "a", "b"],
        1,
        "",
        "error: exactly one of SOURCE and TARGET must be a sandbox path\nhint: write a sandbox path as ID:/path, \
         such as 3f2b:/srv/out\n",
    );
}
