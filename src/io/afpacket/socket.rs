//! Making the receiving packet sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::ring::{RingShape, RxRing};
use crate::io::SetupError;
use crate::io::rings::socket::{SendPair, bind, option, packet_socket, read_option, socket_error};

/// A worker's sockets on one interface.
pub(super) struct PortSockets {
    pub(super) rx: RxRing,
    pub(super) send: SendPair,
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
            let send = SendPair::new(self.name, self.index, self.magic)?;
            sockets.push(PortSockets { rx, send });
        }
        // only now, when each frame goes to one of them alone
        for s in &sockets {
            option(s.rx.fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &self.filter.as_raw_fd())
                .map_err(|e| self.error(filtering(&e), e))?;
        }
        let first = sockets.first().ok_or(SetupError::Workers(0))?;
        let probe = first.rx.fd().try_clone_to_owned().map_err(|e| self.error("duplicating a socket", e))?;
        Ok(PortSet { sockets, probe })
    }

    fn error(&self, what: &str, e: io::Error) -> SetupError {
        socket_error(self.name, what, e)
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
}

/// What failed where a program cannot become the socket's filter.
fn filtering(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::ENOMEM) => "attaching the socket filter, for which net.core.optmem_max may be too low",
        _ => "attaching the socket filter",
    }
}

/// A classic filter that lets nothing in, until the real one comes.
fn shut(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut nothing = libc::sock_filter { code: 0x06 /* BPF_RET | BPF_K */, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
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
