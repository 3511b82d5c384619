//! Messages must stay readable for guests that were frozen into snapshots: see `VERSIONING.md`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

use pandastack_guest_proto::GENERATION;
use pandastack_guest_proto::message::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

type Samples = BTreeMap<String, Value>;

fn schema_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("schema/generation-{GENERATION}.json"))
}

fn spec() -> ProcessSpec {
    ProcessSpec {
        command: Command::Shell("echo hi".to_owned()),
        cwd: Some("/srv".to_owned()),
        env: [("A".to_owned(), "b".to_owned())].into(),
        user: Some("user".to_owned()),
        stdin: true,
        timeout_ms: Some(1000),
        limits: ProcessLimits { memory_bytes_max: Some(1), pids_max: Some(2), cpu_milli_max: Some(3) },
        tag: Some("tag".to_owned()),
        terminal: None,
    }
}

/// A request whose optional fields were added after its sample was frozen under the plain name.
fn later_requests() -> Vec<(&'static str, Request)> {
    let size = TerminalSize { rows: 24, cols: 80 };
    let process = ProcessId(7);
    let attach = Attach { process, stdout_offset: 1, stderr_offset: 2, exit_only: true };
    vec![
        ("request start+terminal", Request::Start(ProcessSpec { terminal: Some(size), ..spec() })),
        ("request attach+exit_only", Request::Attach(attach)),
    ]
}

fn later_events() -> Vec<(&'static str, Event)> {
    let started = Started { process: ProcessId(7), pid: 8, terminal: true };
    let info = ProcessInfo {
        terminal: Some(TerminalSize { rows: 24, cols: 80 }),
        elapsed_ms: Some(1),
        stdout_start: Some(2),
        stderr_start: Some(3),
        ..info()
    };
    vec![
        ("event started+terminal", Event::Started(started)),
        ("event processes+terminal", Event::Processes { processes: vec![info] }),
    ]
}

fn info() -> ProcessInfo {
    ProcessInfo {
        process: ProcessId(7),
        pid: 8,
        tag: Some("tag".to_owned()),
        command: "echo".to_owned(),
        exit: Some(exit()),
        lingering: true,
        stdout_end: 1,
        stderr_end: 2,
        stdin_offset: 3,
        terminal: None,
        elapsed_ms: None,
        stdout_start: None,
        stderr_start: None,
    }
}

fn entry() -> FileEntry {
    FileEntry {
        name: vec![b'x', 0xff].into(),
        kind: FileKind::Symlink,
        size: 1,
        mode: 0o644,
        uid: 2,
        gid: 3,
        mtime_s: -4,
        target: Some("target".into()),
        ..plain_entry()
    }
}

fn plain_entry() -> FileEntry {
    FileEntry {
        name: "n".into(),
        kind: FileKind::File,
        size: 0,
        mode: 0,
        uid: 0,
        gid: 0,
        mtime_s: 0,
        target: None,
        path: None,
        owner: None,
        group: None,
        xattrs: BTreeMap::new(),
    }
}

fn walked_entry() -> FileEntry {
    FileEntry {
        path: Some("a/n".into()),
        owner: Some("user".to_owned()),
        group: Some("users".to_owned()),
        ..plain_entry()
    }
}

/// Calls on trees of files, added after the first samples were frozen.
fn tree_requests() -> Vec<Request> {
    vec![
        Request::FileCopy { from: "/a".into(), to: "/b".into() },
        Request::FileSetAttributes(FileAttributes {
            path: "/p".into(),
            mode: Some(0o600),
            user: Some("user".to_owned()),
            group: Some("7".to_owned()),
            recursive: true,
            xattrs: BTreeMap::new(),
        }),
        Request::FileSetAttributes(FileAttributes {
            path: "/p".into(),
            xattrs: [("user.a".to_owned(), Some("1".to_owned())), ("user.b".to_owned(), None)].into(),
            ..FileAttributes::default()
        }),
        Request::FileWalk(FileWalk {
            path: "/p".into(),
            depth: Some(2),
            glob: Some("*.rs".to_owned()),
            entries_max: 3,
        }),
        Request::FileGrep(FileGrep {
            path: "/p".into(),
            pattern: "a|b".to_owned(),
            glob: Some("*.rs".to_owned()),
            ignore_case: true,
            fixed: true,
            matches_max: 3,
        }),
        Request::FilePack { path: "/p".into() },
        Request::FileUnpack { path: "/p".into(), user: Some("user".to_owned()) },
        Request::FileWatch(FileWatch {
            path: "/p".into(),
            recursive: true,
            resume: Some(WatchPosition { watch: 1, sequence: 2 }),
        }),
    ]
}

