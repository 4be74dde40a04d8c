//! The Unix sockets behind netlink sockets: how they are named, connected, and replaced.

use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{sockaddr_un, socklen_t};

use crate::socket_path;
use crate::sys::{self, errno, set_errno};
use crate::table::{self, Netlink};

/// What the abstract names of our sockets begin with.
const PREFIX: &[u8] = b"\0lvsd-preload/";
const NLMSG_ERROR: u16 = 2;
/// Bytes of a netlink message's header.
const HEADER: usize = 16;

const fn empty_un() -> sockaddr_un {
    sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] }
}

/// An address with a path or abstract name, and its length; none if it is too long.
fn unix_address(name: &[u8]) -> Option<(sockaddr_un, socklen_t)> {
    let mut at = empty_un();
    // a path ends with a zero byte
    let room = at.sun_path.get_mut(..name.len()).filter(|_| name.len() < 108)?;
    for (to, byte) in room.iter_mut().zip(name) {
        *to = *byte as libc::c_char;
    }
    let extra = usize::from(name.first() != Some(&0));
    let len = size_of::<libc::sa_family_t>() + name.len() + extra;
    Some((at, len as socklen_t))
}

pub(crate) fn has_our_name(fd: c_int) -> bool {
    let mut at = empty_un();
    let mut len = size_of::<sockaddr_un>() as socklen_t;
    // SAFETY: the address has the length that is given.
    let got = unsafe { sys::getsockname(fd, (&raw mut at).cast(), &raw mut len) };
    let name = at.sun_path.iter().map(|c| *c as u8);
    got == 0
        && c_int::from(at.sun_family) == libc::AF_UNIX
        && name.take(PREFIX.len()).eq(PREFIX.iter().copied())
}

/// Gives a socket a name of ours.
pub(crate) fn name(fd: c_int) -> bool {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..8 {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = [PREFIX, format!("{:x}-{n:x}-{fd:x}", std::process::id()).as_bytes()].concat();
        let Some((at, len)) = unix_address(&name) else { return false };
        // SAFETY: the address has the length that is given.
        if unsafe { sys::bind(fd, (&raw const at).cast(), len) } == 0 {
            return true;
        }
        if errno() != libc::EADDRINUSE {
            return false;
        }
    }
    false
}

pub(crate) fn close_quietly(fd: c_int) {
    let before = errno();
    // SAFETY: the descriptor is ours, and not used after this.
    unsafe { sys::close(fd) };
    set_errno(before);
}

/// Puts another socket in the place of ours, behind all its descriptors, and closes `with`.
fn replace(socket: &Arc<Netlink>, with: c_int) {
    for fd in table::copies(socket) {
        // SAFETY: no pointers.
        let cloexec = unsafe { sys::fcntl(fd, libc::F_GETFD, 0) } & libc::FD_CLOEXEC != 0;
        // SAFETY: no pointers.
        let status = unsafe { sys::fcntl(fd, libc::F_GETFL, 0) };
        if status >= 0 && status & libc::O_NONBLOCK != 0 {
            // SAFETY: no pointers.
            unsafe { sys::fcntl(with, libc::F_SETFL, libc::O_NONBLOCK as usize) };
        }
        // SAFETY: no pointers; `fd` is a socket of ours.
        unsafe { sys::dup3(with, fd, if cloexec { libc::O_CLOEXEC } else { 0 }) };
    }
    close_quietly(with);
}

