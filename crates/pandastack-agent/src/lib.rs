//! The per-host agent: it owns machines, network slots, disks, template bakes and local snapshots.
//!
//! | module | owns |
//! |---|---|
//! | [`sandbox`] | one driver task per sandbox: create, use, pause, sleep, wake, fork, snapshot, delete |
//! | [`launch`], [`launch_children`], [`identity`] | bringing a machine up through the identity gate |
//! | [`running_machine`], [`machine_resources`], [`host_resources`] | a machine and its resources |
//! | [`template`], [`variant`], [`builds`], [`bake`], [`kernel_files`], [`warm`], [`zygotes`],
//! [`zygote`], [`snapshot_zygote`] | sources of creates |
//! | [`exec`], [`process`], [`files`] | commands, processes and files inside a sandbox |
//! | [`capture`] | capturing a machine, in place or by a twin |
//! | [`snapshot`], [`integrity`], [`record`], [`layout`] | files on disk and their paths |
//! | [`components`], [`frozen`], [`outdated`] | versions in frozen states, and verdicts on outdated ones |
//! | [`recover`] | taking over from a killed predecessor |
//! | [`http`], [`report`], [`control`], [`link`] | the wire to control, and who may use it |
//! | [`databases`] | connections of machines to databases |
//! | [`engine_choice`] | choice of the engine |
//! | [`cgroup`], [`pressure`] | control groups; memory shortages |
//! | [`files`], [`trees`], [`exec`] | the data path |
//! | [`budget`], [`exec_output`], [`json_list`] | memory held for responses |
//! | [`logs`], [`log_limit`], [`observe`] | logs and usage of a sandbox |
//!
//! Invariants: the end of an agent kills no machine; a failed create leaves nothing; acknowledged
//! data is found again. Out of scope: authorization (control), running machines (engines),
//! networking (net), building images (image).

#![forbid(unsafe_code)]

mod bake;
mod blocking;
mod budget;
mod builds;
mod byte_range;
mod capture;
pub mod cgroup;
mod components;
mod config;
mod console;
mod control;
mod databases;
mod denial_queue;
mod denials;
mod embedded;
pub mod engine_choice;
mod error;
mod exec;
mod exec_output;
mod files;
mod frozen;
mod host;
mod host_resources;
mod http;
mod identity;
mod integrity;
mod json_list;
mod kernel_files;
mod launch;
mod launch_children;
mod layout;
mod link;
mod log_limit;
mod logs;
mod machine_resources;
mod observe;
mod outdated;
mod pressure;
mod process;
mod record;
mod recover;
mod report;
mod running_machine;
mod sandbox;
mod serve;
mod snapshot;
mod snapshot_zygote;
mod spares;
mod starved;
mod template;
mod trees;
mod variant;
mod volume;
mod warm;
mod zygote;
mod zygotes;

pub use config::{AgentConfig, EngineChoice, Listen};
pub use embedded::guest_program;
pub use link::{LinkCredentials, is_advertisable};
pub use serve::serve;
