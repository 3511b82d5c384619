//! The parts of a machine: the copy-on-write store, root filesystems, kernel and initramfs.
//!
//! | module | owns |
//! |---|---|
//! | [`store`] | the reflink file system under the data directory: clones, space, atomic publish |
//! | [`recipe`], [`lock`], [`catalog`](mod@catalog) | templates, and the exact packages that they
//! are made of |
//! | [`builder`] | building a recipe into an ext4 image, once, content-addressed |
//! | `archive` | installing a prebuilt image or kernel, and writing such archives |
//! | [`kernel`], [`initramfs`] | Debian's cloud kernel and the archive that starts the guest program as PID 1 |
//! | [`host`] | the host's programs that this crate runs |
//!
//! Invariants:
//! - A clone is a clone: outside [`store::Cloning::SparseCopy`] nothing here copies a file silently.
//! - An artifact in the cache is complete or absent; a failed or killed build leaves no mount, process or image.
//! - Packages come through the host's own clients (apt, pip, npm), so its mirrors, proxies and CAs apply.
//!   Inside the build's chroot there is no network.
//!
//! Everything is synchronous: callers with an async runtime use its blocking threads. Machines, snapshots and
//! object storage are other crates' business.
//!
//! System calls go through `rustix`. Only `unshare` comes from `nix`: `rustix`'s is unsafe, and
//! this crate has no unsafe code.
#![forbid(unsafe_code)]

mod archive;
mod build;
pub mod builder;
mod cache;
pub mod catalog;
mod command;
mod deb;
mod debian;
mod digest;
mod error;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod host;
pub mod initramfs;
pub mod kernel;
pub mod lock;
mod modules;
mod progress;
pub mod recipe;
mod relock;
pub mod store;
mod vmlinux;
mod volume;

pub use archive::default_archives_dir;
pub use builder::{Image, ImageBuilder, ImageManifest, Locking};
pub use cache::default_cache_dir;
pub use catalog::{catalog, effective_environment, find};
pub use error::{ErrorKind, ImageError};
pub use host::{HostProgram, has_prebuilt_images, host_programs, missing_host_programs};
pub use initramfs::Initramfs;
pub use kernel::{Kernel, KernelSet};
pub use lock::Lock;
pub use progress::{Phase, Progress, ProgressFn};
pub use recipe::Recipe;
pub use relock::{relock_kernel, relock_template};
pub use store::{Cloning, Store, StoreError, StoreErrorKind, StoreSpace};
pub use volume::format_volume;
