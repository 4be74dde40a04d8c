//! Making AF_XDP sockets (Documentation/networking/af_xdp.rst). Each registers the worker's memory by itself, rather than
//! sharing another socket's registration (`docs/afxdp.md` says why).

use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ipvs_netlink::{QueueStatus, RingLevel, Traffic};
use libc::xdp_desc;

use super::ring::Ring;
use super::umem::Area;
use crate::io::SetupError;
use crate::io::rings::socket::{SEND_BUFFER, SendPair, option, read_option};

/// Bytes before a frame for `struct xsk_tx_metadata`.
pub(super) const METADATA: usize = 24;
/// `XDP_MAX_TX_SKB_BUDGET` (kernel 6.18): frames that one system call sends in copy mode, 32 by default.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// Frames that one busy poll may take.
const BUSY_BUDGET: libc::c_int = 64;
const CAPABILITY: &str = "CAP_NET_RAW and CAP_NET_ADMIN";

/// How a socket came to work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketMode {
    /// Whether the device fills the memory itself.
    pub(super) zero_copy: bool,
    /// Whether the kernel says when it wants a system call.
    pub(super) need_wakeup: bool,
    /// Whether frames longer than a chunk come in pieces; else they are dropped.
    pub(super) pieces: bool,
    /// Whether a partial checksum may be handed on by metadata.
    pub(super) metadata: bool,
}

/// A bound socket with its rings.
#[derive(Debug)]
pub(super) struct XskSocket {
    pub(super) fd: OwnedFd,
    pub(super) mode: SocketMode,
    pub(super) rx: Ring<xdp_desc>,
    pub(super) tx: Ring<xdp_desc>,
    pub(super) fill: Ring<u64>,
    pub(super) completion: Ring<u64>,
    // registered: it must not be unmapped and used for something else while the kernel writes to it
    _area: Arc<Area>,
}

/// What others may read of a queue while its worker works.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) queue: u32,
    pub(super) worker: usize,
    pub(super) mode: String,
    /// The socket's place among all of the XDP program's.
    pub(super) place: usize,
    /// What the tier's program had given to that place when the socket was put there.
    pub(super) given_before: u64,
    /// Frames and bytes received.
    pub(super) rx: [AtomicU64; 2],
    /// Frames and bytes given to the kernel to be sent.
    pub(super) tx: [AtomicU64; 2],
    /// Used descriptors of fill, rx, tx and completion ring.
    pub(super) levels: [AtomicU32; 4],
    /// Chunks of the worker's memory that are in use, and all of them: the same for each of its queues.
    pub(super) chunks: [AtomicU32; 2],
}

impl Live {
    /// The row of `lvsctl status`, without rates and drops.
    pub(super) fn status(&self, interface: &str, ring: u32) -> QueueStatus {
        let read = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let level = |(name, used): (&str, &AtomicU32)| RingLevel {
            name: name.to_owned(),
            used: used.load(Ordering::Relaxed).into(),
            size: ring.into(),
        };
        let mut rings: Vec<_> =
            ["fill", "rx", "tx", "completion"].into_iter().zip(&self.levels).map(level).collect();
        let [used, all] = self.chunks.each_ref().map(|n| n.load(Ordering::Relaxed).into());
        rings.push(RingLevel { name: "umem".to_owned(), used, size: all });
        QueueStatus {
            interface: interface.to_owned(),
            queue: self.queue,
            attached: true,
            datapath: "afxdp".to_owned(),
            mode: self.mode.clone(),
            traffic: Traffic {
                rx_packets: read(&self.rx[0]),
                rx_bytes: read(&self.rx[1]),
                tx_packets: read(&self.tx[0]),
                tx_bytes: read(&self.tx[1]),
                ..Traffic::default()
            },
            drops: Vec::new(),
            rings,
        }
    }
}

/// What a worker must know of the interface; the supervisor keeps it true.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) mtu: AtomicU32,
    pub(super) generic: bool,
}

