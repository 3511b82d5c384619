//! The program is there, because a test of its package needs it: `cargo test` builds no others.

#[test]
fn without_a_platform_it_says_what_it_needs() {
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_pandastack-e2e-tokio-postgres")).output();
    let ran = ran.expect("the program starts");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("usage:"), "{said}");
}
