//! Client of the preloaded library's control socket: one packet out, one packet back, descriptors both ways.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use pandastack_engine::{EngineError, Result};
use pandastack_qemu_shim::protocol::{
    CHILDREN_MAX, DESCRIPTORS_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, Reply, Request, Status,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

/// Sends a request to the library behind the socket at `path` and waits for its answer. A reply
/// with a status other than `Ok` becomes an error with a readable message.
pub(crate) async fn request(
    path: &Path,
    step: &'static str,
    request: &Request<'_>,
    fds: &[BorrowedFd<'_>],
    limit: Duration,
) -> Result<(Reply, Vec<OwnedFd>)> {
    let exchange = async {
        let mut buffer = vec![0; REQUEST_BYTES_MAX];
        let len = request.encode(&mut buffer).map_err(|_| io::Error::other("the request is too long"))?;
        let socket = connect(path)?;
        send(&socket, &buffer[..len], fds).await?;
        receive(&socket).await
    };
    let answer = timeout(limit, exchange).await;
    let answer = answer.map_err(|_| EngineError::Deadline { step, limit_ms: limit.as_millis() as u64 })?;
    let (bytes, pidfds) = answer.map_err(EngineError::io("talk to the preloaded library", path))?;
    let reply = Reply::decode(&bytes).map_err(|_| EngineError::Vmm {
        step,
        detail: "the preloaded library sent a malformed reply".to_owned(),
    })?;
    if reply.status == Status::Ok {
        return Ok((reply, pidfds));
    }
    Err(EngineError::Vmm { step, detail: describe(reply.status, reply.errno, reply.note.as_bytes()) })
}

/// A status in words.
pub(crate) fn describe(status: Status, errno: i32, note: &[u8]) -> String {
    let mut text = status.describe().to_owned();
    match (status, errno) {
        (_, 0) => {}
        (Status::StillShared, fd) => text.push_str(&format!(" (descriptor {fd})")),
        (_, errno) => text.push_str(&format!(": {}", io::Error::from_raw_os_error(errno))),
    }
    if !note.is_empty() {
        text.push_str(&format!(" ({})", String::from_utf8_lossy(note)));
    }
    text
}

fn connect(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    // SAFETY: the descriptor is owned, and stays open as long as the registration.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

async fn send(socket: &AsyncFd<OwnedFd>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = socket.async_io(Interest::WRITABLE, |socket| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    });
    sent.await.map(drop)
}

async fn receive(socket: &AsyncFd<OwnedFd>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let received = socket.async_io(Interest::READABLE, |socket| {
        let mut bytes = vec![0; REPLY_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CHILDREN_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let message = {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?
        };
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds = rights.flatten().collect();
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::other("the reply is longer than a reply can be"));
        }
        bytes.truncate(message.bytes);
        Ok((bytes, fds))
    });
    match received.await? {
        (bytes, _) if bytes.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        received => Ok(received),
    }
}
