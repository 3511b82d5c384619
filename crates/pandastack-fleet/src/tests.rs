//! Real listeners and real handshakes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use jiff::Timestamp;
use pandastack_types::HostId;
use pandastack_types::host_identity::{HostIdentity, HostRole};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::tls::to_unjoined_control;
use crate::{
    Authority, CredentialFile, Credentials, Dialer, HostTls, KeyRequest, LinkListener, LinkPolicy,
    LinkStream, Memberships, Peer, SigningRequest,
};

/// Longest wait for anything here.
const PATIENCE: Duration = Duration::from_secs(20);
const LIFE: Duration = Duration::from_secs(3600);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn authority() -> Authority {
    let (key, certificate) = Authority::generate().unwrap();
    Authority::open(&key, &certificate).unwrap()
}

fn identity(role: HostRole, host: &str, membership: u32) -> HostIdentity {
    HostIdentity { role, host: host.parse().unwrap(), membership }
}

fn credentials(authority: &Authority, identity: &HostIdentity) -> Credentials {
    let key = KeyRequest::generate().unwrap();
    let request = SigningRequest::parse(key.request()).unwrap();
    let certificate = authority.issue(&request, identity, LIFE).unwrap();
    key.with(&certificate, &authority.certificate_pem()).unwrap()
}

fn tls(authority: &Authority, role: HostRole, host: &str, membership: u32) -> HostTls {
    HostTls::new(credentials(authority, &identity(role, host, membership))).unwrap()
}

struct Policy {
    acceptor: TlsAcceptor,
    plain: bool,
    memberships: Arc<Memberships>,
}

impl LinkPolicy for Policy {
    fn tls(&self) -> Option<TlsAcceptor> {
        Some(self.acceptor.clone())
    }

    fn allows_plain(&self) -> bool {
        self.plain
    }

    fn memberships(&self) -> &Arc<Memberships> {
        &self.memberships
    }
}

