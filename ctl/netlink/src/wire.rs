//! Numbers of the protocol, and what requests and replies share: services, destinations, daemons.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

use netlink_packet_core::{Emitable, NetlinkBuffer, NetlinkHeader};

use crate::attr::{Attrs, Policy, TooLong, U8, U16, U32, U64, Writer};
use crate::{
    Af, Daemon, DaemonState, Dest, Errno, FwdMethod, Netmask, Service, ServiceKey, Stats, Timeouts, Tunnel,
};

/// Bytes of a netlink header.
pub(crate) const NLMSG_HDRLEN: usize = 16;
/// Bytes of a generic netlink header: command, version, two reserved bytes.
pub(crate) const GENL_HDRLEN: usize = 4;
/// Version of the families IPVS and LVSD.
pub(crate) const VERSION: u8 = 1;

/// Commands of `nlctrl`.
pub(crate) mod ctrl {
    use super::{Policy, U16, U32};
    pub(crate) const NEWFAMILY: u8 = 1;
    pub(crate) const GETFAMILY: u8 = 3;
    pub(crate) const A_ID: u16 = 1;
    pub(crate) const A_NAME: u16 = 2;
    pub(crate) const A_VERSION: u16 = 3;
    pub(crate) const A_HDRSIZE: u16 = 4;
    pub(crate) const A_MAXATTR: u16 = 5;
    pub(crate) const A_OPS: u16 = 6;
    pub(crate) const A_OP_ID: u16 = 1;
    pub(crate) const A_OP_FLAGS: u16 = 2;
    /// Version of replies.
    pub(crate) const VERSION: u8 = 2;
    pub(crate) const POLICY: &[Policy] = &[Policy::Any, U16, Policy::Nul(15), U32, U32, U32, Policy::Nested];
}

/// Commands and attributes of family IPVS (`linux/ip_vs.h`).
pub(crate) mod ipvs {
    use super::{Policy, U32};
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DEL_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DEST: u8 = 5;
    pub(crate) const SET_DEST: u8 = 6;
    pub(crate) const DEL_DEST: u8 = 7;
    pub(crate) const GET_DEST: u8 = 8;
    pub(crate) const NEW_DAEMON: u8 = 9;
    pub(crate) const DEL_DAEMON: u8 = 10;
    pub(crate) const GET_DAEMON: u8 = 11;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
    pub(crate) const SET_INFO: u8 = 14;
    pub(crate) const GET_INFO: u8 = 15;
    pub(crate) const ZERO: u8 = 16;
    pub(crate) const FLUSH: u8 = 17;
    pub(crate) const A_SERVICE: u16 = 1;
    pub(crate) const A_DEST: u16 = 2;
    pub(crate) const A_DAEMON: u16 = 3;
    pub(crate) const A_TIMEOUT_TCP: u16 = 4;
    pub(crate) const A_TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const A_TIMEOUT_UDP: u16 = 6;
    pub(crate) const POLICY: &[Policy] =
        &[Policy::Any, Policy::Nested, Policy::Nested, Policy::Nested, U32, U32, U32];
    /// Attributes of a `SET_INFO` reply share numbers with those above.
    pub(crate) const A_INFO_VERSION: u16 = 1;
    pub(crate) const A_INFO_CONN_TAB_SIZE: u16 = 2;
    pub(crate) const INFO_POLICY: &[Policy] = &[Policy::Any, U32, U32];
    /// Highest attribute, as `nlctrl` tells.
    pub(crate) const MAXATTR: u32 = 6;
}

