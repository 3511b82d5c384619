//! The guest program as PID 1 of a real, emulated machine.
//!
//! Needs a kernel, an initramfs with the guest program in it, and a root disk, named by
//! `PANDASTACK_TEST_KERNEL`, `PANDASTACK_TEST_INITRD` and `PANDASTACK_TEST_DISK`; the disk is not changed.
//! `PANDASTACK_TEST_CONSOLE` names a file for the machine's console.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use pandastack_guest_proto::client::{CollectedOutput, GuestClient};
use pandastack_guest_proto::message::{ErrorCode, Identity, ProcessSpec};
use tokio::net::UnixStream;

const BOOT_WAIT_MAX: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(60);

struct Machine {
    qemu: Child,
    directory: tempfile::TempDir,
}

impl Machine {
    fn boot() -> Option<Self> {
        let setting = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let kernel = setting("PANDASTACK_TEST_KERNEL")?;
        let (initrd, disk) = (setting("PANDASTACK_TEST_INITRD")?, setting("PANDASTACK_TEST_DISK")?);
        let directory = tempfile::tempdir().unwrap();
        let console = setting("PANDASTACK_TEST_CONSOLE").unwrap_or_else(|| directory.path().join("console"));
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(
            "-M pc-q35-7.2,sata=off,smbus=off,usb=off,vmport=off -accel tcg,thread=multi,tb-size=256"
                .split(' '),
        );
        qemu.args(
            "-cpu Haswell-noTSX,pcid=off,x2apic=off,tsc-deadline=off,invpcid=off,enforce -smp 1 -m 512M"
                .split(' '),
        );
        qemu.args("-nodefaults -no-user-config -display none -no-reboot".split(' '));
        qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd).arg("-append").arg(
            "console=ttyS0 reboot=t panic=-1 quiet tsc=reliable clocksource=tsc mitigations=off \
             pandastack.ip=172.30.0.2/30 pandastack.gateway=172.30.0.1",
        );
        qemu.arg("-serial").arg(format!("file:{}", console.display()));
        qemu.arg("-drive").arg(format!("id=d0,file={},format=raw,if=none,snapshot=on", disk.display()));
        qemu.args("-device virtio-blk-pci,drive=d0,ioeventfd=off -netdev hubport,id=n0,hubid=0".split(' '));
        qemu.args("-device virtio-net-pci,netdev=n0,mac=06:00:0a:c9:00:02,romfile=,ioeventfd=off".split(' '));
        qemu.args("-device virtio-serial-pci,id=vs0,ioeventfd=off,max_ports=2 -chardev".split(' '));
        qemu.arg(format!(
            "socket,id=c0,path={},server=on,wait=off",
            directory.path().join("guest").display()
        ));
        qemu.args("-device virtserialport,bus=vs0.0,chardev=c0,name=pandastack.guest.0".split(' '));
        let qemu = qemu.stdin(Stdio::null()).spawn().unwrap();
        Some(Self { qemu, directory })
    }

    async fn dial(&self) -> UnixStream {
        let begun = Instant::now();
        loop {
            match UnixStream::connect(self.directory.path().join("guest")).await {
                Ok(stream) => return stream,
                Err(error) => assert!(begun.elapsed() < STEP, "no guest channel: {error}"),
            }
            tokio::task::yield_now().await;
        }
    }

    async fn connect(&self) -> GuestClient {
        GuestClient::connect(self.dial().await, BOOT_WAIT_MAX).await.unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

async fn run(client: &GuestClient, spec: ProcessSpec) -> CollectedOutput {
    let collected = async { client.exec(spec).await?.collect(1 << 20).await };
    tokio::time::timeout(STEP, collected).await.expect("the process ends").unwrap()
}

async fn sh(client: &GuestClient, line: &str) -> String {
    let output = run(client, ProcessSpec::shell(line)).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.exit.code == Some(0), "{line}: {:?} {stderr}", output.exit);
    String::from_utf8(output.stdout.to_vec()).unwrap().trim().to_owned()
}

fn identity(seed: u8) -> Identity {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Identity {
        entropy: vec![seed; 64].into(),
        realtime_ns: u64::try_from(now.as_nanos()).unwrap(),
        sandbox_id: format!("sandbox-{seed}"),
        hostname: Some(format!("panda-{seed}")),
        machine_id: Some("0123456789abcdef0123456789abcdef".to_owned()),
        dns: vec!["172.30.0.1".to_owned()],
        reset_outbound_tcp: true,
        ..Identity::default()
    }
}

/// Median of many runs, in milliseconds.
async fn median_ms(count: usize, mut step: impl AsyncFnMut()) -> f64 {
    let mut samples = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        step().await;
        samples.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    samples.sort_by(f64::total_cmp);
    samples[count / 2]
}

