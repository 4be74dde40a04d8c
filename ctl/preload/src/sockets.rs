//! `NETLINK_GENERIC` sockets, which are Unix sockets in truth.
//!
//! Such a socket is bound to an abstract name with a prefix of ours, by which a program that was started by another one knows it again.
//! It is connected when something is first sent by it, and anew if the daemon has been restarted meanwhile. If there is no daemon
//! it is connected to nobody, with the answer of a kernel without IPVS waiting in it.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::{msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};

use crate::files::write_setting;
use crate::link::{close_quietly, has_our_name, name, nobody, reach, renew};
use crate::sys::{self, errno, fail, set_errno};
use crate::table::{self, Netlink, What};

/// IPVS's old interface, by options of any IPv4 socket, is not there: `IP_VS_BASE_CTL` and as many as there ever were.
const OLD_OPTIONS: std::ops::Range<c_int> = 1152..1216;

const NL_LEN: socklen_t = size_of::<sockaddr_nl>() as socklen_t;

/// The socket that a descriptor is, if it is one of ours.
fn ours(fd: c_int) -> Option<Arc<Netlink>> {
    match table::look_up(fd)? {
        What::Netlink(socket) if has_our_name(fd) => Some(socket),
        What::Netlink(_) => {
            // closed behind our back, and now something else
            table::remove(fd);
            None
        }
        What::Setting(_) => None,
    }
}

/// `socket(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let plain = kind & !flags;
    if domain != libc::AF_NETLINK
        || protocol != libc::NETLINK_GENERIC
        || !matches!(plain, libc::SOCK_RAW | libc::SOCK_DGRAM)
    {
        // SAFETY: no pointers.
        return unsafe { sys::socket(domain, kind, protocol) };
    }
    let socket = Arc::new(Netlink {
        port: AtomicU32::new(0),
        kind: AtomicI32::new(plain),
        connected: AtomicBool::new(false),
    });
    // SAFETY: no pointers.
    let fd = unsafe { sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | flags, 0) };
    if fd < 0 {
        return fd;
    }
    if !name(fd) || !table::add(fd, What::Netlink(socket)) {
        close_quietly(fd);
        return fail(libc::EMFILE);
    }
    fd
}

/// Writes a netlink address to where a C function was told to, cut to the room that is there.
///
/// # Safety
/// `len` is null or valid, and then `to` is null or valid for `*len` bytes.
unsafe fn put_address(port: u32, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    // SAFETY: zeros are a value of this struct of numbers.
    let mut at: sockaddr_nl = unsafe { std::mem::zeroed() };
    at.nl_family = libc::AF_NETLINK as u16;
    at.nl_pid = port;
    // SAFETY: the caller vouches for it.
    let room = unsafe { *len }.min(NL_LEN) as usize;
    // SAFETY: source and target are valid for `room` bytes and apart.
    unsafe { std::ptr::copy_nonoverlapping((&raw const at).cast::<u8>(), to.cast::<u8>(), room) };
    // SAFETY: the caller vouches for it.
    unsafe { *len = NL_LEN };
}

/// The socket's port, given now if it has none.
fn port_of(socket: &Netlink) -> u32 {
    let own = std::process::id();
    match socket.port.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => own,
        Err(port) => port,
    }
}

/// `bind(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let Some(socket) = ours(fd) else {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::bind(fd, addr, len) };
    };
    if addr.is_null() || len < NL_LEN {
        return fail(libc::EINVAL);
    }
    // SAFETY: there are that many bytes, by the caller's word; they need not be aligned.
    let at = unsafe { addr.cast::<sockaddr_nl>().read_unaligned() };
    if c_int::from(at.nl_family) != libc::AF_NETLINK {
        return fail(libc::EINVAL);
    }
    match at.nl_pid {
        0 => drop(port_of(&socket)),
        port => socket.port.store(port, Ordering::Relaxed),
    }
    0
}

/// `connect(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    match ours(fd) {
        // to the kernel, where everything is sent anyway
        Some(_) => 0,
        // SAFETY: the caller's own arguments.
        None => unsafe { sys::connect(fd, addr, len) },
    }
}

/// `getsockname(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(socket) = ours(fd) else {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::getsockname(fd, addr, len) };
    };
    // SAFETY: as the caller must give them.
    unsafe { put_address(socket.port.load(Ordering::Relaxed), addr, len) };
    0
}

/// `getpeername(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if ours(fd).is_none() {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::getpeername(fd, addr, len) };
    }
    // SAFETY: as the caller must give them.
    unsafe { put_address(0, addr, len) };
    0
}

