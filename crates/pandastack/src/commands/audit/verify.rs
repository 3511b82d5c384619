//! `pandastack audit verify`: the hash chain of the audit log, on the server or in an exported file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_types::api::AuditVerification;
use pandastack_types::audit::{AuditLine, ChainBreak, ChainCheck};

use crate::commands::runtime::with_client;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Verify an exported log, JSON lines, instead of the server's; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Expected hash of the last entry, as printed by an earlier run; fail if it differs
    #[arg(long, value_name = "HASH", requires = "file")]
    head: Option<String>,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    if let Some(path) = &args.file {
        return show(&verify_file(path, args.head.as_deref())?, output);
    }
    with_client(|client| async move {
        let mut all = client.verify_audit(None).await?;
        while let Some(after) = all.next {
            let more = client.verify_audit(Some(after)).await?;
            let checked = all.checked + more.checked;
            all = AuditVerification { checked, first: all.first, since: all.since, ..more };
        }
        show(&all, output)
    })
}

fn show(verified: &AuditVerification, output: Output) -> Result<ExitCode> {
    if let Some(problem) = &verified.problem {
        let failure = Failure::new(format!("the audit log was tampered with: {problem}"));
        return Err(failure.hint("compare it with an exported copy").into());
    }
    output.value(verified, |verified| {
        let since = verified.since.map_or_else(String::new, |since| format!(" since {since}"));
        format!("{} entries{since} are intact\nhash of the last entry: {}", verified.checked, verified.head)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn verify_file(path: &Path, head: Option<&str>) -> Result<AuditVerification> {
    let unreadable = || format!("cannot read {}", path.display());
    let reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).with_context(unreadable)?))
    };
    let mut check = ChainCheck::after(None);
    let mut verified = AuditVerification {
        checked: 0,
        first: None,
        since: None,
        head: String::new(),
        next: None,
        problem: None,
    };
    let mut last = 0;
    for (number, text) in reader.lines().enumerate() {
        let text = text.with_context(unreadable)?;
        let line: AuditLine = serde_json::from_str(&text).with_context(|| {
            format!("line {} of {} is not an entry of an audit log", number + 1, path.display())
        })?;
        // A batch that was sent again.
        if line.entry.id <= last {
            continue;
        }
        last = line.entry.id;
        verified.first.get_or_insert(line.entry.id);
        verified.since.get_or_insert(line.entry.at);
        if let Err(broken) = check.check(&line) {
            verified.problem = Some(broken.to_string());
            break;
        }
    }
    check.head().unwrap_or_default().clone_into(&mut verified.head);
    verified.checked = check.checked();
    if let Some(head) = head.filter(|head| verified.problem.is_none() && *head != verified.head) {
        verified.problem = Some(ChainBreak::Cut { head: head.to_owned() }.to_string());
    }
    Ok(verified)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use pandastack_types::WorkspaceId;
    use pandastack_types::api::AuditEntry;
    use pandastack_types::audit;

    use super::*;

    fn lines(count: i64) -> Vec<String> {
        let mut previous = "before".to_owned();
        let line = |id| {
            let entry = AuditEntry {
                id,
                at: jiff::Timestamp::from_second(1_700_000_000 + id).unwrap(),
                token_prefix: "pds_12345678".to_owned(),
                token_label: String::new(),
                method: "DELETE".to_owned(),
                route: "/v1/apps/{id}".to_owned(),
                path: "/v1/apps/shop".to_owned(),
                sandbox_id: None,
                status: 204,
                request_id: "r".to_owned(),
                took_ms: 3,
            };
            let workspace = WorkspaceId::default_workspace();
            let hash = audit::hash(&previous, &workspace, &entry);
            let line = AuditLine { workspace, entry, previous: previous.clone(), hash: hash.clone() };
            previous = hash;
            serde_json::to_string(&line).unwrap()
        };
        (1..=count).map(line).collect()
    }

    fn verify(lines: &[String], head: Option<&str>) -> AuditVerification {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
        verify_file(file.path(), head).unwrap()
    }

    #[test]
    fn an_exported_audit_log_is_verified_offline() {
        let all = lines(4);
        let verified = verify(&all, None);
        assert_eq!((verified.checked, verified.problem), (4, None));
        let twice = [&all[..3], &all[1..]].concat();
        assert_eq!(verify(&twice, Some(&verified.head)).checked, 4, "a batch that came twice");
        let cut = verify(&all[..3], Some(&verified.head));
        assert!(cut.problem.is_some_and(|problem| problem.contains("at the end")));
        let changed = all.iter().map(|line| line.replace("shop", "shed")).collect::<Vec<_>>();
        assert!(
            verify(&changed, None).problem.is_some_and(|problem| problem.contains("entry 1 was changed"))
        );
        let gap = [&all[..1], &all[2..]].concat();
        assert!(verify(&gap, None).problem.is_some_and(|problem| problem.contains("before entry 3")));
    }
}
