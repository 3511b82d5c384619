use std::time::{Duration, Instant};

use pandastack_guest_proto::limits::OUTPUT_RING_BYTES;
use pandastack_guest_proto::message::{ErrorCode, ProcessSpec};

use crate::harness::{ALL, Guest, STEP, drain, eventually, run, sh, text};

#[tokio::test]
async fn output_exit_code_and_signal_are_returned() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let output = sh(&client, "echo out; echo err >&2; exit 3").await;
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.exit.code, output.exit.signal, output.truncated), (Some(3), None, false));
    let killed = sh(&client, "kill -TERM $$").await;
    assert_eq!((killed.exit.code, killed.exit.signal, killed.exit.shell_code()), (None, Some(15), 143));
}

#[tokio::test]
async fn programs_start_with_clean_signals_and_descriptors() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let mut spec = ProcessSpec::argv([
        "sh",
        "-c",
        "pwd; echo $GREETING $LANG; ls /proc/self/fd | wc -l; grep SigBlk /proc/self/status; awk '/SigIgn/ {print substr($2, 13, 1)}' /proc/self/status",
    ]);
    spec.cwd = Some("/usr".to_owned());
    spec.env = [("GREETING".to_owned(), "hi there".to_owned())].into();
    let output = run(&client, spec).await;
    let expect = "/usr\nhi there C.UTF-8\n4\nSigBlk:\t0000000000000000\n0\n";
    assert_eq!(
        text(&output),
        expect,
        "directory, environment, four descriptors (one is of ls), no signal blocked, SIGPIPE not ignored"
    );
}

#[tokio::test]
async fn processes_that_cannot_start_are_rejected_with_a_reason() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let refused = async |spec: ProcessSpec| client.exec(spec).await.unwrap_err();
    let mut nowhere = ProcessSpec::shell("true");
    nowhere.cwd = Some("/nowhere".to_owned());
    let mut nobody = ProcessSpec::shell("true");
    nobody.user = Some("no-such-user".to_owned());
    for (spec, code, word) in [
        (ProcessSpec::argv(["no-such-program"]), ErrorCode::NotFound, "PATH"),
        (ProcessSpec::argv(["/no/such/program"]), ErrorCode::NotFound, "/no/such/program"),
        (ProcessSpec::argv(["/etc/passwd"]), ErrorCode::PermissionDenied, "/etc/passwd"),
        (ProcessSpec::shell("  "), ErrorCode::Invalid, "empty"),
        (ProcessSpec::argv(Vec::<String>::new()), ErrorCode::Invalid, "empty"),
        (ProcessSpec::shell("echo \0"), ErrorCode::Invalid, "zero byte"),
        (ProcessSpec::argv(["echo", &"x".repeat(200_000)]), ErrorCode::Invalid, "128 KiB"),
        (nowhere, ErrorCode::NotFound, "/nowhere"),
        (nobody, ErrorCode::NotFound, "no-such-user"),
    ] {
        let error = refused(spec).await;
        assert_eq!(error.refusal(), Some(code), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(text(&sh(&client, "echo still here").await), "still here\n");
}

#[tokio::test]
async fn a_timeout_kills_the_whole_process_tree() {
    let Some(guest) = Guest::start_with_cgroup("timeout_kills_tree") else { return };
    let client = guest.connect().await;
    let mark = guest.path("pids");
    let line = format!(
        "setsid sh -c 'echo $$ >> {0}; exec sleep 1000' & echo $$ >> {0}; sleep 1000",
        mark.display()
    );
    let mut spec = ProcessSpec::shell(line);
    spec.timeout_ms = Some(3_000);
    let begun = Instant::now();
    let output = run(&client, spec).await;
    assert!(output.exit.timed_out && output.exit.signal == Some(9), "{:?}", output.exit);
    assert!(begun.elapsed() < Duration::from_secs(60), "the timeout fires in the guest");
    let pids = std::fs::read_to_string(&mark).unwrap();
    assert_eq!(pids.lines().count(), 2, "both processes ran: {pids:?}");
    eventually("every process of the tree is gone", async || {
        pids.lines().all(|pid| !std::path::Path::new("/proc").join(pid).exists())
    })
    .await;
}

#[tokio::test]
async fn background_jobs_outlive_exec_and_can_be_killed() {
    let Some(guest) = Guest::start_with_cgroup("background_job") else { return };
    let client = guest.connect().await;
    let stream = client.exec(ProcessSpec::shell("setsid sleep 1000 & echo $!")).await.unwrap();
    let process = stream.process();
    let output = tokio::time::timeout(STEP, stream.collect(ALL))
        .await
        .expect("the exec ends although its child holds stdout")
        .unwrap();
    let pid = text(&output).trim().to_owned();
    let alive = || std::path::Path::new("/proc").join(&pid).exists();
    assert!(alive(), "the job goes on after its exec ended");
    let listed = client.processes().await.unwrap();
    assert!(
        listed.iter().any(|info| info.process == process && info.lingering && info.exit.is_some()),
        "{listed:?}"
    );
    client.signal(process, 9).await.unwrap();
    eventually("the job is gone", async || !alive()).await;
}

#[tokio::test]
async fn output_larger_than_every_buffer_arrives_whole() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let output = sh(&client, "head -c 9000000 /dev/zero | tr '\\0' 'x'; echo end >&2").await;
    assert_eq!((output.stdout.len(), &output.stderr[..]), (9_000_000, &b"end\n"[..]));
    assert!(output.stdout.iter().all(|&byte| byte == b'x') && !output.truncated);
}

