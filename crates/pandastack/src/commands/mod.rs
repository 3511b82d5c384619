//! One command per module. A command parses its arguments, calls the API and prints the result; it
//! holds no state.

#[cfg(feature = "server")]
pub mod agent;
pub mod app;
pub mod audit;
pub mod bench;
mod browser;
#[cfg(feature = "server")]
pub mod ca;
mod command_line;
pub mod completion;
pub mod config;
#[cfg(feature = "server")]
pub mod control;
mod create;
pub mod db;
#[cfg(feature = "server")]
pub mod doctor;
#[cfg(feature = "server")]
pub mod down;
mod each;
#[cfg(feature = "server")]
pub mod edge;
#[cfg(feature = "server")]
pub mod engine;
pub mod forward;
pub mod function;
pub mod host;
#[cfg(feature = "server")]
pub mod host_packages;
#[cfg(feature = "server")]
pub mod image;
#[cfg(feature = "server")]
mod join;
#[cfg(feature = "server")]
pub mod join_secret;
#[cfg(feature = "server")]
pub mod kvm_probe;
pub mod login;
pub mod man_pages;
pub mod mcp;
pub mod member;
#[cfg(feature = "server")]
pub mod openapi;
pub mod outdated;
mod pairs;
pub mod quota;
pub mod run;
mod runtime;
pub mod sandbox;
pub mod schedule;
#[cfg(feature = "server")]
pub mod secrets;
pub mod snapshot;
pub mod template;
pub mod token;
#[cfg(feature = "server")]
pub mod up;
pub mod usage;
pub mod verify;
pub mod version;
pub mod volume;
pub mod wait;
pub mod webhook;
pub mod whoami;
pub mod workspace;