#[tokio::test]
async fn a_machine_boots_serves_and_powers_off() {
    let begun = Instant::now();
    let Some(mut machine) = Machine::boot() else {
        eprintln!(
            "skipped: a_machine_boots_serves_and_powers_off (PANDASTACK_TEST_KERNEL, _INITRD and _DISK are not set)"
        );
        return;
    };
    let client = machine.connect().await;
    eprintln!("boot to first answer: {:?}", begun.elapsed());
    check_environment(&client).await;
    // The emulator accepts one connection at a time; the next one waits until this one is closed.
    drop(client);
    check_identity(&machine).await;
    check_idle_without_host(&machine).await;
    let client = machine.connect().await;
    report_latency(&client).await;
    check_processes(&client).await;
    check_gate(&client).await;
    check_under_load(&client).await;
    client.shutdown(500).await.unwrap();
    let ended = Instant::now();
    while machine.qemu.try_wait().unwrap().is_none() {
        assert!(ended.elapsed() < STEP, "the machine does not power off");
        tokio::task::yield_now().await;
    }
}

async fn check_environment(client: &GuestClient) {
    assert_eq!(sh(client, "readlink /proc/1/ns/mnt > /dev/null; cat /proc/1/comm").await, "init");
    let mounts = sh(client, "cat /proc/mounts").await;
    for mount in [
        "/dev/vda / ext4 rw,noatime",
        "/proc proc",
        "/sys sysfs",
        "/dev devtmpfs",
        "/dev/pts devpts",
        "/dev/shm tmpfs",
        "/run tmpfs",
        "/sys/fs/cgroup cgroup2",
    ] {
        assert!(mounts.contains(mount), "{mount} in\n{mounts}");
    }
    assert_eq!(
        sh(client, "pwd; id -u; echo $HOME $USER $LANG; cat /proc/self/oom_score_adj; nice; umask").await,
        "/root\n0\n/root root C.UTF-8\n0\n0\n0022"
    );
    assert!(sh(client, "cat /proc/self/cgroup").await.starts_with("0::/user/"));
    assert!(sh(client, "cat /proc/net/route").await.contains("eth0"), "a default route");
    assert!(sh(client, "cat /proc/net/fib_trie").await.contains("172.30.0.2"));
    let stats = client.stats().await.unwrap();
    assert!(stats.disk.total_bytes > 0 && stats.cpu.count == 1, "{stats:?}");
}

async fn check_identity(machine: &Machine) {
    let (client, applied) =
        GuestClient::connect_with_identity(machine.dial().await, identity(1), STEP).await.unwrap();
    eprintln!("identity: {} us in the guest, warnings {:?}", applied.elapsed_us, applied.warnings);
    assert!(applied.warnings.is_empty());
    assert_eq!(
        sh(&client, "hostname; cat /etc/machine-id; cat /run/pandastack/generation").await,
        "panda-1\n0123456789abcdef0123456789abcdef\n1"
    );
    let there: u64 = sh(&client, "date +%s").await.parse().unwrap();
    let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(here.abs_diff(there) <= 2, "clock: {there} there, {here} here");
    // An outbound connection (to an address that never answers) is reset, a local one is not.
    let stuck = client.start(ProcessSpec::argv(["python3", "-c", CONNECTIONS])).await.unwrap();
    let begun = Instant::now();
    while !client.read_file_whole("/tmp/ready", 10).await.is_ok_and(|ready| &ready[..] == b"ready") {
        assert!(begun.elapsed() < STEP, "python did not get ready");
    }
    let applied = client.set_identity(identity(2)).await.unwrap();
    assert!(applied.warnings.is_empty(), "{applied:?}");
    let output = client.attach(stuck.process, 0, 0).await.unwrap().collect(1 << 20).await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "outside reset\ninside alive\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listed = client.list("/run/pandastack").await.unwrap();
    assert_eq!(listed.len(), 3, "{listed:?}");
}

/// A port without a peer is always "readable"; the program must wait all the same.
async fn check_idle_without_host(machine: &Machine) {
    let ticks = async |client: GuestClient| -> u64 {
        let stat = client.read_file_whole("/proc/1/stat", 4096).await.unwrap();
        let stat = String::from_utf8_lossy(&stat).into_owned();
        stat.split(' ').skip(13).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    };
    let before = ticks(machine.connect().await).await;
    // The test measures time itself: a spinning program would use most of it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = ticks(machine.connect().await).await - before;
    assert!(used < 50, "{used} of 200 ticks were used with no host connected");
}

const CONNECTIONS: &str = r"
import socket, select, errno
server = socket.create_server(('127.0.0.1', 0))
inside = socket.create_connection(server.getsockname())
peer, _ = server.accept()
outside = socket.socket()
outside.setblocking(False)
outside.connect_ex(('172.30.0.1', 80))
open('/tmp/ready', 'w').write('ready')
select.select([], [outside], [], 30)
code = outside.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
print('outside reset' if code == errno.ECONNABORTED else f'outside {code}', flush=True)
inside.sendall(b'x')
print('inside alive' if peer.recv(1) == b'x' else 'inside dead', flush=True)
";

