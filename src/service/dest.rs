//! Destinations as the packet path sees them: fixed lines of atomic words, found by number.
//!
//! What can change under a connection (weight, availability, next hop) lives here, never in the connection's entry,
//! so that a change to a server touches no connection.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use ipvs_netlink::{FwdMethod, Tunnel};
use modes::{Addr, Family};
use schedulers::Load;

use crate::mem::Region;
use crate::time::Tick;

/// Words of a destination's line.
const LINE: usize = 16;
/// Words of a worker's statistics of one destination.
const STAT: usize = 8;
/// Words of what the tier counts on one processor for a destination (`modes/bpf/tier.h`): packets in and out, bytes in and out.
const KERNEL_STAT: usize = 4;

const W_FLAGS: usize = 0;
const W_ADDR_HI: usize = 1;
const W_ADDR_LO: usize = 2;
const W_END: usize = 3;
const W_LOAD: usize = 4;
const W_CONNS: usize = 5;
const W_THRESHOLDS: usize = 6;
const W_ROUTE: usize = 7;
const W_TEMPLATES: usize = 8;
const W_TUNNEL: usize = 9;
const W_SOURCE_HI: usize = 10;
const W_SOURCE_LO: usize = 11;
const W_SOURCE: usize = 12;
/// The tick at which it is forgotten:32, the path's MTU:16; 0 while nothing is known.
const W_PATH_MTU: usize = 13;

const AVAILABLE: u64 = 1;
const OVERLOADED: u64 = 2;

/// `W_SOURCE` is epoch:32, changes:31, and this: somebody is writing the address.
const SOURCE_BUSY: u64 = 1;
const SOURCE_CHANGES: u64 = 0xffff_fffe;

/// A destination's number: the index of its line.
pub type DestId = u32;

/// All destinations of the director.
#[derive(Debug)]
pub struct Dests {
    lines: Region,
    stats: Region,
    /// What the tier counts: a row of destinations for each processor.
    kernel: Region,
    /// What a line is for, for who takes it over (`keep.rs`).
    pub(super) keys: Region,
    workers: usize,
    capacity: u32,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    list: Vec<DestId>,
    never_used: DestId,
}

/// Memory of destinations, all of it zeros or what a daemon that went before left.
#[derive(Debug)]
pub struct DestMemory {
    /// [`Dests::bytes`].
    pub lines: Region,
    /// [`Dests::stat_bytes`].
    pub stats: Region,
    /// [`Dests::kernel_bytes`]; empty where there is no tier.
    pub kernel: Region,
    /// [`Dests::key_bytes`].
    pub keys: Region,
}

/// Sums over all workers since the line was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct RawStats {
    pub conns: u64,
    pub in_pkts: u64,
    pub out_pkts: u64,
    pub in_bytes: u64,
    pub out_bytes: u64,
}

impl RawStats {
    /// What was counted since `base`.
    pub fn since(self, base: RawStats) -> RawStats {
        RawStats {
            conns: self.conns.wrapping_sub(base.conns),
            in_pkts: self.in_pkts.wrapping_sub(base.in_pkts),
            out_pkts: self.out_pkts.wrapping_sub(base.out_pkts),
            in_bytes: self.in_bytes.wrapping_sub(base.in_bytes),
            out_bytes: self.out_bytes.wrapping_sub(base.out_bytes),
        }
    }
    /// Both together.
    pub fn plus(self, o: RawStats) -> RawStats {
        RawStats {
            conns: self.conns.wrapping_add(o.conns),
            in_pkts: self.in_pkts.wrapping_add(o.in_pkts),
            out_pkts: self.out_pkts.wrapping_add(o.out_pkts),
            in_bytes: self.in_bytes.wrapping_add(o.in_bytes),
            out_bytes: self.out_bytes.wrapping_add(o.out_bytes),
        }
    }
}

/// One destination's line.
#[derive(Clone, Copy, Debug)]
pub struct DestLine<'a> {
    w: &'a [AtomicU64; LINE],
}

impl Dests {
    /// Room for `capacity` destinations, counted apart by `workers` workers.
    pub fn new(capacity: u32, workers: usize) -> io::Result<Dests> {
        let region = |bytes| Region::anonymous(bytes, false);
        let memory = DestMemory {
            lines: region(Dests::bytes(capacity))?,
            stats: region(Dests::stat_bytes(capacity, workers))?,
            kernel: region(0)?,
            keys: region(Dests::key_bytes(capacity))?,
        };
        Ok(Dests::within(capacity, workers, memory))
    }

