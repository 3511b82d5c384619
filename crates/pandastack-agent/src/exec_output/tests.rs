use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use pandastack_engine::Shape;
use pandastack_guest_proto::GENERATION;
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::frame::{FLAG_STDERR, FrameBuffer, FrameKind, encode};
use pandastack_guest_proto::limits::{DATA_BYTES_MAX, STREAM_WINDOW_BYTES, frame_charge};
use pandastack_guest_proto::message::{Event, Hello, ProcessId, Reply, Started};
use pandastack_guest_proto::sync::{NONCE_BYTES, PREAMBLE_BYTES, ack};
use pandastack_types::api::ExecRequest;
use pandastack_types::limits::{OUTPUT_BYTES_HELD_PER_SANDBOX_MAX, OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX};
use pandastack_types::{ErrorCode, SandboxId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::budget::{HeldOutput, OutputBudget};
use crate::exec::Exec;
use crate::sandbox::handle::SandboxHandle;
use crate::sandbox::handle::tests::handle_to;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1024 * 1024;

fn exit() -> ExitStatus {
    ExitStatus { code: Some(0), ..ExitStatus::default() }
}

fn lease(held: &Arc<HeldOutput>, sandbox: &str) -> OutputLease {
    OutputBudget::new(held, &sandbox.parse().unwrap(), Some(&"w".parse().unwrap())).begin().unwrap()
}

fn output(stream: OutputStream, bytes: &[u8]) -> ProcessEvent {
    ProcessEvent::Output { stream, offset: 0, bytes: Bytes::copy_from_slice(bytes) }
}

async fn body_of(response: Response) -> Vec<u8> {
    let promised = response.headers()[header::CONTENT_LENGTH].to_str().unwrap().parse::<usize>().unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.len(), promised);
    body.to_vec()
}

/// All bytes read the same as in one piece, for any chunks and block ends.
#[tokio::test]
async fn exec_output_in_chunks_is_returned_whole() {
    let samples: [&[u8]; 5] =
        ["a€🦀\"\\\n\u{8}\u{c}\u{1f}\u{7f}é".as_bytes(), b"\0\x01\x02", b"\xf0\x9f\xa6", b"\xff\xc3", b""];
    for (sample, count, cut) in samples.iter().flat_map(|sample| [(sample, 1, 7), (sample, 40_000, 3001)]) {
        let all = sample.repeat(count);
        let mut kept = ExecOutput::new(lease(&Arc::default(), "s"), None);
        for bytes in all.chunks(cut) {
            kept.take(output(OutputStream::Stdout, bytes));
            kept.take(output(OutputStream::Stderr, bytes));
        }
        let answer: ExecResult =
            serde_json::from_slice(&body_of(kept.into_response(&exit()).unwrap()).await).unwrap();
        let text = String::from_utf8_lossy(&all);
        assert!(answer.stdout == text && answer.stderr == text, "{sample:?} x {count}");
        assert!(!answer.truncated && answer.exit_code == 0);
    }
}

#[tokio::test]
async fn output_stays_truncated_once_a_limit_is_reached() {
    let held = Arc::default();
    let mut other = lease(&held, "s");
    other.take(OUTPUT_BYTES_HELD_PER_SANDBOX_MAX - BLOCK_BYTES).unwrap();
    let mut kept = ExecOutput::new(lease(&held, "s"), None);
    kept.take(output(OutputStream::Stdout, &vec![b'x'; OUTPUT_BYTES_FREE + BLOCK_BYTES]));
    assert!(!kept.truncated);
    kept.take(output(OutputStream::Stdout, b"beyond"));
    drop(other);
    kept.take(output(OutputStream::Stdout, b"later"));
    kept.take(output(OutputStream::Stderr, b"free"));
    let answer: ExecResult =
        serde_json::from_slice(&body_of(kept.into_response(&exit()).unwrap()).await).unwrap();
    assert_eq!(answer.stdout.len(), OUTPUT_BYTES_FREE + BLOCK_BYTES);
    assert!(answer.truncated && answer.stderr == "free");

    let mut kept = ExecOutput::new(lease(&held, "s"), None);
    kept.take(output(OutputStream::Stdout, &vec![b'x'; EXEC_OUTPUT_BYTES_MAX + 1]));
    assert!(kept.truncated && kept.stdout.bytes == EXEC_OUTPUT_BYTES_MAX);
}

#[tokio::test]
async fn tail_output_keeps_only_the_end() {
    for (count, wanted) in [(10, 1000), (100_000, 1000), (400_000, 150_000), (2, 1)] {
        let held: Arc<HeldOutput> = Arc::default();
        let text: String = (0..count).map(|number| format!("{number}é\n")).collect();
        let mut kept = ExecOutput::new(lease(&held, "s"), Some(wanted));
        for bytes in text.as_bytes().chunks(3000) {
            kept.take(output(OutputStream::Stdout, bytes));
            assert!(kept.stdout.bytes <= wanted + 3 * BLOCK_BYTES, "no more than the end is held");
        }
        let answer: ExecResult =
            serde_json::from_slice(&body_of(kept.into_response(&exit()).unwrap()).await).unwrap();
        assert_eq!(answer.truncated, text.len() > wanted, "{count}");
        assert_eq!(answer.stdout, text[text.ceil_char_boundary(text.len().saturating_sub(wanted))..]);
    }
}

