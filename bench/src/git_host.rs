//! A repository host for pushes and for fetches by build machines: smart HTTP by git's own `git
//! http-backend`.
//!
//! ```text
//!   this host                                 a namespace of its own
//!   build machines -- forwarded --+
//!                                 pdbench-git ==== git   192.88.99.2:8418   bare repository
//!   git push ---------------------+ 192.88.99.1
//! ```
//!
//! Build machines cannot reach this host's own addresses, so the server listens on an address in a
//! separate network namespace. The namespace has no name: only the listening socket holds it, so it
//! disappears when this program ends, even if it is killed. The link is removed on drop, because
//! the kernel delays its removal while connections are open; a link left by a killed run is
//! replaced.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use nix::sched::{CloneFlags, unshare};
use rustix::process::Pid;
use rustix::thread::gettid;
use tokio::io::AsyncWriteExt;
use tokio_util::task::AbortOnDropHandle;

use crate::git_push::{git, git_command};

/// Addresses of the two ends of the link. Machines reach public addresses only, which excludes the
/// ranges reserved for documentation and benchmarks. This range belonged to 6to4 relays and is
/// deprecated (RFC 7526), so it hides no real server.
const HERE: Ipv4Addr = Ipv4Addr::new(192, 88, 99, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(192, 88, 99, 2);
const PREFIX_BITS: u8 = 30;
const PORT: u16 = 8418;
/// Names of both ends.
const LINK: &str = "pdbench-git";
const LINK_THERE: &str = "git";
/// The repository, below the served directory.
const REPOSITORY: &str = "app.git";
/// Bytes of a request: a push without packages is far smaller.
const BODY_BYTES_MAX: usize = 64 << 20;

/// A host that serves one repository until it is dropped.
pub struct GitHost {
    _server: AbortOnDropHandle<()>,
    _link: Link,
    _root: tempfile::TempDir,
}

impl GitHost {
    /// Starts it with an empty repository.
    pub async fn start() -> Result<Self> {
        let root = tempfile::tempdir().context("make a directory for the repository")?;
        let repository = root.path().join(REPOSITORY);
        std::fs::create_dir(&repository)?;
        git(&repository, &["init", "--quiet", "--bare", "--initial-branch=main"]).await?;
        // The address is reachable only from this host, so pushes need no credentials.
        git(&repository, &["config", "http.receivepack", "true"]).await?;
        let (link, listener) = Link::make()?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let router = Router::new().fallback(serve).with_state(Arc::from(root.path()));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the repository's host ended: {error}");
            }
        });
        Ok(Self { _server: AbortOnDropHandle::new(server), _link: link, _root: root })
    }

    /// Address of the repository.
    pub fn url(&self) -> String {
        format!("http://{THERE}:{PORT}/{REPOSITORY}")
    }
}

/// The way to the namespace.
struct Link;

impl Link {
    /// Makes it, and a listener at its far end.
    fn make() -> Result<(Self, TcpListener)> {
        // Usually no link is left over.
        let _ = ip(&["link", "delete", LINK]);
        let here = gettid();
        let there = std::thread::spawn(move || listen_beyond(here)).join();
        // Created here, so that a partial setup is removed too.
        let link = Self;
        let listener = there.map_err(|_| anyhow!("the thread in the namespace panicked"))??;
        ip(&["address", "add", &format!("{HERE}/{PREFIX_BITS}"), "dev", LINK])?;
        ip(&["link", "set", LINK, "up"])?;
        Ok((link, listener))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = ip(&["link", "delete", LINK]);
    }
}

/// Moves the calling thread into a new network namespace, links it to the namespace of process
/// `here`, and listens there. The socket stays in the namespace after the thread ends.
fn listen_beyond(here: Pid) -> Result<TcpListener> {
    unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace; this needs root")?;
    let here = here.as_raw_nonzero().to_string();
    ip(&["link", "add", LINK_THERE, "type", "veth", "peer", "name", LINK, "netns", &here])?;
    ip(&["address", "add", &format!("{THERE}/{PREFIX_BITS}"), "dev", LINK_THERE])?;
    ip(&["link", "set", LINK_THERE, "up"])?;
    TcpListener::bind((THERE, PORT)).with_context(|| format!("listen on {THERE}:{PORT}"))
}