/// A fresh socket in the place of one whose daemon is gone.
pub(crate) fn renew(socket: &Arc<Netlink>) -> bool {
    socket.connected.store(false, Ordering::Relaxed);
    // SAFETY: no pointers.
    let fresh = unsafe { sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fresh < 0 || !name(fresh) {
        return false;
    }
    replace(socket, fresh);
    true
}

/// Connects to the daemon, or says why it cannot.
pub(crate) fn reach(fd: c_int) -> Result<(), c_int> {
    /// How often, and for how many microseconds it is waited, where the daemon has no room for another connection.
    const TRIES: u32 = 200;
    const PAUSE: libc::useconds_t = 10_000;
    let Some((at, len)) = unix_address(socket_path().as_os_str().as_bytes()) else {
        return Err(libc::ENOENT);
    };
    for _ in 0..TRIES {
        // SAFETY: the address has the length that is given.
        if unsafe { sys::connect(fd, (&raw const at).cast(), len) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EISCONN => return Ok(()),
            libc::EINTR => {}
            libc::EAGAIN => {
                // SAFETY: no pointers.
                unsafe { libc::usleep(PAUSE) };
            }
            libc::EACCES | libc::EPERM => return Err(libc::EPERM),
            _ => return Err(libc::ENOENT),
        }
    }
    Err(libc::ENOENT)
}

/// The answers of a kernel that refuses every message of a datagram.
fn refusals(request: &[u8], errno: c_int) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    let mut rest = request;
    while let Some((header, _)) = rest.split_first_chunk::<HEADER>() {
        let [a, b, c, d, ..] = *header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        if len < HEADER || len > rest.len() {
            break;
        }
        let mut answer = Vec::with_capacity(36);
        answer.extend(36u32.to_ne_bytes());
        answer.extend(NLMSG_ERROR.to_ne_bytes());
        answer.extend(0u16.to_ne_bytes());
        answer.extend(header.get(8..).unwrap_or_default());
        answer.extend((-errno).to_ne_bytes());
        answer.extend(header);
        answers.push(answer);
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    answers
}

/// Connects a socket to nobody, who has answered already.
pub(crate) fn nobody(socket: &Arc<Netlink>, request: &[u8], errno: c_int) -> bool {
    let mut pair = [0; 2];
    // SAFETY: there is room for two descriptors.
    let made = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr())
    };
    if made != 0 {
        return false;
    }
    let [kept, other] = pair;
    let named = name(kept);
    for answer in refusals(request, errno) {
        // SAFETY: the buffer has this length; there is no address.
        unsafe {
            sys::sendto(other, answer.as_ptr().cast(), answer.len(), libc::MSG_NOSIGNAL, std::ptr::null(), 0)
        };
    }
    // what is sent later finds the other end gone, and looks for a daemon again
    close_quietly(other);
    replace(socket, kept);
    socket.connected.store(true, Ordering::Relaxed);
    named
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn every_message_of_a_datagram_is_refused() {
        let message = |seq: u8, len: u8| {
            let mut m = vec![len, 0, 0, 0, 16, 0, 5, 0, seq, 0, 0, 0, 9, 0, 0, 0];
            m.resize(usize::from(len).next_multiple_of(4), 7);
            m
        };
        let all = refusals(&[message(1, 18), message(2, 16)].concat(), libc::ENOENT);
        assert_eq!(all.len(), 2);
        for (answer, seq) in all.iter().zip([1, 2]) {
            assert_eq!(answer.len(), 36);
            assert_eq!(answer[..4], 36u32.to_ne_bytes());
            assert_eq!(answer[4..6], NLMSG_ERROR.to_ne_bytes());
            assert_eq!((answer[8], answer[12]), (seq, 9), "sequence number and port");
            assert_eq!(answer[16..20], (-libc::ENOENT).to_ne_bytes());
            assert_eq!(answer[28], seq, "the request's header");
        }
        assert!(refusals(&[1; 15], libc::ENOENT).is_empty());
        assert!(refusals(&[255; 64], libc::ENOENT).is_empty(), "a length that is not there");
        assert!(refusals(&[0; 64], libc::ENOENT).is_empty());
    }

    #[test]
    fn addresses_have_the_length_of_their_name() {
        let (at, len) = unix_address(b"/run/x").unwrap_or((empty_un(), 0));
        assert_eq!((at.sun_path[5] as u8, len), (b'x', 2 + 6 + 1));
        let (_, len) = unix_address(b"\0ab").unwrap_or((empty_un(), 0));
        assert_eq!(len, 2 + 3);
        assert!(unix_address(&[b'a'; 107]).is_some() && unix_address(&[b'a'; 108]).is_none());
    }
}
