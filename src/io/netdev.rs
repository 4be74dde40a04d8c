//! Interfaces by name: index, kind, and the lock that keeps two directors off one interface.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::io::SetupError;

const ARPHRD_ETHER: u16 = 1;

/// The index of an interface of the calling thread's network namespace.
pub(crate) fn index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated string that lives through the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// The index, and a check that frames can be taken from the interface at all.
pub(crate) fn ethernet_index(name: &str) -> Result<u32, SetupError> {
    let index = index(name).ok_or_else(|| SetupError::NoSuchInterface(name.into()))?;
    match hardware_type(name) {
        Ok(ARPHRD_ETHER) => Ok(index),
        Ok(libc::ARPHRD_LOOPBACK) => Err(SetupError::Unsuitable(
            name.into(),
            "the loopback interface cannot carry balanced traffic; name one that clients or servers are reached by",
        )),
        Ok(_) => Err(SetupError::Unsuitable(name.into(), "not an Ethernet interface; name one that is")),
        Err(error) => {
            Err(SetupError::os(format!("interface {name}: asking for its kind"), "CAP_NET_ADMIN", error))
        }
    }
}

/// The interface's MTU in bytes.
pub(crate) fn mtu(name: &str) -> Result<u32, SetupError> {
    let failed = |e| SetupError::os(format!("interface {name}: asking for its MTU"), "CAP_NET_ADMIN", e);
    let answer = ask(name, libc::SIOCGIFMTU).map_err(failed)?;
    // SAFETY: the kernel filled this member of the union.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}

/// The interface's MAC address.
pub(crate) fn mac(name: &str) -> Result<[u8; 6], SetupError> {
    let failed =
        |e| SetupError::os(format!("interface {name}: asking for its MAC address"), "CAP_NET_ADMIN", e);
    let answer = ask(name, libc::SIOCGIFHWADDR).map_err(failed)?;
    // SAFETY: the kernel filled this member of the union.
    let bytes = unsafe { answer.ifr_ifru.ifru_hwaddr }.sa_data;
    Ok(std::array::from_fn(|i| bytes[i] as u8))
}

/// Its receive queues as the driver tells them (`ethtool -l`); `None` where it does not, as those with one queue.
pub(crate) fn queues(name: &str) -> Option<u32> {
    /// `struct ethtool_channels`: command, four limits, and the numbers of rx, tx, other and combined.
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut channels = [0u32; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    ethtool(name, channels.as_mut_ptr().cast()).ok()?;
    Some(channels[5] + channels[8]).filter(|&n| n > 0)
}

/// The driver's name; `?` where it does not tell.
pub(crate) fn driver(name: &str) -> String {
    const ETHTOOL_GDRVINFO: u32 = 3;
    // `struct ethtool_drvinfo` has 196 bytes: command, the driver's name in 32, and more
    let mut info = [0u32; 50];
    info[0] = ETHTOOL_GDRVINFO;
    if ethtool(name, info.as_mut_ptr().cast()).is_err() {
        return "?".into();
    }
    let bytes: Vec<u8> = info[1..9].iter().flat_map(|w| w.to_ne_bytes()).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One of ethtool's commands, whose structure is at `data` and as long as the command says.
fn ethtool(name: &str, data: *mut libc::c_char) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = data;
    ioctl(libc::SIOCETHTOOL as libc::Ioctl, &mut request)
}

fn hardware_type(name: &str) -> io::Result<u16> {
    let answer = ask(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: the kernel filled this member of the union.
    Ok(unsafe { answer.ifr_ifru.ifru_hwaddr }.sa_family)
}

/// One of the requests that take an interface's name and answer in the same structure.
fn ask(name: &str, what: libc::Ioctl) -> io::Result<libc::ifreq> {
    let mut data = request(name)?;
    ioctl(what, &mut data)?;
    Ok(data)
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data for which zeros are a value.
    let mut data: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.len() >= data.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in data.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(data)
}

fn ioctl(what: libc::Ioctl, data: &mut libc::ifreq) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the requests that we make read the name and write the rest of the ifreq that they are given, or what it points to.
    if unsafe { libc::ioctl(socket.as_raw_fd(), what, std::ptr::from_mut(data)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Held as long as a director works on an interface: an abstract Unix socket, which is a name of the network namespace
/// and goes with the process however it ends.
#[derive(Debug)]
pub(crate) struct PortLock {
    _socket: OwnedFd,
}

impl PortLock {
    pub(crate) fn take(name: &str, index: u32) -> Result<PortLock, SetupError> {
        let attempt = || -> rustix::io::Result<OwnedFd> {
            let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            bind(&socket, &SocketAddrUnix::new_abstract_name(format!("lvsd/port/{index}").as_bytes())?)?;
            Ok(socket)
        };
        match attempt() {
            Ok(socket) => Ok(PortLock { _socket: socket }),
            Err(rustix::io::Errno::ADDRINUSE) => Err(SetupError::InUse(name.into())),
            Err(e) => Err(SetupError::os(format!("interface {name}: locking it"), "CAP_NET_ADMIN", e.into())),
        }
    }
}
