//! Validates requests of clients against [`pandastack_types::limits`]. Each refusal is a sentence
//! that names the field.

use pandastack_types::api::{
    Checkpoints, CreateSandbox, CreateSnapshot, ExecRequest, Metadata, PatchLifecycle, StartProcess,
    TerminalSize,
};
pub use pandastack_types::check::{env, exec, path};
use pandastack_types::limits::{
    CHECKPOINT_SECONDS_MIN, KEEP_LAST_MAX, METADATA_PAIRS_MAX, METADATA_TEXT_BYTES_MAX, NAME_CHARS_MAX,
    PROCESS_TAG_BYTES_MAX, SANDBOX_CPU_MAX, SANDBOX_MEMORY_MB_RANGE, SANDBOX_MEMORY_MB_STEP,
    TERMINAL_SIDE_MAX, TTL_SECONDS_MAX,
};
use pandastack_types::{Error, ID_CHARS, Result};

pub use pandastack_store::template_ref::{template_name, template_reference, template_tag};

fn refuse<T>(message: String) -> Result<T> {
    Err(Error::bad_request(message))
}

/// Checks a request for a sandbox.
pub fn create(request: &CreateSandbox) -> Result<()> {
    if let Some(template) = &request.template {
        template_reference(template)?;
    }
    request.name.as_deref().map_or(Ok(()), name)?;
    if let Some(metadata) = &request.metadata {
        self::metadata(metadata)?;
    }
    if let Some(env) = &request.env {
        self::env(env)?;
    }
    lifetime("ttl_seconds", request.ttl_seconds)?;
    let sized = request.cpu.is_some() || request.memory_mb.is_some();
    if request.from_snapshot.is_some() && sized {
        return refuse("`cpu` and `memory_mb` come from the snapshot; leave them out".to_owned());
    }
    size(request.cpu, request.memory_mb)?;
    request.checkpoints.map_or(Ok(()), checkpoints)?;
    lifetime("idle_timeout_seconds", request.idle_timeout_seconds)
}

