//! The control plane through real HTTP, against scripted agents on unix sockets.

// A test that cannot continue fails; that is what these are for.
#![allow(clippy::unwrap_used)]

mod addresses;
mod apps;
mod audit;
mod bodies;
mod console;
mod data_path;
mod databases;
mod e2b_builds;
mod every_route;
mod fake_agent;
mod fake_data;
mod fake_frozen;
mod fake_lifecycle;
mod fake_processes;
mod fleet;
mod forks;
mod fuzz;
mod harness;
mod hosts;
mod image_builds;
mod input;
mod keys;
mod lifetimes;
mod login;
mod login_provider;
mod names;
mod network;
mod observe;
mod outdated;
#[path = "../../../pandastack-store/tests/suite/postgres_server.rs"]
mod postgres_server;
mod preview_repos;
mod recovery;
mod replicas;
mod revoked;
mod sandboxes;
mod secrets;
mod simulation;
mod slow_body;
mod template_builds;
mod template_limits;
mod template_rebuilds;
mod template_secrets;
mod template_sharing;
mod templates;
mod tenants;
mod time_travel;
mod walls;
mod webhooks;
