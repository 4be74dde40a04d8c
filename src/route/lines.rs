//! Next-hop lines: what a frame needs to leave, readable by every worker without a lock.
//!
//! A line is one cache line that holds its value twice. The version says which copy is in force; the writer fills the
//! other one and then steps the version. A reader copies the words and looks at the version again: unchanged means
//! that nobody has written to what it read. A reader never waits for a writer that was stopped half-way.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use modes::fast::Macs;

use super::event::Mac;
use super::{Hop, HopState, NextHopId, PortId};
use crate::mem::Region;
use crate::time::Tick;

/// A use is noted in steps of this many ticks (half a second), so that a busy line is seldom written to.
pub(super) const USED_STEP: u32 = 8;

/// How often a reader tries again when lines change under its hands. Each failure means that a writer has finished
/// another change meanwhile, so two are hardly ever seen.
const READ_TRIES: usize = 16;

/// Steps from the epochs of one daemon to those of the next.
const EPOCHS_APART: u32 = 1 << 16;

/// Words of a line; BPF programs read the first seven (`modes/bpf/tier.h`).
const LINE: usize = 8;
/// Steps with each change; its lowest bit says which copy is in force.
const VERSION: usize = 0;
/// Where the two copies begin, of three words each.
const COPIES: [usize; 2] = [1, 4];
/// Of a copy: bits 63..16 source MAC, 15..0 port.
const OUT: usize = 0;
/// Of a copy: bits 63..16 destination MAC, 15..0 MTU.
const TO: usize = 1;
/// Of a copy: bits 31..16 generation, 1..0 state.
const META: usize = 2;
/// Tick of the last use, in steps of [`USED_STEP`].
const USED: usize = 7;

/// All lines, and behind the last one a line whose first word is the routes' epoch. Writers are serialised by the caller (the lock
/// around the tables).
pub(super) struct Lines {
    region: Region,
    count: usize,
}

#[derive(Clone, Copy)]
struct Line<'a>(&'a [AtomicU64; LINE]);

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

impl<'a> Line<'a> {
    /// A word of the copy that is in force in a version.
    #[inline(always)]
    fn copy<const N: usize>(self, version: u64) -> &'a AtomicU64 {
        let [even, odd] = COPIES;
        const { assert!(COPIES[1] + META < USED && N <= META) };
        if version & 1 == 0 { &self.0[even + N] } else { &self.0[odd + N] }
    }

    /// The value in force; none if it changed meanwhile.
    #[inline(always)]
    fn read(self) -> Option<Words> {
        let version = self.0[VERSION].load(Ordering::Acquire);
        let out = self.copy::<OUT>(version).load(Ordering::Relaxed);
        let to = self.copy::<TO>(version).load(Ordering::Relaxed);
        let meta = self.copy::<META>(version).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.0[VERSION].load(Ordering::Relaxed) == version).then_some(Words { out, to, meta })
    }

    #[cold]
    #[inline(never)]
    fn read_again(self) -> Option<Words> {
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
    /// `count` lines, at most 65,536, in memory of their own.
    pub(super) fn new(count: usize) -> io::Result<Lines> {
        let count = count.min(1 << 16);
        Ok(Lines::within(Region::anonymous(Lines::bytes(count), false)?))
    }

    /// As many lines as `region` has room for, of the zeros that it holds.
    pub(super) fn within(region: Region) -> Lines {
        let count = (region.words().len() / LINE).saturating_sub(1).min(1 << 16);
        let lines = Lines { region, count };
        lines.step_epoch();
        lines
    }

    /// As [`super::Routes::continue_epoch`].
    pub(super) fn continue_epoch(from: &Region, to: &Region) {
        let epoch = |region: &Region| region.words().len().checked_sub(LINE);
        if let (Some(at), Some(place)) = (epoch(from), epoch(to)) {
            // those in `from` may go on for a while
            let next = (from.words()[at].load(Ordering::Acquire) as u32).wrapping_add(EPOCHS_APART);
            to.words()[place].store(next.into(), Ordering::Release);
        }
    }

    /// Bytes that `count` lines need.
    pub(super) const fn bytes(count: usize) -> usize {
        (count + 1) * LINE * 8
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn lines(&self) -> &[[AtomicU64; LINE]] {
        self.region.words().as_chunks().0
    }

    #[inline(always)]
    fn line(&self, index: usize) -> Option<Line<'_>> {
        // the last one is no line
        let lines = self.lines();
        let (_, lines) = lines.split_last()?;
        lines.get(index).map(Line)
    }

    /// As [`super::Routes::epoch`].
    #[inline(always)]
    pub(super) fn epoch(&self) -> u32 {
        self.lines().last().map_or(0, |l| l[0].load(Ordering::Acquire) as u32)
    }

    pub(super) fn step_epoch(&self) {
        if let Some(line) = self.lines().last() {
            line[0].fetch_add(1, Ordering::Release);
        }
    }

    /// Publishes a value under `id`; ids of other generations read as gone from here on.
    pub(super) fn publish(&self, id: NextHopId, hop: Hop) {
        let Some(line) = self.line(id.index()) else { return };
        let version = line.0[VERSION].load(Ordering::Relaxed);
        let next = version.wrapping_add(1);
        let state = match hop.state {
            HopState::Gone => 0,
            HopState::Unresolved => 1,
            HopState::Ready => READY,
        };
        // Pairs with the acquire fence in `get`: who reads a word stored below also sees the version stepped before,
        // which put this copy out of force.
        fence(Ordering::Release);
        line.copy::<OUT>(next).store(pack(hop.src_mac, hop.port.0), Ordering::Relaxed);
        line.copy::<TO>(next).store(pack(hop.dst_mac, hop.mtu), Ordering::Relaxed);
        line.copy::<META>(next).store(u64::from(id.generation()) << 16 | state, Ordering::Relaxed);
        line.0[VERSION].store(next, Ordering::Release);
    }

    /// The value in force.
    #[inline]
    pub(super) fn get(&self, id: NextHopId) -> Hop {
        let Some(line) = self.line(id.index()) else { return Hop::GONE };
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
        let words = self.line(id.index())?.read()?;
        let ready = words.generation() == id.generation() && words.meta & 3 == READY;
        ready.then_some(Leave { out: words.out, to: words.to })
    }

    /// Notes a use; true if that changed what was noted.
    #[inline]
    pub(super) fn note_used(&self, id: NextHopId, tick: Tick) -> bool {
        let Some(line) = self.line(id.index()) else { return false };
        let coarse = u64::from(tick.0 & !(USED_STEP - 1));
        if line.0[USED].load(Ordering::Relaxed) == coarse {
            return false;
        }
        line.0[USED].store(coarse, Ordering::Relaxed);
        true
    }

    /// When the line was last used (rounded down to half a second).
    pub(super) fn used(&self, index: u16) -> Tick {
        Tick(self.line(usize::from(index)).map_or(0, |l| l.0[USED].load(Ordering::Relaxed) as u32))
    }
}

#[cfg(test)]
mod tests;
