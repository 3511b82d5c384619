"""The table of tests that only `cargo xtask test --full` runs, with the reasons.

Every run has to end within half an hour on two processors. A test belongs here if it takes long and most of
what it proves is proved by something quicker, which its reason names. A name means all cases of the test,
or with its `[case]` one of them.
"""

from __future__ import annotations

import os
from typing import Dict, Optional

#: Whether everything runs.
FULL = bool(os.environ.get("PANDASTACK_TEST_FULL"))

_STEPS = "every step of a deployment takes minutes; two of control's and one of the agent's always run"
_APP = "installs and builds for minutes; `node` always runs, pandastack-detect plans every framework"
_STORE = "a platform for one more store; pandastack-backup's tests use it, test_database_servers.py has S3's"
_PAGE = "a page of the documentation; the quickstart and every quick page always run"
_PAGES = (
    "docs/explanation/snapshots-and-forks.md", "docs/how-to/connect-to-a-database.md",
    "docs/how-to/deploy-a-function.md", "docs/how-to/fork-and-roll-back.md", "docs/how-to/keep-python-state.md",
    "docs/how-to/mount-a-volume.md", "docs/how-to/run-background-processes.md", "docs/how-to/schedule-a-job.md",
    "docs/how-to/share-a-preview.md", "docs/reference/code-contexts.md", "docs/reference/databases.md",
    "docs/reference/functions.md", "docs/reference/previews.md", "docs/tutorials/first-agent.md",
    "docs/tutorials/first-app.md", "docs/tutorials/first-database.md", "README.md", "sdk/python/README.md",
)
_IMAGE = "one more image; one is always built, control and the scripts have tests of the rest"
_CATALOG = "builds and bakes gigabytes; catalog.rs of pandastack-image checks every recipe with its lock"
_GIT_KILL = "builds for a minute; test_apps_crash.py kills the same servers at named steps"

_ALWAYS = {
    "test_a_control_kill_during_a_deploy_leaves_one_live_version": ("built", "switched"),
    "test_an_agent_kill_during_a_deploy_leaves_one_live_version": ("booted",),
}
_DEPLOY_STEPS = (
    "begun", "machine", "fetched", "built", "saved", "kept", "booted", "healthy", "switched", "ended",
)

