//! Socket options, and the packet sockets that frames are sent by.

use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::io::SetupError;

pub(in crate::io) const CAPABILITY: &str = "CAP_NET_RAW and CAP_NET_ADMIN";
/// Socket buffer of the sending sockets, bytes: room for 128 super-packets.
pub(in crate::io) const SEND_BUFFER: libc::c_int = 8 << 20;

/// A failure with the sockets of an interface.
pub(in crate::io) fn socket_error(name: &str, what: &str, e: io::Error) -> SetupError {
    match e.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => SetupError::NoSuchInterface(name.into()),
        _ => SetupError::os(format!("interface {name}: {what}"), CAPABILITY, e),
    }
}

/// Packet sockets to send by: out of the interface, and back into the stack.
#[derive(Debug)]
pub(in crate::io) struct SendPair {
    pub(in crate::io) tx: OwnedFd,
    pub(in crate::io) back: OwnedFd,
}

impl SendPair {
    /// For an interface; `magic` is the mark that turns a frame round at the egress hook.
    pub(in crate::io) fn new(name: &str, index: u32, magic: u32) -> Result<SendPair, SetupError> {
        Ok(SendPair { tx: sender(name, index, None)?, back: sender(name, index, Some(magic))? })
    }
}

/// A socket to send by; with `mark`, frames carry it. Not with `PACKET_QDISC_BYPASS`: past the queueing layer the kernel
/// drops a super-packet that the device cannot segment.
fn sender(name: &str, index: u32, mark: Option<u32>) -> Result<OwnedFd, SetupError> {
    let error = |what: &str, e| socket_error(name, what, e);
    let fd = packet_socket().map_err(|e| error("opening a packet socket", e))?;
    let on: libc::c_int = 1;
    option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)
        .map_err(|e| error("PACKET_VNET_HDR", e))?;
    option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)
        .map_err(|e| error("SO_SNDBUFFORCE", e))?;
    if let Some(mark) = mark {
        option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &mark).map_err(|e| error("SO_MARK", e))?;
    }
    // protocol 0: it receives nothing
    bind(fd.as_fd(), index, 0).map_err(|e| error("binding a packet socket", e))?;
    Ok(fd)
}

/// Opens a packet socket that receives nothing yet.
pub(in crate::io) fn packet_socket() -> io::Result<OwnedFd> {
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
pub(in crate::io) fn option<T: Copy>(
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
pub(in crate::io) fn read_option<T: Copy>(
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

pub(in crate::io) fn bind(fd: BorrowedFd<'_>, index: u32, protocol: u16) -> io::Result<()> {
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
pub(in crate::io) fn bound_to(fd: BorrowedFd<'_>) -> Option<u32> {
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
