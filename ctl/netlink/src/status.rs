//! What a daemon tells of itself (family LVSD): an overview, a row for each queue of each port, notices, schedulers.

use crate::attr::{Attrs, Policy, U8, U32, U64, Writer};
use crate::wire::lvsd;
use crate::{Counter, Errno};

/// The daemon in a few words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overview {
    /// The daemon's version, at most 31 bytes.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it was started.
    pub uptime: u64,
    /// How packets are received and sent, as `--datapath` names it, or `none`; at most 31 bytes.
    pub datapath: String,
    /// Why it is that one; at most 511 bytes.
    pub reason: String,
    /// Threads that forward packets.
    pub workers: u32,
    /// IPv4 connections (templates included) now, and the most there can be.
    pub conns_v4: (u64, u64),
    /// The same for IPv6.
    pub conns_v6: (u64, u64),
}

/// Packets of a queue in both directions. Counted since the daemon's start, rates over the last seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes of them, Ethernet headers included.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Frames received a second.
    pub rx_pps: u64,
    /// Bits received a second.
    pub rx_bps: u64,
    /// Frames sent a second.
    pub tx_pps: u64,
    /// Bits sent a second.
    pub tx_bps: u64,
}

/// How full a ring is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingLevel {
    /// Which ring: `rx`, `tx`, `fill`, `completion`; at most 31 bytes.
    pub name: String,
    /// Places in use.
    pub used: u64,
    /// Places there are.
    pub size: u64,
}

/// A queue of a port, as it is and as it did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueStatus {
    /// The port's interface, at most 15 bytes.
    pub interface: String,
    /// The queue's (or its worker's) number.
    pub queue: u32,
    /// Whether it works; not while its interface is gone.
    pub attached: bool,
    /// What carries its frames, as `--datapath` names it; at most 31 bytes.
    pub datapath: String,
    /// In which way, in words that depend on the data path; at most 127 bytes.
    pub mode: String,
    /// Packets.
    pub traffic: Traffic,
    /// Frames that the port dropped, by reason (`docs/counters.md`); names of at most 127 bytes.
    pub drops: Vec<Counter>,
    /// Levels of its rings.
    pub rings: Vec<RingLevel>,
}

/// A scheduler that the daemon has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedulerInfo {
    /// Name, as `-s` takes it; at most 15 bytes.
    pub name: String,
    /// A few words on what it does, at most 255 bytes.
    pub description: String,
}

/// Something about the configuration that the operator should know, in one line of at most 511 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The line.
    pub text: String,
}

const OV_VERSION: u16 = 1;
const OV_PID: u16 = 2;
const OV_UPTIME: u16 = 3;
const OV_DATAPATH: u16 = 4;
const OV_REASON: u16 = 5;
const OV_WORKERS: u16 = 6;
const OV_CONNS: u16 = 7;
const OV_POLICY: &[Policy] =
    &[Policy::Any, Policy::Nul(31), U32, U64, Policy::Nul(31), Policy::Nul(511), U32, Policy::Nested];
const CONNS_POLICY: &[Policy] = &[Policy::Any, U64, U64, U64, U64];

const Q_INTERFACE: u16 = 1;
const Q_QUEUE: u16 = 2;
const Q_ATTACHED: u16 = 3;
const Q_DATAPATH: u16 = 4;
const Q_MODE: u16 = 5;
const Q_TRAFFIC: u16 = 6;
const Q_DROPS: u16 = 7;
const Q_RINGS: u16 = 8;
const Q_POLICY: &[Policy] = &[
    Policy::Any,
    Policy::Nul(15),
    U32,
    U8,
    Policy::Nul(31),
    Policy::Nul(127),
    Policy::Nested,
    Policy::Nested,
    Policy::Nested,
];
const TRAFFIC_POLICY: &[Policy] = &[Policy::Any, U64, U64, U64, U64, U64, U64, U64, U64];

const RING_NAME: u16 = 1;
const RING_USED: u16 = 2;
const RING_SIZE: u16 = 3;
const RING_POLICY: &[Policy] = &[Policy::Any, Policy::Nul(31), U64, U64];

