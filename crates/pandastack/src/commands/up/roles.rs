//! Command lines of the two child processes of `up`.

use std::ffi::OsString;
use std::path::Path;

use clap::ValueEnum;

use super::log_files::{error_file, log_file};
use crate::login_settings::OidcSettings;
use crate::settings::{AUDIT_SINK_VARIABLE, BACKUPS_VARIABLE, Backups, DATABASE_URL_VARIABLE, Settings};
use crate::supervise::Role;

/// The control server.
pub fn control(settings: &Settings, secret: &Path) -> Role {
    let mut args = common("control", settings, secret);
    args.extend(["--listen".into(), settings.listen.to_string().into()]);
    args.extend(["--access-log".into(), log_file(settings, "access").into()]);
    args.extend(settings.tls.arguments());
    args.extend(settings.oidc.iter().flat_map(OidcSettings::arguments));
    args.extend(settings.frozen.arguments());
    if let Some(address) = settings.postgres_listen {
        args.extend(["--postgres-listen".into(), address.to_string().into()]);
    }
    if let Some(domain) = &settings.postgres_domain {
        args.extend(["--postgres-domain".into(), domain.into()]);
    }
    for (flag, names) in [("--domain", &settings.domains), ("--api-name", &settings.api_names)] {
        args.extend(names.iter().flat_map(|name| [flag.into(), name.into()]));
    }
    if let Some(address) = settings.challenge_resolver {
        args.extend(["--challenge-resolver".into(), address.to_string().into()]);
    }
    let days = settings.backup_retention_days.to_string();
    args.extend(["--backup-retention-days".into(), days.into()]);
    let per_second = settings.requests_per_second.map_or(0, std::num::NonZeroU32::get);
    args.extend(["--requests-per-second".into(), per_second.to_string().into()]);
    args.extend(["--tenancy".into(), settings.tenancy.mode.as_str().into()]);
    if settings.tenancy.allow_emulated {
        args.push("--allow-emulated-machines-between-tenants".into());
    }
    if settings.accept_new_link_secret {
        args.push("--accept-new-link-secret".into());
    }
    if settings.schedules_private_targets {
        args.push("--schedules-private-targets".into());
    }
    let database = settings.database_url.as_ref();
    let database = database.map(|url| (DATABASE_URL_VARIABLE, url.expose().into()));
    let backups = match &settings.backups {
        Backups::Off => "off".into(),
        Backups::To(url) => url.as_str().into(),
    };
    let audit_sink = settings.audit_sink.as_ref().map(|sink| (AUDIT_SINK_VARIABLE, sink.expose().into()));
    let env = database.into_iter().chain(audit_sink).chain([(BACKUPS_VARIABLE, backups)]).collect();
    Role { name: "control", args, env, errors: error_file(settings, "control") }
}

/// This host's agent.
pub fn agent(settings: &Settings, secret: &Path) -> Role {
    let mut args = common("agent", settings, secret);
    let mut set = |flag: &str, value: OsString| args.extend([flag.into(), value]);
    set("--cache-dir", settings.cache_dir.clone().into());
    set("--subnet", settings.subnet.clone().into());
    set("--net-prefix", settings.net_prefix.clone().into());
    set("--slots-ready", settings.slots_ready.to_string().into());
    set("--light-sleep-seconds", settings.light_sleep.as_secs().to_string().into());
    set("--connections-max", settings.connections_max.to_string().into());
    if let Some(percent) = settings.memory_promised_percent {
        set("--memory-promised-percent", percent.to_string().into());
    }
    for (flag, limit) in [
        ("--connections-per-minute", settings.connections_per_minute),
        ("--destinations-per-minute", settings.destinations_per_minute),
    ] {
        set(flag, limit.unwrap_or(0).to_string().into());
    }
    if let Some(mbit) = settings.bandwidth_mbit {
        set("--bandwidth-mbit", mbit.to_string().into());
    }
    if let Some(percent) = settings.cpu_percent {
        set("--cpu-percent", percent.to_string().into());
    }
    if let Some(resolver) = settings.resolver {
        set("--resolver", resolver.to_string().into());
    }
    if let Some(limit) = settings.memory_limit_mb {
        set("--memory-limit-mb", limit.to_string().into());
    }
    if let Some(engine) = settings.engine.to_possible_value() {
        set("--engine", engine.get_name().into());
    }
    for network in &settings.reachable_private {
        set("--reachable-private", network.to_string().into());
    }
    for (flag, value) in settings.guests.arguments() {
        set(flag, value);
    }
    if let Some(mode) = settings.mail.to_possible_value() {
        set("--mail", mode.get_name().into());
    }
    for template in &settings.warm_templates {
        set("--warm", template.into());
    }
    args.extend((!settings.zygotes).then(|| "--no-zygotes".into()));
    Role { name: "agent", args, env: Vec::new(), errors: error_file(settings, "agent") }
}

/// Arguments of both roles. Every setting is passed resolved, so that the two cannot read different files.
fn common(role: &'static str, settings: &Settings, secret: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> =
        vec![role.into(), "--supervised".into(), "--json".into(), "--config".into(), "/dev/null".into()];
    for (flag, path) in [
        ("--data-dir", settings.data_dir.as_path()),
        ("--runtime-dir", &settings.runtime_dir),
        ("--link-secret-file", secret),
        ("--log-file", &log_file(settings, role)),
    ] {
        args.extend([flag.into(), path.into()]);
    }
    args.extend(settings.run_as.iter().flat_map(|user| ["--run-as".into(), user.into()]));
    if let Some(endpoint) = &settings.otlp_endpoint {
        args.extend(["--otlp-endpoint".into(), endpoint.into()]);
    }
    args
}
