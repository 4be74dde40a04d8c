//! ICMP errors that the director itself makes.

use modes::icmp::Problem;
use modes::packet::Packet;
use modes::{Addr, Family, icmp};

use super::reason::{Count, Reason};
use super::worker::Worker;
use super::{Frame, Verdict};
use crate::time::Now;

/// Errors a second that one worker makes at most, and how many at once (the kernel's `icmp_msgs_per_sec` and
/// `icmp_msgs_burst`).
const PER_SEC: u64 = 1000;
const BURST: u64 = 50;

/// A token bucket: 0 tokens are 0, a full one is [`BURST`] seconds/[`PER_SEC`].
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// When the bucket would be full again.
    full_at: u64,
}

impl Bucket {
    pub(super) fn take(&mut self, now: Now) -> bool {
        let cost = 1_000_000_000 / PER_SEC;
        let full_at = self.full_at.max(now.0) + cost;
        if full_at - now.0 > cost * BURST {
            return false;
        }
        self.full_at = full_at;
        true
    }
}

impl Worker {
    /// Tells the sender of a packet what is wrong with it, where the rules allow an answer. The verdict is the frame's end; the
    /// reason has been counted by the caller.
    pub(super) fn answer(&mut self, now: Now, frame: &Frame<'_>, p: &Packet, problem: Problem) -> Verdict {
        let bytes = frame.bytes();
        if !icmp::may_answer(p, bytes) {
            return Verdict::Emitted;
        }
        if !self.icmp.take(now) {
            self.counters().count(Count::IcmpLimited);
            return Verdict::Emitted;
        }
        let Some(source) = self.answer_source(p) else { return Verdict::Emitted };
        self.ip_id = self.ip_id.wrapping_add(1);
        let mut data = Vec::with_capacity(1294);
        if !icmp::error(bytes, p, problem, source, self.ip_id, &mut data) {
            return Verdict::Emitted;
        }
        if self.emit_to(now, p.family, p.src, data) {
            self.counters().count(Count::IcmpSent);
        }
        Verdict::Emitted
    }

    /// The address an error comes from: the one the packet was sent to where that is the director's own (the virtual address), else
    /// the director's on the way to the sender.
    fn answer_source(&self, p: &Packet) -> Option<Addr> {
        let routes = &*self.director.routes;
        if routes.is_local(p.family, p.dst) || self.is_virtual(p.family, p.dst, p) {
            return Some(p.dst);
        }
        routes.source_for(p.family, p.src)
    }

    fn is_virtual(&self, family: Family, addr: Addr, p: &Packet) -> bool {
        self.director.services.find(family, p.proto, addr, p.dport).is_some()
    }

    /// No server takes a packet's connection.
    pub(super) fn unreachable(&mut self, now: Now, frame: &Frame<'_>, p: &Packet) -> Verdict {
        self.counters().drop(Reason::NoDestination);
        self.answer(now, frame, p, Problem::PortUnreachable)
    }
}
