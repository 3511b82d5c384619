//! The engine against real emulator processes and a real guest kernel.
//!
//! Needs root, the emulator, a compiler and Debian's kernel package; what is missing is named and the tests are skipped.

mod fixture;
mod guest_image;
mod lineage;
mod timing;

use pandastack_engine::Confinement;
use pandastack_engine::conformance;

use fixture::QemuFixture;

async fn conform(confinement: Option<Confinement>) {
    match QemuFixture::prepare(confinement).await {
        Ok(fixture) => conformance::run(&fixture).await.assert_passed(),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confined_machines_conform() {
    conform(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zygotes_conform() {
    conform(Some(Confinement::Zygote)).await;
}
