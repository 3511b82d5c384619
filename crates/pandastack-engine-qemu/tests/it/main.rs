//! The engine against real emulator processes and a real guest kernel.
//!
//! Needs root, the emulator, a compiler and the product's kernel; what is missing is named and the tests are skipped.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod fixture;
mod guest_image;
mod lineage;
mod timing;
mod volumes;

use pandastack_engine::Confinement;
use pandastack_engine::conformance;

use fixture::QemuFixture;

async fn conform(confinement: Option<Confinement>, vcpus: u8) {
    match QemuFixture::prepare(confinement).await {
        Ok(fixture) => conformance::run(&fixture.with_vcpus(vcpus)).await.assert_passed(),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confined_machines_conform() {
    conform(None, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zygotes_with_two_processors_conform() {
    conform(Some(Confinement::Zygote), 2).await;
}
