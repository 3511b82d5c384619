//! Every endpoint of an agent, in one table.

use std::collections::BTreeMap;

use super::endpoint::Segment;
use super::query::{
    BuildQuery, ExecQuery, ExecStreamQuery, FindFilesQuery, GrantQuery, GrepFilesQuery, ListDirectoryQuery,
    LogQuery, MakeDirectoryQuery, NoQuery, OutputQuery, PathQuery, RemoveFileQuery, StartProcessQuery,
    StdinQuery, StreamQuery, TerminalQuery, TunnelQuery, UnpackQuery, WaitProcessQuery, WatchFilesQuery,
    WriteFileQuery,
};
use super::{
    AgentCreate, AgentFork, AgentForked, AgentKeepAwake, AgentPatch, AgentRollback, AgentSandbox,
    AgentSnapshot, AgentSnapshotDone, AgentVolume, AgentVolumeCreate, AgentVolumeGrow, BadParameter, Bytes,
    Created, Description, Empty, Endpoint, Events, GrantProtocol, HostFrozen, HostReport, Json, JsonStream,
    Method, OctetStream, OnSandbox, OrEvents, OutdatedVerdicts, PassThrough, PlainText, Tar, TunnelProtocol,
    Upgrade, WebSocketProtocol,
};
use crate::api;
use crate::network::NetworkPolicy;
use crate::{BuildId, HostId, SandboxId, SnapshotId, VolumeId};

/// `Name: METHOD "path" [path parameters] ? Query, Request => Response;`
///
/// Defines a type for each line: its fields are the path parameters, and `query` if it has one. That the
/// braces in the path and the parameters are the same is checked by `format!`.
macro_rules! endpoints {
    ($($(#[$doc:meta])* $name:ident: $method:ident $path:literal [$($param:ident: $type:ty),*] $(? $query:ty)?,
        $request:ty => $response:ty;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $name {
                $(#[doc = concat!("`{", stringify!($param), "}` in the path.")] pub $param: $type,)*
                /// Query parameters.
                pub query: endpoints!(@query $($query)?),
            }

            impl $name {
                endpoints!(@new [$($param: $type),*] $($query)?);

                /// A client's call that is forwarded with its query unchanged.
                pub fn pass_through($($param: &$type,)* query: Option<String>) -> PassThrough<Self> {
                    PassThrough::new(format!($path, $($param = Segment($param)),*), query)
                }
            }

            impl Endpoint for $name {
                const METHOD: Method = Method::$method;
                const PATH: &'static str = $path;
                type Query = endpoints!(@query $($query)?);
                type Request = $request;
                type Response = $response;

                fn path(&self) -> String {
                    format!($path, $($param = Segment(&self.$param)),*)
                }

                fn query(&self) -> &Self::Query {
                    &self.query
                }

                fn parse<'a>(
                    _param: impl Fn(&str) -> Option<&'a str>,
                    query: Self::Query,
                ) -> Result<Self, BadParameter> {
                    Ok(Self { $($param: parameter(stringify!($param), &_param)?,)* query })
                }
            }

            endpoints!(@on_sandbox $name [$($param)*]);
        )*

        /// The table.
        pub const ALL: &[Description] = &[$(
            Description { name: stringify!($name), method: Method::$method, path: $path },
        )*];
    };
    (@query) => { NoQuery };
    (@query $query:ty) => { $query };
    (@new []) => {
        /// A call.
        #[expect(clippy::new_without_default, reason = "all calls are made alike")]
        pub fn new() -> Self {
            Self { query: NoQuery {} }
        }
    };
    (@new [$($param:ident: $type:ty),*]) => {
        /// A call.
        pub fn new($($param: $type),*) -> Self {
            Self { $($param,)* query: NoQuery {} }
        }
    };
    (@new [$($param:ident: $type:ty),*] $query:ty) => {
        /// A call.
        pub fn new($($param: $type,)* query: $query) -> Self {
            Self { $($param,)* query }
        }
    };
    (@on_sandbox $name:ident [sandbox $($more:ident)?]) => {
        impl OnSandbox for $name {
            fn sandbox(&self) -> &SandboxId {
                &self.sandbox
            }
        }
    };
    (@on_sandbox $name:ident [$($other:ident)?]) => {};
}

/// Reads a path parameter.
fn parameter<'a, T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    param: &impl Fn(&str) -> Option<&'a str>,
) -> Result<T, BadParameter> {
    let text = param(name).ok_or_else(|| BadParameter(format!("the path has no `{name}`")))?;
    text.parse().map_err(|error| BadParameter(format!("invalid path parameter: {name}: {error}")))
}

