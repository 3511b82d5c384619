//! Formats apps.

use pandastack_types::api::{App, AppDatabase, AppInstance, AppStatus};

use crate::output::fields;

/// A status as one word.
pub(super) fn status(status: AppStatus) -> &'static str {
    match status {
        AppStatus::Created => "created",
        AppStatus::Building => "building",
        AppStatus::Running => "running",
        AppStatus::Hibernated => "asleep",
        AppStatus::Error => "error",
        AppStatus::Stopped => "stopped",
    }
}

fn sleeps_after(app: &App) -> String {
    if app.min_instances > 0 { "never".to_owned() } else { format!("{} s", app.idle_timeout_seconds) }
}

/// All instances, if there are several.
fn instances(app: &App) -> String {
    let one = |one: &AppInstance| format!("{} ({})", one.sandbox_id, one.status.as_str());
    match app.instances.len() {
        0 | 1 => String::new(),
        _ => app.instances.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

fn scale(app: &App) -> String {
    match app.max_instances {
        1 => String::new(),
        most => format!("{} to {most}", app.min_instances),
    }
}

fn databases(app: &App) -> String {
    let one = |one: &AppDatabase| format!("{} ({})", one.database, one.env);
    app.databases.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// All details of an app.
pub(super) fn app(app: &App) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    fields(&[
        ("name", app.name.clone()),
        ("id", app.id.to_string()),
        ("status", status(app.status).to_owned()),
        ("url", text(&app.url)),
        ("git", app.git_url.clone()),
        ("branch", if app.git_url.is_empty() { String::new() } else { app.git_branch.clone() }),
        ("deploy key", text(&app.git_public_key)),
        ("framework", text(&app.framework)),
        ("install", text(&app.install_command)),
        ("build", text(&app.build_command)),
        ("start", text(&app.start_command)),
        ("root", text(&app.root_directory)),
        ("port", app.port.to_string()),
        ("health", app.health_path.clone()),
        ("sleeps after", sleeps_after(app)),
        ("databases", databases(app)),
        ("template", app.template.clone()),
        ("instances", scale(app)),
        ("instance IDs", instances(app)),
        ("sandbox", app.sandbox_id.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("webhook", text(&app.webhook_url)),
        ("poll interval", app.poll_seconds.map(|seconds| format!("{seconds} s")).unwrap_or_default()),
        ("previews", app.previews.as_str().to_owned()),
        ("preview of", app.preview_of.as_ref().map(ToString::to_string).unwrap_or_default()),
    ])
}