/// A server that answers with who called it.
async fn serve(tls: &HostTls, memberships: &Arc<Memberships>, plain: bool) -> SocketAddr {
    let (acceptor, memberships) = (tls.acceptor().unwrap(), Arc::clone(memberships));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = LinkListener::new(listener, Arc::new(Policy { acceptor, plain, memberships })).unwrap();
    let who = async |ConnectInfo(peer): ConnectInfo<Peer>| match peer {
        Peer::Member(_, identity) => identity.to_string(),
        Peer::Stranger(_) => "stranger".to_owned(),
        Peer::Plain(_) => "plain".to_owned(),
        Peer::Local => "local".to_owned(),
    };
    let router = Router::new().route("/", get(who)).into_make_service_with_connect_info::<Peer>();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn ask(stream: &mut LinkStream) -> std::io::Result<String> {
    stream.write_all(REQUEST).await?;
    let mut answer = vec![0; 4096];
    let count = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
}

async fn dial(
    from: &HostTls,
    members: &Arc<Memberships>,
    host: &str,
    to: SocketAddr,
) -> std::io::Result<LinkStream> {
    let dialer = Dialer::new(from.clone(), Arc::clone(members));
    let dialer = dialer.to(&host.parse().unwrap()).unwrap();
    dialer.shake_hands(TcpStream::connect(to).await?).await
}

/// Control and the agent of `host-a`, which knows the edge `edge-a`.
struct World {
    authority: Authority,
    control: HostTls,
    agent: SocketAddr,
    edges: Arc<Memberships>,
    hosts: Arc<Memberships>,
}

async fn world() -> World {
    let authority = authority();
    let (edges, hosts): (Arc<Memberships>, Arc<Memberships>) = Default::default();
    edges.set(&identity(HostRole::Edge, "edge-a", 1));
    hosts.set(&identity(HostRole::Agent, "host-a", 1));
    let agent = serve(&tls(&authority, HostRole::Agent, "host-a", 1), &edges, false).await;
    World { control: tls(&authority, HostRole::Control, "control-a", 0), authority, agent, edges, hosts }
}

#[tokio::test]
async fn both_sides_know_each_other() {
    let World { authority, control, agent, hosts, .. } = world().await;
    let mut stream = dial(&control, &hosts, "host-a", agent).await.unwrap();
    assert!(ask(&mut stream).await.unwrap().ends_with("pandastack://control/control-a/0"));
    let edge = tls(&authority, HostRole::Edge, "edge-a", 1);
    let mut stream = dial(&edge, &hosts, "host-a", agent).await.unwrap();
    assert!(ask(&mut stream).await.unwrap().ends_with("pandastack://edge/edge-a/1"));
}

#[tokio::test]
async fn a_stolen_host_key_is_no_other_host() {
    let World { authority, control, agent, hosts, .. } = world().await;
    // As a server: `host-b` stands at the address of `host-a`.
    let thief = serve(&tls(&authority, HostRole::Agent, "host-b", 1), &Arc::default(), false).await;
    assert!(dial(&control, &hosts, "host-a", thief).await.is_err());
    // With the certificate of an earlier membership, or as an edge of the same id.
    let old = serve(&tls(&authority, HostRole::Agent, "host-a", 2), &Arc::default(), false).await;
    assert!(dial(&control, &hosts, "host-a", old).await.is_err());
    let edge = serve(&tls(&authority, HostRole::Edge, "host-a", 1), &Arc::default(), false).await;
    assert!(dial(&control, &hosts, "host-a", edge).await.is_err());
    // As a client of another agent: agents let in control and the edges that they know.
    for (role, host, membership) in
        [(HostRole::Agent, "host-b", 1), (HostRole::Edge, "edge-b", 1), (HostRole::Edge, "edge-a", 2)]
    {
        let client = tls(&authority, role, host, membership);
        let refused = async { ask(&mut dial(&client, &hosts, "host-a", agent).await?).await };
        assert!(refused.await.map_or(true, |answer| answer.is_empty()), "{role} {host} {membership}");
    }
}

#[tokio::test]
async fn another_authority_proves_nothing() {
    let World { control, agent, hosts, .. } = world().await;
    let other = authority();
    let forged = tls(&other, HostRole::Control, "control-a", 0);
    let refused = async { ask(&mut dial(&forged, &hosts, "host-a", agent).await?).await };
    assert!(refused.await.map_or(true, |answer| answer.is_empty()));
    let agent = serve(&tls(&other, HostRole::Agent, "host-a", 1), &Arc::default(), false).await;
    assert!(dial(&control, &hosts, "host-a", agent).await.is_err());
}

#[tokio::test]
async fn a_removed_host_is_cut_and_refused() {
    let World { authority, control, agent, edges, hosts } = world().await;
    let edge = tls(&authority, HostRole::Edge, "edge-a", 1);
    let mut as_client = dial(&edge, &Arc::clone(&hosts), "host-a", agent).await.unwrap();
    assert!(ask(&mut as_client).await.unwrap().contains("200 OK"));
    assert!(edges.is_connected(&"edge-a".parse::<HostId>().unwrap()));
    edges.remove(&"edge-a".parse().unwrap());
    // The server's side ends, without a request.
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, as_client.read_to_end(&mut rest)).await.unwrap();
    assert!(ended.is_err() || rest.is_empty());
    assert!(!edges.is_connected(&"edge-a".parse::<HostId>().unwrap()));
    let again = async { ask(&mut dial(&edge, &hosts, "host-a", agent).await?).await };
    assert!(again.await.map_or(true, |answer| answer.is_empty()));

    // The client's side, too: a call that waits for an answer ends.
    let mut as_server = dial(&control, &hosts, "host-a", agent).await.unwrap();
    assert!(ask(&mut as_server).await.unwrap().contains("200 OK"));
    let waiting = tokio::spawn(async move {
        let mut buffer = [0; 1];
        as_server.read(&mut buffer).await
    });
    hosts.remove(&"host-a".parse().unwrap());
    let ended = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
    assert!(dial(&control, &hosts, "host-a", agent).await.is_err());
    // The same id joins again: the old certificate stays refused.
    hosts.set(&identity(HostRole::Agent, "host-a", 2));
    assert!(dial(&control, &hosts, "host-a", agent).await.is_err());
}

#[tokio::test]
async fn a_host_that_joins_recognizes_the_authority() {
    let authority = authority();
    let control = tls(&authority, HostRole::Control, "control-a", 0);
    let address = serve(&control, &Arc::default(), false).await;
    let get = async |fingerprint, address: SocketAddr| {
        let builder = reqwest::Client::builder().http1_only().no_proxy();
        let client = builder.tls_backend_preconfigured(to_unjoined_control(fingerprint).unwrap());
        let answer = client.build().unwrap().get(format!("https://{address}/")).send().await?;
        answer.text().await
    };
    assert_eq!(get(authority.fingerprint(), address).await.unwrap(), "stranger");
    assert!(get(self::authority().fingerprint(), address).await.is_err());
    // Another host of the same installation is not control.
    let agent = serve(&tls(&authority, HostRole::Agent, "host-a", 1), &Arc::default(), false).await;
    assert!(get(authority.fingerprint(), agent).await.is_err());
}

