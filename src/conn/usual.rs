//! The usual look-up: the hint of an IPv4 packet's stages is right, and what most packets need is read once and kept in
//! registers. It gives what [`ConnTable::lookup_by`] would give, or nothing.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};

use super::entry::{Conn, Entry, Key, Seen, State, has_key_v4};
use super::layout::*;
use super::table::ConnTable;
use super::types::{Hint, Tuple};
use crate::time::Tick;
use modes::Family;

/// An IPv4 connection that was found by its hint. As for [`super::Conn`], it may be removed while one looks at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    w: &'a [AtomicU64; V4_WORDS],
    slot: u32,
    state: State,
    ports: u64,
    real_dest: u64,
    /// Whether the packet comes from the server.
    pub(crate) out: bool,
}

impl ConnTable {
    /// The connection of an IPv4 packet where its hint says, if it is there.
    #[inline(always)]
    pub(crate) fn usual(&self, hint: Hint, t: &Tuple) -> Option<Found<'_>> {
        let Key::V4([addrs, last]) = Key::of(t, false) else { return None };
        let slot = pair_slot(hint.0);
        let Some(Entry::V4(w)) = self.half(Family::V4).slots.get(slot) else { return None };
        let out = hint.0 & PAIR_OUT != 0;
        let state = Entry::V4(w).word();
        if hint.is_none() || !state.is_live() || !has_key_v4(w, addrs, last, out) {
            return None;
        }
        let (ports, real_dest) = (w[V4_PORTS].load(Relaxed), w[V4_REAL_DEST].load(Relaxed));
        fence(Acquire);
        let after = Entry::V4(w).word();
        let same = after.is_live() && after.generation() == state.generation();
        same.then_some(Found { w, slot, state: after, ports, real_dest, out })
    }
}

impl Found<'_> {
    /// Word 0 as it was when the connection was found.
    #[inline(always)]
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// The connection for all that is not usual.
    pub(crate) fn conn(&self) -> Conn<'_> {
        Conn { entry: Entry::V4(self.w), slot: self.slot, generation: self.state.generation() }
    }

    /// Destination's id.
    #[inline(always)]
    pub(crate) fn dest(&self) -> u32 {
        self.real_dest as u32
    }

    /// Forwarding method, 0..=63.
    #[inline(always)]
    pub(crate) fn method(&self) -> u8 {
        self.ports as u8 & METHOD_MASK
    }

    /// What NAT puts in the place of the packet's one end: the server's address and port where it comes from the client, the
    /// virtual ones where it comes from the server.
    #[inline(always)]
    pub(crate) fn new_end(&self) -> (u32, u16) {
        let client_virt = self.w[V4_CLIENT_VIRT].load(Relaxed);
        let addr = pick(self.out, client_virt, self.real_dest >> 32) as u32;
        (addr, (self.ports >> pick(self.out, VPORT_SHIFT, RPORT_SHIFT)) as u16)
    }

    /// As [`super::Conn::route`], in one word.
    #[inline(always)]
    pub(crate) fn route(&self) -> u64 {
        self.w[V4_TAIL + ROUTE].load(Relaxed)
    }

    /// What [`super::Conn::touch`] would note of a packet at `now`; none where the connection would end earlier than before.
    #[inline(always)]
    pub(crate) fn later(&self, now: Tick, timeout: u32) -> Option<Later> {
        let old = Seen(self.w[V4_TAIL + SEEN].load(Relaxed));
        let new = Seen::new(now, timeout);
        (new.timeout() >= old.timeout()).then_some(Later { new, changed: new != old })
    }

    /// Notes it, and counts the packet if it comes from the client.
    #[inline(always)]
    pub(crate) fn note(&self, later: Later) {
        if later.changed {
            self.w[V4_TAIL + SEEN].store(later.new.0, Relaxed);
        }
        if !self.out {
            self.w[V4_TAIL + COUNT].fetch_add(1 << 32, Relaxed);
        }
    }
}

/// When a connection was last seen, for [`Found::note`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Later {
    new: Seen,
    changed: bool,
}

/// `a` if `first`, else `b`, without a branch: half of all packets are replies, so it would go the wrong way half the time.
#[inline(always)]
fn pick<T>(first: bool, a: T, b: T) -> T {
    std::hint::select_unpredictable(first, a, b)
}