FULL_ONLY: Dict[str, str] = {
    "test_apps.py::test_an_open_websocket_stays_with_the_version_it_was_opened_on":
        "90 s between pings; the test of the close frame talks to an old version after a deployment",
    "test_apps_crash.py::test_machines_left_over_after_kills_sleep_or_are_deleted":
        "a minute in which nothing happens; test_apps_instances.py counts the machines of an app",
    **{f"test_apps_crash.py::{test}[control.deploy.{step}]": _STEPS
       for test, always in _ALWAYS.items()
       for step in _DEPLOY_STEPS if step not in always},
    **{f"test_apps_frameworks.py::test_a_pushed_sample_app_is_served[{name}]": _APP
       for name in ("static", "vite", "next", "cra", "flask", "django", "fastapi", "plain")},
    "test_apps_frameworks.py::test_a_second_push_reuses_dependencies_and_updates_the_page": _APP,
    "test_apps_git.py::test_a_killed_server_neither_loses_nor_hangs_a_deployment": _GIT_KILL,
    "test_apps_git.py::test_a_deleted_git_branch_keeps_the_live_version":
        "three fetches by machines; the test that looks at a repository always runs",
    "test_apps_git.py::test_a_push_is_not_lost_when_the_git_host_lags":
        "waits for a host that lags; source.rs of pandastack-apps tells a late push from one that is not",
    "test_apps_git.py::test_pushes_to_gitlab_and_gitea_deploy":
        "eight deployments; GitHub's pushes always run, and hooks.rs reads deliveries of every host",
    "test_apps_instances.py::test_no_request_fails_while_instances_deploy_and_roll_back":
        "builds twice for three machines; test_apps.py does the same with one",
    "test_apps_builds.py::test_changed_pip_includes_are_reinstalled":
        "installs twice; pandastack-detect's tests name every file that an install depends on",
    "test_apps_builds.py::test_cached_dependencies_do_not_hide_changes_to_the_apps_package":
        "builds a package twice; pandastack-detect's tests plan such an install at every build",
    "test_build_parity.py::test_a_build_makes_the_same_tree_as_buildah":
        "two dozen builds, twice; test_template_builds.py has one, control and the scripts test each step",
    "test_database_backups.py::test_a_drill_restores_and_checks_a_backup":
        "one more restore; test_database_servers.py has one, routes.rs of backups names a drill that failed",
    "test_database_backups.py::test_any_point_in_time_restores_to_a_new_database":
        "five restores; test_database_servers.py has one, pandastack-backup's tests every instant",
    **{f"test_catalog.py::{test}": _CATALOG for test in (
        "test_a_coding_agent_completes_a_task", "test_browser_libraries_open_click_draw_and_read",
        "test_the_running_browser_is_driven_from_outside", "test_docker_runs_a_built_image",
        "test_composed_services_talk_to_each_other", "test_containers_go_on_in_a_fork_and_after_sleep",
        "test_a_worker_of_managed_agents_serves_a_session_through_a_kill",
    )},
    "test_console.py::test_the_console_shows_sql_branches_and_history_of_a_database":
        "a database and a branch; test_databases.py has the calls, the test of a sandbox the tree and the editor",
    "test_database_backups.py::test_a_restore_replays_more_wal_than_one_batch":
        "archives and replays 96 MiB; feed.rs and restore.rs of control prove the files and the room",
    "test_database_durability.py::test_resizing_a_database_keeps_its_data_and_url":
        "bakes another size; test_sizes.py bakes one, and a killed machine keeps data and address, too",
    "test_database_servers.py::test_a_backup_records_a_credential_reset_of_an_earlier_release":
        "three backups for records of an early version; the resets that are cut off always run",
    "test_database_stores.py::test_backups_restore_from_google_and_azure_storage": _STORE,
    "test_databases.py::test_an_idle_database_falls_asleep_and_a_busy_one_stays_awake":
        "ten minutes in which nothing happens; test_a_pause_ends_an_http_query puts a database to sleep",
    **{f"test_docs.py::test_page_examples_run_as_shown[{page}]": _PAGE for page in _PAGES},
    "test_function_calls.py::test_a_function_gets_the_memory_it_requests":
        "bakes a size for functions; test_sizes.py has one for sandboxes",
    **{f"test_image_builds.py::{test}": _IMAGE for test in (
        "test_an_unchanged_image_is_not_fetched_and_a_moved_tag_is", "test_an_image_without_a_shell",
        "test_an_archive_of_docker_save", "test_bad_images_are_named_and_leave_nothing",
        "test_the_builder_of_e2b_starts_from_an_image",
    )},
    "test_sizes.py::test_a_large_machine_under_load_forks_sleeps_and_rolls_back":
        "holds much memory through four copies; test_time_travel.py and test_copies.py have small machines",
    "test_sizes.py::test_forks_of_forks_ten_deep": "large machines; test_copies.py has small ones, ten deep",
    "test_sizes.py::test_memory_above_3_gib_is_forked_too": "fills 3.3 GiB; machines of 2 GiB always run",
    "test_stream_recovery.py::test_a_stream_delivers_every_byte_once[pause]":
        "a slow stream; hibernate always runs, which begins with a pause",
    "test_stream_recovery.py::test_a_stream_delivers_every_byte_once[snapshot]":
        "a slow stream; hibernate always runs, which takes the same copy",
    "test_template_crash.py::test_a_kill_during_a_template_build_leaves_nothing":
        "two builds for each of fourteen kills; a test of control crashes the server during a build",
    "test_time_travel.py::test_sandboxes_asleep_in_memory_are_evicted_for_others":
        "starts the platform twice more; placement.rs proves who gives up room, the test of dozing the rest",
    "test_two_hosts.py::test_a_database_on_a_lost_host_can_fail_over":
        "boots and replays twice; control's tests fail over, test_database_durability.py replays",
    "test_volume_faults.py::test_a_power_failure_loses_no_acknowledged_write":
        "starts the platform anew; test_crash_matrix.py has power failures, a killed machine the writer",
}


def reason_of(test: str) -> Optional[str]:
    """Reason why this test, `file::name` or `file::name[case]`, does not run now."""
    reason = FULL_ONLY.get(test) or FULL_ONLY.get(test.partition("[")[0])
    return None if FULL or reason is None else f"{reason}: cargo xtask test --full"


def times(full: int, always: int) -> int:
    """Number of repetitions."""
    return full if FULL else always
