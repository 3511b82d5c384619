//! The store that platforms of tests start with: its templates are already baked.
//!
//! A bake boots an emulated machine and keeps a processor busy for a quarter of a minute. Some
//! twenty test files start their own platform, and none of them tests bakes. So they start with a
//! copy of the shared platform's bakes of this run. An agent finds bakes by the key of their
//! inputs, and bakes again if the key differs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::host::as_root;
use crate::program::run;

/// Names the image to tests.
pub const SEED: &str = "PANDASTACK_TEST_STORE";

/// Leaves images, kernels and bakes. Run in a separate mount namespace: otherwise machines that
/// start at the same time would inherit the mount and keep the file system in use.
const STRIP: &str = r#"
mount -t xfs -o loop,nouuid,discard,nodev,nosuid "$1" "$2"
cd "$2"
rm -rf sandboxes zygotes snapshots volumes .staging .trash
cd /
umount "$2"
"#;

/// Copies the store of a running platform. `None` if the store is a directory, not an image.
pub fn make(data_dir: &Path) -> Result<Option<PathBuf>> {
    let (store, image) = (data_dir.join("store"), data_dir.join("store.xfs"));
    if !image.exists() {
        return Ok(None);
    }
    let (seed, mount_point) = (data_dir.join("seed.xfs"), data_dir.join("seed"));
    copy_frozen(&store, &image, &seed)?;
    let mut make_dir = as_root("mkdir");
    make_dir.arg(&mount_point);
    run(make_dir)?;
    let mut strip = as_root("unshare");
    strip.args(["--mount", "sh", "-ec", STRIP, "strip"]).arg(&seed).arg(&mount_point);
    run(strip).context("remove machines from the copy of the store")?;
    Ok(Some(seed))
}

/// Copies the image of a frozen store: nothing is written during the copy, and all earlier writes
/// are in it.
fn copy_frozen(store: &Path, image: &Path, seed: &Path) -> Result<()> {
    let freeze = |how: &str| {
        let mut command = as_root("fsfreeze");
        command.arg(how).arg(store);
        run(command)
    };
    freeze("--freeze")?;
    let mut copy = as_root("cp");
    copy.arg(image).arg(seed);
    let copied = run(copy);
    freeze("--unfreeze")?;
    copied
}
