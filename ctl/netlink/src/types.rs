use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;

/// Address family, with the numbers of `AF_INET` and `AF_INET6`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u16)]
pub enum Af {
    /// IPv4
    V4 = 2,
    /// IPv6
    V6 = 10,
}

impl From<IpAddr> for Af {
    fn from(a: IpAddr) -> Af {
        if a.is_ipv4() { Af::V4 } else { Af::V6 }
    }
}

/// What identifies a virtual service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum ServiceKey {
    /// A protocol (IANA number: 6 TCP, 17 UDP, 132 SCTP), address and port (host order; 0: all ports of the address).
    Addr {
        /// IANA protocol number.
        protocol: u8,
        /// The virtual address.
        addr: IpAddr,
        /// Host order.
        port: u16,
    },
    /// A firewall mark, for packets of one family.
    Fwmark {
        /// The mark.
        mark: NonZeroU32,
        /// The family.
        af: Af,
    },
}

impl ServiceKey {
    /// The family of the service's clients.
    pub fn af(&self) -> Af {
        match self {
            ServiceKey::Addr { addr, .. } => (*addr).into(),
            ServiceKey::Fwmark { af, .. } => *af,
        }
    }
}

/// Service flag: persistent.
pub const SVC_F_PERSISTENT: u32 = 1;
/// Service flag: listed (always set in replies).
pub const SVC_F_HASHED: u32 = 2;
/// Service flag: one-packet scheduling.
pub const SVC_F_ONEPACKET: u32 = 4;
/// Service flag: scheduler's first flag (sh-fallback, mh-fallback).
pub const SVC_F_SCHED1: u32 = 8;
/// Service flag: scheduler's second flag (sh-port, mh-port).
pub const SVC_F_SCHED2: u32 = 0x10;
/// Service flag: scheduler's third flag.
pub const SVC_F_SCHED3: u32 = 0x20;

/// Which clients share a persistence template: an IPv4 mask, or an IPv6 prefix length (0 to 128).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Netmask {
    /// Mask of an IPv4 service.
    V4(Ipv4Addr),
    /// Prefix length of an IPv6 service.
    V6(u8),
}

/// A virtual service as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// Identity.
    pub key: ServiceKey,
    /// Scheduler name, at most 15 bytes.
    pub scheduler: String,
    /// `SVC_F_*`.
    pub flags: u32,
    /// Which flags a change sets; `!0` from ipvsadm.
    pub flags_mask: u32,
    /// Persistence timeout in seconds; 0 without persistence.
    pub timeout: u32,
    /// Persistence granularity.
    pub netmask: Netmask,
    /// Persistence engine's name, at most 16 bytes.
    pub pe_name: Option<String>,
}

/// Forwarding method of a destination, with IPVS's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FwdMethod {
    /// Network address translation (`-m`).
    Masq = 0,
    /// The director itself serves.
    Local = 1,
    /// Encapsulation (`-i`).
    Tunnel = 2,
    /// Direct routing (`-g`).
    Droute = 3,
    /// Cache bypass.
    Bypass = 4,
}

/// Encapsulation of a tunnel destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tunnel {
    /// 0 IPIP, 1 GUE, 2 GRE.
    pub kind: u8,
    /// GUE's UDP port, host order.
    pub port: u16,
    /// 1 checksum, 2 remote checksum.
    pub flags: u16,
}

/// A destination (real server) as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dest {
    /// Address.
    pub addr: IpAddr,
    /// Port, host order.
    pub port: u16,
    /// Forwarding method.
    pub method: FwdMethod,
    /// Weight, 0 to 2^31-1 (negative values from the wire are refused with ERANGE).
    pub weight: i32,
    /// Upper connection threshold, 0: none.
    pub upper: u32,
    /// Lower connection threshold, 0: three quarters of the upper.
    pub lower: u32,
    /// Encapsulation; meaningful for [`FwdMethod::Tunnel`].
    pub tunnel: Tunnel,
}

/// Counters and rates as IPVS reports them. Bytes are of IP packets. Rates are per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Stats {
    pub conns: u64,
    pub in_pkts: u64,
    pub out_pkts: u64,
    pub in_bytes: u64,
    pub out_bytes: u64,
    pub cps: u64,
    pub in_pps: u64,
    pub out_pps: u64,
    pub in_bps: u64,
    pub out_bps: u64,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, s: Stats) {
        for (to, from) in [
            (&mut self.conns, s.conns),
            (&mut self.in_pkts, s.in_pkts),
            (&mut self.out_pkts, s.out_pkts),
            (&mut self.in_bytes, s.in_bytes),
            (&mut self.out_bytes, s.out_bytes),
            (&mut self.cps, s.cps),
            (&mut self.in_pps, s.in_pps),
            (&mut self.out_pps, s.out_pps),
            (&mut self.in_bps, s.in_bps),
            (&mut self.out_bps, s.out_bps),
        ] {
            *to = to.wrapping_add(from);
        }
    }
}

/// A service in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceEntry {
    /// The service.
    pub service: Service,
    /// Its statistics.
    pub stats: Stats,
}

/// A destination in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DestEntry {
    /// The destination.
    pub dest: Dest,
    /// Active connections.
    pub active: u32,
    /// Inactive connections.
    pub inactive: u32,
    /// Persistence templates.
    pub persistent: u32,
    /// Its statistics.
    pub stats: Stats,
}

/// `ipvsadm --set`: seconds; in a change 0 keeps the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// ESTABLISHED.
    pub tcp: u32,
    /// FIN_WAIT.
    pub tcp_fin: u32,
    /// UDP.
    pub udp: u32,
}

/// A connection in a listing (family LVSD; IPVS itself has no message for it).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnEntry {
    /// IANA protocol number (0 for templates of firewall-mark services).
    pub protocol: u8,
    /// Client's end.
    pub client: (IpAddr, u16),
    /// Virtual end.
    pub virt: (IpAddr, u16),
    /// Server's end.
    pub dest: (IpAddr, u16),
    /// State's name as `ipvsadm -Lnc` prints it.
    pub state: String,
    /// Seconds until it expires, rounded down.
    pub expires: u32,
    /// IPVS connection flags (forwarding method in the low 3 bits).
    pub flags: u32,
}

/// A named counter of the data path (family LVSD).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// Name, as in `docs/counters.md`.
    pub name: String,
    /// Value.
    pub value: u64,
}

/// Which of the two connection synchronisation daemons, with IPVS's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u32)]
pub enum DaemonState {
    /// Sends.
    Master = 1,
    /// Receives.
    Backup = 2,
}

/// A connection synchronisation daemon. In a request, 0 and `None` stand for the server's default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Daemon {
    /// Master or backup.
    pub state: DaemonState,
    /// Name of the multicast interface, at most 15 bytes.
    pub interface: String,
    /// 0 to 255.
    pub sync_id: u32,
    /// Largest message in bytes.
    pub maxlen: u16,
    /// Multicast group.
    pub group: Option<IpAddr>,
    /// UDP port, host order.
    pub port: u16,
    /// Multicast TTL or hop limit.
    pub ttl: u8,
}

/// What `GET_INFO` answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// Version: `0x010201` is 1.2.1.
    pub version: u32,
    /// What ipvsadm prints as `size=`.
    pub conn_tab_size: u32,
}

/// A setting of `net.ipv4.vs.*`, named without that prefix (family LVSD).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sysctl {
    /// Name, as the kernel's.
    pub name: String,
    /// Value as text, as the kernel prints it, without a newline.
    pub value: String,
}
