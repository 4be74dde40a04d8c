//! The control socket: making it, and its packets.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, chmod, chown, flock, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    recv, send, socket_with,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

use super::{ControlError, parent};

/// The listening socket; its file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, so that only our own is removed.
    id: (u64, u64),
    /// Whether a group was let in: then the file's mode decides alone.
    pub(super) group: bool,
}

/// How long another daemon that is just starting on the same socket is waited for.
const TURN: Duration = Duration::from_secs(2);

impl ControlSocket {
    /// Whether [`ControlSocket::bind`] would find the place free, so that a second daemon ends before it touches anything.
    ///
    /// # Errors
    /// [`ControlError::InUse`], [`ControlError::NotASocket`], [`ControlError::Socket`].
    pub fn check(path: &Path) -> Result<(), ControlError> {
        let fail =
            |what| move |e: Errno| ControlError::Socket { path: path.to_owned(), what, source: e.into() };
        let addr = SocketAddrUnix::new(path).map_err(fail("is no path for a socket (at most 107 bytes)"))?;
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => is_left_over(path, &addr),
            Ok(_) => Err(ControlError::NotASocket(path.to_owned())),
            Err(_) => Ok(()),
        }
    }

    /// Makes the socket: mode 0600, or with a group 0660 and that group. A file that a killed daemon left is replaced.
    ///
    /// # Errors
    /// [`ControlError::InUse`], [`ControlError::NotASocket`], [`ControlError::NoGroup`], [`ControlError::Socket`].
    pub fn bind(path: &Path, group: Option<&str>) -> Result<Self, ControlError> {
        let gid = group.map(find_group).transpose()?;
        let fail =
            |what| move |e: Errno| ControlError::Socket { path: path.to_owned(), what, source: e.into() };
        let addr = SocketAddrUnix::new(path).map_err(fail("is no path for a socket (at most 107 bytes)"))?;
        // Two daemons that start at the same time must not both take the file for a left-over.
        let _turn = take_turn(parent(path)).map_err(fail("can't open its directory"))?;
        let fd = seqpacket().map_err(fail("can't make a socket"))?;
        match bind(&fd, &addr) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                let meta = fs::symlink_metadata(path).map_err(|source| ControlError::Socket {
                    path: path.to_owned(),
                    what: "can't look at it",
                    source,
                })?;
                if !meta.file_type().is_socket() {
                    return Err(ControlError::NotASocket(path.to_owned()));
                }
                is_left_over(path, &addr)?;
                match rustix::fs::unlink(path) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(e) => return Err(fail("can't remove what a stopped daemon left")(e)),
                }
                bind(&fd, &addr).map_err(fail("can't bind"))?;
            }
            Err(e) => return Err(fail("can't bind")(e)),
        }
        let meta = fs::symlink_metadata(path).map_err(|e| ControlError::Socket {
            path: path.to_owned(),
            what: "can't look at it",
            source: e,
        })?;
        // From here on the file is ours to remove. Nobody can connect before `listen`.
        let this = Self { fd, path: path.to_owned(), id: (meta.dev(), meta.ino()), group: gid.is_some() };
        if let Some(gid) = gid {
            chown(path, None, Some(gid)).map_err(fail("can't give it to the group"))?;
        }
        let mode = if gid.is_some() { Mode::from_raw_mode(0o660) } else { Mode::from_raw_mode(0o600) };
        chmod(path, mode).map_err(fail("can't set its mode"))?;
        listen(&this.fd, 64).map_err(fail("can't listen"))?;
        Ok(this)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes clients in by way of the runtime's poller.
    pub(super) fn listener(&self) -> io::Result<UnixListener> {
        UnixListener::from_std(self.fd.try_clone()?.into())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.id);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Whether nobody listens on a socket's file any more.
fn is_left_over(path: &Path, addr: &SocketAddrUnix) -> Result<(), ControlError> {
    let probe = seqpacket().map_err(|e| ControlError::Socket {
        path: path.to_owned(),
        what: "can't make a socket",
        source: e.into(),
    })?;
    match connect(&probe, addr) {
        // Refused, or gone meanwhile: nobody listens. All else (even a full queue) is a living server.
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        _ => Err(ControlError::InUse(path.to_owned())),
    }
}

/// Locks a directory for as long as the result lives. Where it stays locked by somebody else, we go on without.
fn take_turn(dir: &Path) -> Result<OwnedFd, Errno> {
    let fd = open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let end = Instant::now() + TURN;
    while flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(fd)
}

/// A group's number by name, from `/etc/group`, or the number itself.
fn find_group(name: &str) -> Result<Gid, ControlError> {
    if let Ok(gid) = name.parse() {
        return Ok(Gid::from_raw(gid));
    }
    let text = fs::read_to_string("/etc/group").unwrap_or_default();
    let gid = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? == name { fields.nth(1)?.parse().ok() } else { None }
    });
    gid.map(Gid::from_raw).ok_or_else(|| ControlError::NoGroup(name.to_owned()))
}

/// A client's connection. Tokio knows streams only, but polls and owns this socket just as well.
pub(super) struct Packets(UnixStream);

impl Packets {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// User number of the process that connected.
    pub(super) fn peer_uid(&self) -> io::Result<u32> {
        self.0.peer_cred().map(|c| c.uid())
    }

    /// The next datagram's length, which may exceed `buf`; 0 when the client has left.
    pub(super) async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut once = || retry_on_intr(|| recv(&self.0, &mut *buf, RecvFlags::TRUNC)).map(|(_, len)| len);
        self.0.async_io(Interest::READABLE, || Ok(once()?)).await
    }

    pub(super) async fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let once = || retry_on_intr(|| send(&self.0, datagram, SendFlags::NOSIGNAL));
        self.0.async_io(Interest::WRITABLE, || Ok(once()?)).await?;
        Ok(())
    }
}