/// Commands and attributes of family LVSD, version 1: what IPVS has no message for.
pub(crate) mod lvsd {
    use super::{Policy, U16, U32, U64};
    /// Dump: connections, each in a message with this command and attribute `CONN`.
    pub(crate) const GET_CONN: u8 = 1;
    /// Dump: the data path's counters, each in a message with attribute `COUNTER`.
    pub(crate) const GET_COUNTER: u8 = 2;
    /// Do with attribute `SYSCTL` holding a `NAME`: that setting; dump: all.
    pub(crate) const GET_SYSCTL: u8 = 3;
    /// Do with attribute `SYSCTL` holding `NAME` and `VALUE`.
    pub(crate) const SET_SYSCTL: u8 = 4;
    /// Do: attribute `OVERVIEW`.
    pub(crate) const GET_OVERVIEW: u8 = 5;
    /// Dump: the ports' queues, each in a message with attribute `QUEUE`.
    pub(crate) const GET_QUEUE: u8 = 6;
    /// Dump: the schedulers, each in a message with attribute `SCHEDULER`.
    pub(crate) const GET_SCHEDULER: u8 = 7;
    /// Dump: notices, each in a message with attribute `NOTICE`.
    pub(crate) const GET_NOTICE: u8 = 8;
    pub(crate) const A_CONN: u16 = 1;
    pub(crate) const A_COUNTER: u16 = 2;
    pub(crate) const A_SYSCTL: u16 = 3;
    pub(crate) const A_OVERVIEW: u16 = 4;
    pub(crate) const A_QUEUE: u16 = 5;
    pub(crate) const A_SCHEDULER: u16 = 6;
    pub(crate) const A_NOTICE: u16 = 7;
    pub(crate) const MAXATTR: u32 = 7;
    pub(crate) const POLICY: &[Policy] = &[
        Policy::Any,
        Policy::Nested,
        Policy::Nested,
        Policy::Nested,
        Policy::Nested,
        Policy::Nested,
        Policy::Nested,
        Policy::Nested,
    ];
    pub(crate) const A_CONN_PROTOCOL: u16 = 1;
    pub(crate) const A_CONN_AF: u16 = 2;
    pub(crate) const A_CONN_CADDR: u16 = 3;
    pub(crate) const A_CONN_CPORT: u16 = 4;
    pub(crate) const A_CONN_VADDR: u16 = 5;
    pub(crate) const A_CONN_VPORT: u16 = 6;
    pub(crate) const A_CONN_DAF: u16 = 7;
    pub(crate) const A_CONN_DADDR: u16 = 8;
    pub(crate) const A_CONN_DPORT: u16 = 9;
    pub(crate) const A_CONN_STATE: u16 = 10;
    pub(crate) const A_CONN_EXPIRES: u16 = 11;
    pub(crate) const A_CONN_FLAGS: u16 = 12;
    const ADDR: Policy = Policy::AtMost(16);
    pub(crate) const CONN_POLICY: &[Policy] =
        &[Policy::Any, U16, U16, ADDR, U16, ADDR, U16, U16, ADDR, U16, Policy::Nul(31), U32, U32];
    pub(crate) const A_NAME: u16 = 1;
    pub(crate) const A_VALUE: u16 = 2;
    pub(crate) const COUNTER_POLICY: &[Policy] = &[Policy::Any, Policy::Nul(127), U64];
    pub(crate) const SYSCTL_POLICY: &[Policy] = &[Policy::Any, Policy::Nul(63), Policy::Nul(255)];
}

const SVC_AF: u16 = 1;
const SVC_PROTOCOL: u16 = 2;
const SVC_ADDR: u16 = 3;
const SVC_PORT: u16 = 4;
const SVC_FWMARK: u16 = 5;
const SVC_SCHED_NAME: u16 = 6;
const SVC_FLAGS: u16 = 7;
const SVC_TIMEOUT: u16 = 8;
const SVC_NETMASK: u16 = 9;
const SVC_STATS: u16 = 10;
const SVC_PE_NAME: u16 = 11;
const SVC_STATS64: u16 = 12;
pub(crate) const SVC_POLICY: &[Policy] = &[
    Policy::Any,
    U16,
    U16,
    Policy::AtMost(16),
    U16,
    U32,
    Policy::Nul(15),
    Policy::AtMost(8),
    U32,
    U32,
    Policy::Nested,
    Policy::Nul(16),
    Policy::Nested,
];

const DEST_ADDR: u16 = 1;
const DEST_PORT: u16 = 2;
const DEST_FWD_METHOD: u16 = 3;
const DEST_WEIGHT: u16 = 4;
const DEST_U_THRESH: u16 = 5;
const DEST_L_THRESH: u16 = 6;
const DEST_ACTIVE: u16 = 7;
const DEST_INACT: u16 = 8;
const DEST_PERSIST: u16 = 9;
const DEST_STATS: u16 = 10;
const DEST_ADDR_FAMILY: u16 = 11;
const DEST_STATS64: u16 = 12;
const DEST_TUN_TYPE: u16 = 13;
const DEST_TUN_PORT: u16 = 14;
const DEST_TUN_FLAGS: u16 = 15;
pub(crate) const DEST_POLICY: &[Policy] = &[
    Policy::Any,
    Policy::AtMost(16),
    U16,
    U32,
    U32,
    U32,
    U32,
    U32,
    U32,
    U32,
    Policy::Nested,
    U16,
    Policy::Nested,
    U8,
    U16,
    U16,
];