fn tree_events() -> Vec<Event> {
    let change = Change {
        sequence: 1,
        kind: ChangeKind::Renamed,
        path: "a".into(),
        to: Some("b".into()),
        is_directory: true,
    };
    vec![
        Event::Matches { matches: vec![GrepMatch { path: "a".into(), line: 1, text: "text".to_owned() }] },
        Event::WalkEnded { visited: 1, truncated: true },
        Event::Watching { position: WatchPosition { watch: 1, sequence: 2 }, resumed: true },
        Event::Changes { changes: vec![change] },
    ]
}

fn exit() -> ExitStatus {
    ExitStatus {
        code: Some(1),
        signal: Some(2),
        timed_out: true,
        duration_ms: 3,
        duration_us: None,
        stdout_end: 4,
        stderr_end: 5,
    }
}

fn identity() -> Identity {
    Identity {
        entropy: vec![1, 2].into(),
        realtime_ns: 3,
        sandbox_id: "id".to_owned(),
        hostname: Some("name".to_owned()),
        machine_id: Some("machine".to_owned()),
        token: Some("token".into()),
        env: [("A".to_owned(), "b".into())].into(),
        dns: vec!["1.2.3.4".to_owned()],
        reset_outbound_tcp: true,
        regenerate_ssh_host_keys: true,
        only_stood_still: false,
        user: None,
        cwd: None,
        setup: None,
    }
}

/// Every request with every field set. The match is here to fail when a request is added without a sample.
fn requests() -> Vec<Request> {
    let process = ProcessId(7);
    let mut all = vec![
        Request::Ping,
        Request::Start(spec()),
        Request::Exec(ProcessSpec::argv(["a", "b"])),
        Request::Attach(Attach { process, stdout_offset: 1, stderr_offset: 2, exit_only: false }),
        Request::Stdin(StdinWrite { process, offset: Some(1), close: true }),
        Request::Signal { process, signal: 9 },
        Request::Resize { process, size: TerminalSize { rows: 24, cols: 80 } },
        Request::HangUp { process },
        Request::Processes,
        Request::FileRead(FileRead { path: "/p".into(), offset: 1, length: Some(2) }),
        Request::FileWrite(FileWrite {
            path: "/p".into(),
            write_mode: WriteMode::Append,
            mode: Some(0o600),
            make_parents: true,
            user: Some("user".to_owned()),
        }),
        Request::FileStat { path: "/p".into(), no_follow: true },
        Request::FileList { path: "/p".into() },
        Request::FileMkdir {
            path: "/p".into(),
            parents: true,
            mode: Some(0o700),
            user: Some("user".to_owned()),
        },
        Request::FileRemove { path: "/p".into(), recursive: true },
        Request::FileRename { from: "/a".into(), to: "/b".into(), make_parents: false },
        Request::Ports,
        Request::Quiesce { sync: true },
        Request::Thaw,
        Request::SetIdentity(identity()),
        Request::Stats,
        Request::Shutdown { grace_ms: 1 },
        Request::VolumeMount(VolumeMount {
            serial: "volume0".to_owned(),
            path: "/v".into(),
            read_only: true,
        }),
        Request::VolumeGrow { serial: "volume0".to_owned(), bytes: 1 },
    ];
    all.extend(tree_requests());
    for request in &all {
        match request {
            Request::Ping | Request::Start(_) | Request::Exec(_) | Request::Attach(_) | Request::Stdin(_) => {
            }
            Request::Signal { .. } | Request::Resize { .. } | Request::HangUp { .. } => {}
            Request::Processes | Request::FileRead(_) | Request::FileWrite(_) => {}
            Request::FileStat { .. } | Request::FileList { .. } | Request::FileMkdir { .. } => {}
            Request::FileRemove { .. }
            | Request::FileRename { .. }
            | Request::Ports
            | Request::Quiesce { .. } => {}
            Request::FileCopy { .. } | Request::FileSetAttributes(_) | Request::FileWalk(_) => {}
            Request::FileGrep(_) | Request::FilePack { .. } | Request::FileUnpack { .. } => {}
            Request::FileWatch(_) | Request::VolumeMount(_) | Request::VolumeGrow { .. } => {}
            Request::Thaw | Request::SetIdentity(_) | Request::Stats | Request::Shutdown { .. } => {}
        }
    }
    all
}

