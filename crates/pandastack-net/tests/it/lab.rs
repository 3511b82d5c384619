//! A host and an internet simulated by namespaces.

use std::fs::File;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};
use nix::sched::{CloneFlags, setns, unshare};
use pandastack_net::{Cidr, NetConfig, NetworkPolicy};

/// Longest a test waits for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The host's address on its uplink.
pub const HOST_UPLINK: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 1);
/// A public server.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
/// A server of the operator's private network, which also resolves names.
pub const PRIVATE_SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 53);
/// The cloud's metadata service.
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Port of every server.
pub const PORT: u16 = 7000;

/// Runs a test in a separate namespace, or prints why it is skipped.
pub fn in_lab<F: Future<Output = ()>>(name: &str, test: impl FnOnce(PathBuf) -> F + Send) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: {name}: needs root to make network namespaces");
        return;
    }
    if Command::new("ip").arg("-V").output().is_err() || Command::new("nft").arg("-v").output().is_err() {
        eprintln!("skipped: {name}: needs the programs ip and nft to build the lab");
        return;
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            sh("ip link set lo up");
            let directory = Scratch(tempfile::tempdir().unwrap());
            // Threads start in their parent's namespace. The resolver's threads must not wait for
            // the test's.
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(test(directory.0.path().to_owned()));
        });
    });
}

/// A directory that unmounts its namespaces even if the test fails.
struct Scratch(tempfile::TempDir);

impl Drop for Scratch {
    fn drop(&mut self) {
        let netns = self.0.path().join("netns");
        if let Ok(entries) = std::fs::read_dir(&netns) {
            for path in entries.flatten().map(|entry| entry.path()).chain([netns]) {
                let _ = nix::mount::umount2(&path, nix::mount::MntFlags::MNT_DETACH);
            }
        }
    }
}

/// A policy as people write it.
pub fn policy(json: &str) -> NetworkPolicy {
    serde_json::from_str(json).unwrap()
}

/// Small pool for tests; the host's own subnet may be anything.
pub fn config(directory: &Path) -> NetConfig {
    let mut config = NetConfig::new(directory);
    config.name_prefix = "lab".to_owned();
    config.subnet = Cidr::literal([10, 201, 0, 0], 16);
    config.ready_target = 4;
    config.reachable_private = vec![Cidr::literal([192, 168, 77, 0], 24)];
    config.resolver = Some((PRIVATE_SERVER, 53).into());
    config
}

/// Runs a command line in the calling thread's namespace.
pub fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for a condition.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not reached: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Packet that arrived at a server: the server's address, the payload, and the sender.
pub type Arrival = (Ipv4Addr, String, SocketAddrV4);

/// The namespace behind the host's uplink, with servers that echo and report received packets.
pub struct Internet {
    namespace: File,
    arrivals: mpsc::Receiver<Arrival>,
}

impl Internet {
    /// Connects a new namespace to the calling thread's and starts the servers.
    pub fn connect() -> Self {
        let (opened, opening) = mpsc::channel();
        let (arrived, arrivals) = mpsc::channel();
        let (go, ready) = mpsc::channel::<()>();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            opened.send(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
            ready.recv().unwrap();
            for (address, port) in [(SERVER, PORT), (PRIVATE_SERVER, PORT), (METADATA, PORT)] {
                serve(address, port, arrived.clone());
            }
            serve_names(arrived.clone());
            take_connections(SERVER, PORT);
            opened.send(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        });
        let namespace = opening.recv().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&namespace);
        let pid = std::process::id();
        sh(&format!("ip link add uplink type veth peer name world netns /proc/{pid}/fd/{fd}"));
        sh(&format!("ip addr add {HOST_UPLINK}/24 dev uplink && ip link set uplink up"));
        sh(&format!("ip route add default via {SERVER} && ip route add {METADATA} via {SERVER}"));
        in_namespace(&namespace, || {
            sh("ip link set lo up && ip link set world up");
            sh(&format!("ip addr add {SERVER}/24 dev world && ip addr add {PRIVATE_SERVER}/24 dev world"));
            sh(&format!("ip addr add {METADATA}/32 dev world"));
            sh(&format!("ip route add 10.201.0.0/16 via {HOST_UPLINK}"));
        });
        // The link came up before its peer, so it drops packets until the kernel checks it again.
        let deadline = Instant::now() + PATIENCE;
        while !sh("ip -o link show uplink").contains("state UP") {
            assert!(Instant::now() < deadline, "the lab's uplink does not come up");
        }
        go.send(()).unwrap();
        opening.recv().unwrap();
        Internet { namespace, arrivals }
    }

    /// Everything that has arrived so far.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.try_iter().collect()
    }

    /// Sends a datagram from the internet.
    pub fn send(&self, payload: &str, to: (Ipv4Addr, u16)) {
        in_namespace(&self.namespace, || {
            let socket = UdpSocket::bind((SERVER, 0)).unwrap();
            socket.send_to(payload.as_bytes(), to).unwrap();
        });
    }
}

/// Runs `work` on a thread inside a namespace.
pub fn in_namespace<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        inside.join().unwrap()
    })
}

/// Answers every datagram with its own content, until the test ends with the process.
fn serve(address: Ipv4Addr, port: u16, arrived: mpsc::Sender<Arrival>) {
    let socket = UdpSocket::bind((address, port)).unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, std::net::SocketAddr::V4(from))) = socket.recv_from(&mut buffer) {
            let payload = String::from_utf8_lossy(&buffer[..length]).into_owned();
            // Report before answering, so that a test that has the answer finds the report.
            if arrived.send((address, payload, from)).is_err() {
                return;
            }
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

/// Accepts TCP connections and sends nothing, until the test process ends.
fn take_connections(address: Ipv4Addr, port: u16) {
    let listener = TcpListener::bind((address, port)).unwrap();
    thread::spawn(move || {
        let mut taken = Vec::new();
        while let Ok(connection) = listener.accept() {
            taken.push(connection);
        }
    });
}

/// A name server that knows where everything is: private names at the private server, all others at
/// the public one. A query for a held name is reported, and waits until a query for a releasing
/// name arrives.
fn serve_names(arrived: mpsc::Sender<Arrival>) {
    let socket = UdpSocket::bind((PRIVATE_SERVER, 53)).unwrap();
    thread::spawn(move || {
        let (mut buffer, mut held) = ([0; 2048], Vec::new());
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut message = Message::from_vec(&buffer[..length]).unwrap();
            let name = message.queries()[0].name().clone();
            let text = name.to_ascii();
            let address = if text.contains("private") { PRIVATE_SERVER } else { SERVER };
            message.set_message_type(MessageType::Response);
            message.add_answer(Record::from_rdata(name, 300, RData::A(A(address))));
            held.push((message.to_vec().unwrap(), from));
            if text.contains("held") {
                let std::net::SocketAddr::V4(from) = from else { panic!("a query over IPv6") };
                let _ = arrived.send((PRIVATE_SERVER, text, from));
                continue;
            }
            // Usual names answer for themselves alone.
            let answered = if text.contains("release") { 0 } else { held.len() - 1 };
            for (answer, from) in held.drain(answered..) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
}