fn ip(words: &[&str]) -> Result<()> {
    let output = std::process::Command::new("ip").args(words).output().context("start `ip`")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {}`: {}", words.join(" "), error.trim());
    Ok(())
}

async fn serve(State(root): State<Arc<Path>>, request: Request) -> Response {
    answer(&root, request).await.unwrap_or_else(|error| {
        eprintln!("the repository's host failed: {error:#}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
}

/// Hands a request to git's program, as RFC 3875 has it.
async fn answer(root: &Path, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES_MAX).await.context("read a request")?;
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut backend = git_command(root);
    backend
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"));
    let backend = backend.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = backend.spawn().context("start `git http-backend`")?;
    let mut stdin = child.stdin.take().context("`git http-backend` has no input")?;
    // Feed it concurrently: it may answer before it has read everything. If it stops reading, its
    // response has the reason.
    let feed = async move { drop(stdin.write_all(&body).await) };
    let ((), output) = futures::future::join(feed, child.wait_with_output()).await;
    let output = output.context("wait for `git http-backend`")?;
    ensure!(output.status.success(), "`git http-backend` ended with {}", output.status);
    response(&output.stdout)
}

/// Converts the output of a CGI program to a response.
fn response(printed: &[u8]) -> Result<Response> {
    const BLANK: &[u8] = b"\r\n\r\n";
    let end = printed.windows(BLANK.len()).position(|bytes| bytes == BLANK);
    let (head, body) = printed.split_at(end.context("`git http-backend` printed no headers")?);
    let mut response = Response::builder();
    for line in std::str::from_utf8(head)?.lines() {
        let (name, value) = line.split_once(": ").with_context(|| format!("not a header: {line}"))?;
        response = match name {
            "Status" => response.status(value.split(' ').next().unwrap_or_default()),
            _ => response.header(name, value),
        };
    }
    Ok(response.body(Body::from(body[BLANK.len()..].to_vec()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git_push::WorkTree;

    #[test]
    fn machines_reach_its_address() {
        assert!(pandastack_types::network::is_public(THERE));
    }

    #[tokio::test]
    async fn what_a_cgi_program_prints_is_an_answer() {
        let plain =
            response(b"Content-Type: text/plain\r\nExpires: Fri, 01 Jan 1980\r\n\r\na\r\n\r\nb").unwrap();
        assert_eq!(plain.status(), StatusCode::OK);
        assert_eq!(plain.headers()["content-type"], "text/plain");
        assert_eq!(to_bytes(plain.into_body(), 100).await.unwrap(), "a\r\n\r\nb");
        let refused = response(b"Status: 403 Forbidden\r\nPragma: no-cache\r\n\r\n").unwrap();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert!(response(b"Content-Type: text/plain").is_err());
    }

    /// In a namespace that represents the host.
    #[test]
    fn what_is_pushed_can_be_fetched_and_nothing_is_left() {
        if !rustix::process::geteuid().is_root() || ip(&["-V"]).is_err() {
            return eprintln!("skipped: git_host: needs root and the program ip to make network namespaces");
        }
        let inside = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ip(&["link", "add", LINK, "type", "veth", "peer", "name", "left"]).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(push_and_fetch());
            ip(&["link", "show", LINK]).unwrap_err();
        });
        inside.join().unwrap();
    }

    async fn push_and_fetch() {
        let host = GitHost::start().await.unwrap();
        let (source, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = WorkTree::begin(source.path(), &host.url()).await.unwrap();
        let mut pushed = Vec::new();
        for text in ["one", "two"] {
            std::fs::write(source.path().join("page"), text).unwrap();
            std::fs::write(source.path().join("beside"), text).unwrap();
            pushed.push(tree.commit(&["page"]).await.unwrap());
            tree.push().await.unwrap();
        }
        // As a build machine does: by the commit's id, without history.
        git(copy.path(), &["init", "--quiet"]).await.unwrap();
        for (commit, text) in pushed.iter().zip(["one", "two"]) {
            git(copy.path(), &["fetch", "--quiet", "--depth=1", &host.url(), commit]).await.unwrap();
            git(copy.path(), &["checkout", "--quiet", "FETCH_HEAD"]).await.unwrap();
            assert_eq!(std::fs::read_to_string(copy.path().join("page")).unwrap(), text);
            assert!(!copy.path().join("beside").exists());
        }
    }
}
