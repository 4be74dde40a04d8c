//! Connections as numbers, and frames of them written into slots like a receive ring's.

use std::net::Ipv4Addr;
use std::time::Duration;

use lvsd::conn::ConnTable;
use lvsd::engine::{Frame, FrameHandler, RxChecksum, Verdict, Worker};
use lvsd::time::Now;

use super::{CpuTime, now, rig};
use crate::Failure;

/// Bytes of a slot, as the `AF_PACKET` port has them for an MTU of 1500: an odd number of cache lines.
const SLOT: usize = 1728;
/// Where the frame begins in its slot.
const START: usize = 64;
/// Frames a batch.
pub(crate) const BATCH: usize = 64;
/// Slots of the ring: what is in it fits the second-level cache, as a ring's frames are in the cache of whoever filled it.
pub(crate) const SLOTS: usize = 32 * BATCH;

pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;

/// A connection: client, and (once it is known) its server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) client: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) server: u8,
    pub(crate) tcp: bool,
}

/// A generator of numbers that are not guessed by a branch predictor: xorshift64*.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (((self.next() >> 32) * n as u64) >> 32) as usize
    }
}

/// `n` flows with different ends, spread over 198.18.0.0/15; every other one is TCP.
pub(crate) fn flows(n: u32) -> Vec<Flow> {
    flows_from(0, n)
}

/// `n` of these flows, without the first ones.
pub(crate) fn flows_from(first: u32, n: u32) -> Vec<Flow> {
    // an odd factor makes a permutation of the 32-bit numbers, so no two flows are the same
    let end = |i: u32| i.wrapping_mul(0x9e37_79b1);
    let flow = |i: u32| {
        let e = end(i);
        let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) | e >> 15);
        Flow { client, port: (e as u16 & 0x7fff) | 0x8000, server: 0, tcp: i.is_multiple_of(2) }
    };
    (first..first + n).map(flow).collect()
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&b| u32::from(b))).sum()
}

fn checksum(mut sum: u32) -> [u8; 2] {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Writes a frame of a flow: from its client (`reply` false) or from its server. Returns its length.
fn write(f: &mut [u8], flow: &Flow, reply: bool, flags: u8) -> usize {
    let (to, from) = if reply {
        (rig::SERVERS_MAC, rig::server_mac(flow.server))
    } else {
        (rig::CLIENTS_MAC, rig::GATEWAY_MAC)
    };
    let client = (flow.client, flow.port);
    let (src, dst) = if reply {
        ((rig::server(flow.server), rig::REAL_PORT), client)
    } else {
        (client, (rig::VIP, rig::PORT))
    };
    let (proto, l4_len) = if flow.tcp { (6u8, 20usize) } else { (17, 26) };
    let f = &mut f[..34 + l4_len];
    f[..6].copy_from_slice(&to);
    f[6..12].copy_from_slice(&from);
    f[12..14].copy_from_slice(&[8, 0]);
    f[14..34].fill(0);
    f[14] = 0x45;
    f[16..18].copy_from_slice(&(20 + l4_len as u16).to_be_bytes());
    f[20] = 0x40;
    f[22] = 64;
    f[23] = proto;
    f[26..30].copy_from_slice(&src.0.octets());
    f[30..34].copy_from_slice(&dst.0.octets());
    let ip = checksum(sum(&f[14..34]));
    f[24..26].copy_from_slice(&ip);
    f[34..].fill(0);
    f[34..36].copy_from_slice(&src.1.to_be_bytes());
    f[36..38].copy_from_slice(&dst.1.to_be_bytes());
    let at = if flow.tcp {
        f[46] = 0x50;
        f[47] = flags;
        f[48] = 0xff;
        50
    } else {
        f[38..40].copy_from_slice(&(l4_len as u16).to_be_bytes());
        40
    };
    let l4 = checksum(sum(&f[26..34]) + u32::from(proto) + l4_len as u32 + sum(&f[34..]));
    f[at..at + 2].copy_from_slice(&l4);
    f.len()
}

/// One frame to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) flow: Flow,
    pub(crate) reply: bool,
    pub(crate) flags: u8,
}