/// `setsockopt(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == libc::IPPROTO_IP && OLD_OPTIONS.contains(&name) {
        return fail(libc::ENOPROTOOPT);
    }
    if level == libc::SOL_NETLINK && ours(fd).is_some() {
        return 0;
    }
    // SAFETY: the caller's own arguments.
    unsafe { sys::setsockopt(fd, level, name, value, len) }
}

/// `getsockopt(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if level == libc::IPPROTO_IP && OLD_OPTIONS.contains(&name) {
        return fail(libc::ENOPROTOOPT);
    }
    let wanted = level == libc::SOL_NETLINK
        || level == libc::SOL_SOCKET && matches!(name, libc::SO_TYPE | libc::SO_DOMAIN | libc::SO_PROTOCOL);
    let Some(socket) = wanted.then(|| ours(fd)).flatten() else {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::getsockopt(fd, level, name, value, len) };
    };
    let answer = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_TYPE) => socket.kind.load(Ordering::Relaxed),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_NETLINK,
        (libc::SOL_SOCKET, _) => libc::NETLINK_GENERIC,
        _ => 0,
    };
    if value.is_null() || len.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: not null, and as the caller must give it.
    let room = (unsafe { *len } as usize).min(size_of::<c_int>());
    // SAFETY: the value has that much room, by the caller's word.
    unsafe { std::ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), value.cast::<u8>(), room) };
    // SAFETY: as above.
    unsafe { *len = room as socklen_t };
    0
}

/// Sends a datagram, by `send`, to the daemon. `bytes` gives what it is, should there be none.
fn send_to_daemon(
    fd: c_int,
    socket: &Arc<Netlink>,
    bytes: impl Fn() -> Vec<u8>,
    send: impl Fn() -> ssize_t,
) -> ssize_t {
    port_of(socket);
    for _ in 0..3 {
        if !socket.connected.load(Ordering::Relaxed) {
            if let Err(e) = reach(fd) {
                let request = bytes();
                if !nobody(socket, &request, e) {
                    return fail(libc::ENOBUFS) as ssize_t;
                }
                return ssize_t::try_from(request.len()).unwrap_or(ssize_t::MAX);
            }
            socket.connected.store(true, Ordering::Relaxed);
        }
        let sent = send();
        if sent >= 0
            || !matches!(errno(), libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN | libc::ECONNREFUSED)
        {
            return sent;
        }
        if !renew(socket) {
            return fail(libc::ENOBUFS) as ssize_t;
        }
    }
    fail(libc::ECONNREFUSED) as ssize_t
}

/// The bytes of a message's buffers, one behind the other.
///
/// # Safety
/// As `sendmsg(2)` wants it.
unsafe fn gather(msg: &msghdr) -> Vec<u8> {
    let mut all = Vec::new();
    for n in 0..msg.msg_iovlen {
        // SAFETY: there are that many buffers, by the caller's word.
        let at = unsafe { msg.msg_iov.add(n) };
        // SAFETY: as above.
        let one = unsafe { at.read() };
        if !one.iov_base.is_null() {
            // SAFETY: the buffer has that length, by the caller's word.
            all.extend_from_slice(unsafe {
                std::slice::from_raw_parts(one.iov_base.cast::<u8>(), one.iov_len)
            });
        }
    }
    all
}

/// `sendmsg(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    let (Some(socket), false) = (ours(fd), msg.is_null()) else {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::sendmsg(fd, msg, flags) };
    };
    // SAFETY: not null, and as the caller must give it.
    let mut plain = unsafe { msg.read() };
    // a netlink address and credentials, which a Unix socket would not take
    plain.msg_name = std::ptr::null_mut();
    plain.msg_namelen = 0;
    plain.msg_control = std::ptr::null_mut();
    plain.msg_controllen = 0;
    send_to_daemon(
        fd,
        &socket,
        // SAFETY: the caller's message.
        || unsafe { gather(&plain) },
        // SAFETY: the caller's message without its address.
        || unsafe { sys::sendmsg(fd, &raw const plain, flags | libc::MSG_NOSIGNAL) },
    )
}

/// # Safety
/// As `send(2)`.
unsafe fn send_bytes(
    fd: c_int,
    socket: &Arc<Netlink>,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let bytes = || {
        if buf.is_null() {
            return Vec::new();
        }
        // SAFETY: the buffer has that length, by the caller's word.
        unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.to_vec()
    };
    send_to_daemon(fd, socket, bytes, || {
        // SAFETY: the caller's buffer; there is no address.
        unsafe { sys::sendto(fd, buf, len, flags | libc::MSG_NOSIGNAL, std::ptr::null(), 0) }
    })
}

/// `sendto(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    match ours(fd) {
        // SAFETY: the caller's own arguments.
        Some(socket) => unsafe { send_bytes(fd, &socket, buf, len, flags) },
        // SAFETY: the caller's own arguments.
        None => unsafe { sys::sendto(fd, buf, len, flags, addr, addr_len) },
    }
}

