//! The proxy of one slot: web connections pass if their host name is allowed.
//!
//! The proxy listens inside the slot's namespace, where the rules redirect connections to it. It connects
//! from there to the guest's original destination, so the host's rules apply to it as to the guest. The
//! slot's rule for outgoing packets does not, so the proxy also checks whether the guest may reach the
//! address, and again when the policy changes.
//!
//! Only the name in a TLS hello or in a connection's first HTTP request is read; later bytes pass
//! unread. A server of an allowed name at a shared address can also serve another name there; that
//! is the business of the name's owner.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pandastack_types::chain;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::denial::Denial;
use super::hello::{self, Hello};
use super::limits::ACCEPT_PAUSE;
use super::registry::Registry;
use super::slot_names::SlotNames;
use crate::blocking::blocking;
use crate::error::{NetError, Result};
use crate::namespace::NetNs;
use crate::ruleset::PROXY_PORT;

/// Longest time for a server to accept.
const CONNECT_WAIT: Duration = Duration::from_secs(30);

/// Listens, and serves until the slot is forgotten.
pub(super) async fn start(registry: &Arc<Registry>, slot: &Arc<SlotNames>) -> Result<()> {
    let path = registry.namespace(slot);
    let listener = blocking(move || {
        let listen = || {
            let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PROXY_PORT))?;
            listener.set_nonblocking(true)?;
            io::Result::Ok(listener)
        };
        NetNs::open(&path)?.run(|| listen().map_err(NetError::io("starting the proxy of a slot", &path)))
    })
    .await?;
    let listener = TcpListener::from_std(listener)
        .map_err(NetError::io("starting the proxy of a slot", registry.namespace(slot)))?;
    registry.tasks.spawn(serve(Arc::downgrade(registry), Arc::clone(slot), listener));
    Ok(())
}

async fn serve(registry: Weak<Registry>, slot: Arc<SlotNames>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = slot.stop.cancelled() => return,
        };
        let Ok((guest, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(registry) = registry.upgrade() else { return };
        let Ok(permit) = Arc::clone(&slot.proxied).try_acquire_owned() else { continue };
        let slot = Arc::clone(&slot);
        registry.tasks.clone().spawn(async move {
            let _permit = permit;
            let stop = slot.stop.clone();
            tokio::select! {
                passed = pass(&registry, &slot, guest) => {
                    if let Err(error) = passed {
                        tracing::debug!(
                            slot = %slot.index, error = %chain(&error),
                            "a connection through the proxy ended"
                        );
                    }
                }
                () = stop.cancelled() => {}
            }
        });
    }
}

async fn pass(registry: &Arc<Registry>, slot: &Arc<SlotNames>, mut guest: TcpStream) -> io::Result<()> {
    let to = original_destination(&guest)?;
    let mut policy = slot.policy.subscribe();
    let Hello { bytes, name } = hello::read(&mut guest, to.port()).await?;
    let permitted = |name: Option<&str>| slot.policy().permits(name, to, &registry.plan.ceiling);
    if !permitted(name.as_deref()) {
        let (address, port) = (Some(*to.ip()), Some(to.port()));
        registry.report(Denial {
            slot: slot.index,
            protocol: "tcp".to_owned(),
            address,
            port,
            name,
            limit: None,
        });
        // A reset: the guest's program fails now, not when it has waited for an answer.
        return guest.set_zero_linger();
    }
    let mut server = connect(registry, slot, to).await?;
    server.write_all(&bytes).await?;
    let copied = tokio::io::copy_bidirectional(&mut guest, &mut server);
    tokio::pin!(copied);
    loop {
        tokio::select! {
            ended = &mut copied => return ended.map(drop),
            changed = policy.changed() => {
                if changed.is_err() || !permitted(name.as_deref()) {
                    return Ok(());
                }
            }
        }
    }
}

/// The guest's destination before the redirect.
fn original_destination(guest: &TcpStream) -> io::Result<SocketAddrV4> {
    Ok(rustix::net::sockopt::ip_original_dst(guest)?)
}

/// Connects from inside the slot's namespace: a socket belongs to the namespace in which it was
/// created.
async fn connect(registry: &Registry, slot: &SlotNames, to: SocketAddrV4) -> io::Result<TcpStream> {
    let path = registry.namespace(slot);
    let made = blocking(move || {
        NetNs::open(&path)?
            .run(|| TcpSocket::new_v4().map_err(NetError::io("making a socket in a slot", &path)))
    });
    let socket = made.await.map_err(io::Error::other)?;
    timeout(CONNECT_WAIT, socket.connect(SocketAddr::V4(to))).await?
}
