//! Terminals, and followers that attach, disconnect and reconnect.

use pandastack_guest_proto::client::{ProcessEvent, ProcessStream};
use pandastack_guest_proto::limits::OUTPUT_RING_BYTES;
use pandastack_guest_proto::message::{ErrorCode, ProcessSpec, StdinWrite, TerminalSize};

use crate::harness::{ALL, Guest, STEP, drain, eventually, text};

const SIZE: TerminalSize = TerminalSize { rows: 33, cols: 101 };

fn on_terminal(line: &str) -> ProcessSpec {
    ProcessSpec { terminal: Some(SIZE), ..ProcessSpec::shell(line) }
}

/// Reads until the output contains `wanted`.
async fn read_until(stream: &mut ProcessStream, seen: &mut String, wanted: &str) {
    while !seen.contains(wanted) {
        match tokio::time::timeout(STEP, stream.next()).await.expect("output comes").unwrap() {
            Some(ProcessEvent::Output { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} instead of {wanted:?} after {seen:?}"),
        }
    }
}

#[tokio::test]
async fn a_terminal_has_a_size_and_a_foreground_process() {
    let guest = Guest::start();
    let client = guest.connect().await;
    // A signal during the shell's read ends the read, so it reads again. At the end it reads
    // instead of starting another program: a shell loses a Ctrl-C that arrives just before it
    // starts one.
    let line = "trap 'stty size' WINCH; tty; stty size; echo $TERM; \
                until read name; do :; done; echo hello $name; read never";
    let started = client.start(on_terminal(line)).await.unwrap();
    assert!(started.terminal);
    let mut stream = client.attach(started.process, 0, 0).await.unwrap();
    let mut seen = String::new();
    read_until(&mut stream, &mut seen, "xterm-256color").await;
    assert!(seen.contains("/dev/pts/") && seen.contains("33 101"), "{seen:?}");
    client.resize(started.process, TerminalSize { rows: 50, cols: 132 }).await.unwrap();
    client.write_stdin(started.process, None, b"panda\r").await.unwrap();
    read_until(&mut stream, &mut seen, "hello panda").await;
    assert!(seen.contains("50 132"), "{seen:?}");
    // Ctrl-C reaches the foreground, as on any terminal.
    client.write_stdin(started.process, None, b"\x03").await.unwrap();
    let (_, _, exit) = drain(&mut stream).await;
    assert_eq!(exit.signal, Some(2), "{exit:?}");
    let gone = client.resize(started.process, SIZE).await.unwrap_err();
    assert_eq!(gone.refusal(), Some(ErrorCode::Invalid));
}

#[tokio::test]
async fn closing_terminal_input_ends_the_reading_process() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let started = client.start(on_terminal("cat; echo over")).await.unwrap();
    let mut writer =
        client.open_stdin(StdinWrite { process: started.process, offset: None, close: true }).await.unwrap();
    writer.write(b"line\n").await.unwrap();
    writer.finish().await.unwrap();
    let output = client.attach(started.process, 0, 0).await.unwrap().collect(ALL).await.unwrap();
    assert!(text(&output).ends_with("over\r\n"), "{:?}", text(&output));
}

#[tokio::test]
async fn a_hang_up_ends_processes_ignoring_the_signal() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let started = client.start(on_terminal("trap '' HUP; echo trapped; cat; exit 7")).await.unwrap();
    let mut stream = client.attach(started.process, 0, 0).await.unwrap();
    read_until(&mut stream, &mut String::new(), "trapped").await;
    client.hang_up(started.process).await.unwrap();
    let (_, _, exit) = drain(&mut stream).await;
    assert_eq!(exit.code, Some(7));
    let refused = client.hang_up(started.process).await.unwrap_err();
    assert_eq!(refused.refusal(), Some(ErrorCode::Invalid), "it has no terminal any more");
}

#[tokio::test]
async fn a_resize_without_a_terminal_is_refused() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let started = client.start(ProcessSpec::shell("sleep 1000")).await.unwrap();
    let refused = client.resize(started.process, SIZE).await.unwrap_err();
    assert_eq!(refused.refusal(), Some(ErrorCode::Invalid));
}

/// Counts far beyond the ring without a follower; only waiting for the lost follower keeps every
/// byte.
async fn lose_follower(by_connection: bool) {
    let guest = Guest::start();
    let mut client = guest.connect().await;
    let last = 400_000;
    let mut stream = client.exec(ProcessSpec::shell(format!("seq 1 {last}"))).await.unwrap();
    let process = stream.process();
    let Some(ProcessEvent::Output { bytes, .. }) = stream.next().await.unwrap() else { panic!("no output") };
    let mut bytes = bytes.to_vec();
    drop(stream);
    if by_connection {
        drop(client);
        client = guest.connect().await;
    }
    // The process continues up to the end of the ring, and no further.
    let mut last_end = 0;
    eventually("it is held back", async || {
        let infos = client.processes().await.unwrap();
        let end = infos.iter().find(|info| info.process == process).unwrap().stdout_end;
        std::mem::replace(&mut last_end, end) == end && end > 100_000
    })
    .await;
    assert!(last_end < OUTPUT_RING_BYTES as u64 * 2, "{last_end}");
    let mut stream = client.attach(process, bytes.len() as u64, 0).await.unwrap();
    let (rest, gaps, exit) = drain(&mut stream).await;
    bytes.extend_from_slice(&rest);
    assert_eq!((gaps.len(), exit.code), (0, Some(0)), "{gaps:?}");
    let expect: Vec<u8> = (1..=last).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    assert!(bytes == expect, "{} of {} bytes", bytes.len(), expect.len());
}

#[tokio::test]
async fn a_follower_reconnecting_after_a_lost_connection_misses_nothing() {
    lose_follower(true).await;
}

#[tokio::test]
async fn a_returning_follower_misses_nothing() {
    lose_follower(false).await;
}

#[tokio::test]
async fn waiting_for_exit_does_not_block_output() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let mut spec =
        ProcessSpec::shell(format!("read go; head -c {} /dev/zero; exit 9", 4 * OUTPUT_RING_BYTES));
    spec.stdin = true;
    let started = client.start(spec).await.unwrap();
    let info = client.processes().await.unwrap().remove(0);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait_exit(&info).await }
    });
    client.write_stdin(started.process, None, b"go\n").await.unwrap();
    let exit = tokio::time::timeout(STEP, waiting).await.expect("it ends").unwrap().unwrap();
    assert_eq!((exit.code, exit.stdout_end), (Some(9), 4 * OUTPUT_RING_BYTES as u64));
}
