use pandastack_guest_proto::message::{ErrorCode, Identity, ProcessSpec};

use crate::harness::{Guest, STEP, eventually, sh, text};

fn identity() -> Identity {
    Identity {
        entropy: vec![7; 64].into(),
        sandbox_id: "sandbox-1".to_owned(),
        hostname: Some("panda-1".to_owned()),
        machine_id: Some("0123456789abcdef0123456789abcdef".to_owned()),
        token: Some("secret-token".into()),
        env: [("FROM_IDENTITY".to_owned(), "yes".into())].into(),
        dns: vec!["10.0.0.1".to_owned()],
        ..Identity::default()
    }
}

#[tokio::test]
async fn an_identity_is_applied_in_one_round_trip() {
    let guest = Guest::start();
    let hooks = guest.path("root/etc/pandastack/identity.d");
    std::fs::create_dir_all(&hooks).unwrap();
    let seen = guest.path("hook-ran");
    let hook =
        format!("#!/bin/sh\necho $PANDASTACK_SANDBOX_ID $PANDASTACK_GENERATION > {}\n", seen.display());
    std::fs::write(hooks.join("10-note"), hook).unwrap();
    std::fs::set_permissions(hooks.join("10-note"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let (client, applied) = pandastack_guest_proto::client::GuestClient::connect_with_identity(
        guest.dial().await,
        identity(),
        STEP,
    )
    .await
    .unwrap();
    assert_eq!((applied.generation, applied.warnings.len()), (1, 0), "{applied:?}");
    let read = |path: &str| std::fs::read_to_string(guest.path("root").join(path)).unwrap();
    assert_eq!(read("etc/hostname"), "panda-1\n");
    assert!(read("etc/hosts").contains("127.0.1.1 panda-1"));
    assert_eq!(read("etc/machine-id"), "0123456789abcdef0123456789abcdef\n");
    assert_eq!(read("etc/resolv.conf"), "nameserver 10.0.0.1\n");
    assert_eq!(
        (read("run/pandastack/token"), read("run/pandastack/sandbox_id")),
        ("secret-token".into(), "sandbox-1".into())
    );
    assert_eq!(read("run/pandastack/generation"), "1\n");
    assert_eq!(std::fs::read_to_string(&seen).unwrap(), "sandbox-1 1\n");
    assert_eq!(text(&sh(&client, "echo $FROM_IDENTITY $PANDASTACK_SANDBOX_ID").await), "yes sandbox-1\n");
    let again = client.set_identity(Identity { env: Default::default(), ..identity() }).await.unwrap();
    assert_eq!(again.generation, 2);
    assert_eq!(text(&sh(&client, "echo [$FROM_IDENTITY]").await), "[]\n");
    client.quiesce(false).await.unwrap();
    let stood_still = Identity { only_stood_still: true, ..identity() };
    assert_eq!(client.set_identity(stood_still).await.unwrap().generation, 2, "it is the one it was");
    assert_eq!(text(&sh(&client, "echo [$FROM_IDENTITY]").await), "[]\n", "and runs again");
    let bad = client.set_identity(Identity { entropy: vec![1].into(), ..identity() }).await.unwrap_err();
    assert_eq!(bad.refusal(), Some(ErrorCode::Invalid));
}

#[tokio::test]
async fn quiesce_without_control_groups_still_gates_new_processes() {
    let guest = Guest::start();
    let client = guest.connect().await;
    client.quiesce(false).await.unwrap();
    assert!(client.ping().await.unwrap().frozen);
    assert_eq!(client.exec(ProcessSpec::shell("true")).await.unwrap_err().refusal(), Some(ErrorCode::Frozen));
    client.thaw().await.unwrap();
    assert_eq!(sh(&client, "true").await.exit.code, Some(0));
}

#[tokio::test]
async fn requests_sent_after_the_identity_run_on_a_thawed_machine() {
    let guest = Guest::start();
    let client = guest.connect().await;
    for _ in 0..20 {
        client.quiesce(false).await.unwrap();
        let answer = client.begin_identity(identity()).await.unwrap();
        assert_eq!(text(&sh(&client, "echo $FROM_IDENTITY").await), "yes\n");
        answer.wait().await.unwrap();
    }
}

#[tokio::test]
async fn frozen_processes_do_not_run_until_the_identity_is_set() {
    let Some(guest) = Guest::start_with_cgroup("freeze") else { return };
    let client = guest.connect().await;
    let mark = guest.path("mark");
    let stream = client
        .exec(ProcessSpec::shell(format!("while :; do echo x >> {}; done", mark.display())))
        .await
        .unwrap();
    let length = || std::fs::metadata(&mark).map_or(0, |meta| meta.len());
    eventually("it runs", async || length() > 0).await;
    client.quiesce(false).await.unwrap();
    let frozen_at = length();
    for _ in 0..200 {
        client.ping().await.unwrap();
    }
    assert_eq!(length(), frozen_at, "nothing ran while frozen");
    client.set_identity(identity()).await.unwrap();
    eventually("it runs again", async || length() > frozen_at).await;
    client.signal(stream.process(), 9).await.unwrap();
}

#[tokio::test]
async fn ports_and_stats_are_reported() {
    let guest = Guest::start();
    let client = guest.connect().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let found = client.ports().await.unwrap();
    assert!(
        found.iter().any(|found| found.port == port && found.address.is_loopback()),
        "{port} in {found:?}"
    );
    drop(listener);
    assert!(client.ports().await.unwrap().iter().all(|found| found.port != port));
    let stats = client.stats().await.unwrap();
    assert!(
        stats.cpu.count > 0
            && stats.memory.total_bytes > stats.memory.available_bytes
            && stats.disk.total_bytes > 0,
        "{stats:?}"
    );
}

#[tokio::test]
async fn shutdown_stops_the_guest_program() {
    let guest = Guest::start();
    let client = guest.connect().await;
    client.shutdown(0).await.unwrap();
    let lost = client.closed().await;
    assert!(client.is_closed(), "{lost}");
    assert!(client.ping().await.is_err());
}