async fn check_processes(client: &GuestClient) {
    let mut as_user = ProcessSpec::shell("id -un; pwd; echo $HOME");
    as_user.user = Some("user".to_owned());
    match client.exec(as_user).await {
        Ok(stream) => {
            assert_eq!(&stream.collect(1000).await.unwrap().stdout[..], b"user\n/home/user\n/home/user\n")
        }
        Err(error) => assert_eq!(error.refusal(), Some(ErrorCode::NotFound), "{error}"),
    }
    let mut timeout = ProcessSpec::shell("setsid sleep 1000 & sleep 1000");
    timeout.timeout_ms = Some(300);
    assert!(run(client, timeout).await.exit.timed_out);
    let mut limited = ProcessSpec::argv(["python3", "-c", "x = bytearray(200 << 20)"]);
    limited.limits.memory_bytes_max = Some(64 << 20);
    assert_eq!(run(client, limited).await.exit.signal, Some(9), "a process over its memory limit is killed");
    let deadline = Instant::now() + STEP;
    while sh(client, "ls -d /sys/fs/cgroup/user/*/ | wc -l").await != "1" {
        assert!(Instant::now() < deadline, "control groups of ended processes stay");
    }
}

async fn check_gate(client: &GuestClient) {
    sh(client, "touch /tmp/counter").await;
    let counter = client.start(ProcessSpec::shell("while :; do echo x; done > /tmp/counter")).await.unwrap();
    let quiesced = median_ms(10, async || {
        client.quiesce(false).await.unwrap();
        let before = client.stat("/tmp/counter", false).await.unwrap().size;
        client.ping().await.unwrap();
        assert_eq!(client.stat("/tmp/counter", false).await.unwrap().size, before);
        client.thaw().await.unwrap();
    })
    .await;
    client.quiesce(true).await.unwrap();
    client.set_identity(identity(3)).await.unwrap();
    let mut in_guest = Vec::new();
    let identity_ms = median_ms(30, async || {
        in_guest.push(client.set_identity(identity(4)).await.unwrap().elapsed_us);
    })
    .await;
    in_guest.sort_unstable();
    eprintln!("warm identity: {identity_ms:.2} ms, {} us of it in the guest", in_guest[15]);
    client.signal(counter.process, 9).await.unwrap();
    eprintln!("quiesce + 3 calls + thaw: {quiesced:.2} ms");
}

async fn report_latency(client: &GuestClient) {
    let ping = median_ms(200, async || client.ping().await.map(drop).unwrap()).await;
    let argv = median_ms(60, async || drop(run(client, ProcessSpec::argv(["/bin/true"])).await)).await;
    let shell = median_ms(60, async || drop(run(client, ProcessSpec::shell("true")).await)).await;
    let own = sh(client, "s=$(date +%s%N); for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do /bin/true; done; e=$(date +%s%N); echo $(( (e-s)/20000 ))").await;
    let python = median_ms(5, async || drop(sh(client, "python3 -c 'print(2 ** 10)'").await)).await;
    let content = vec![7; 32 << 20];
    let begun = Instant::now();
    let write = pandastack_guest_proto::message::FileWrite { path: "/tmp/big".into(), ..Default::default() };
    client.write_file_whole(write, &content).await.unwrap();
    let up = 32.0 / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    assert!(client.read_file_whole("/tmp/big", 64 << 20).await.unwrap() == content);
    let down = 32.0 / begun.elapsed().as_secs_f64();
    eprintln!(
        "ping {ping:.2} ms, exec argv true {argv:.2} ms, exec sh true {shell:.2} ms, the guest shell's own fork+exec {own} us, python {python:.0} ms"
    );
    eprintln!("upload {up:.0} MiB/s, download {down:.0} MiB/s");
}

async fn check_under_load(client: &GuestClient) {
    let mut hogs = Vec::new();
    for _ in 0..8 {
        hogs.push(client.start(ProcessSpec::shell("while :; do :; done")).await.unwrap());
    }
    let ping = median_ms(100, async || client.ping().await.map(drop).unwrap()).await;
    let exec = median_ms(10, async || drop(run(client, ProcessSpec::argv(["/bin/true"])).await)).await;
    eprintln!("beside 8 busy loops: ping {ping:.2} ms, exec {exec:.2} ms");
    assert!(ping < 100.0, "a busy guest still answers");
    for hog in hogs {
        client.signal(hog.process, 9).await.unwrap();
    }
    let bomb = client.start(ProcessSpec::shell("bomb() { bomb | bomb & }; bomb")).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        client.ping().await.unwrap();
    }
    client.signal(bomb.process, 9).await.unwrap();
    assert_eq!(sh(client, "echo alive").await, "alive");
}