const DAEMON_STATE: u16 = 1;
const DAEMON_MCAST_IFN: u16 = 2;
const DAEMON_SYNC_ID: u16 = 3;
const DAEMON_SYNC_MAXLEN: u16 = 4;
const DAEMON_MCAST_GROUP: u16 = 5;
const DAEMON_MCAST_GROUP6: u16 = 6;
const DAEMON_MCAST_PORT: u16 = 7;
const DAEMON_MCAST_TTL: u16 = 8;
pub(crate) const DAEMON_POLICY: &[Policy] =
    &[Policy::Any, U32, Policy::Nul(16), U32, U16, U32, Policy::AtLeast(16), U16, U8];

/// The attributes 1 to 10 of `STATS` and `STATS64`, in their order.
const STATS_POLICY: &[Policy] = &[Policy::Any, U32, U32, U32, U64, U64, U32, U32, U32, U32, U32];
const STATS64_POLICY: &[Policy] = &[Policy::Any, U64, U64, U64, U64, U64, U64, U64, U64, U64, U64];

/// Starts a message in a fresh buffer: room for the netlink header, then the generic one.
pub(crate) fn begin(cmd: u8, version: u8) -> Writer {
    let mut buf = vec![0; NLMSG_HDRLEN];
    buf.extend_from_slice(&[cmd, version, 0, 0]);
    Writer::new(buf)
}

/// Fills in the netlink header of a message.
pub(crate) fn seal(w: Writer, kind: u16, flags: u16, seq: u32, pid: u32) -> Result<Vec<u8>, TooLong> {
    let mut buf = w.finish()?;
    let mut header = NetlinkHeader::default();
    header.length = u32::try_from(buf.len()).map_err(|_| TooLong)?;
    header.message_type = kind;
    header.flags = flags;
    header.sequence_number = seq;
    header.port_number = pid;
    header.emit(&mut buf[..NLMSG_HDRLEN]);
    Ok(buf)
}

/// One netlink message cut off the front of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) pid: u32,
    /// Header and payload.
    pub(crate) whole: &'a [u8],
    pub(crate) payload: &'a [u8],
}

/// Cuts the next message off `rest`; `None` at the end, and where a length is impossible (the kernel stops there, too).
pub(crate) fn next_frame<'a>(rest: &mut &'a [u8]) -> Option<Frame<'a>> {
    let bytes = *rest;
    if bytes.len() < NLMSG_HDRLEN {
        return None;
    }
    let header = NetlinkBuffer::new(bytes);
    let len = usize::try_from(header.length()).ok()?;
    let whole = bytes.get(..len)?;
    let payload = whole.get(NLMSG_HDRLEN..)?;
    *rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some(Frame {
        kind: header.message_type(),
        flags: header.flags(),
        seq: header.sequence_number(),
        pid: header.port_number(),
        whole,
        payload,
    })
}

fn af_of(n: u16) -> Option<Af> {
    match n {
        2 => Some(Af::V4),
        10 => Some(Af::V6),
        _ => None,
    }
}

pub(crate) fn af_attr(a: &Attrs<'_>, kind: u16) -> Option<Af> {
    af_of(a.u16(kind)?)
}

fn put_key(w: &mut Writer, key: &ServiceKey) {
    w.u16(SVC_AF, key.af() as u16);
    match *key {
        ServiceKey::Addr { protocol, addr, port } => {
            w.u16(SVC_PROTOCOL, protocol.into());
            w.addr(SVC_ADDR, addr);
            w.be16(SVC_PORT, port);
        }
        ServiceKey::Fwmark { mark, .. } => w.u32(SVC_FWMARK, mark.get()),
    }
}

/// A service's identity alone.
pub(crate) fn put_service_key(w: &mut Writer, key: &ServiceKey) {
    w.nested(ipvs::A_SERVICE, true, |w| put_key(w, key));
}

