//! The engine against real emulator processes and a real guest kernel.
//!
//! A host that lacks one of the things in [`missing::Missing`] skips the tests. Any other obstacle fails them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod fixture;
mod guest_image;
mod lineage;
mod missing;
mod timing;
mod volumes;

use pandastack_engine::Confinement;
use pandastack_engine::conformance;

use fixture::QemuFixture;

async fn conform(confinement: Option<Confinement>, vcpus: u8) {
    match QemuFixture::prepare(confinement).await {
        Ok(fixture) => conformance::run(&fixture.with_vcpus(vcpus)).await.assert_passed(),
        Err(missing) => println!("skipped: {missing}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confined_machines_conform() {
    conform(None, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zygotes_with_two_vcpus_pass_the_conformance_suite() {
    conform(Some(Confinement::Zygote), 2).await;
}