#[tokio::test]
async fn a_slow_reader_blocks_only_its_own_process() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let mut slow = client
        .exec(ProcessSpec::shell("i=0; while [ $i -lt 400000 ]; do echo line $i; i=$((i+1)); done"))
        .await
        .unwrap();
    // Do not read `slow`: its window and ring fill up, everything else continues.
    for _ in 0..20 {
        assert_eq!(text(&sh(&client, "echo quick").await), "quick\n");
    }
    let (bytes, gaps, exit) = drain(&mut slow).await;
    assert_eq!((gaps.len(), exit.code), (0, Some(0)));
    let expect: Vec<u8> = (0..400_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    assert!(bytes == expect, "{} bytes instead of {}", bytes.len(), expect.len());
}

#[tokio::test]
async fn unread_streams_do_not_block_other_streams() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let mut attaches = Vec::new();
    for bytes in [200_000; 20].into_iter().chain([100]) {
        let started = client.start(ProcessSpec::shell(format!("head -c {bytes} /dev/zero"))).await.unwrap();
        let client = client.clone();
        attaches.push(async move { client.attach(started.process, 0, 0).await.unwrap() });
    }
    eventually("all have ended", async || {
        client.processes().await.unwrap().iter().all(|info| info.exit.is_some())
    })
    .await;
    // All requests go out together, so that more is ready at once than the channel takes.
    let mut streams = Vec::new();
    for attach in attaches {
        streams.push(attach.await);
    }
    let (bytes, _, exit) = drain(streams.last_mut().unwrap()).await;
    assert_eq!((bytes.len(), exit.code), (100, Some(0)));
}

#[tokio::test]
async fn unread_output_is_dropped_and_the_gap_is_reported() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let total = 3 * OUTPUT_RING_BYTES as u64;
    let started = client.start(ProcessSpec::shell(format!("head -c {total} /dev/zero"))).await.unwrap();
    eventually("it ends with nobody reading", async || {
        client
            .processes()
            .await
            .unwrap()
            .iter()
            .any(|info| info.process == started.process && info.exit.is_some())
    })
    .await;
    let mut stream = client.attach(started.process, 5, 0).await.unwrap();
    let (bytes, gaps, exit) = drain(&mut stream).await;
    assert_eq!(gaps, [(5, total - OUTPUT_RING_BYTES as u64)]);
    assert_eq!((bytes.len(), exit.stdout_end), (OUTPUT_RING_BYTES, total));
    let beyond = client.attach(started.process, total + 1, 0).await.unwrap().next().await.unwrap_err();
    assert_eq!(beyond.refusal(), Some(ErrorCode::Invalid));
}

