//! The requirements on every store, run on each backend: `run_all` is the list, `open` gives a
//! fresh, empty store.

// A test that cannot continue fails; that is what these are for.
#![allow(clippy::unwrap_used)]

mod apps;
mod closed;
mod functions;
mod members;
mod postgres;
mod postgres_server;
mod sandboxes;
mod sealed;
mod sqlite;
mod templates;
mod trees;
mod volumes;
mod webhooks;
mod workspaces;

use std::future::Future;

use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_store::{Change, SandboxRecord, SandboxSpecRecord, Store};
use pandastack_types::link::LinkKey;
use pandastack_types::{SandboxId, SandboxState, Transition, WorkspaceId};

fn secret() -> LinkKey {
    LinkKey::new(&[7; 32]).unwrap()
}

fn ws() -> WorkspaceId {
    WorkspaceId::default_workspace()
}

fn new_sandbox() -> SandboxRecord {
    let at = now();
    SandboxRecord {
        id: SandboxId::random(),
        workspace: ws(),
        host: "host-a".parse().unwrap(),
        state: SandboxState::Creating,
        incarnation: 1,
        template: "base".into(),
        parent: None,
        tree: None,
        owner: None,
        created_at: at,
        changed_at: at,
        expires_at: after_seconds(at, 60),
        metadata: [("k".to_owned(), "é".to_owned())].into(),
        spec: SandboxSpecRecord { pause_ms: Some(1.25), ..SandboxSpecRecord::default() },
    }
}

async fn running(store: &dyn Store) -> SandboxRecord {
    running_as(store, new_sandbox()).await
}

/// The same, of this record.
async fn running_as(store: &dyn Store, record: SandboxRecord) -> SandboxRecord {
    store.insert_sandboxes(std::slice::from_ref(&record), None).await.unwrap();
    store.transition(&record.id, Transition::Created, &Change::at(now())).await.unwrap().record
}

async fn run_all<S: Store, F: Future<Output = S>>(open: impl Fn() -> F) {
    macro_rules! check {
        ($($test:path),* $(,)?) => {$(
            let store = open().await;
            store.ensure_workspace(&ws(), now()).await.unwrap();
            eprintln!("store: {}", stringify!($test));
            $test(&store).await;
            store.close().await;
        )*};
    }
    check!(
        sandboxes::rows_come_back_as_they_went_in,
        sandboxes::owned_machines_are_listed_by_their_owner_only,
        sandboxes::one_transition_is_one_event,
        sandboxes::refused_transitions_change_nothing,
        sandboxes::deleted_rows_are_gone_and_their_events_stay,
        sandboxes::workspaces_do_not_see_each_other,
        sandboxes::expiry_finds_exactly_the_due,
        sandboxes::a_lifetime_that_ended_in_sleep_begins_again_awake,
        sandboxes::snapshots_and_their_events,
        sandboxes::idempotency,
        sandboxes::old_rows_are_pruned,
        sandboxes::concurrent_writers_lose_nothing,
        trees::a_promotion_decides_about_its_tree,
        trees::one_of_two_promotions_wins,
        workspaces::usage_is_recorded_as_differences,
        workspaces::databases_are_kept_by_workspace_and_state,
        workspaces::hosts_are_replaced,
        workspaces::the_first_secret_is_the_one_of_the_installation,
        sealed::every_column_with_secrets_is_sealed,
        webhooks::events_are_queued_for_the_webhooks_that_ask_for_them,
        webhooks::a_claimed_delivery_is_due_again,
        webhooks::a_disabled_webhook_keeps_no_pending_delivery,
        webhooks::one_workspace_takes_only_its_share_of_a_claim,
        webhooks::deliveries_without_a_webhook_that_wants_them_end,
        webhooks::old_and_excess_deliveries_are_pruned,
        webhooks::deployments_are_announced,
        workspaces::tokens_have_a_quota_and_a_last_one,
        workspaces::a_rotated_key_ends_and_keeps_an_earlier_end,
        members::members_are_found_by_person_and_by_address,
        members::sessions_follow_their_member_and_are_no_keys,
        workspaces::workspaces_are_suspended_resumed_and_deleted_for_good,
        closed::nothing_is_added_to_a_closed_workspace,
        closed::a_key_that_is_gone_makes_no_other,
        workspaces::quotas_are_kept_and_count_what_is_there,
        workspaces::settings_of_a_workspace_are_its_own,
        workspaces::console_sessions_are_found_by_hash_and_end,
        workspaces::audit_entries_are_kept_in_order,
        workspaces::audit_entries_are_chained,
        workspaces::usage_is_summed_by_period_and_sandbox,
        workspaces::usage_is_summed_by_kind_of_service,
        apps::apps_are_found_by_id_and_name,
        apps::previews_belong_to_an_app,
        apps::a_deployment_goes_live_in_one_step,
        apps::logs_are_read_from_any_line,
        apps::deployments_are_untold_until_their_end_is_told,
        apps::domains_and_deliveries_are_unique,
        apps::repositories_are_remembered_while_something_is_said_of_them,
        apps::repositories_have_a_quota,
        volumes::a_volume_has_one_writer_or_readers,
        volumes::a_volume_is_deleted_in_two_steps,
        templates::a_build_becomes_what_its_tags_mean,
        templates::a_rebuild_takes_the_tags_that_still_mean_its_version,
        templates::builds_have_a_quota_and_a_log,
        templates::templates_are_shared_with_other_workspaces,
        templates::templates_go_with_their_workspace,
        templates::layers_belong_to_a_workspace,
        functions::functions_are_found_by_id_and_name_and_their_changes_counted,
        functions::calls_are_due_in_order_and_without_those_of_full_functions,
        functions::dead_letters_are_found_and_used_time_is_summed,
    );
}