    /// Bytes of `capacity` destinations' lines.
    pub const fn bytes(capacity: u32) -> usize {
        capacity as usize * LINE * 8
    }

    /// Bytes of what `workers` count for `capacity` destinations.
    pub const fn stat_bytes(capacity: u32, workers: usize) -> usize {
        capacity as usize * workers * STAT * 8
    }

    /// Bytes of what the tier counts for `capacity` destinations on `processors`.
    pub const fn kernel_bytes(capacity: u32, processors: usize) -> usize {
        capacity as usize * processors * KERNEL_STAT * 8
    }

    /// As [`Dests::new`] in memory that is shared with BPF programs, and may hold another daemon's destinations: see
    /// [`Dests::take_over`].
    pub fn within(capacity: u32, workers: usize, memory: DestMemory) -> Dests {
        let DestMemory { lines, stats, kernel, keys } = memory;
        let free = Mutex::new(Free { list: Vec::new(), never_used: 0 });
        Dests { lines, stats, kernel, keys, workers, capacity, free }
    }

    /// Adds up what another number of workers counted for `capacity` destinations: it goes to the first of ours, whose memory `to` is.
    pub fn fold_stats(capacity: u32, from: &Region, to: &Region) {
        let (from, to): (&[[AtomicU64; STAT]], &[[AtomicU64; STAT]]) =
            (from.words().as_chunks().0, to.words().as_chunks().0);
        for (id, row) in from.iter().enumerate() {
            let Some(sum) = to.get(id % (capacity.max(1) as usize)) else { return };
            for (sum, w) in sum.iter().zip(row) {
                Dests::bump(sum, w.load(Relaxed));
            }
        }
    }

    /// How many there may be.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// All lines that are for nothing are free from now on, those of another daemon that are for something are not.
    pub(super) fn find_free(&self, is_used: impl Fn(DestId) -> bool) {
        let end = (0..self.capacity).rev().find(|&id| is_used(id)).map_or(0, |last| last + 1);
        // the other daemon may have ended while it took or freed one
        (0..self.capacity).filter(|&id| !is_used(id)).for_each(|id| self.clear(id));
        let list = (0..end).rev().filter(|&id| !is_used(id)).collect();
        *self.free.lock().unwrap_or_else(|e| e.into_inner()) = Free { list, never_used: end };
    }