endpoints! {
    /// Reads what the host has to report.
    ReadHost: Get "/host" [], Empty => Json<HostReport>;

    /// Reads the components of the host's frozen states.
    ReadFrozen: Get "/frozen" [], Empty => Json<HostFrozen>;
    /// Sets what happens when outdated states are used.
    SetVerdicts: Put "/frozen/verdicts" [], Json<OutdatedVerdicts> => Empty;
    /// Replaces the edges that may ask for traffic grants, with their memberships.
    SetEdges: Put "/edges" [], Json<BTreeMap<HostId, u32>> => Empty;

    /// Creates a sandbox; responds when it is ready.
    CreateSandbox: Post "/sandboxes" [], Json<AgentCreate> => Json<AgentSandbox>;
    /// Reads a sandbox. Does not wake it.
    ReadSandbox: Get "/sandboxes/{sandbox}" [sandbox: SandboxId], Empty => Json<AgentSandbox>;
    /// Deletes a sandbox. One that does not exist is success.
    DeleteSandbox: Delete "/sandboxes/{sandbox}" [sandbox: SandboxId], Empty => Empty;
    /// Changes when a sandbox counts as idle.
    PatchSandbox: Patch "/sandboxes/{sandbox}" [sandbox: SandboxId], Json<AgentPatch> => Json<AgentSandbox>;
    /// Pauses a sandbox.
    PauseSandbox: Post "/sandboxes/{sandbox}/pause" [sandbox: SandboxId], Empty => Json<AgentSandbox>;
    /// Resumes a paused sandbox.
    ResumeSandbox: Post "/sandboxes/{sandbox}/resume" [sandbox: SandboxId], Empty => Json<AgentSandbox>;
    /// Puts a sandbox to sleep on disk.
    HibernateSandbox: Post "/sandboxes/{sandbox}/hibernate" [sandbox: SandboxId],
        Json<api::Hibernate> => Json<AgentSandbox>;
    /// Wakes a sleeping sandbox.
    WakeSandbox: Post "/sandboxes/{sandbox}/wake" [sandbox: SandboxId], Empty => Json<AgentSandbox>;
    /// Changes what a sandbox may reach, at once. Does not wake it.
    SetNetwork: Put "/sandboxes/{sandbox}/network" [sandbox: SandboxId],
        Json<NetworkPolicy> => Json<AgentSandbox>;
    /// Wakes a sandbox, and keeps it from counting as idle.
    KeepAwake: Post "/sandboxes/{sandbox}/keep-awake" [sandbox: SandboxId],
        Json<AgentKeepAwake> => Json<AgentSandbox>;
    /// Returns a sandbox to one of its snapshots.
    RollBack: Post "/sandboxes/{sandbox}/rollback" [sandbox: SandboxId],
        Json<AgentRollback> => Json<AgentSandbox>;
    /// Copies a running sandbox.
    ForkSandbox: Post "/sandboxes/{sandbox}/fork" [sandbox: SandboxId], Json<AgentFork> => Json<AgentForked>;
    /// Reads what a sandbox uses. Does not wake it.
    ReadMetrics: Get "/sandboxes/{sandbox}/metrics" [sandbox: SandboxId], Empty => Json<api::SandboxMetrics>;

    /// Takes a snapshot.
    TakeSnapshot: Post "/sandboxes/{sandbox}/snapshots" [sandbox: SandboxId],
        Json<AgentSnapshot> => Json<AgentSnapshotDone>;
    /// Deletes a snapshot. One that does not exist is success.
    DeleteSnapshot: Delete "/snapshots/{snapshot}" [snapshot: SnapshotId], Empty => Empty;

    /// Creates a volume, empty or as a copy.
    CreateVolume: Post "/volumes" [], Json<AgentVolumeCreate> => Json<AgentVolume>;
    /// Deletes a volume. One that does not exist is success.
    DeleteVolume: Delete "/volumes/{volume}" [volume: VolumeId], Empty => Empty;
    /// Grows a volume.
    GrowVolume: Post "/volumes/{volume}/grow" [volume: VolumeId], Json<AgentVolumeGrow> => Json<AgentVolume>;

    /// Starts or joins the bake of a template; responds at once.
    BakeTemplate: Post "/templates/{template}/bake" [template: String], Empty => Json<api::Build>;
    /// Lists builds of templates.
    ListBuilds: Get "/builds" [], Empty => Json<Vec<api::Build>>;
    /// Reads a build of a template.
    ReadBuild: Get "/builds/{build}" [build: BuildId] ? BuildQuery, Empty => Json<api::Build>;

    // The data path: the shapes of the public API, so that control passes bodies through. It wakes
    // a sleeping sandbox.

    /// Runs a command and waits for it.
    Exec: Post "/sandboxes/{sandbox}/exec" [sandbox: SandboxId] ? ExecQuery,
        Json<api::ExecRequest> => JsonStream<api::ExecResult>;
    /// Runs a command and follows its output.
    ExecStream: Post "/sandboxes/{sandbox}/exec/stream" [sandbox: SandboxId] ? ExecStreamQuery,
        Json<api::ExecRequest> => Events;
    /// Runs many commands on one WebSocket.
    CommandSocket: Get "/sandboxes/{sandbox}/exec/ws" [sandbox: SandboxId] ? StreamQuery,
        Empty => Upgrade<WebSocketProtocol>;
    /// Opens a terminal on a WebSocket.
    TerminalSocket: Get "/sandboxes/{sandbox}/exec/pty" [sandbox: SandboxId] ? TerminalQuery,
        Empty => Upgrade<WebSocketProtocol>;
    /// Opens a terminal on a WebSocket that carries only the terminal's bytes.
    PlainTerminalSocket: Get "/sandboxes/{sandbox}/ssh" [sandbox: SandboxId] ? TerminalQuery,
        Empty => Upgrade<WebSocketProtocol>;

    /// Lists processes, including ones that ended recently.
    ListProcesses: Get "/sandboxes/{sandbox}/processes" [sandbox: SandboxId], Empty => Json<api::ProcessList>;
    /// Starts a process; responds with it, or with its events.
    StartProcess: Post "/sandboxes/{sandbox}/processes" [sandbox: SandboxId] ? StartProcessQuery,
        Json<api::StartProcess> => OrEvents<Created<api::Process>>;
    /// Reads a process.
    ReadProcess: Get "/sandboxes/{sandbox}/processes/{process}" [sandbox: SandboxId, process: u64],
        Empty => Json<api::Process>;
    /// Waits for the end of a process.
    WaitProcess: Get "/sandboxes/{sandbox}/processes/{process}/wait" [sandbox: SandboxId, process: u64]
        ? WaitProcessQuery, Empty => Json<api::Process>;
    /// Follows the output of a process.
    ProcessOutput: Get "/sandboxes/{sandbox}/processes/{process}/output" [sandbox: SandboxId, process: u64]
        ? OutputQuery, Empty => Events;
    /// Writes to the standard input of a process.
    WriteStdin: Post "/sandboxes/{sandbox}/processes/{process}/stdin" [sandbox: SandboxId, process: u64]
        ? StdinQuery, Bytes<OctetStream> => Json<api::StdinWritten>;
    /// Sends a signal to a process and everything it started.
    SignalProcess: Post "/sandboxes/{sandbox}/processes/{process}/signal" [sandbox: SandboxId, process: u64],
        Json<api::SignalProcess> => Empty;
    /// Changes the size of a process's terminal.
    ResizeTerminal: Post "/sandboxes/{sandbox}/processes/{process}/resize" [sandbox: SandboxId, process: u64],
        Json<api::TerminalSize> => Empty;

    /// Reads a file, or a part of it with `Range`.
    ReadFile: Get "/sandboxes/{sandbox}/fs" [sandbox: SandboxId] ? PathQuery, Empty => Bytes<OctetStream>;
    /// Writes a file, and creates its parents.
    WriteFile: Put "/sandboxes/{sandbox}/fs" [sandbox: SandboxId] ? WriteFileQuery,
        Bytes<OctetStream> => Json<api::FileWritten>;
    /// Removes a file or directory.
    RemoveFile: Delete "/sandboxes/{sandbox}/fs" [sandbox: SandboxId] ? RemoveFileQuery, Empty => Empty;
    /// Changes mode, owner or times of a file.
    SetAttributes: Patch "/sandboxes/{sandbox}/fs" [sandbox: SandboxId] ? PathQuery,
        Json<api::SetAttributes> => Json<api::FileEntry>;
    /// Reads the attributes of a file.
    StatFile: Get "/sandboxes/{sandbox}/fs/stat" [sandbox: SandboxId] ? PathQuery,
        Empty => Json<api::FileEntry>;
    /// Creates a directory and its parents.
    MakeDirectory: Post "/sandboxes/{sandbox}/fs/mkdir" [sandbox: SandboxId] ? MakeDirectoryQuery,
        Empty => Empty;
    /// Renames or moves a file.
    RenameFile: Post "/sandboxes/{sandbox}/fs/rename" [sandbox: SandboxId], Json<api::RenameFile> => Empty;
    /// Copies a file or directory.
    CopyFile: Post "/sandboxes/{sandbox}/fs/copy" [sandbox: SandboxId], Json<api::CopyFile> => Empty;
    /// Lists a directory; with `recursive` or `depth`, also the directories below it.
    ListDirectory: Get "/sandboxes/{sandbox}/fs/dir" [sandbox: SandboxId] ? ListDirectoryQuery,
        Empty => JsonStream<api::DirectoryListing>;
    /// Finds files by name.
    FindFiles: Get "/sandboxes/{sandbox}/fs/find" [sandbox: SandboxId] ? FindFilesQuery,
        Empty => JsonStream<api::DirectoryListing>;
    /// Finds lines of files.
    GrepFiles: Get "/sandboxes/{sandbox}/fs/grep" [sandbox: SandboxId] ? GrepFilesQuery,
        Empty => JsonStream<api::GrepResult>;
    /// Follows changes below a path.
    WatchFiles: Get "/sandboxes/{sandbox}/fs/watch" [sandbox: SandboxId] ? WatchFilesQuery, Empty => Events;
    /// Reads a directory as an archive.
    PackArchive: Get "/sandboxes/{sandbox}/fs/tar" [sandbox: SandboxId] ? PathQuery, Empty => Bytes<Tar>;
    /// Unpacks an archive into a directory.
    UnpackArchive: Put "/sandboxes/{sandbox}/fs/tar" [sandbox: SandboxId] ? UnpackQuery,
        Bytes<Tar> => Json<api::FileWritten>;

    /// Lists the ports that something listens on.
    ListPorts: Get "/sandboxes/{sandbox}/ports" [sandbox: SandboxId], Empty => Json<api::PortList>;
    /// Reads the end of the console's log, or follows it. Does not wake the sandbox.
    ReadLogs: Get "/sandboxes/{sandbox}/logs" [sandbox: SandboxId] ? LogQuery,
        Empty => OrEvents<Bytes<PlainText>>;
    /// Opens a grant for an edge: see [`crate::grant`].
    OpenGrant: Post "/sandboxes/{sandbox}/door" [sandbox: SandboxId] ? GrantQuery,
        Empty => Upgrade<GrantProtocol>;
    /// Opens a connection to a port of the guest, for an edge that holds a grant.
    OpenTunnel: Post "/sandboxes/{sandbox}/tunnel" [sandbox: SandboxId] ? TunnelQuery,
        Empty => Upgrade<TunnelProtocol>;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn agent_api_targets_are_stable() {
        let sandbox: SandboxId = "s1".parse().unwrap();
        let wait = WaitProcessQuery { timeout_seconds: Some(10) };
        let grant = GrantQuery { wake: Some(false) };
        let file = WriteFileQuery { path: "/srv/a b".to_owned(), ..WriteFileQuery::default() };
        for (target, expect) in [
            (PauseSandbox::new(sandbox.clone()).target(), "/agent/v1/sandboxes/s1/pause"),
            (
                WaitProcess::new(sandbox.clone(), 7, wait).target(),
                "/agent/v1/sandboxes/s1/processes/7/wait?timeout_seconds=10",
            ),
            (OpenGrant::new(sandbox.clone(), grant).target(), "/agent/v1/sandboxes/s1/door?wake=false"),
            (WriteFile::new(sandbox.clone(), file).target(), "/agent/v1/sandboxes/s1/fs?path=/srv/a+b"),
            (
                ReadFile::pass_through(&sandbox, Some("path=/a%20b".to_owned())).target(),
                "/agent/v1/sandboxes/s1/fs?path=/a%20b",
            ),
            (BakeTemplate::new("base+2x2048".to_owned()).target(), "/agent/v1/templates/base+2x2048/bake"),
        ] {
            assert_eq!(target, expect);
        }
    }

    #[test]
    fn path_parameters_round_trip() {
        let call = ProcessOutput::new("s1".parse().unwrap(), 7, OutputQuery::default());
        let read = |sandbox: &'static str, process: &'static str| {
            let param = move |name: &str| match name {
                "sandbox" => Some(sandbox),
                "process" => Some(process),
                _ => None,
            };
            ProcessOutput::parse(param, OutputQuery::default())
        };
        assert_eq!(read("s1", "7"), Ok(call));
        assert!(read("S 1", "7").is_err());
        assert!(read("s1", "seven").is_err());
    }

    #[test]
    fn agent_api_endpoints_are_unique() {
        let calls: BTreeSet<_> = ALL.iter().map(|one| (one.method, one.path)).collect();
        assert_eq!(calls.len(), ALL.len());
    }
}