/// A service with all its values; with `stats` as in a reply, else as in a request.
pub(crate) fn put_service(w: &mut Writer, s: &Service, stats: Option<&Stats>) {
    w.nested(ipvs::A_SERVICE, stats.is_none(), |w| {
        put_key(w, &s.key);
        w.string(SVC_SCHED_NAME, &s.scheduler);
        if let Some(pe) = &s.pe_name {
            w.string(SVC_PE_NAME, pe);
        }
        let mut flags = [0; 8];
        flags[..4].copy_from_slice(&s.flags.to_ne_bytes());
        flags[4..].copy_from_slice(&s.flags_mask.to_ne_bytes());
        w.bytes(SVC_FLAGS, &flags);
        w.u32(SVC_TIMEOUT, s.timeout);
        match s.netmask {
            Netmask::V4(m) => w.bytes(SVC_NETMASK, &m.octets()),
            Netmask::V6(len) => w.u32(SVC_NETMASK, len.into()),
        }
        if let Some(stats) = stats {
            put_stats(w, SVC_STATS, SVC_STATS64, stats);
        }
    });
}

/// A service of which a request needs the identity only, filled up as ipvsadm does it.
pub(crate) fn bare_service(key: &ServiceKey, netmask: Netmask) -> Service {
    Service {
        key: *key,
        scheduler: String::new(),
        flags: 0,
        flags_mask: !0,
        timeout: 0,
        netmask,
        pe_name: None,
    }
}

/// The netmask of one client.
pub(crate) fn host_mask(af: Af) -> Netmask {
    match af {
        Af::V4 => Netmask::V4(Ipv4Addr::BROADCAST),
        Af::V6 => Netmask::V6(128),
    }
}

pub(crate) fn get_key(a: &Attrs<'_>) -> Result<ServiceKey, Errno> {
    let af = a.u16(SVC_AF).ok_or(Errno::EINVAL)?;
    let mark = a.u32(SVC_FWMARK);
    if mark.is_none() && [SVC_PROTOCOL, SVC_ADDR, SVC_PORT].iter().any(|k| a.get(*k).is_none()) {
        return Err(Errno::EINVAL);
    }
    let af = af_of(af).ok_or(Errno::EAFNOSUPPORT)?;
    if let Some(mark) = mark {
        // The kernel looks mark 0 up as an ordinary service, TCP on address and port 0.
        return Ok(match NonZeroU32::new(mark) {
            Some(mark) => ServiceKey::Fwmark { mark, af },
            None => {
                let addr = match af {
                    Af::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Af::V6 => Ipv6Addr::UNSPECIFIED.into(),
                };
                ServiceKey::Addr { protocol: 6, addr, port: 0 }
            }
        });
    }
    let protocol = a.u16(SVC_PROTOCOL).ok_or(Errno::EINVAL)?;
    Ok(ServiceKey::Addr {
        protocol: u8::try_from(protocol).map_err(|_| Errno::EINVAL)?,
        addr: a.addr(SVC_ADDR, af).ok_or(Errno::EINVAL)?,
        port: a.be16(SVC_PORT).ok_or(Errno::EINVAL)?,
    })
}

/// A service with all its values.
pub(crate) fn get_service(a: &Attrs<'_>) -> Result<Service, Errno> {
    let key = get_key(a)?;
    let scheduler = a.string(SVC_SCHED_NAME).ok_or(Errno::EINVAL)?;
    let flags = a.padded::<8>(SVC_FLAGS).ok_or(Errno::EINVAL)?;
    let [f0, f1, f2, f3, m0, m1, m2, m3] = flags;
    let timeout = a.u32(SVC_TIMEOUT).ok_or(Errno::EINVAL)?;
    let mask = a.padded::<4>(SVC_NETMASK).ok_or(Errno::EINVAL)?;
    let netmask = match key.af() {
        Af::V4 => Netmask::V4(Ipv4Addr::from(mask)),
        // What is no prefix length stays none.
        Af::V6 => Netmask::V6(u8::try_from(u32::from_ne_bytes(mask)).unwrap_or(u8::MAX)),
    };
    Ok(Service {
        key,
        scheduler,
        flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        flags_mask: u32::from_ne_bytes([m0, m1, m2, m3]),
        timeout,
        netmask,
        pe_name: a.string(SVC_PE_NAME).filter(|n| !n.is_empty()),
    })
}

pub(crate) fn get_service_stats(a: &Attrs<'_>) -> Stats {
    get_stats(a, SVC_STATS, SVC_STATS64)
}