/// `send(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's own arguments; without an address it is the same.
    unsafe { sendto(fd, buf, len, flags, std::ptr::null(), 0) }
}

/// `write(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    match table::look_up(fd) {
        Some(What::Setting(name)) if !buf.is_null() => {
            // SAFETY: the buffer has that length, by the caller's word.
            write_setting(&name, unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) })
        }
        Some(What::Netlink(_)) => match ours(fd) {
            // SAFETY: the caller's own arguments.
            Some(socket) => unsafe { send_bytes(fd, &socket, buf, len, 0) },
            // SAFETY: the caller's own arguments.
            None => unsafe { sys::write(fd, buf, len) },
        },
        // SAFETY: the caller's own arguments.
        _ => unsafe { sys::write(fd, buf, len) },
    }
}

/// What became of receiving: nothing at all is the end of a daemon that owed an answer; and before anything was sent there is nothing.
fn received(got: ssize_t) -> ssize_t {
    if got == 0 {
        return fail(libc::ECONNRESET) as ssize_t;
    }
    if got < 0 && matches!(errno(), libc::ENOTCONN | libc::EINVAL) {
        set_errno(libc::EAGAIN);
    }
    got
}

/// `recvmsg(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    if msg.is_null() || ours(fd).is_none() {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::recvmsg(fd, msg, flags) };
    }
    // SAFETY: not null, and as the caller must give it.
    let msg = unsafe { &mut *msg };
    let (name, mut name_len) = (msg.msg_name, msg.msg_namelen);
    msg.msg_name = std::ptr::null_mut();
    msg.msg_namelen = 0;
    // SAFETY: the caller's message without its address.
    let got = received(unsafe { sys::recvmsg(fd, msg, flags) });
    msg.msg_name = name;
    if got >= 0 && !name.is_null() {
        // SAFETY: the caller gives as much room as it says.
        unsafe { put_address(0, name.cast(), &raw mut name_len) };
    }
    msg.msg_namelen = if name.is_null() { 0 } else { name_len };
    got
}

/// `recvfrom(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    if ours(fd).is_none() {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::recvfrom(fd, buf, len, flags, addr, addr_len) };
    }
    // SAFETY: the caller's buffer; no address is asked for.
    let got =
        received(unsafe { sys::recvfrom(fd, buf, len, flags, std::ptr::null_mut(), std::ptr::null_mut()) });
    if got >= 0 {
        // SAFETY: as the caller must give them.
        unsafe { put_address(0, addr, addr_len) };
    }
    got
}

/// `recv(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's own arguments; without an address it is the same.
    unsafe { recvfrom(fd, buf, len, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// `recv(2)` where a program is compiled with `_FORTIFY_SOURCE`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's own arguments, and no more than there is room for.
    unsafe { recv(fd, buf, len.min(room), flags) }
}

/// `recvfrom(2)` where a program is compiled with `_FORTIFY_SOURCE`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's own arguments, and no more than there is room for.
    unsafe { recvfrom(fd, buf, len.min(room), flags, addr, addr_len) }
}

/// `close(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    table::remove(fd);
    // SAFETY: no pointers.
    unsafe { sys::close(fd) }
}

/// `close_range(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        table::remove_range(first, last);
    }
    // SAFETY: no pointers.
    unsafe { sys::close_range(first, last, flags) }
}

/// Keeps track of a copy.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from {
        match table::look_up(from) {
            Some(what) => drop(table::add(to, what)),
            None => table::remove(to),
        }
    }
    to
}

/// `dup(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    copied(fd, unsafe { sys::dup(fd) })
}

/// `dup2(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: no pointers.
    copied(from, unsafe { sys::dup2(from, to) })
}

/// `dup3(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    copied(from, unsafe { sys::dup3(from, to, flags) })
}

macro_rules! fcntls {
    ($($name:ident),*) => {$(
        /// `fcntl(2)`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, what: c_int, arg: usize) -> c_int {
            // SAFETY: the caller's own arguments.
            let got = unsafe { sys::fcntl(fd, what, arg) };
            if matches!(what, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { copied(fd, got) } else { got }
        }
    )*};
}

fcntls!(fcntl, fcntl64);

/// Knows sockets again that the program before this one has left open.
pub(crate) fn inherit() {
    /// Programs that leave a socket open for the next one do so among the first numbers.
    const FIRST: c_int = 256;
    for fd in 0..FIRST {
        if has_our_name(fd) {
            let socket = Netlink {
                port: AtomicU32::new(std::process::id()),
                kind: AtomicI32::new(libc::SOCK_RAW),
                connected: AtomicBool::new(true),
            };
            table::add(fd, What::Netlink(Arc::new(socket)));
        }
    }
}