fn events() -> Vec<Event> {
    let mut all = vec![
        Event::Started(Started { process: ProcessId(7), pid: 8, terminal: false }),
        Event::Gap { stream: OutputStream::Stderr, from: 1, to: 2 },
        Event::File { file: entry() },
        Event::Entries { entries: vec![entry()] },
        Event::Processes { processes: vec![info()] },
        Event::Ports { ports: vec![ListeningPort { port: 80, address: "::1".parse().unwrap() }] },
    ];
    all.extend(tree_events());
    for event in &all {
        match event {
            Event::Started(_) | Event::Gap { .. } | Event::File { .. } => {}
            Event::Entries { .. } | Event::Processes { .. } | Event::Ports { .. } => {}
            Event::Matches { .. } | Event::WalkEnded { .. } => {}
            Event::Watching { .. } | Event::Changes { .. } => {}
        }
    }
    all
}

fn insert<T: Serialize>(samples: &mut Samples, name: &str, value: &T) {
    let json = serde_json::to_value(value).unwrap();
    let tag = ["op", "event"].iter().find_map(|tag| json.get(tag)?.as_str()).unwrap_or_default().to_owned();
    samples.insert(format!("{name} {tag}").trim().to_owned(), json);
}

fn present_samples() -> Samples {
    let mut samples = Samples::new();
    let hello = Hello { generation: 1, version: "1.2.3".to_owned(), boot_id: "boot".to_owned() };
    insert(&mut samples, "hello", &hello);
    requests().iter().for_each(|request| insert(&mut samples, "request", request));
    events().iter().for_each(|event| insert(&mut samples, "event", event));
    for (name, request) in later_requests() {
        samples.insert(name.to_owned(), serde_json::to_value(&request).unwrap());
    }
    for (name, event) in later_events() {
        samples.insert(name.to_owned(), serde_json::to_value(&event).unwrap());
    }
    insert(&mut samples, "reply done", &Reply::Ok(Done {}));
    insert(&mut samples, "reply error", &Reply::<Done>::Error(ErrorBody::new(ErrorCode::NotFound, "gone")));
    insert(&mut samples, "reply exit", &Reply::Ok(exit()));
    insert(&mut samples, "reply stat", &Reply::Ok(entry()));
    insert(&mut samples, "reply stdin", &Reply::Ok(StdinWritten { offset: 1 }));
    insert(&mut samples, "reply written", &Reply::Ok(FileWritten { bytes: 1 }));
    insert(&mut samples, "reply pong", &Reply::Ok(Pong { uptime_ms: 1, frozen: true }));
    let applied = IdentityApplied { generation: 1, elapsed_us: 2, warnings: vec!["w".to_owned()] };
    insert(&mut samples, "reply identity", &Reply::Ok(applied));
    insert(&mut samples, "reply stats", &Reply::Ok(Stats::default()));
    insert(&mut samples, "reply stat_named", &Reply::Ok(walked_entry()));
    let network = Some(NetworkStats { received_bytes: 1, sent_bytes: 2 });
    insert(&mut samples, "reply stats_network", &Reply::Ok(Stats { network, ..Stats::default() }));
    samples
}