/// A destination's values, in the order in which ipvsadm sends them.
pub(crate) fn put_dest(w: &mut Writer, d: &Dest) {
    w.nested(ipvs::A_DEST, true, |w| {
        w.u16(DEST_ADDR_FAMILY, Af::from(d.addr) as u16);
        w.addr(DEST_ADDR, d.addr);
        w.be16(DEST_PORT, d.port);
        w.u32(DEST_FWD_METHOD, d.method as u32);
        w.u32(DEST_WEIGHT, d.weight as u32);
        put_tunnel(w, &d.tunnel);
        w.u32(DEST_U_THRESH, d.upper);
        w.u32(DEST_L_THRESH, d.lower);
    });
}

fn put_tunnel(w: &mut Writer, t: &Tunnel) {
    w.u8(DEST_TUN_TYPE, t.kind);
    w.be16(DEST_TUN_PORT, t.port);
    w.u16(DEST_TUN_FLAGS, t.flags);
}

/// A destination in a listing, in the order in which the kernel sends it.
pub(crate) fn put_dest_entry(w: &mut Writer, e: &crate::DestEntry) {
    let d = &e.dest;
    w.nested(ipvs::A_DEST, false, |w| {
        w.addr(DEST_ADDR, d.addr);
        w.be16(DEST_PORT, d.port);
        w.u32(DEST_FWD_METHOD, d.method as u32);
        w.u32(DEST_WEIGHT, d.weight as u32);
        put_tunnel(w, &d.tunnel);
        w.u32(DEST_U_THRESH, d.upper);
        w.u32(DEST_L_THRESH, d.lower);
        w.u32(DEST_ACTIVE, e.active);
        w.u32(DEST_INACT, e.inactive);
        w.u32(DEST_PERSIST, e.persistent);
        w.u16(DEST_ADDR_FAMILY, Af::from(d.addr) as u16);
        put_stats(w, DEST_STATS, DEST_STATS64, &e.stats);
    });
}

/// Address and port of a destination.
pub(crate) fn get_dest_key(a: &Attrs<'_>, service: Af) -> Result<(IpAddr, u16), Errno> {
    let (Some(_), Some(port)) = (a.get(DEST_ADDR), a.be16(DEST_PORT)) else { return Err(Errno::EINVAL) };
    // Requests and replies older than kernel 3.18 have no family of the destination.
    let af = match a.u16(DEST_ADDR_FAMILY) {
        None | Some(0) => service,
        Some(n) => af_of(n).ok_or(Errno::EAFNOSUPPORT)?,
    };
    Ok((a.addr(DEST_ADDR, af).ok_or(Errno::EINVAL)?, port))
}

/// A destination with all its values.
pub(crate) fn get_dest(a: &Attrs<'_>, service: Af) -> Result<Dest, Errno> {
    let (addr, port) = get_dest_key(a, service)?;
    let need = |kind| a.u32(kind).ok_or(Errno::EINVAL);
    let method = match need(DEST_FWD_METHOD)? & 7 {
        0 => FwdMethod::Masq,
        1 => FwdMethod::Local,
        2 => FwdMethod::Tunnel,
        3 => FwdMethod::Droute,
        4 => FwdMethod::Bypass,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Dest {
        addr,
        port,
        method,
        weight: need(DEST_WEIGHT)? as i32,
        upper: need(DEST_U_THRESH)?,
        lower: need(DEST_L_THRESH)?,
        tunnel: Tunnel {
            kind: a.u8(DEST_TUN_TYPE).unwrap_or(0),
            port: a.be16(DEST_TUN_PORT).unwrap_or(0),
            flags: a.u16(DEST_TUN_FLAGS).unwrap_or(0),
        },
    })
}

pub(crate) fn get_dest_entry(a: &Attrs<'_>, service: Af) -> Result<crate::DestEntry, Errno> {
    Ok(crate::DestEntry {
        dest: get_dest(a, service)?,
        active: a.u32(DEST_ACTIVE).unwrap_or(0),
        inactive: a.u32(DEST_INACT).unwrap_or(0),
        persistent: a.u32(DEST_PERSIST).unwrap_or(0),
        stats: get_stats(a, DEST_STATS, DEST_STATS64),
    })
}

/// Statistics twice: 32 bits wide (cut off, bytes aside) for old readers, then 64 bits.
fn put_stats(w: &mut Writer, old: u16, new: u16, s: &Stats) {
    let all = stats_list(s);
    w.nested(old, false, |w| {
        for (kind, v) in (1..).zip(all) {
            if matches!(kind, 4 | 5) {
                w.u64(kind, v);
            } else {
                w.u32(kind, v as u32);
            }
        }
    });
    w.nested(new, false, |w| {
        for (kind, v) in (1..).zip(all) {
            w.u64(kind, v);
        }
    });
}