#[tokio::test]
async fn a_stream_resumes_after_a_lost_connection() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let mut stream = client
        .exec(ProcessSpec::shell("i=0; while [ $i -lt 100000 ]; do echo $i; i=$((i+1)); done"))
        .await
        .unwrap();
    let process = stream.process();
    let mut bytes = Vec::new();
    let mut losses = 0;
    let exit = loop {
        match stream.next().await.unwrap().unwrap() {
            pandastack_guest_proto::client::ProcessEvent::Output { offset, bytes: more, .. } => {
                assert_eq!(offset, bytes.len() as u64);
                bytes.extend_from_slice(&more);
            }
            pandastack_guest_proto::client::ProcessEvent::Exit(exit) => break exit,
            gap => panic!("{gap:?}"),
        }
        if losses < 5 && bytes.len() > losses * 60_000 {
            losses += 1;
            let (stdout, stderr) = stream.offsets();
            stream = guest.connect().await.attach(process, stdout, stderr).await.unwrap();
        }
    };
    let expect: Vec<u8> = (0..100_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    assert!(
        bytes == expect && exit.code == Some(0),
        "{} of {} bytes, {losses} losses",
        bytes.len(),
        expect.len()
    );
    assert_eq!(losses, 5);
}

#[tokio::test]
async fn standard_input_is_written_once_and_closed() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let mut spec = ProcessSpec::shell("cat; echo done");
    spec.stdin = true;
    let stream = client.exec(spec).await.unwrap();
    let process = stream.process();
    let collected = tokio::spawn(stream.collect(ALL));
    let big: Vec<u8> = (0..2_000_000_u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(client.write_stdin(process, Some(0), &big).await.unwrap().offset, big.len() as u64);
    // The same again, as after a lost reply, with a little more at the end.
    let again = [&big[1_999_000..], b"tail"].concat();
    assert_eq!(
        client.write_stdin(process, Some(1_999_000), &again).await.unwrap().offset,
        big.len() as u64 + 4
    );
    let missing = client.write_stdin(process, Some(9_999_999), b"x").await.unwrap_err();
    assert_eq!(missing.refusal(), Some(ErrorCode::Invalid));
    client.close_stdin(process).await.unwrap();
    let output = collected.await.unwrap().unwrap();
    assert!(output.stdout == [&big[..], b"taildone\n"].concat());
    let closed = client.write_stdin(process, None, b"late").await.unwrap_err();
    assert_eq!(closed.refusal(), Some(ErrorCode::Invalid));
}

#[tokio::test]
async fn orphans_are_reaped() {
    let guest = Guest::start();
    let client = guest.connect().await;
    sh(&client, "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done").await;
    let children = format!("/proc/{0}/task/{0}/children", guest.pid());
    eventually("no child is left", async || std::fs::read_to_string(&children).unwrap().trim().is_empty())
        .await;
}

#[tokio::test]
async fn many_processes_run_concurrently() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let tasks: Vec<_> = (0..100)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                text(&sh(&client, &format!("echo {i}; exit {}", i % 7)).await).trim().parse::<u32>().unwrap()
            })
        })
        .collect();
    for (expect, task) in (0..).zip(tasks) {
        assert_eq!(task.await.unwrap(), expect);
    }
}

#[tokio::test]
async fn signals_reach_the_process() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let mut stream = client
        .exec(ProcessSpec::shell("trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.01; done"))
        .await
        .unwrap();
    let process = stream.process();
    assert!(matches!(
        stream.next().await.unwrap(),
        Some(pandastack_guest_proto::client::ProcessEvent::Output { .. })
    ));
    client.signal(process, 10).await.unwrap();
    let (bytes, _, exit) = drain(&mut stream).await;
    assert_eq!((&bytes[..], exit.code), (&b"caught\n"[..], Some(5)));
    assert_eq!(client.signal(process, 15).await.unwrap_err().refusal(), Some(ErrorCode::NotFound));
}
