//! Settings of functions: validation and defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use pandastack_types::api::{FunctionSettings, Isolation};
use pandastack_types::limits::{
    FUNCTION_AGE_SECONDS_DEFAULT, FUNCTION_CONCURRENCY_MAX, FUNCTION_IDLE_SECONDS_DEFAULT,
    FUNCTION_IDLE_SECONDS_MAX, FUNCTION_INSTANCES_DEFAULT, FUNCTION_INSTANCES_MAX, FUNCTION_QUEUE_DEFAULT,
    FUNCTION_QUEUE_MAX, FUNCTION_RETRIES_DEFAULT, FUNCTION_RETRIES_MAX, FUNCTION_TIMEOUT_SECONDS_DEFAULT,
    FUNCTION_TIMEOUT_SECONDS_MAX,
};
use pandastack_types::{Error, Result};

/// Longest name of a function or an alias.
const NAME_BYTES_MAX: usize = 64;
/// Longest entrypoint.
const ENTRYPOINT_BYTES_MAX: usize = 256;
/// Longest time that a call of type `Event` is tried.
const AGE_SECONDS_MAX: u64 = 7 * 24 * 3600;

/// Limits for the pool.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) max_instances: usize,
    pub(crate) queue_max: usize,
    pub(crate) idle: Duration,
    pub(crate) isolation: Isolation,
}

/// Every default filled in.
pub(crate) fn filled(given: &FunctionSettings) -> FunctionSettings {
    FunctionSettings {
        timeout_seconds: given.timeout_seconds.or(Some(FUNCTION_TIMEOUT_SECONDS_DEFAULT)),
        concurrency: given.concurrency.or(Some(1)),
        max_instances: given.max_instances.or(Some(FUNCTION_INSTANCES_DEFAULT)),
        queue_max: given.queue_max.or(Some(FUNCTION_QUEUE_DEFAULT)),
        idle_seconds: given.idle_seconds.or(Some(FUNCTION_IDLE_SECONDS_DEFAULT)),
        isolation: given.isolation.or(Some(Isolation::Reuse)),
        retries: given.retries.or(Some(FUNCTION_RETRIES_DEFAULT)),
        max_age_seconds: given.max_age_seconds.or(Some(FUNCTION_AGE_SECONDS_DEFAULT)),
        // Those of the template, unless given.
        cpu: given.cpu,
        memory_mb: given.memory_mb,
        dead_letter_url: given.dead_letter_url.clone(),
    }
}

/// Replaces the settings by `given`.
pub(crate) fn merged(before: &FunctionSettings, given: &FunctionSettings) -> FunctionSettings {
    FunctionSettings {
        timeout_seconds: given.timeout_seconds.or(before.timeout_seconds),
        concurrency: given.concurrency.or(before.concurrency),
        max_instances: given.max_instances.or(before.max_instances),
        queue_max: given.queue_max.or(before.queue_max),
        idle_seconds: given.idle_seconds.or(before.idle_seconds),
        isolation: given.isolation.or(before.isolation),
        retries: given.retries.or(before.retries),
        max_age_seconds: given.max_age_seconds.or(before.max_age_seconds),
        cpu: given.cpu.or(before.cpu),
        memory_mb: given.memory_mb.or(before.memory_mb),
        // The empty one removes it.
        dead_letter_url: given
            .dead_letter_url
            .clone()
            .or_else(|| before.dead_letter_url.clone())
            .filter(|url| !url.is_empty()),
    }
}

/// The pool's limits for a function.
pub(crate) fn limits(given: &FunctionSettings) -> Limits {
    let wide = |number: Option<u32>, default: u32| number.unwrap_or(default) as usize;
    Limits {
        max_instances: wide(given.max_instances, FUNCTION_INSTANCES_DEFAULT),
        queue_max: wide(given.queue_max, FUNCTION_QUEUE_DEFAULT),
        idle: Duration::from_secs(given.idle_seconds.unwrap_or(FUNCTION_IDLE_SECONDS_DEFAULT)),
        isolation: given.isolation.unwrap_or_default(),
    }
}

