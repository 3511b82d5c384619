//! The description of the public API, generated from the handlers and types.

use pandastack_apps as apps;
use pandastack_contexts::routes as contexts;
use pandastack_databases::backups::routes as backups;
use pandastack_databases::routes as databases;
use pandastack_event_webhooks::routes as webhooks;
use pandastack_functions::{call_routes, deploy_routes, logs as function_logs, routes as functions};
use pandastack_scheduler::routes as schedules;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::console::{events as workspace_events, routes as sessions};
use crate::login::routes as login;
use crate::routes::volumes;
use crate::routes::{
    data, events, files, fork, health, hosts, lifecycle, members, network, observe, outdated, preview,
    processes, quota, run, sandboxes, snapshots, sockets, tokens, workspace, workspaces,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "PandaStack",
        description = "Run sandboxes, apps, functions and databases in microVMs.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        sandboxes::create, sandboxes::list, sandboxes::get, sandboxes::delete,
        data::exec, data::exec_stream, run::run,
        processes::list, processes::start, processes::get_process, processes::wait, processes::output,
        processes::write_stdin, processes::signal, processes::resize, sockets::commands, sockets::terminal,
        sockets::plain_terminal,
        contexts::create, contexts::list, contexts::run, contexts::restart, contexts::remove,
        data::read, data::write, data::remove, data::list_dir, data::stat, data::mkdir, data::rename,
        files::find, files::grep, files::copy, files::set_attributes, files::pack, files::unpack, files::watch,
        files::sign, files::sign_build_files,
        preview::ports, data::logs, events::events, observe::metrics,
        network::get, network::set,
        preview::get, preview::set, preview::revoke, preview::sign, preview::tunnel,
        lifecycle::pause, lifecycle::resume, lifecycle::hibernate, lifecycle::wake, lifecycle::show,
        lifecycle::change, lifecycle::keep_awake,
        snapshots::create, snapshots::list, snapshots::get, snapshots::delete, snapshots::rollback,
        fork::fork, fork::fork_tree, fork::lineage, fork::promote,
        pandastack_templates::routes::list, pandastack_templates::routes::describe,
        pandastack_templates::routes::remove, pandastack_templates::routes::publish,
        pandastack_templates::routes::tags, pandastack_templates::routes::set_tag,
        pandastack_templates::routes::delete_tag, pandastack_templates::catalogue::bake,
        pandastack_templates::routes::set_sharing, pandastack_templates::routes::rebuild,
        pandastack_templates::build_routes::create, pandastack_templates::build_routes::add_files,
        pandastack_templates::build_routes::start, pandastack_templates::build_routes::cancel,
        pandastack_templates::build_routes::list, pandastack_templates::build_routes::describe,
        pandastack_templates::build_routes::logs,
        volumes::create, volumes::list, volumes::get_one, volumes::change, volumes::grow, volumes::clone_volume,
        volumes::snapshot, volumes::delete_one,
        tokens::me, tokens::list, tokens::create, tokens::rotate, tokens::delete,
        workspaces::list, workspaces::create, workspaces::get, workspaces::delete, workspaces::suspend,
        workspaces::resume, workspaces::quota, workspaces::set_quota, workspaces::list_tokens,
        workspaces::create_token, workspaces::rotate_token, workspaces::delete_token,
        quota::get, quota::set, workspace::get,
        workspace::change, hosts::list, hosts::create_token, hosts::remove, hosts::migrate, outdated::list,
        members::list, members::add, members::change, members::remove, members::sessions,
        members::revoke, login::options, login::start, login::callback, login::start_device,
        login::finish_device, login::sign_out,
        sessions::sign_in, sessions::sign_out, sessions::list, sessions::revoke, workspace_events::events,
        observe::usage, observe::audit, observe::verify_audit,
        functions::create, functions::list, functions::describe, functions::patch, functions::remove,
        deploy_routes::deploy, deploy_routes::versions, deploy_routes::deploy_log, deploy_routes::rollback,
        deploy_routes::set_alias, deploy_routes::remove_alias, deploy_routes::code,
        call_routes::invoke, call_routes::runs, call_routes::run, call_routes::record_run, call_routes::metrics,
        call_routes::redrive, call_routes::redrive_all,
        function_logs::logs,
        schedules::create, schedules::list, schedules::get_one, schedules::change, schedules::delete, schedules::trigger,
        schedules::runs, schedules::get_run, schedules::cancel_run, schedules::next, schedules::preview,
        apps::routes::create, apps::routes::list, apps::routes::show, apps::settings::update, apps::routes::remove,
        apps::upload::deploy, apps::routes::deploys, apps::routes::deployment, apps::routes::deploy_logs,
        apps::routes::cancel, apps::routes::rollback, apps::routes::restart, apps::runtime_logs::runtime_logs,
        apps::usage::metrics, apps::awake::keep_awake,
        apps::databases::attach, apps::databases::detach, apps::env::list, apps::env::set, apps::env::remove, apps::env::import,
        apps::domains::add, apps::domains::list, apps::domains::show, apps::domains::remove, apps::hooks::hook,
        apps::previews::list, apps::previews::show, apps::previews::remove,
        apps::preview_repos::list, apps::preview_repos::enable, apps::preview_repos::disable,
        apps::preview_env::list, apps::preview_env::set, apps::preview_env::remove, apps::preview_env::import,
        databases::create, databases::list, databases::describe, databases::change, databases::delete,
        databases::connection, databases::query, databases::clone, databases::reset_credentials,
        databases::pause, databases::wake, databases::stats, databases::logs, databases::failover,
        backups::describe, backups::take, backups::drill,
        webhooks::create, webhooks::list, webhooks::get_one, webhooks::change, webhooks::delete,
        webhooks::rotate_secret, webhooks::test, webhooks::deliveries, webhooks::redeliver,
        health::healthz, health::readyz, health::version, health::metrics,
    ),
    modifiers(&ApiKey, &OperationIds),
    security(("api_key" = []))
)]
struct Api;

