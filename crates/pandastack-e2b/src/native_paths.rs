//! Every path of the native API that is called here, in one table.
//!
//! A parameter is encoded so that it stays one segment or one value of the query.

use pandastack_types::{BuildId, SandboxId, SnapshotId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Bytes that are escaped in a query or path.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Sandboxes: `GET` lists, `POST` creates.
pub(crate) const SANDBOXES: &str = "/v1/sandboxes";
/// Snapshots of the workspace.
pub(crate) const SNAPSHOTS: &str = "/v1/snapshots";
/// Templates.
pub(crate) const TEMPLATES: &str = "/v1/templates";

/// Template builds: `GET` lists, `POST` creates.
pub(crate) const TEMPLATE_BUILDS: &str = "/v1/templates/builds";

/// `function(parameters) = "path";`
macro_rules! paths {
    ($($name:ident($($param:ident: $type:ty),*) = $path:literal;)*) => {
        $(pub(crate) fn $name($($param: $type),*) -> String {
            format!($path, $($param = utf8_percent_encode(&$param.to_string(), RESERVED)),*)
        })*
    };
}

paths! {
    sandbox(id: &SandboxId) = "/v1/sandboxes/{id}";
    fork_tree(id: &SandboxId) = "/v1/sandboxes/{id}/fork-tree";
    hibernate(id: &SandboxId) = "/v1/sandboxes/{id}/hibernate";
    lifecycle(id: &SandboxId) = "/v1/sandboxes/{id}/lifecycle";
    metrics(id: &SandboxId) = "/v1/sandboxes/{id}/metrics";
    network(id: &SandboxId) = "/v1/sandboxes/{id}/network";
    preview(id: &SandboxId) = "/v1/sandboxes/{id}/preview";
    resume(id: &SandboxId) = "/v1/sandboxes/{id}/resume";
    wake(id: &SandboxId) = "/v1/sandboxes/{id}/wake";

    take_snapshot(id: &SandboxId) = "/v1/sandboxes/{id}/snapshots";
    snapshot(id: &SnapshotId) = "/v1/snapshots/{id}";
    snapshots_of(id: &str) = "/v1/snapshots?sandbox_id={id}";

    template(name: &str) = "/v1/templates/{name}";
    template_sharing(name: &str) = "/v1/templates/{name}/sharing";
    template_tags(name: &str) = "/v1/templates/{name}/tags";
    template_tag(name: &str, tag: &str) = "/v1/templates/{name}/tags/{tag}";
    template_build(id: &BuildId) = "/v1/templates/builds/{id}";
    sign_build_files(id: &BuildId) = "/v1/templates/builds/{id}/files/sign";
    start_build(id: &BuildId) = "/v1/templates/builds/{id}/start";
    cancel_build(id: &BuildId) = "/v1/templates/builds/{id}/cancel";
    build_log(id: &BuildId, offset: u64) = "/v1/templates/builds/{id}/logs?offset={offset}";
    follow_build_log(id: &BuildId, offset: u64) = "/v1/templates/builds/{id}/logs?offset={offset}&follow=1";

    processes(id: &SandboxId) = "/v1/sandboxes/{id}/processes";
    start_process(id: &SandboxId) = "/v1/sandboxes/{id}/processes?follow=1&encoding=base64";
    process_output(id: &SandboxId, pid: u64, out: u64, err: u64) =
        "/v1/sandboxes/{id}/processes/{pid}/output?encoding=base64&stdout_offset={out}&stderr_offset={err}";
    process_input(id: &SandboxId, process: u64) = "/v1/sandboxes/{id}/processes/{process}/stdin";
    close_input(id: &SandboxId, process: u64) = "/v1/sandboxes/{id}/processes/{process}/stdin?close=true";
    resize_terminal(id: &SandboxId, process: u64) = "/v1/sandboxes/{id}/processes/{process}/resize";
    signal_process(id: &SandboxId, process: u64) = "/v1/sandboxes/{id}/processes/{process}/signal";

    file(id: &SandboxId, path: &str) = "/v1/sandboxes/{id}/fs?path={path}";
    file_of_user(id: &SandboxId, path: &str, user: &str) = "/v1/sandboxes/{id}/fs?path={path}&user={user}";
    stat_file(id: &SandboxId, path: &str) = "/v1/sandboxes/{id}/fs/stat?path={path}";
    rename_file(id: &SandboxId) = "/v1/sandboxes/{id}/fs/rename";
    make_directory(id: &SandboxId, path: &str, user: &str) =
        "/v1/sandboxes/{id}/fs/mkdir?path={path}&user={user}";
    list_directory(id: &SandboxId, path: &str, depth: u32) =
        "/v1/sandboxes/{id}/fs/dir?path={path}&depth={depth}";
    watch_files(id: &SandboxId, path: &str, recursive: bool) =
        "/v1/sandboxes/{id}/fs/watch?path={path}&recursive={recursive}";

    contexts(id: &SandboxId) = "/v1/sandboxes/{id}/repl/sessions";
    context(id: &SandboxId, context: &str) = "/v1/sandboxes/{id}/repl/sessions/{context}";
    restart_context(id: &SandboxId, context: &str) = "/v1/sandboxes/{id}/repl/sessions/{context}/restart";
    run_in_context(id: &SandboxId, context: &str) = "/v1/sandboxes/{id}/repl/sessions/{context}/run";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_encoded() {
        let id: SandboxId = "s1".parse().unwrap();
        assert_eq!(wake(&id), "/v1/sandboxes/s1/wake");
        assert_eq!(file(&id, "/srv/a b&c"), "/v1/sandboxes/s1/fs?path=%2Fsrv%2Fa%20b%26c");
        assert_eq!(context(&id, "../x"), "/v1/sandboxes/s1/repl/sessions/..%2Fx");
        let output = process_output(&id, 7, 1, 2);
        assert!(output.ends_with("/processes/7/output?encoding=base64&stdout_offset=1&stderr_offset=2"));
    }
}