/// A guest whose every process writes `bytes` of NUL to both streams and ends.
async fn write_nuls(mut stream: UnixStream, bytes: usize) -> std::io::Result<()> {
    let mut first = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut first).await?;
    let nonce: [u8; NONCE_BYTES] = first[16..32].try_into().unwrap();
    let mut out = ack(&nonce);
    let hello = Hello { generation: GENERATION, version: "test".to_owned(), boot_id: String::new() };
    encode(&mut out, FrameKind::Hello, 0, 0, &serde_json::to_vec(&hello).unwrap());
    let (mut buffer, mut input) = (FrameBuffer::default(), vec![0; 65_536]);
    let piece = vec![0; DATA_BYTES_MAX];
    // Credit and bytes to write, per call.
    let mut calls: HashMap<u32, (u32, usize)> = HashMap::new();
    loop {
        stream.write_all(&std::mem::take(&mut out)).await?;
        let count = stream.read(&mut input).await?;
        if count == 0 {
            return Ok(());
        }
        buffer.push(&input[..count]);
        while let Some(frame) = buffer.next_frame().unwrap() {
            match frame.kind {
                FrameKind::Request => {
                    let started = Event::Started(Started { process: ProcessId(1), pid: 1, terminal: false });
                    let started = serde_json::to_vec(&started).unwrap();
                    encode(&mut out, FrameKind::Event, 0, frame.stream, &started);
                    let credit = STREAM_WINDOW_BYTES - frame_charge(started.len());
                    calls.insert(frame.stream, (credit, 2 * bytes));
                }
                FrameKind::Credit => {
                    calls.entry(frame.stream).and_modify(|(credit, _)| *credit += frame.credit().unwrap());
                }
                _ => {}
            }
        }
        for (&stream, (credit, left)) in &mut calls {
            while *left > 0 && *credit >= DATA_BYTES_MAX as u32 {
                let flags = if *left > bytes { 0 } else { FLAG_STDERR };
                encode(&mut out, FrameKind::Data, flags, stream, &piece);
                *credit -= DATA_BYTES_MAX as u32;
                *left -= DATA_BYTES_MAX;
                if *left == 0 {
                    let reply = serde_json::to_vec(&Reply::Ok(exit())).unwrap();
                    encode(&mut out, FrameKind::Reply, 0, stream, &reply);
                }
            }
        }
    }
}

async fn sandbox(held: &Arc<HeldOutput>, id: &str) -> SandboxHandle {
    let (host, guest) = UnixStream::pair().unwrap();
    tokio::spawn(write_nuls(guest, EXEC_OUTPUT_BYTES_MAX));
    let guest = GuestClient::connect(host, PATIENCE).await.unwrap();
    let id: SandboxId = id.parse().unwrap();
    let budget = OutputBudget::new(held, &id, Some(&"w".parse().unwrap()));
    handle_to(id, guest, budget, Shape { vcpus: 1, memory_mib: 512 })
}

/// The peak of this process's memory since it was last reset.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Set in the process that only measures.
const ALONE: &str = "PANDASTACK_TEST_ALONE";

/// Memory belongs to a process, and other tests run in this one. So another process measures.
#[test]
fn output_of_nul_bytes_stays_within_its_memory_budget() {
    if std::env::var_os(ALONE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        return runtime.unwrap().block_on(measure_output_of_nul_bytes());
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let name = concat!(module_path!(), "::output_of_nul_bytes_stays_within_its_memory_budget");
    let name = name.split_once("::").unwrap().1;
    let done = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    text.lines().filter(|line| line.starts_with("grown")).for_each(|line| println!("{line}"));
}

/// Eight commands in two sandboxes write all they can, as NULs, which are six bytes each in JSON. Some
/// of the answers are read, the others are left alone.
async fn measure_output_of_nul_bytes() {
    let held: Arc<HeldOutput> = Arc::default();
    let sandboxes = [sandbox(&held, "one").await, sandbox(&held, "two").await];
    // Writing 5 sets the peak to the present size.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_bytes();
    let request = ExecRequest { cmd: Some("x".to_owned()), ..ExecRequest::default() };
    let runs = (0..8).map(|number| {
        let (exec, handle) = (Exec::from_request(request.clone()).unwrap(), sandboxes[number % 2].clone());
        tokio::spawn(exec.run(handle))
    });
    let runs: Vec<_> = runs.collect();
    let (mut unread, mut refused) = (Vec::new(), 0);
    for (number, run) in runs.into_iter().enumerate() {
        match tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap() {
            Ok(response) if number % 4 == 0 => {
                let mut body = response.into_body();
                while let Some(frame) = body.frame().await {
                    drop(frame.unwrap());
                }
            }
            Ok(response) => unread.push(response),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::RateLimited, "{error}");
                refused += 1;
            }
        }
    }
    let grown = peak_bytes() - before;
    // On top of the held output: the calls' windows, the guests' buffers and the allocator's reserves.
    // Unbounded it would be 256 MiB of output, and six times that of JSON.
    let bound = OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX as u64 + 128 * MIB;
    println!("grown by {} MiB, {} answers held, {refused} refused", grown / MIB, unread.len());
    assert!(grown < bound, "{} MiB", grown / MIB);
    drop(unread);
    let again = Exec::from_request(request).unwrap().run(sandboxes[0].clone()).await;
    drop(again.expect("what is given back can be used again"));
}