const SCHED_NAME: u16 = 1;
const SCHED_DESCRIPTION: u16 = 2;
const SCHED_POLICY: &[Policy] = &[Policy::Any, Policy::Nul(15), Policy::Nul(255)];

const NOTICE_TEXT: u16 = 1;
const NOTICE_POLICY: &[Policy] = &[Policy::Any, Policy::Nul(511)];

/// Numbers as attributes 1, 2, 3, ...
fn put_numbers(w: &mut Writer, kind: u16, numbers: &[u64]) {
    w.nested(kind, false, |w| {
        for (at, n) in (1..).zip(numbers) {
            w.u64(at, *n);
        }
    });
}

/// What [`put_numbers`] wrote; one that is missing (an older daemon's) is 0.
fn get_numbers<const N: usize>(a: &Attrs<'_>, kind: u16, policy: &[Policy]) -> Result<[u64; N], Errno> {
    let a = a.nested(kind, policy).ok_or(Errno::EINVAL)?;
    let mut numbers = [0; N];
    for (at, n) in (1..).zip(&mut numbers) {
        *n = a.u64(at).unwrap_or(0);
    }
    Ok(numbers)
}

/// A list: attributes 1, 2, 3, ... that hold one item each.
fn put_list<T>(w: &mut Writer, kind: u16, items: &[T], put: impl Fn(&mut Writer, &T)) {
    w.nested(kind, false, |w| {
        for (at, item) in (1..u16::MAX >> 2).zip(items) {
            w.nested(at, false, |w| put(w, item));
        }
    });
}