#[tokio::test]
async fn plain_connections_are_let_in_by_policy_only() {
    let authority = authority();
    let control = tls(&authority, HostRole::Control, "control-a", 0);
    for (plain, expect) in [(true, true), (false, false)] {
        let address = serve(&control, &Arc::default(), plain).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap_or(0);
        let answer = String::from_utf8_lossy(&answer[..count]);
        assert_eq!(
            (answer.ends_with("\r\n\r\nplain"), answer.contains("401 Unauthorized")),
            (expect, !expect)
        );
    }
}

#[tokio::test]
async fn a_silent_client_delays_no_other() {
    let World { control, agent, hosts, .. } = world().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(agent).await.unwrap());
    }
    let quick = tokio::time::timeout(Duration::from_secs(5), dial(&control, &hosts, "host-a", agent)).await;
    assert!(ask(&mut quick.unwrap().unwrap()).await.unwrap().contains("200 OK"));
}

#[tokio::test]
async fn replaced_credentials_are_used_by_new_connections() {
    let authority = authority();
    let members: Arc<Memberships> = Arc::default();
    members.set(&identity(HostRole::Agent, "host-a", 1));
    let control = tls(&authority, HostRole::Control, "control-a", 0);
    let address = serve(&control, &members, false).await;
    let host = tls(&authority, HostRole::Agent, "host-a", 1);
    let client = reqwest::Client::builder().http1_only().no_proxy().pool_max_idle_per_host(0);
    let client = client.tls_backend_preconfigured(host.to_control().unwrap()).build().unwrap();
    let who = async || client.get(format!("https://{address}/")).send().await?.text().await;
    assert_eq!(who().await.unwrap(), "pandastack://agent/host-a/1");
    members.set(&identity(HostRole::Agent, "host-a", 2));
    assert!(who().await.is_err());
    host.replace(credentials(&authority, &identity(HostRole::Agent, "host-a", 2)));
    assert_eq!(who().await.unwrap(), "pandastack://agent/host-a/2");
}

#[test]
fn credentials_are_kept_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = CredentialFile::of(dir.path());
    assert!(file.read().unwrap().is_none());
    let made =
        credentials(&authority(), &identity(HostRole::Agent, "host-a", 3)).joined_with(Some("pdsj_12345678"));
    file.write(&made).unwrap();
    assert_eq!(std::fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let read = file.read().unwrap().unwrap();
    assert_eq!((read.identity(), read.token()), (made.identity(), Some("pdsj_12345678")));
    assert_eq!(read.authority(), made.authority());
    assert!(!format!("{read:?}").contains("PRIVATE"));
    std::fs::write(file.path(), "{}").unwrap();
    assert!(file.read().is_err());
}

#[test]
fn a_certificate_is_renewed_before_its_end() {
    let made = credentials(&authority(), &identity(HostRole::Agent, "host-a", 1));
    let wait = made.renew_in(Timestamp::now());
    assert!(wait > LIFE / 2 && wait < LIFE * 3 / 4, "{wait:?}");
    assert!(!made.has_expired(Timestamp::now()));
    assert!(made.has_expired(Timestamp::now() + LIFE + Duration::from_secs(1)));
    assert_eq!(made.renew_in(Timestamp::now() + LIFE), Duration::ZERO);
}

#[test]
fn requests_for_certificates_are_checked() {
    let key = KeyRequest::generate().unwrap();
    let good = key.request().to_owned();
    assert!(SigningRequest::parse(&good).is_ok());
    // One digit of the signature, at the end of the content.
    let at = good.rfind("\n-----END").unwrap() - 6;
    let mut bad = good.clone().into_bytes();
    bad[at] = if bad[at] == b'A' { b'B' } else { b'A' };
    for wrong in [
        String::from_utf8(bad).unwrap(),
        String::new(),
        "x".repeat(5000),
        good.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
        good[..good.len() / 2].to_owned(),
    ] {
        assert!(SigningRequest::parse(&wrong).is_err(), "{wrong}");
    }
}