/// Checks that a frozen message is the same after decoding and encoding: nothing was renamed,
/// removed or newly required.
fn check<T: Serialize + DeserializeOwned + Debug>(name: &str, frozen: &Value) {
    let decoded: T = serde_json::from_value(frozen.clone())
        .unwrap_or_else(|error| panic!("{name} cannot be read any more: {error}"));
    assert_eq!(&serde_json::to_value(&decoded).unwrap(), frozen, "{name} changed");
    let mut extended = frozen.clone();
    extended.as_object_mut().unwrap().insert("field_from_the_future".to_owned(), Value::Null);
    if !name.starts_with("reply") {
        serde_json::from_value::<T>(extended)
            .unwrap_or_else(|error| panic!("{name} does not ignore new fields: {error}"));
    }
}

#[test]
fn messages_of_the_frozen_schema_still_decode() {
    let present = present_samples();
    let mut frozen: Samples = std::fs::read(schema_path())
        .map_or_else(|_| Samples::new(), |text| serde_json::from_slice(&text).unwrap());
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        for (name, sample) in &present {
            frozen.entry(name.clone()).or_insert_with(|| sample.clone());
        }
        std::fs::write(schema_path(), serde_json::to_string_pretty(&frozen).unwrap() + "\n").unwrap();
    }
    for name in present.keys() {
        assert!(
            frozen.contains_key(name),
            "{name} is not in {}; run the test with UPDATE_SCHEMA=1",
            schema_path().display()
        );
    }
    for (name, sample) in &frozen {
        match name.split(' ').collect::<Vec<_>>()[..] {
            ["hello"] => check::<Hello>(name, sample),
            ["request", _] => check::<Request>(name, sample),
            ["event", _] => check::<Event>(name, sample),
            ["reply", "exit"] => check::<Reply<ExitStatus>>(name, sample),
            ["reply", "stat" | "stat_named"] => check::<Reply<FileEntry>>(name, sample),
            ["reply", "stdin"] => check::<Reply<StdinWritten>>(name, sample),
            ["reply", "written"] => check::<Reply<FileWritten>>(name, sample),
            ["reply", "pong"] => check::<Reply<Pong>>(name, sample),
            ["reply", "identity"] => check::<Reply<IdentityApplied>>(name, sample),
            ["reply", "stats" | "stats_network"] => check::<Reply<Stats>>(name, sample),
            ["reply", _] => check::<Reply<Done>>(name, sample),
            _ => panic!("{name} is a sample of nothing known"),
        }
    }
}

#[test]
fn messages_from_newer_peers_are_tolerated() {
    let code: ErrorBody =
        serde_json::from_str(r#"{"code":"from_the_future","message":"m","extra":1}"#).unwrap();
    assert_eq!(code.code, ErrorCode::Io);
    let kind: FileKind = serde_json::from_str(r#""door""#).unwrap();
    assert_eq!(kind, FileKind::Other);
    assert!(serde_json::from_str::<Request>(r#"{"op":"from_the_future"}"#).is_err());
}

#[test]
fn bytes_on_the_wire_are_frozen() {
    use pandastack_guest_proto::{frame, sync};
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, frame::FrameKind::Data, frame::FLAG_STDERR, 0x0102_0304, b"hi");
    assert_eq!(bytes, [0xA5, 5, 1, 4, 3, 2, 1, 2, 0, 0, 0, b'h', b'i', 0x5A]);
    let preamble = sync::preamble(&[0x0F; 16]);
    assert_eq!(
        preamble,
        [b"\xff\xfePandaStack\xfd\xfc\xfb\xfa".as_slice(), &[0x0F; 16], &[0xF0; 16]].concat()
    );
    assert_eq!(sync::ack(&[7; 16]), [b"\xfe\xffPandaStack\xfa\xfb\xfc\xfd".as_slice(), &[7; 16]].concat());
}