fn get_list<T>(
    a: &Attrs<'_>,
    kind: u16,
    policy: &[Policy],
    get: impl Fn(&Attrs<'_>) -> Option<T>,
) -> Result<Vec<T>, Errno> {
    let Some(bytes) = a.get(kind) else { return Ok(Vec::new()) };
    Attrs::values(bytes).map(|v| get(&Attrs::parse(v, policy)?).ok_or(Errno::EINVAL)).collect()
}

pub(crate) fn put_counter(w: &mut Writer, c: &Counter) {
    w.string(lvsd::A_NAME, &c.name);
    w.u64(lvsd::A_VALUE, c.value);
}

pub(crate) fn get_counter(a: &Attrs<'_>) -> Option<Counter> {
    Some(Counter { name: a.string(lvsd::A_NAME)?, value: a.u64(lvsd::A_VALUE)? })
}

pub(crate) fn put_overview(w: &mut Writer, o: &Overview) {
    w.nested(lvsd::A_OVERVIEW, false, |w| {
        w.string(OV_VERSION, &o.version);
        w.u32(OV_PID, o.pid);
        w.u64(OV_UPTIME, o.uptime);
        w.string(OV_DATAPATH, &o.datapath);
        w.string(OV_REASON, &o.reason);
        w.u32(OV_WORKERS, o.workers);
        put_numbers(w, OV_CONNS, &[o.conns_v4.0, o.conns_v4.1, o.conns_v6.0, o.conns_v6.1]);
    });
}

pub(crate) fn get_overview(a: &Attrs<'_>) -> Result<Overview, Errno> {
    let a = a.nested(lvsd::A_OVERVIEW, OV_POLICY).ok_or(Errno::EINVAL)?;
    let text = |kind| a.string(kind).ok_or(Errno::EINVAL);
    let [used_v4, max_v4, used_v6, max_v6] = get_numbers(&a, OV_CONNS, CONNS_POLICY)?;
    Ok(Overview {
        version: text(OV_VERSION)?,
        pid: a.u32(OV_PID).ok_or(Errno::EINVAL)?,
        uptime: a.u64(OV_UPTIME).ok_or(Errno::EINVAL)?,
        datapath: text(OV_DATAPATH)?,
        reason: text(OV_REASON)?,
        workers: a.u32(OV_WORKERS).ok_or(Errno::EINVAL)?,
        conns_v4: (used_v4, max_v4),
        conns_v6: (used_v6, max_v6),
    })
}

fn put_traffic(w: &mut Writer, t: &Traffic) {
    let Traffic { rx_packets, rx_bytes, tx_packets, tx_bytes, rx_pps, rx_bps, tx_pps, tx_bps } = *t;
    let all = [rx_packets, rx_bytes, tx_packets, tx_bytes, rx_pps, rx_bps, tx_pps, tx_bps];
    put_numbers(w, Q_TRAFFIC, &all);
}

fn get_traffic(a: &Attrs<'_>) -> Result<Traffic, Errno> {
    let [rx_packets, rx_bytes, tx_packets, tx_bytes, rx_pps, rx_bps, tx_pps, tx_bps] =
        get_numbers(a, Q_TRAFFIC, TRAFFIC_POLICY)?;
    Ok(Traffic { rx_packets, rx_bytes, tx_packets, tx_bytes, rx_pps, rx_bps, tx_pps, tx_bps })
}

pub(crate) fn put_queue(w: &mut Writer, q: &QueueStatus) {
    w.nested(lvsd::A_QUEUE, false, |w| {
        w.string(Q_INTERFACE, &q.interface);
        w.u32(Q_QUEUE, q.queue);
        w.u8(Q_ATTACHED, q.attached.into());
        w.string(Q_DATAPATH, &q.datapath);
        w.string(Q_MODE, &q.mode);
        put_traffic(w, &q.traffic);
        put_list(w, Q_DROPS, &q.drops, put_counter);
        put_list(w, Q_RINGS, &q.rings, |w, r| {
            w.string(RING_NAME, &r.name);
            w.u64(RING_USED, r.used);
            w.u64(RING_SIZE, r.size);
        });
    });
}

pub(crate) fn get_queue(a: &Attrs<'_>) -> Result<QueueStatus, Errno> {
    let a = a.nested(lvsd::A_QUEUE, Q_POLICY).ok_or(Errno::EINVAL)?;
    let text = |kind| a.string(kind).ok_or(Errno::EINVAL);
    Ok(QueueStatus {
        interface: text(Q_INTERFACE)?,
        queue: a.u32(Q_QUEUE).ok_or(Errno::EINVAL)?,
        attached: a.u8(Q_ATTACHED).ok_or(Errno::EINVAL)? != 0,
        datapath: text(Q_DATAPATH)?,
        mode: text(Q_MODE)?,
        traffic: get_traffic(&a)?,
        drops: get_list(&a, Q_DROPS, lvsd::COUNTER_POLICY, get_counter)?,
        rings: get_list(&a, Q_RINGS, RING_POLICY, |a| {
            Some(RingLevel { name: a.string(RING_NAME)?, used: a.u64(RING_USED)?, size: a.u64(RING_SIZE)? })
        })?,
    })
}

pub(crate) fn put_scheduler(w: &mut Writer, s: &SchedulerInfo) {
    w.nested(lvsd::A_SCHEDULER, false, |w| {
        w.string(SCHED_NAME, &s.name);
        w.string(SCHED_DESCRIPTION, &s.description);
    });
}

pub(crate) fn get_scheduler(a: &Attrs<'_>) -> Result<SchedulerInfo, Errno> {
    let a = a.nested(lvsd::A_SCHEDULER, SCHED_POLICY).ok_or(Errno::EINVAL)?;
    Ok(SchedulerInfo {
        name: a.string(SCHED_NAME).ok_or(Errno::EINVAL)?,
        description: a.string(SCHED_DESCRIPTION).ok_or(Errno::EINVAL)?,
    })
}

pub(crate) fn put_notice(w: &mut Writer, n: &Notice) {
    w.nested(lvsd::A_NOTICE, false, |w| w.string(NOTICE_TEXT, &n.text));
}

pub(crate) fn get_notice(a: &Attrs<'_>) -> Result<Notice, Errno> {
    let a = a.nested(lvsd::A_NOTICE, NOTICE_POLICY).ok_or(Errno::EINVAL)?;
    Ok(Notice { text: a.string(NOTICE_TEXT).ok_or(Errno::EINVAL)? })
}
