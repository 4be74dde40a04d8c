//! Making packet sockets.

use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::ring::{RingShape, RxRing};
use crate::io::SetupError;

const CAPABILITY: &str = "CAP_NET_RAW and CAP_NET_ADMIN";
/// Socket buffer of the sending sockets: room for 128 super-packets.
const SEND_BUFFER: libc::c_int = 8 << 20;

/// A worker's sockets on one interface.
pub(super) struct PortSockets {
    pub(super) rx: RxRing,
    pub(super) tx: OwnedFd,
    pub(super) back: OwnedFd,
}

/// All workers' sockets on one interface, and a descriptor of one of them to ask about the interface.
pub(super) struct PortSet {
    pub(super) sockets: Vec<PortSockets>,
    pub(super) probe: OwnedFd,
}

/// What a [`PortSet`] is made from.
pub(super) struct PortPlan<'a> {
    pub(super) name: &'a str,
    pub(super) index: u32,
    pub(super) mtu: u32,
    pub(super) workers: usize,
    pub(super) ring: RingShape,
    pub(super) filter: BorrowedFd<'a>,
    pub(super) magic: u32,
}

impl PortPlan<'_> {
    pub(super) fn make(&self) -> Result<PortSet, SetupError> {
        let mut sockets = Vec::with_capacity(self.workers);
        let mut group = None;
        for _ in 0..self.workers {
            let rx = self.receiver(&mut group)?;
            let tx = self.sender(false)?;
            let back = self.sender(true)?;
            sockets.push(PortSockets { rx, tx, back });
        }
        // only now, when each frame goes to one of them alone
        for s in &sockets {
            option(s.rx.fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &self.filter.as_raw_fd())
                .map_err(|e| self.error("attaching the socket filter", e))?;
        }
        let first = sockets.first().ok_or(SetupError::Workers(0))?;
        let probe = first.rx.fd().try_clone_to_owned().map_err(|e| self.error("duplicating a socket", e))?;
        Ok(PortSet { sockets, probe })
    }

    fn error(&self, what: &str, e: io::Error) -> SetupError {
        match e.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => SetupError::NoSuchInterface(self.name.into()),
            _ => SetupError::os(format!("interface {}: {what}", self.name), CAPABILITY, e),
        }
    }

    fn receiver(&self, group: &mut Option<u16>) -> Result<RxRing, SetupError> {
        let fd = packet_socket().map_err(|e| self.error("opening a packet socket", e))?;
        let set = |name, value: libc::c_int, what: &str| {
            option(fd.as_fd(), libc::SOL_PACKET, name, &value).map_err(|e| self.error(what, e))
        };
        shut(fd.as_fd()).map_err(|e| self.error("attaching a socket filter", e))?;
        set(libc::PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING")?;
        set(libc::PACKET_VNET_HDR, 1, "PACKET_VNET_HDR")?;
        let ring = RxRing::new(fd, self.ring, self.mtu)
            .map_err(|e| self.error(&format!("making a receive ring for {} frames", self.ring.frames), e))?;
        bind(ring.fd(), self.index, libc::ETH_P_ALL as u16)
            .map_err(|e| self.error("binding a packet socket", e))?;
        if self.workers > 1 {
            join(ring.fd(), group).map_err(|e| self.error("PACKET_FANOUT", e))?;
        }
        Ok(ring)
    }

    /// A socket to send by; with `back`, with the mark that turns the frame round at the egress hook. Not with
    /// `PACKET_QDISC_BYPASS`: past the queueing layer the kernel drops a super-packet that the device cannot segment.
    fn sender(&self, back: bool) -> Result<OwnedFd, SetupError> {
        let fd = packet_socket().map_err(|e| self.error("opening a packet socket", e))?;
        let on: libc::c_int = 1;
        option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)
            .map_err(|e| self.error("PACKET_VNET_HDR", e))?;
        option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)
            .map_err(|e| self.error("SO_SNDBUFFORCE", e))?;
        if back {
            option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &self.magic)
                .map_err(|e| self.error("SO_MARK", e))?;
        }
        // protocol 0: it receives nothing
        bind(fd.as_fd(), self.index, 0).map_err(|e| self.error("binding a packet socket", e))?;
        Ok(fd)
    }
}

/// Opens a packet socket that receives nothing yet.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers in it.
    let fd = unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is plain data.
pub(super) fn option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of the value.
    let r =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a socket option into plain data.
pub(super) fn read_option<T: Copy>(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes of the value, for which every bit pattern is one.
    let r = unsafe { libc::getsockopt(fd, level, name, std::ptr::from_mut(value).cast(), &raw mut length) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A classic filter that lets nothing in, until the real one comes.
fn shut(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut nothing = libc::sock_filter { code: 0x06 /* BPF_RET | BPF_K */, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

pub(super) fn bind(fd: BorrowedFd<'_>, index: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address of the length given.
    let r = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The interface that a packet socket is bound to; `None` when that has gone.
pub(super) fn bound_to(fd: BorrowedFd<'_>) -> Option<u32> {
    let mut address = libc::sockaddr_ll {
        sll_family: 0,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes of the address.
    let r = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    (r == 0).then(|| u32::try_from(address.sll_ifindex).ok()).flatten().filter(|&i| i != 0)
}

/// Joins the fanout group; the first socket has the kernel choose a free one.
fn join(fd: BorrowedFd<'_>, group: &mut Option<u16>) -> io::Result<()> {
    let kind = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    let argument = match *group {
        Some(id) => u32::from(id) | kind << 16,
        None => (kind | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
    };
    option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
    if group.is_none() {
        let mut chosen = 0u32;
        read_option(fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &mut chosen)?;
        *group = Some(chosen as u16);
    }
    Ok(())
}