    /// The line of a destination.
    #[inline(always)]
    pub fn line(&self, id: DestId) -> DestLine<'_> {
        DestLine { w: &self.lines.words().as_chunks().0[id as usize] }
    }

    /// Takes a line for a new destination; it is not available yet. `None` when there is no room.
    pub fn allocate(&self) -> Option<DestId> {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(id) = free.list.pop() {
            return Some(id);
        }
        let id = free.never_used;
        if id == self.capacity {
            return None;
        }
        free.never_used += 1;
        Some(id)
    }

    /// Gives a line back. Nothing may refer to it any more.
    pub fn release(&self, id: DestId) {
        self.clear(id);
        self.free.lock().unwrap_or_else(|e| e.into_inner()).list.push(id);
    }

    fn clear(&self, id: DestId) {
        self.forget_key(id);
        for w in self.line(id).w {
            w.store(0, Release);
        }
        for worker in 0..self.workers {
            for w in self.stat(worker, id) {
                w.store(0, Relaxed);
            }
        }
        for row in self.kernel_rows(id) {
            for w in row {
                w.store(0, Relaxed);
            }
        }
    }

    /// What each processor counted of a destination.
    fn kernel_rows(&self, id: DestId) -> impl Iterator<Item = &[AtomicU64; KERNEL_STAT]> {
        let (rows, _) = self.kernel.words().as_chunks();
        rows.iter().skip(id as usize).step_by(self.capacity.max(1) as usize)
    }

    #[inline(always)]
    fn stat(&self, worker: usize, id: DestId) -> &[AtomicU64; STAT] {
        &self.stats.words().as_chunks().0[worker * self.capacity as usize + id as usize]
    }

    fn bump(w: &AtomicU64, n: u64) {
        w.store(w.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Counts a new connection. Only `worker` itself may call this.
    pub fn count_conn(&self, worker: usize, id: DestId) {
        Dests::bump(&self.stat(worker, id)[0], 1);
    }
    /// Counts packets (a super-packet is several) and their IP bytes from clients.
    pub fn count_in(&self, worker: usize, id: DestId, pkts: u64, bytes: u64) {
        let s = self.stat(worker, id);
        Dests::bump(&s[1], pkts);
        Dests::bump(&s[3], bytes);
    }
    /// Counts packets and their IP bytes from the server.
    pub fn count_out(&self, worker: usize, id: DestId, pkts: u64, bytes: u64) {
        let s = self.stat(worker, id);
        Dests::bump(&s[2], pkts);
        Dests::bump(&s[4], bytes);
    }

    /// As [`Dests::count_in`] or [`Dests::count_out`].
    #[inline(always)]
    pub(crate) fn count(&self, worker: usize, id: DestId, out: bool, pkts: u64, bytes: u64) {
        let s = self.stat(worker, id);
        Dests::bump(&s[1 + usize::from(out)], pkts);
        Dests::bump(&s[3 + usize::from(out)], bytes);
    }

    /// What all workers and the tier counted.
    pub fn stats(&self, id: DestId) -> RawStats {
        let mut sum = RawStats::default();
        for worker in 0..self.workers {
            let s = self.stat(worker, id);
            sum = sum.plus(RawStats {
                conns: s[0].load(Relaxed),
                in_pkts: s[1].load(Relaxed),
                out_pkts: s[2].load(Relaxed),
                in_bytes: s[3].load(Relaxed),
                out_bytes: s[4].load(Relaxed),
            });
        }
        for [in_pkts, out_pkts, in_bytes, out_bytes] in self.kernel_rows(id) {
            sum = sum.plus(RawStats {
                conns: 0,
                in_pkts: in_pkts.load(Relaxed),
                out_pkts: out_pkts.load(Relaxed),
                in_bytes: in_bytes.load(Relaxed),
                out_bytes: out_bytes.load(Relaxed),
            });
        }
        sum
    }
}

fn method_from(n: u8) -> FwdMethod {
    match n {
        0 => FwdMethod::Masq,
        1 => FwdMethod::Local,
        2 => FwdMethod::Tunnel,
        3 => FwdMethod::Droute,
        _ => FwdMethod::Bypass,
    }
}

/// Whether a server with so many connections takes new ones again.
fn is_below(total: u64, upper: u32, lower: u32) -> bool {
    if lower != 0 { total < u64::from(lower) } else { total * 4 < u64::from(upper) * 3 }
}

impl DestLine<'_> {
    /// Sets address and port of a line that is not available yet.
    pub fn set_end(&self, family: Family, addr: Addr, port: u16) {
        self.w[W_ADDR_HI].store((addr.0 >> 64) as u64, Relaxed);
        self.w[W_ADDR_LO].store(addr.0 as u64, Relaxed);
        let method = self.w[W_END].load(Relaxed) >> 32 << 32;
        self.w[W_END].store(u64::from(port) | (family as u64) << 16 | method, Relaxed);
    }
    /// Sets the forwarding method of new connections.
    pub fn set_method(&self, method: FwdMethod) {
        let end = self.w[W_END].load(Relaxed) & 0xffff_ffff;
        self.w[W_END].store(end | (method as u64) << 32, Relaxed);
    }
    /// Address.
    pub fn addr(&self) -> Addr {
        Addr(u128::from(self.w[W_ADDR_HI].load(Relaxed)) << 64 | u128::from(self.w[W_ADDR_LO].load(Relaxed)))
    }
    /// Port, host order; 0 keeps the packet's.
    pub fn port(&self) -> u16 {
        self.w[W_END].load(Relaxed) as u16
    }
    /// Family of the address.
    pub fn family(&self) -> Family {
        if (self.w[W_END].load(Relaxed) >> 16) as u8 == 6 { Family::V6 } else { Family::V4 }
    }
    /// Forwarding method of new connections.
    pub fn method(&self) -> FwdMethod {
        method_from((self.w[W_END].load(Relaxed) >> 32) as u8)
    }

    /// Sets the encapsulation of a tunnel server; it holds for known connections too.
    pub fn set_tunnel(&self, t: Tunnel) {
        let word = u64::from(t.kind) | u64::from(t.flags) << 16 | u64::from(t.port) << 32;
        self.w[W_TUNNEL].store(word, Release);
    }
    /// Encapsulation, for tunnel servers.
    pub fn tunnel(&self) -> Tunnel {
        let w = self.w[W_TUNNEL].load(Acquire);
        Tunnel { kind: w as u8, flags: (w >> 16) as u16, port: (w >> 32) as u16 }
    }

    /// Whether the server is configured (connections of a removed server are kept, but not served).
    #[inline(always)]
    pub fn available(&self) -> bool {
        self.w[W_FLAGS].load(Acquire) & AVAILABLE != 0
    }
    /// Makes the server available or not.
    pub fn set_available(&self, yes: bool) {
        if yes {
            self.w[W_FLAGS].fetch_or(AVAILABLE, AcqRel);
        } else {
            self.w[W_FLAGS].fetch_and(!AVAILABLE, AcqRel);
        }
    }

    /// Sets weight and thresholds. A threshold that is lifted or raised takes effect at once.
    pub fn set_load(&self, weight: u32, upper: u32, lower: u32) {
        // Workers change the upper half (references) meanwhile: the lower one is replaced by adding the difference.
        let old = self.weight();
        self.w[W_LOAD].fetch_add(u64::from(weight).wrapping_sub(u64::from(old)), AcqRel);
        let old_upper = self.w[W_THRESHOLDS].load(Relaxed) as u32;
        self.w[W_THRESHOLDS].store(u64::from(upper) | u64::from(lower) << 32, Release);
        if upper == 0 || upper > old_upper {
            self.w[W_FLAGS].fetch_and(!OVERLOADED, AcqRel);
        }
    }
    /// Weight.
    pub fn weight(&self) -> u32 {
        self.w[W_LOAD].load(Relaxed) as u32
    }
    /// Upper and lower threshold.
    pub fn thresholds(&self) -> (u32, u32) {
        let w = self.w[W_THRESHOLDS].load(Relaxed);
        (w as u32, (w >> 32) as u32)
    }
    /// Active and inactive connections.
    pub fn conns(&self) -> (u32, u32) {
        let w = self.w[W_CONNS].load(Relaxed);
        ((w >> 32) as u32, w as u32)
    }
    /// Persistence templates.
    pub fn templates(&self) -> u32 {
        self.w[W_TEMPLATES].load(Relaxed) as u32
    }
    /// Entries that refer to the line.
    pub fn refs(&self) -> u32 {
        (self.w[W_LOAD].load(Acquire) >> 32) as u32
    }
    /// What a scheduler may know.
    pub fn load(&self) -> Load {
        let (active, inactive) = self.conns();
        Load {
            weight: self.weight(),
            active,
            inactive,
            overloaded: self.w[W_FLAGS].load(Relaxed) & OVERLOADED != 0,
        }
    }

    /// A connection is bound to the server. The caller holds the service's lock, so that a threshold is never passed.
    pub fn bind(&self, active: bool) {
        self.w[W_LOAD].fetch_add(1 << 32, AcqRel);
        let w = self.w[W_CONNS].fetch_add(if active { 1 << 32 } else { 1 }, AcqRel);
        let total = (w >> 32) + (w & 0xffff_ffff) + 1;
        let (upper, _) = self.thresholds();
        if upper != 0 && total >= u64::from(upper) {
            self.w[W_FLAGS].fetch_or(OVERLOADED, AcqRel);
        }
    }
    /// A connection of the server ended.
    pub fn unbind(&self, active: bool) {
        let w = self.w[W_CONNS].fetch_sub(if active { 1 << 32 } else { 1 }, AcqRel);
        let total = ((w >> 32) + (w & 0xffff_ffff)).saturating_sub(1);
        let (upper, lower) = self.thresholds();
        if upper == 0 || is_below(total, upper, lower) {
            self.w[W_FLAGS].fetch_and(!OVERLOADED, AcqRel);
        }
        self.w[W_LOAD].fetch_sub(1 << 32, AcqRel);
    }
    /// A connection went from inactive to active (or back).
    pub fn set_active(&self, active: bool) {
        let step = (1u64 << 32).wrapping_sub(1);
        if active {
            self.w[W_CONNS].fetch_add(step, AcqRel);
        } else {
            self.w[W_CONNS].fetch_sub(step, AcqRel);
        }
    }
    /// A persistence template is bound to the server.
    pub fn bind_template(&self) {
        self.w[W_LOAD].fetch_add(1 << 32, AcqRel);
        self.w[W_TEMPLATES].fetch_add(1, AcqRel);
    }
    /// A persistence template of the server ended.
    pub fn unbind_template(&self) {
        self.w[W_TEMPLATES].fetch_sub(1, AcqRel);
        self.w[W_LOAD].fetch_sub(1 << 32, AcqRel);
    }

    /// Another daemon's line: counts as they are found in the table, and nothing half-written.
    pub(super) fn take_over(&self, active: u32, inactive: u32, templates: u32) {
        let refs = u64::from(active) + u64::from(inactive) + u64::from(templates);
        self.w[W_LOAD].store(refs << 32 | u64::from(self.weight()), Release);
        self.w[W_CONNS].store(u64::from(active) << 32 | u64::from(inactive), Release);
        self.w[W_TEMPLATES].store(templates.into(), Release);
        // whoever was writing it has ended; a whole one serves the old programs until there are new ones
        if self.w[W_SOURCE].load(Acquire) & SOURCE_BUSY != 0 {
            self.w[W_SOURCE].store(0, Release);
        }
        let (upper, lower) = self.thresholds();
        let total = u64::from(active) + u64::from(inactive);
        if upper == 0 || is_below(total, upper, lower) {
            self.w[W_FLAGS].fetch_and(!OVERLOADED, AcqRel);
        } else if total >= u64::from(upper) {
            self.w[W_FLAGS].fetch_or(OVERLOADED, AcqRel);
        }
    }

    /// The cached next hop: the routes' epoch for which it holds, and its number.
    pub fn route(&self) -> (u32, u32) {
        let w = self.route_word();
        ((w >> 32) as u32, w as u32)
    }
    /// The same in one word, the epoch above.
    #[inline(always)]
    pub(crate) fn route_word(&self) -> u64 {
        self.w[W_ROUTE].load(Acquire)
    }
    /// Caches a next hop.
    pub fn set_route(&self, epoch: u32, hop: u32) {
        self.w[W_ROUTE].store(u64::from(epoch) << 32 | u64::from(hop), Release);
    }

    /// The largest packet that routers on the way to the server let pass, as one of them said; 65,535 where none did, or long ago.
    #[inline]
    pub fn path_mtu(&self, now: Tick) -> u16 {
        self.learned_mtu(now).map_or(u16::MAX, |(mtu, _)| mtu)
    }
    /// The same where one did, and the tick at which it is forgotten.
    #[inline]
    pub fn learned_mtu(&self, now: Tick) -> Option<(u16, Tick)> {
        let word = &self.w[W_PATH_MTU];
        let w = word.load(Relaxed);
        let end = Tick((w >> 32) as u32);
        if w == 0 {
            return None;
        }
        if now.reached(end) {
            // Else it would hold again when ticks have gone half their round.
            let _ = word.compare_exchange(w, 0, Relaxed, Relaxed);
            return None;
        }
        Some((w as u16, end))
    }
    /// Forgets what routers said.
    pub fn forget_path_mtu(&self) {
        self.w[W_PATH_MTU].store(0, Relaxed);
    }
    /// Notes what a router said, for so many ticks. A larger value than the known one waits until that is forgotten.
    pub fn set_path_mtu(&self, mtu: u16, now: Tick, life: u32) {
        if mtu <= self.path_mtu(now) {
            let word = u64::from(now.plus(life).0) << 32 | u64::from(mtu);
            self.w[W_PATH_MTU].store(word, Relaxed);
        }
    }

    /// The director's own address on the way to the server, if it was cached in this epoch of the routes.
    #[inline]
    pub fn source(&self, epoch: u32) -> Option<Addr> {
        let before = self.w[W_SOURCE].load(Acquire);
        if before >> 32 != u64::from(epoch) || before & SOURCE_BUSY != 0 {
            return None;
        }
        let (hi, lo) = (self.w[W_SOURCE_HI].load(Relaxed), self.w[W_SOURCE_LO].load(Relaxed));
        fence(Acquire);
        let addr = Addr(u128::from(hi) << 64 | u128::from(lo));
        (self.w[W_SOURCE].load(Relaxed) == before).then_some(addr)
    }
    /// Caches that address. If another worker is at it this instant, nothing is kept.
    pub fn set_source(&self, epoch: u32, addr: Addr) {
        let word = &self.w[W_SOURCE];
        let old = word.load(Relaxed);
        if old & SOURCE_BUSY != 0 || word.compare_exchange(old, old | SOURCE_BUSY, AcqRel, Relaxed).is_err() {
            return;
        }
        fence(Release);
        self.w[W_SOURCE_HI].store((addr.0 >> 64) as u64, Relaxed);
        self.w[W_SOURCE_LO].store(addr.0 as u64, Relaxed);
        word.store(u64::from(epoch) << 32 | old.wrapping_add(2) & SOURCE_CHANGES, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn tunnel_parameters_are_kept_apart() {
        let dests = Dests::new(2, 1).unwrap();
        let id = dests.allocate().unwrap();
        let t = Tunnel { kind: 2, port: 0xfedc, flags: 0x1234 };
        dests.line(id).set_tunnel(t);
        assert_eq!(dests.line(id).tunnel(), t);
        assert_eq!(dests.line(id + 1).tunnel(), Tunnel::default());
        dests.release(id);
        assert_eq!(dests.line(id).tunnel(), Tunnel::default());
    }

    #[test]
    fn a_path_mtu_is_forgotten() {
        let dests = Dests::new(1, 1).unwrap();
        let id = dests.allocate().unwrap();
        let line = dests.line(id);
        for start in [Tick(7), Tick(u32::MAX - 3)] {
            assert_eq!(line.path_mtu(start), u16::MAX);
            line.set_path_mtu(1400, start, 10);
            line.set_path_mtu(1450, start.plus(1), 10);
            assert_eq!(line.path_mtu(start.plus(9)), 1400, "larger ones wait");
            assert_eq!(line.path_mtu(start.plus(10)), u16::MAX);
            line.set_path_mtu(1450, start.plus(10), 10);
            line.set_path_mtu(1300, start.plus(12), 10);
            assert_eq!(line.path_mtu(start.plus(21)), 1300);
            assert_eq!(line.path_mtu(start.plus(22)), u16::MAX);
        }
        dests.release(id);
        assert_eq!(dests.line(id).path_mtu(Tick(0)), u16::MAX);
    }

    #[test]
    fn a_source_holds_for_its_epoch() {
        let dests = Dests::new(1, 1).unwrap();
        let line = dests.line(dests.allocate().unwrap());
        assert_eq!(line.source(1), None);
        for epoch in [1, 2, u32::MAX] {
            let addr = Addr(u128::from(epoch) << 96 | 7);
            line.set_source(epoch, addr);
            assert_eq!(line.source(epoch), Some(addr));
            assert_eq!(line.source(epoch - 1), None);
        }
    }

    /// Workers that write and read a source at the same time: whoever gets an answer gets a whole address of that epoch.
    #[test]
    fn sources_are_never_torn() {
        const ROUNDS: u32 = 200_000;
        let dests = Dests::new(1, 1).unwrap();
        let line = dests.line(dests.allocate().unwrap());
        let of = |epoch: u32| Addr(u128::from(epoch) << 64 | u128::from(!epoch));
        let (current, done) = (AtomicU64::new(1), AtomicBool::new(false));
        let hits: u64 = std::thread::scope(|s| {
            let writers = [0, 1].map(|me| {
                let current = &current;
                s.spawn(move || {
                    for epoch in 1..=ROUNDS {
                        line.set_source(epoch + me, of(epoch + me));
                        current.store(epoch.into(), Relaxed);
                    }
                })
            });
            let reader = s.spawn(|| {
                let mut hits = 0;
                loop {
                    // In this order: the last round finds what the writers left.
                    let last = done.load(Acquire);
                    let epoch = current.load(Relaxed) as u32;
                    for e in epoch..epoch + 4 {
                        if let Some(addr) = line.source(e) {
                            assert_eq!(addr, of(e));
                            hits += 1;
                        }
                    }
                    if last {
                        break hits;
                    }
                }
            });
            for w in writers {
                w.join().unwrap();
            }
            done.store(true, Release);
            reader.join().unwrap()
        });
        assert!(hits > 0);
    }
}