fn stats_list(s: &Stats) -> [u64; 10] {
    [s.conns, s.in_pkts, s.out_pkts, s.in_bytes, s.out_bytes, s.cps, s.in_pps, s.out_pps, s.in_bps, s.out_bps]
}

fn get_stats(a: &Attrs<'_>, old: u16, new: u16) -> Stats {
    let mut v = [0_u64; 10];
    if let Some(a) = a.nested(new, STATS64_POLICY) {
        for (kind, v) in (1..).zip(&mut v) {
            *v = a.u64(kind).unwrap_or(0);
        }
    } else if let Some(a) = a.nested(old, STATS_POLICY) {
        for (kind, v) in (1..).zip(&mut v) {
            *v = a.u64(kind).or(a.u32(kind).map(u64::from)).unwrap_or(0);
        }
    }
    let [conns, in_pkts, out_pkts, in_bytes, out_bytes, cps, in_pps, out_pps, in_bps, out_bps] = v;
    Stats { conns, in_pkts, out_pkts, in_bytes, out_bytes, cps, in_pps, out_pps, in_bps, out_bps }
}

/// A daemon; values at their default are left out of requests, as ipvsadm does.
pub(crate) fn put_daemon(w: &mut Writer, d: &Daemon, request: bool) {
    w.nested(ipvs::A_DAEMON, request, |w| {
        w.u32(DAEMON_STATE, d.state as u32);
        w.string(DAEMON_MCAST_IFN, &d.interface);
        w.u32(DAEMON_SYNC_ID, d.sync_id);
        if d.maxlen != 0 || !request {
            w.u16(DAEMON_SYNC_MAXLEN, d.maxlen);
        }
        if d.port != 0 || !request {
            w.u16(DAEMON_MCAST_PORT, d.port);
        }
        if d.ttl != 0 || !request {
            w.u8(DAEMON_MCAST_TTL, d.ttl);
        }
        match d.group {
            Some(IpAddr::V4(g)) => w.bytes(DAEMON_MCAST_GROUP, &g.octets()),
            Some(IpAddr::V6(g)) => w.bytes(DAEMON_MCAST_GROUP6, &g.octets()),
            None => {}
        }
    });
}

pub(crate) fn get_daemon_state(a: &Attrs<'_>) -> Result<DaemonState, Errno> {
    match a.u32(DAEMON_STATE) {
        Some(1) => Ok(DaemonState::Master),
        Some(2) => Ok(DaemonState::Backup),
        _ => Err(Errno::EINVAL),
    }
}

pub(crate) fn get_daemon(a: &Attrs<'_>) -> Result<Daemon, Errno> {
    let state = get_daemon_state(a)?;
    let interface = a.string(DAEMON_MCAST_IFN).ok_or(Errno::EINVAL)?;
    let sync_id = a.u32(DAEMON_SYNC_ID).ok_or(Errno::EINVAL)?;
    let group = if let Some(g) = a.padded::<4>(DAEMON_MCAST_GROUP) {
        Some(IpAddr::from(g))
    } else {
        a.padded::<16>(DAEMON_MCAST_GROUP6).map(IpAddr::from)
    };
    if group.is_some_and(|g| !g.is_multicast()) {
        return Err(Errno::EINVAL);
    }
    Ok(Daemon {
        state,
        interface,
        sync_id,
        maxlen: a.u16(DAEMON_SYNC_MAXLEN).unwrap_or(0),
        group,
        port: a.u16(DAEMON_MCAST_PORT).unwrap_or(0),
        ttl: a.u8(DAEMON_MCAST_TTL).unwrap_or(0),
    })
}

pub(crate) fn put_timeouts(w: &mut Writer, t: &Timeouts) {
    w.u32(ipvs::A_TIMEOUT_TCP, t.tcp);
    w.u32(ipvs::A_TIMEOUT_TCP_FIN, t.tcp_fin);
    w.u32(ipvs::A_TIMEOUT_UDP, t.udp);
}

pub(crate) fn get_timeouts(a: &Attrs<'_>) -> Timeouts {
    let get = |kind| a.u32(kind).unwrap_or(0);
    Timeouts {
        tcp: get(ipvs::A_TIMEOUT_TCP),
        tcp_fin: get(ipvs::A_TIMEOUT_TCP_FIN),
        udp: get(ipvs::A_TIMEOUT_UDP),
    }
}