/// Time limit of a call.
pub(crate) fn timeout(given: &FunctionSettings) -> Duration {
    Duration::from_secs(given.timeout_seconds.unwrap_or(FUNCTION_TIMEOUT_SECONDS_DEFAULT))
}

/// Refuses settings that are out of range.
pub(crate) fn check(given: &FunctionSettings) -> Result<()> {
    within("timeout_seconds", given.timeout_seconds, 1, FUNCTION_TIMEOUT_SECONDS_MAX)?;
    within("concurrency", given.concurrency.map(u64::from), 1, FUNCTION_CONCURRENCY_MAX.into())?;
    within("max_instances", given.max_instances.map(u64::from), 1, FUNCTION_INSTANCES_MAX.into())?;
    within("queue_max", given.queue_max.map(u64::from), 0, FUNCTION_QUEUE_MAX.into())?;
    within("idle_seconds", given.idle_seconds, 1, FUNCTION_IDLE_SECONDS_MAX)?;
    within("retries", given.retries.map(u64::from), 0, FUNCTION_RETRIES_MAX.into())?;
    within("max_age_seconds", given.max_age_seconds, 1, AGE_SECONDS_MAX)?;
    pandastack_sandboxes::validate::size(given.cpu, given.memory_mb)?;
    if given.isolation == Some(Isolation::Fresh) && given.concurrency.is_some_and(|count| count > 1) {
        return Err(Error::bad_request(
            "with `isolation: fresh` a machine serves one call; leave `concurrency` at 1",
        ));
    }
    Ok(())
}

fn within(field: &str, value: Option<u64>, least: u64, most: u64) -> Result<()> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(Error::bad_request(format!("`{field}` must be {least} to {most}")))
        }
        _ => Ok(()),
    }
}

/// Refuses a name that cannot stand in a path or on a command line.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(good) {
        return Err(Error::bad_request(format!(
            "invalid {what} name; use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`"
        )));
    }
    Ok(())
}

/// Refuses an entrypoint that cannot be one.
pub(crate) fn check_entrypoint(entrypoint: &str) -> Result<()> {
    let bad = entrypoint.is_empty()
        || entrypoint.len() > ENTRYPOINT_BYTES_MAX
        || entrypoint.starts_with(['/', '-'])
        || entrypoint.split('/').any(|part| part == "..")
        || entrypoint.chars().any(char::is_control);
    if bad {
        return Err(Error::bad_request(
            "`entrypoint` must be `module.function` or a file in the bundle such as `main.py`, without `..`",
        ));
    }
    Ok(())
}

/// Names of the environment that are the runtime's own.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<()> {
    pandastack_sandboxes::validate::env(env)?;
    let own = ["AWS_LAMBDA_RUNTIME_API", "_HANDLER", "LAMBDA_TASK_ROOT", "PANDASTACK_CONCURRENCY"];
    match env.keys().find(|name| own.contains(&name.as_str())) {
        Some(name) => {
            Err(Error::bad_request(format!("the runtime sets the variable `{name}`; choose another name")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_settings_are_range_checked() {
        let with = |timeout_seconds| {
            check(&FunctionSettings { timeout_seconds: Some(timeout_seconds), ..FunctionSettings::default() })
        };
        assert!(with(0).is_err());
        assert!(with(FUNCTION_TIMEOUT_SECONDS_MAX).is_ok());
        assert!(with(FUNCTION_TIMEOUT_SECONDS_MAX + 1).is_err());
        let both = FunctionSettings {
            isolation: Some(Isolation::Fresh),
            concurrency: Some(2),
            ..FunctionSettings::default()
        };
        assert!(check(&both).is_err());
    }

    #[test]
    fn names_and_entrypoints_cannot_escape_the_bundle() {
        for good in ["main.py", "pkg/main.py", "pkg.mod.handler", "bootstrap"] {
            assert!(check_entrypoint(good).is_ok(), "{good}");
        }
        for bad in ["", "/bin/sh", "../x.py", "a/../../b.py", "-c", "a\nb"] {
            assert!(check_entrypoint(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("function", "my-fn_1.2").is_ok());
        assert!(check_name("function", "a/b").is_err());
        assert!(check_env(&[("_HANDLER".to_owned(), "x".to_owned())].into()).is_err());
    }
}