struct ApiKey;

impl Modify for ApiKey {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("pds_...").build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("api_key", SecurityScheme::Http(scheme));
    }
}

/// Makes operation ids unique, as the specification demands and generators of clients rely on.
///
/// A handler named by a verb alone, such as `list`, gets the resources of its path: `apps_domains_list`.
struct OperationIds;

impl Modify for OperationIds {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut openapi.paths.paths {
            let operations =
                [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                if let Some(id) = operation.operation_id.as_mut().filter(|id| !id.contains('_')) {
                    *id = qualified_id(path, id);
                }
            }
        }
    }
}

fn qualified_id(path: &str, verb: &str) -> String {
    let resources =
        path.split('/').filter(|part| !part.is_empty() && *part != "v1" && !part.starts_with('{'));
    let mut words: Vec<_> = resources.map(|part| part.replace('-', "_")).collect();
    if words.last().is_none_or(|last| last != verb) {
        words.push(verb.to_owned());
    }
    words.join("_")
}

/// `openapi/pandastack-v1.json`, as `cargo xtask openapi` writes it.
pub fn openapi_json() -> String {
    let mut text = Api::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_openapi_description_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/pandastack-v1.json");
        if std::env::var_os("PANDASTACK_WRITE_GOLDEN").is_some() {
            std::fs::write(path, openapi_json()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == openapi_json(),
            "openapi/pandastack-v1.json is stale: run `cargo xtask openapi` and commit the result"
        );
    }

    #[test]
    fn operation_ids_are_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for (path, item) in Api::openapi().paths.paths {
            let json = serde_json::to_value(item).unwrap();
            for (method, operation) in json.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                assert!(seen.insert(id.clone()), "{method} {path}: {id} is taken");
            }
        }
    }

    #[test]
    fn every_api_operation_has_a_summary() {
        for (path, item) in Api::openapi().paths.paths {
            let json = serde_json::to_value(item).unwrap();
            for (method, operation) in json.as_object().unwrap() {
                assert!(operation["summary"].is_string(), "{method} {path}");
            }
        }
    }
}
