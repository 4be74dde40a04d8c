//! Next-hop lines: what a frame needs to leave, readable by every worker without a lock.
//!
//! A line is one cache line that holds its value twice. The version says which copy is in force; the writer fills the
//! other one and then steps the version. A reader copies the words and looks at the version again: unchanged means
//! that nobody has written to what it read. A reader never waits for a writer that was stopped half-way.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use modes::fast::Macs;

use super::event::Mac;
use super::{Hop, HopState, NextHopId, PortId};
use crate::time::Tick;

/// A use is noted in steps of this many ticks (half a second), so that a busy line is seldom written to.
pub(super) const USED_STEP: u32 = 8;

/// How often a reader tries again when lines change under its hands. Each failure means that a writer has finished
/// another change meanwhile, so two are hardly ever seen.
const READ_TRIES: usize = 16;

#[derive(Default)]
struct Copy3 {
    /// Bits 63..16 source MAC, 15..0 port.
    out: AtomicU64,
    /// Bits 63..16 destination MAC, 15..0 MTU.
    to: AtomicU64,
    /// Bits 31..16 generation, 1..0 state.
    meta: AtomicU64,
}

#[derive(Default)]
#[repr(align(64))]
struct Line {
    version: AtomicU64,
    copy: [Copy3; 2],
    /// Tick of the last use, in steps of [`USED_STEP`].
    used: AtomicU32,
}

/// All lines. Writers are serialised by the caller (the lock around the tables).
pub(super) struct Lines {
    lines: Box<[Line]>,
}

/// A line's value as it is stored.
struct Words {
    out: u64,
    to: u64,
    meta: u64,
}

impl Words {
    #[inline(always)]
    fn generation(&self) -> u16 {
        (self.meta >> 16) as u16
    }
}

impl Line {
    /// The value in force; none if it changed meanwhile.
    #[inline(always)]
    fn read(&self) -> Option<Words> {
        let version = self.version.load(Ordering::Acquire);
        let copy = &self.copy[(version & 1) as usize];
        let out = copy.out.load(Ordering::Relaxed);
        let to = copy.to.load(Ordering::Relaxed);
        let meta = copy.meta.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some(Words { out, to, meta })
    }

    #[cold]
    #[inline(never)]
    fn read_again(&self) -> Option<Words> {
        (1..READ_TRIES).find_map(|_| self.read())
    }
}

/// What a frame needs to leave by a next hop that is ready, as the line has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leave {
    out: u64,
    to: u64,
}

impl Leave {
    /// Where the frame goes out.
    #[inline(always)]
    pub(crate) fn port(self) -> PortId {
        PortId(self.out as u16)
    }

    /// As [`Hop::mtu`].
    #[inline(always)]
    pub(crate) fn mtu(self) -> u16 {
        self.to as u16
    }

    /// Its MAC addresses: the frame's first 12 bytes.
    #[inline(always)]
    pub(crate) fn macs(self) -> Macs {
        let (dst, src) = (self.to >> 16, self.out >> 16);
        Macs { first: (dst >> 16) as u32, rest: dst << 48 | src }
    }
}

const fn pack(mac: Mac, low: u16) -> u64 {
    let [a, b, c, d, e, f] = mac;
    let [g, h] = low.to_be_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

const fn unpack(word: u64) -> (Mac, u16) {
    let [a, b, c, d, e, f, g, h] = word.to_be_bytes();
    ([a, b, c, d, e, f], u16::from_be_bytes([g, h]))
}

impl NextHopId {
    pub(super) const fn new(index: u16, generation: u16) -> NextHopId {
        NextHopId((generation as u32) << 16 | index as u32)
    }
    pub(super) const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
    pub(super) const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// The number of [`HopState::Ready`] in a line.
const READY: u64 = 2;

const STATES: [HopState; 4] = [HopState::Gone, HopState::Unresolved, HopState::Ready, HopState::Gone];

impl Lines {
    /// `count` lines, at most 65,536.
    pub(super) fn new(count: usize) -> Lines {
        Lines { lines: (0..count.min(1 << 16)).map(|_| Line::default()).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Publishes a value under `id`; ids of other generations read as gone from here on.
    pub(super) fn publish(&self, id: NextHopId, hop: Hop) {
        let Some(line) = self.lines.get(id.index()) else { return };
        let version = line.version.load(Ordering::Relaxed);
        let copy = &line.copy[(version & 1 ^ 1) as usize];
        let state = match hop.state {
            HopState::Gone => 0,
            HopState::Unresolved => 1,
            HopState::Ready => READY,
        };
        // Pairs with the acquire fence in `get`: who reads a word stored below also sees the version stepped before,
        // which put this copy out of force.
        fence(Ordering::Release);
        copy.out.store(pack(hop.src_mac, hop.port.0), Ordering::Relaxed);
        copy.to.store(pack(hop.dst_mac, hop.mtu), Ordering::Relaxed);
        copy.meta.store(u64::from(id.generation()) << 16 | state, Ordering::Relaxed);
        line.version.store(version.wrapping_add(1), Ordering::Release);
    }

    /// The value in force.
    #[inline]
    pub(super) fn get(&self, id: NextHopId) -> Hop {
        let Some(line) = self.lines.get(id.index()) else { return Hop::GONE };
        let Some(words) = line.read().or_else(|| line.read_again()) else {
            return Hop { state: HopState::Unresolved, ..Hop::GONE };
        };
        if words.generation() != id.generation() {
            return Hop::GONE;
        }
        let (src_mac, port) = unpack(words.out);
        let (dst_mac, mtu) = unpack(words.to);
        Hop { state: STATES[(words.meta & 3) as usize], port: PortId(port), src_mac, dst_mac, mtu }
    }

    /// What a frame needs to leave at once; none where the next hop is not ready, or changes this instant.
    #[inline(always)]
    pub(super) fn leave(&self, id: NextHopId) -> Option<Leave> {
        let words = self.lines.get(id.index())?.read()?;
        let ready = words.generation() == id.generation() && words.meta & 3 == READY;
        ready.then_some(Leave { out: words.out, to: words.to })
    }

    /// Notes a use; true if that changed what was noted.
    #[inline]
    pub(super) fn note_used(&self, id: NextHopId, tick: Tick) -> bool {
        let Some(line) = self.lines.get(id.index()) else { return false };
        let coarse = tick.0 & !(USED_STEP - 1);
        if line.used.load(Ordering::Relaxed) == coarse {
            return false;
        }
        line.used.store(coarse, Ordering::Relaxed);
        true
    }

    /// When the line was last used (rounded down to half a second).
    pub(super) fn used(&self, index: u16) -> Tick {
        Tick(self.lines.get(usize::from(index)).map_or(0, |l| l.used.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests;
