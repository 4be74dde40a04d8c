//! Serving clients: each has a task; none waits for another.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink::{Backend, serve, serve_unprivileged};
use rustix::io::Errno;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::socket::{ControlSocket, Packets};
use super::{ControlError, Recorder};

/// A client that does not take a datagram for so long is closed.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest datagram of requests in bytes.
const REQUEST_MAX: usize = 64 * 1024;
/// Most clients at a time; further ones wait in the socket's queue.
const CLIENTS_MAX: usize = 512;

/// Serves until an error ends it; dropping the future cuts all clients off.
pub(super) async fn serve_clients(
    socket: &ControlSocket,
    backend: Arc<Recorder>,
    send_timeout: Duration,
) -> Result<(), ControlError> {
    let fail = |what, source| ControlError::Socket { path: socket.path().to_owned(), what, source };
    let listener = socket.listener().map_err(|e| fail("can't be polled", e))?;
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    let mut clients = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::CONNABORTED | Errno::INTR)) => {}
                Err(e) if lacks_resources(&e) => {
                    warn!("can't take a client in: {e}");
                    // The client stays in the queue; without a pause this would spin.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(e) => return Err(fail("can't accept clients", e)),
            }
        };
        while clients.try_join_next().is_some() {}
        let backend = backend.clone();
        let anyone = socket.group;
        clients.spawn(async move {
            match client(Packets::new(stream), &*backend, anyone, send_timeout).await {
                Ok(()) => debug!("client left"),
                Err(e) => debug!("client closed: {e}"),
            }
            drop(place);
        });
    }
}

fn lacks_resources(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// Serves one client until it leaves. `anyone`: whoever could open the socket may administer.
async fn client(
    packets: Packets,
    backend: &dyn Backend,
    anyone: bool,
    send_timeout: Duration,
) -> io::Result<()> {
    let uid = packets.peer_uid()?;
    let admin = anyone || uid == 0 || uid == rustix::process::geteuid().as_raw();
    if !admin {
        debug!("user {uid} may not administer");
    }
    let mut buf = vec![0; REQUEST_MAX];
    loop {
        let len = packets.recv(&mut buf).await?;
        if len == 0 {
            return Ok(());
        }
        let Some(datagram) = buf.get(..len) else {
            warn!("client closed: a request of {len} bytes, more than {REQUEST_MAX}");
            return Err(io::ErrorKind::InvalidData.into());
        };
        let replies = if admin { serve(backend, datagram) } else { serve_unprivileged(backend, datagram) };
        for reply in replies {
            match timeout(send_timeout, packets.send(&reply)).await {
                Ok(sent) => sent?,
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
            // A long listing to a quick reader must not keep others waiting.
            tokio::task::yield_now().await;
        }
    }
}