/// Memory for [`SLOTS`] frames.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Vec<u8>,
    lens: Vec<usize>,
}

impl Ring {
    pub(crate) fn new() -> Ring {
        Ring { memory: vec![0; SLOT * SLOTS], lens: Vec::with_capacity(SLOTS) }
    }

    /// Fills the first slots, at most [`SLOTS`], and hands them out as a port would.
    pub(crate) fn fill(&mut self, wanted: &[Wanted]) -> Vec<Frame<'_>> {
        self.lens.clear();
        for (slot, w) in self.memory.chunks_exact_mut(SLOT).zip(wanted) {
            self.lens.push(write(&mut slot[START..], &w.flow, w.reply, w.flags));
        }
        let slots = self.memory.chunks_exact_mut(SLOT).zip(&self.lens).zip(wanted);
        slots
            .map(|((buf, len), w)| Frame {
                buf,
                start: START,
                end: START + len,
                port: if w.reply { rig::SERVERS } else { rig::CLIENTS },
                checksum: RxChecksum::Complete,
                gso: None,
            })
            .collect()
    }
}

/// What forwarding the frames of these took, in batches; frames are made outside the measured time, the core's timers run inside it.
///
/// # Errors
/// Where one was not forwarded.
pub(crate) fn timed(worker: &mut Worker, ring: &mut Ring, wanted: &[Wanted]) -> Result<Duration, Failure> {
    let mut verdicts = Vec::with_capacity(BATCH);
    let mut frames = ring.fill(wanted);
    let begin = CpuTime::now();
    let mut forwarded = 0;
    for batch in frames.chunks_mut(BATCH) {
        verdicts.clear();
        let now = now();
        worker.batch(now, batch, &mut verdicts);
        forwarded += verdicts.iter().filter(|v| matches!(v, Verdict::Forward(_))).count();
        if worker.next_deadline(now) <= now {
            worker.tick(now);
        }
    }
    let spent = begin.elapsed();
    if forwarded != wanted.len() {
        return Err(format!("{forwarded} of {} packets were forwarded", wanted.len()).into());
    }
    Ok(spent)
}

/// Gives a worker these frames, which it must forward.
pub(crate) fn forward(
    worker: &mut Worker,
    ring: &mut Ring,
    now: Now,
    wanted: &[Wanted],
) -> Result<(), Failure> {
    let mut verdicts = Vec::with_capacity(BATCH);
    for part in wanted.chunks(SLOTS) {
        for batch in ring.fill(part).chunks_mut(BATCH) {
            verdicts.clear();
            worker.batch(now, batch, &mut verdicts);
            if let Some(v) = verdicts.iter().find(|v| !matches!(v, Verdict::Forward(_))) {
                return Err(format!("a frame that should have been forwarded was not: {v:?}").into());
            }
        }
    }
    Ok(())
}

/// Makes the connections of all flows, each with packets in both directions, and notes their servers.
pub(crate) fn establish(
    worker: &mut Worker,
    table: &ConnTable,
    flows: &mut [Flow],
    now: Now,
) -> Result<(), Failure> {
    let mut ring = Ring::new();
    for part in flows.chunks_mut(SLOTS) {
        let wanted = |part: &[Flow], reply, flags| -> Vec<Wanted> {
            part.iter().map(|&flow| Wanted { flow, reply, flags }).collect()
        };
        forward(worker, &mut ring, now, &wanted(part, false, SYN))?;
        for flow in part.iter_mut() {
            flow.server = server_of(table, flow).ok_or("a connection that was made is not in the table")?;
        }
        forward(worker, &mut ring, now, &wanted(part, true, SYN | ACK))?;
        forward(worker, &mut ring, now, &wanted(part, false, ACK))?;
    }
    Ok(())
}

/// The number of the server that a flow's connection has.
fn server_of(table: &ConnTable, flow: &Flow) -> Option<u8> {
    let tuple = super::tuple(flow.client.into(), flow.port, rig::VIP.into(), rig::PORT, flow.tcp);
    let (conn, _) = table.lookup(table.hash(&tuple), &tuple)?;
    let last = conn.real().0.v4() as u8;
    last.checked_sub(1)
}