/// A worker's sockets on one interface: those of its queues, if any, and packet sockets.
pub(super) struct PortSockets {
    pub(super) queues: Vec<(XskSocket, Arc<Live>)>,
    pub(super) send: SendPair,
    pub(super) facts: Arc<Facts>,
}

/// What a socket is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketPlan<'a> {
    pub(super) name: &'a str,
    pub(super) index: u32,
    pub(super) queue: u32,
    /// Descriptors of each ring, a power of two.
    pub(super) ring: u32,
    /// Whether to try zero-copy.
    pub(super) zero_copy: bool,
    /// Microseconds of busy polling, 0 for none.
    pub(super) busy_poll: u32,
}

impl SocketPlan<'_> {
    /// Makes and binds a socket in the best mode that the interface has.
    pub(super) fn make(&self, area: &Arc<Area>) -> Result<XskSocket, SetupError> {
        let mut last = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        for (copy, pieces) in [
            (libc::XDP_ZEROCOPY, true),
            (libc::XDP_ZEROCOPY, false),
            (libc::XDP_COPY, true),
            (libc::XDP_COPY, false),
        ] {
            if copy == libc::XDP_ZEROCOPY && !self.zero_copy {
                continue;
            }
            match self.attempt(area, copy, pieces) {
                Ok(socket) => return Ok(socket),
                // a mode that is not to be had; all else would fail in the others, too
                Err(Failed::Bind(e))
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT)
                    ) =>
                {
                    last = e;
                }
                Err(Failed::Bind(e)) => return Err(self.refused(e)),
                Err(Failed::Set(what, e)) => return Err(self.failed(what, e)),
            }
        }
        Err(self.refused(last))
    }

    fn attempt(&self, area: &Arc<Area>, copy: u16, pieces: bool) -> Result<XskSocket, Failed> {
        let set = |what| move |e| Failed::Set(what, e);
        let fd =
            xdp_socket().map_err(set("opening an AF_XDP socket (the kernel needs CONFIG_XDP_SOCKETS)"))?;
        let metadata = register(fd.as_fd(), area).map_err(set("registering the frames' memory"))?;
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            option(fd.as_fd(), libc::SOL_XDP, ring, &self.ring).map_err(set("making a ring"))?;
        }
        option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER)
            .map_err(set("SO_SNDBUFFORCE"))?;
        // older kernels have neither this nor, before 5.11, busy polling; what they do instead is slower, not wrong
        let budget = self.ring as libc::c_int;
        let _ = option(fd.as_fd(), libc::SOL_XDP, MAX_TX_SKB_BUDGET, &budget);
        if self.busy_poll > 0 {
            let on: libc::c_int = 1;
            let time = self.busy_poll as libc::c_int;
            option(fd.as_fd(), libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &on)
                .map_err(set("SO_PREFER_BUSY_POLL"))?;
            option(fd.as_fd(), libc::SOL_SOCKET, SO_BUSY_POLL, &time).map_err(set("SO_BUSY_POLL"))?;
            option(fd.as_fd(), libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &BUSY_BUDGET)
                .map_err(set("SO_BUSY_POLL_BUDGET"))?;
        }
        // SAFETY: plain data for which zeros are a value.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
        read_option(fd.as_raw_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut offsets)
            .map_err(set("XDP_MMAP_OFFSETS"))?;
        let mapping = set("mapping a ring");
        let rx = Ring::map(fd.as_fd(), libc::XDP_PGOFF_RX_RING, &offsets.rx, self.ring).map_err(mapping)?;
        let tx = Ring::map(fd.as_fd(), libc::XDP_PGOFF_TX_RING, &offsets.tx, self.ring).map_err(mapping)?;
        let page = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
        let fill = Ring::map(fd.as_fd(), page, &offsets.fr, self.ring).map_err(mapping)?;
        let page = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        let completion = Ring::map(fd.as_fd(), page, &offsets.cr, self.ring).map_err(mapping)?;
        let pieces_flag = if pieces { libc::XDP_USE_SG } else { 0 };
        bind(fd.as_fd(), self.index, self.queue, copy | libc::XDP_USE_NEED_WAKEUP | pieces_flag)
            .map_err(Failed::Bind)?;
        let zero_copy = copy == libc::XDP_ZEROCOPY;
        // a driver may lack it in zero-copy mode; in copy mode it is the stack that completes
        let mode = SocketMode { zero_copy, need_wakeup: true, pieces, metadata: metadata && !zero_copy };
        Ok(XskSocket { fd, mode, rx, tx, fill, completion, _area: Arc::clone(area) })
    }

    fn what(&self) -> String {
        format!("interface {}: queue {}", self.name, self.queue)
    }

    fn failed(&self, what: &str, e: io::Error) -> SetupError {
        match e.raw_os_error() {
            Some(libc::ENOBUFS) => SetupError::Bpf {
                what: format!("{}: {what}", self.what()),
                reason: "more locked memory than allowed; give lvsd CAP_IPC_LOCK or raise its memlock limit"
                    .into(),
            },
            _ => SetupError::os(format!("{}: {what}", self.what()), CAPABILITY, e),
        }
    }

    fn refused(&self, e: io::Error) -> SetupError {
        let told = |reason: String| SetupError::Bpf { what: self.what(), reason };
        match e.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO) => SetupError::NoSuchInterface(self.name.into()),
            Some(libc::EBUSY) => SetupError::Busy(
                self.what(),
                "another program has an AF_XDP socket on it; stop that one, or use --datapath afpacket",
            ),
            Some(libc::EINVAL) => told(
                "the interface has no such queue (see 'ethtool -l'), or the kernel refuses AF_XDP sockets on it; use --datapath afpacket"
                    .into(),
            ),
            Some(libc::ENETDOWN) => told("the interface is down; set it up by 'ip link set … up'".into()),
            _ => SetupError::os(format!("{}: binding an AF_XDP socket", self.what()), CAPABILITY, e),
        }
    }
}

