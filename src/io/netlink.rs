//! One netlink request and its answer, for the few that are made before anything runs.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sends a whole message and returns what came back: an error's number as an error, else the message.
pub(crate) fn ask(protocol: libc::c_int, message: &[u8]) -> io::Result<Vec<u8>> {
    // SAFETY: no pointers in it.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the buffer is as long as we say.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut reply = vec![0u8; 8192];
    // SAFETY: the buffer is as long as we say. The kernel answers a request before send returns: no waiting.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), libc::MSG_DONTWAIT) };
    let Ok(got) = usize::try_from(got) else {
        return Err(io::Error::last_os_error());
    };
    reply.truncate(got);
    // nlmsgerr: the error number follows the header
    let kind = reply.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    if kind == Some(libc::NLMSG_ERROR as u16) {
        let code = reply.get(16..20).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
        if code != 0 {
            return Err(io::Error::from_raw_os_error(-code));
        }
    }
    Ok(reply)
}

/// A generic netlink request with one attribute; what comes back behind the generic header.
pub(crate) fn ask_generic(family: u16, command: u8, attribute: (u16, &[u8])) -> io::Result<Vec<u8>> {
    let (kind, value) = attribute;
    let mut message = Vec::new();
    let length = 20 + 4 + value.len();
    message.extend((length.next_multiple_of(4) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(length.next_multiple_of(4), 0);
    let reply = ask(libc::NETLINK_GENERIC, &message)?;
    Ok(reply.get(20..).unwrap_or_default().to_vec())
}

/// The value of an attribute.
pub(crate) fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(list.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(list.get(2..4)?.try_into().ok()?);
        let value = list.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        list = list.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_damage_is_not_followed() {
        let list = [6, 0, 1, 0, 9, 9, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4];
        assert_eq!(attribute(&list, 1), Some(&[9, 9][..]));
        assert_eq!(attribute(&list, 2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&list, 3), None);
        for bad in [&[][..], &[1, 0, 1, 0], &[0, 0, 2, 0], &[200, 0, 1, 0]] {
            assert_eq!(attribute(bad, 1), None, "{bad:?}");
        }
    }
}
