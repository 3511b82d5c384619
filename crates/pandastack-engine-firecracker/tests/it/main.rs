//! The engine against real Firecracker processes and a toy guest, and its client against
//! hand-written exchanges.
//!
//! Real machines need `/dev/kvm`, a compiler, Firecracker and its jailer; what is missing is named
//! and the tests are skipped ([`missing`]). A Firecracker that exists and cannot be used fails
//! them. The guest is a program of the tests that needs no kernel, so any KVM will do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod client;
mod disk_full;
mod fixture;
mod jail;
mod lifecycle;
mod missing;
mod network;
mod spare;
mod timing;
mod toy_guest;
mod volumes;

use pandastack_engine::conformance;
use pandastack_engine_firecracker::Launcher;

use fixture::FirecrackerFixture;

async fn conform(launcher: Launcher) {
    match FirecrackerFixture::prepare(launcher).await {
        Ok(fixture) => conformance::run(&fixture).await.assert_passed(),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jailed_machines_pass_the_conformance_suite() {
    conform(Launcher::Jailer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unjailed_machines_pass_the_conformance_suite() {
    conform(Launcher::Direct).await;
}
