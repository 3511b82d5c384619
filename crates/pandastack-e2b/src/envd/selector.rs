//! Selects a process by the kernel's pid or by the client's tag.

use pandastack_types::api::{Process, ProcessList, ProcessState};
use serde::Deserialize;

use crate::error::{RpcCode, RpcError, RpcResult};
use crate::native_paths as paths;
use crate::session::Session;

/// `{"pid": n}` or `{"tag": "..."}`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Selector {
    pid: Option<i32>,
    tag: Option<String>,
}

impl Selector {
    /// The selected process; of several, prefers running ones, then the newest.
    pub(super) async fn find(&self, session: &Session) -> RpcResult<Process> {
        let list: ProcessList = session.native.get(&paths::processes(&session.sandbox)).await?;
        self.pick(list.processes)
    }

    /// The same among running processes.
    pub(super) async fn find_running(&self, session: &Session) -> RpcResult<Process> {
        let process = self.find(session).await?;
        if process.state == ProcessState::Running { Ok(process) } else { Err(self.missing()) }
    }

    fn pick(&self, processes: Vec<Process>) -> RpcResult<Process> {
        let meant = processes.into_iter().filter(|process| match (&self.pid, &self.tag) {
            (Some(pid), _) => process.pid == *pid,
            (None, Some(tag)) => process.tag.as_ref() == Some(tag),
            (None, None) => false,
        });
        meant
            .max_by_key(|process| (process.state == ProcessState::Running, process.id))
            .ok_or_else(|| self.missing())
    }

    fn missing(&self) -> RpcError {
        let what = match (&self.pid, &self.tag) {
            (Some(pid), _) => format!("process with pid {pid} not found"),
            (None, Some(tag)) => format!("process with tag `{tag}` not found"),
            (None, None) => return RpcError::invalid("no process given; set `pid` or `tag`"),
        };
        RpcError::new(RpcCode::NotFound, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn process(id: u64, pid: i32, tag: &str, state: &str) -> Process {
        serde_json::from_value(json!({
            "id": id, "pid": pid, "tag": tag, "command": "x", "state": state, "duration_ms": 0, "stdout_start": 0,
            "stdout_end": 0, "stderr_start": 0, "stderr_end": 0, "stdin_offset": 0,
        }))
        .unwrap()
    }

    #[test]
    fn a_reused_pid_selects_the_running_process() {
        let list =
            vec![process(1, 7, "a", "running"), process(2, 7, "b", "exited"), process(3, 8, "a", "exited")];
        let pick = |pid, tag: Option<&str>| Selector { pid, tag: tag.map(str::to_owned) }.pick(list.clone());
        assert_eq!(pick(Some(7), None).unwrap().id, 1);
        assert_eq!(pick(None, Some("a")).unwrap().id, 1);
        assert_eq!(pick(None, Some("b")).unwrap().id, 2);
        assert_eq!(pick(Some(9), None).unwrap_err().code, RpcCode::NotFound);
        assert_eq!(pick(None, None).unwrap_err().code, RpcCode::InvalidArgument);
    }
}