/// A name that can be used instead of an id.
pub fn name(name: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edges = name.starts_with('-') || name.ends_with('-');
    let fits = (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(good) && !edges;
    match fits && name.len() != ID_CHARS {
        true => Ok(()),
        false => refuse(format!(
            "`name` must be 1 to {NAME_CHARS_MAX} lowercase letters, digits and `-`, must not begin or end \
             with `-`, and must not have the {ID_CHARS} characters of an ID"
        )),
    }
}

/// Processors and memory, where a request names them.
pub fn size(cpu: Option<u32>, memory_mb: Option<u32>) -> Result<()> {
    if cpu.is_some_and(|cpu| !(1..=SANDBOX_CPU_MAX).contains(&cpu)) {
        return refuse(format!("`cpu` must be 1 to {SANDBOX_CPU_MAX}"));
    }
    let fits = |mb: u32| SANDBOX_MEMORY_MB_RANGE.contains(&mb) && mb.is_multiple_of(SANDBOX_MEMORY_MB_STEP);
    if memory_mb.is_some_and(|mb| !fits(mb)) {
        let (least, most) = SANDBOX_MEMORY_MB_RANGE.into_inner();
        return refuse(format!("`memory_mb` must be {least} to {most} in steps of {SANDBOX_MEMORY_MB_STEP}"));
    }
    Ok(())
}

/// Longest name of a snapshot.
const SNAPSHOT_NAME_BYTES_MAX: usize = 256;

/// Checks a request for a snapshot.
pub fn snapshot(request: &CreateSnapshot) -> Result<()> {
    if let Some(metadata) = &request.metadata {
        self::metadata(metadata)?;
    }
    request.name.as_deref().map_or(Ok(()), snapshot_name)?;
    if request.ttl_seconds == Some(0) {
        return refuse("`ttl_seconds` must be at least 1; leave it out to keep the snapshot".to_owned());
    }
    request.keep_last.map_or(Ok(()), keep_last)
}

fn snapshot_name(name: &str) -> Result<()> {
    let fits = name.len() <= SNAPSHOT_NAME_BYTES_MAX;
    if name.trim().is_empty() || !fits || name.contains(char::is_control) {
        return refuse(format!(
            "`name` must be one line of 1 to {SNAPSHOT_NAME_BYTES_MAX} bytes; leave it out for an unnamed \
             snapshot"
        ));
    }
    Ok(())
}

fn keep_last(count: u32) -> Result<()> {
    match count {
        1..=KEEP_LAST_MAX => Ok(()),
        _ => refuse(format!("`keep_last` must be 1 to {KEEP_LAST_MAX}")),
    }
}

fn checkpoints(wanted: Checkpoints) -> Result<()> {
    if wanted.every_seconds != 0 && wanted.every_seconds < CHECKPOINT_SECONDS_MIN {
        return refuse(format!("`checkpoints.every_seconds` must be 0 or at least {CHECKPOINT_SECONDS_MIN}"));
    }
    keep_last(wanted.keep_last)
}

/// Checks a change of a lifetime.
pub fn patch(request: &PatchLifecycle) -> Result<()> {
    lifetime("ttl_seconds", request.ttl_seconds)?;
    request.checkpoints.map_or(Ok(()), checkpoints)?;
    lifetime("idle_timeout_seconds", request.idle_timeout_seconds)
}

fn lifetime(field: &str, seconds: Option<u64>) -> Result<()> {
    match seconds {
        Some(0) => refuse(format!("`{field}` must be at least 1")),
        Some(seconds) if seconds > TTL_SECONDS_MAX => refuse(format!(
            "`{field}` must be at most {TTL_SECONDS_MAX}; for no limit, set `persistent: true`"
        )),
        _ => Ok(()),
    }
}

/// Checks labels.
pub fn metadata(metadata: &Metadata) -> Result<()> {
    if metadata.len() > METADATA_PAIRS_MAX {
        return refuse(format!("`metadata` has {} pairs; the limit is {METADATA_PAIRS_MAX}", metadata.len()));
    }
    for (key, value) in metadata {
        if key.is_empty() || key.len() > METADATA_TEXT_BYTES_MAX || value.len() > METADATA_TEXT_BYTES_MAX {
            return refuse(format!(
                "`metadata` keys must be 1 to {METADATA_TEXT_BYTES_MAX} bytes, and values at most as long"
            ));
        }
    }
    Ok(())
}

/// As for exec; a terminal without a command is the user's shell.
pub fn start_process(request: &StartProcess) -> Result<()> {
    if let Some(size) = request.pty {
        terminal(size)?;
    }
    if request.tag.as_ref().is_some_and(|tag| tag.len() > PROCESS_TAG_BYTES_MAX) {
        return refuse(format!("`tag` must be at most {PROCESS_TAG_BYTES_MAX} bytes"));
    }
    if request.pty.is_some() && request.exec.cmd.is_none() && request.exec.argv.is_none() {
        return exec(&ExecRequest { cmd: Some("shell".to_owned()), ..request.exec.clone() });
    }
    exec(&request.exec)
}

/// Checks the size of a terminal.
pub fn terminal(size: TerminalSize) -> Result<()> {
    let sides = 1..=TERMINAL_SIDE_MAX;
    if !sides.contains(&size.rows) || !sides.contains(&size.cols) {
        return refuse(format!("a terminal must have 1 to {TERMINAL_SIDE_MAX} rows and columns"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes() {
        let with = |ttl| create(&CreateSandbox { ttl_seconds: Some(ttl), ..CreateSandbox::default() });
        assert!(with(0).is_err());
        assert!(with(1).is_ok());
        assert!(with(TTL_SECONDS_MAX).is_ok());
        assert!(with(TTL_SECONDS_MAX + 1).is_err());
    }

    #[test]
    fn retention_settings_are_range_checked() {
        let keeping = |keep_last| CreateSnapshot { keep_last: Some(keep_last), ..CreateSnapshot::default() };
        assert!(snapshot(&keeping(0)).is_err());
        assert!(snapshot(&keeping(1)).is_ok());
        assert!(snapshot(&keeping(KEEP_LAST_MAX)).is_ok());
        assert!(snapshot(&keeping(KEEP_LAST_MAX + 1)).is_err());
        assert!(snapshot(&CreateSnapshot { ttl_seconds: Some(0), ..CreateSnapshot::default() }).is_err());
        let every = |every_seconds| checkpoints(Checkpoints { every_seconds, keep_last: 1 });
        assert!(every(0).is_ok());
        assert!(every(CHECKPOINT_SECONDS_MIN - 1).is_err());
        assert!(every(CHECKPOINT_SECONDS_MIN).is_ok());
    }

    #[test]
    fn snapshot_names_are_a_single_line() {
        let named = |name: &str| {
            snapshot(&CreateSnapshot { name: Some(name.to_owned()), ..CreateSnapshot::default() }).is_ok()
        };
        for good in ["before-upgrade", "vor dem Umzug, größer", &"n".repeat(SNAPSHOT_NAME_BYTES_MAX)] {
            assert!(named(good), "{good:?}");
        }
        let long = "n".repeat(SNAPSHOT_NAME_BYTES_MAX + 1);
        for bad in ["", "  ", "two\nlines", "a\tb", "nul\0", "\u{1b}[31m", "\u{85}", &long] {
            assert!(!named(bad), "{bad:?}");
        }
        assert!(snapshot(&CreateSnapshot::default()).is_ok());
    }

    #[test]
    fn labels_have_size_limits() {
        let many = (0..=METADATA_PAIRS_MAX).map(|n| (n.to_string(), String::new())).collect();
        assert!(metadata(&many).is_err());
        assert!(metadata(&[(String::new(), "x".into())].into()).is_err());
        assert!(metadata(&[("k".into(), "v".repeat(METADATA_TEXT_BYTES_MAX))].into()).is_ok());
    }
}
