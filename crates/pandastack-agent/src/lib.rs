//! The per-host agent: it owns machines, network slots, disks, template bakes and local snapshots.
//!
//! | module | owns |
//! |---|---|
//! | [`sandbox`] | one driver task per sandbox: create, use, pause, sleep, wake, fork, snapshot, delete |
//! | [`launch`], [`launch_children`], [`identity`] | bringing a machine up through the identity gate |
//! | [`running_machine`], [`machine_resources`], [`host_resources`] | a machine and what surrounds it |
//! | [`template`], [`variant`], [`builds`], [`bake`], [`kernel_files`], [`warm`], [`zygotes`], [`zygote`], [`snapshot_zygote`] | what creates start from |
//! | [`exec`], [`process`], [`files`] | what callers do inside a sandbox |
//! | [`capture`] | writing a machine down, in place or by a twin |
//! | [`snapshot`], [`integrity`], [`record`], [`layout`] | what is on disk, and where |
//! | [`components`], [`frozen`], [`outdated`] | versions in frozen states, and verdicts on outdated ones |
//! | [`recover`] | taking over what a killed predecessor left |
//! | [`http`], [`report`], [`control`] | the wire to control |
//! | [`databases`] | the way of machines to databases |
//! | [`engine_choice`] | which engine runs the machines, and why |
//! | [`cgroup`], [`pressure`] | control groups; who pays when memory runs short |
//! | [`files`], [`trees`], [`exec`] | the data path |
//! | [`budget`], [`exec_output`], [`json_list`] | what is held for callers, and how it is answered |
//! | [`logs`], [`log_limit`], [`observe`] | what a sandbox writes and uses |
//!
//! Invariants: the end of an agent kills no machine; a failed create leaves nothing; acknowledged
//! data is found again. Left to others: who may ask (control), how a machine runs (engines), how
//! packets flow (net), what an image is made of (image).

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
pub use serve::serve;