/// Where an attempt failed.
enum Failed {
    Set(&'static str, io::Error),
    Bind(io::Error),
}

fn xdp_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers in it.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Registers the memory; whether with room for metadata before frames to be sent (kernel 6.11).
fn register(fd: BorrowedFd<'_>, area: &Area) -> io::Result<bool> {
    let mut registration = libc::xdp_umem_reg {
        addr: area.base() as u64,
        len: area.bytes() as u64,
        chunk_size: area.chunk,
        headroom: 0,
        flags: libc::XDP_UMEM_TX_METADATA_LEN,
        tx_metadata_len: METADATA as u32,
    };
    match option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration) {
        Ok(()) => return Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
        Err(e) => return Err(e),
    }
    registration.flags = 0;
    registration.tx_metadata_len = 0;
    option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).map(|()| false)
}

fn bind(fd: BorrowedFd<'_>, index: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address of the length given.
    let r = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl XskSocket {
    /// The kernel's counters since the socket was made.
    pub(super) fn statistics(&self) -> libc::xdp_statistics {
        // SAFETY: plain data for which zeros are a value.
        let mut s: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        // an older kernel fills less of it; a socket whose interface has gone still answers
        let _ = read_option(self.fd.as_raw_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, &mut s);
        s
    }

    /// Has the kernel send what is in the tx ring.
    pub(super) fn kick(&self) -> io::Result<()> {
        // SAFETY: no data, no address.
        let r = unsafe {
            libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Has the kernel look for frames (busy polling, or a fill ring that was empty).
    pub(super) fn poll_device(&self) {
        // SAFETY: no data, no address. Whatever comes back, the rings tell what there is.
        let _ = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }
}

impl std::fmt::Display for SocketMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.zero_copy { "zero-copy" } else { "copy" })?;
        f.write_str(if self.need_wakeup { " need-wakeup" } else { "" })
    }
}

const _: () = assert!(size_of::<xdp_desc>() == 16);
