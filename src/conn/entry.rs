//! Entries: their words, and what may be read and changed of a connection.

use super::hash::siphash13;
use super::layout::*;
use super::types::{ConnRef, NewConn, Tuple};
use crate::mem::{self, Region};
use crate::time::Tick;
use modes::{Addr, Family};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A key as the message that is hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    V4([u64; 2]),
    V6([u64; 5]),
}

const fn high(a: Addr) -> u64 {
    (a.0 >> 64) as u64
}

const fn low(a: Addr) -> u64 {
    a.0 as u64
}

/// The low 32 bits of both addresses in a word.
const fn v4_pair(a: Addr, b: Addr) -> u64 {
    (a.0 as u32 as u64) << 32 | b.0 as u32 as u64
}

impl Key {
    #[inline(always)]
    pub(super) fn of(t: &Tuple, template: bool) -> Key {
        let last = (t.sport as u64) << 48
            | (t.dport as u64) << 32
            | if template { KEY_TEMPLATE } else { 0 }
            | t.proto as u64;
        match t.family {
            Family::V4 => Key::V4([v4_pair(t.src, t.dst), last]),
            Family::V6 => Key::V6([high(t.src), low(t.src), high(t.dst), low(t.dst), last]),
        }
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: [u64; 2]) -> u64 {
        match *self {
            Key::V4(m) => siphash13(key, m),
            Key::V6(m) => siphash13(key, m),
        }
    }
}

/// What the ports word must be under [`PORTS_IN_MASK`] for a key in direction `In`.
const fn ports_in(last: u64) -> u64 {
    let template = if last & KEY_TEMPLATE != 0 { KIND_TEMPLATE as u64 } else { 0 };
    last & 0xffff_ffff_0000_0000 | (last & 0xff) << PROTO_SHIFT | template
}
const PORTS_IN_MASK: u64 = 0xffff_ffff_0000_ff00 | KIND_TEMPLATE as u64;

/// The same for direction `Out`: the key's source port is the real one, its destination port the client's.
const fn ports_out(last: u64) -> u64 {
    let template = if last & KEY_TEMPLATE != 0 { KIND_TEMPLATE as u64 } else { 0 };
    (last >> 32 & 0xffff) << CPORT_SHIFT
        | (last >> 48) << RPORT_SHIFT
        | (last & 0xff) << PROTO_SHIFT
        | KIND_OUT as u64
        | template
}
const PORTS_OUT_MASK: u64 = 0xffff_0000_ffff_ff00 | KIND_OUT as u64 | KIND_TEMPLATE as u64;

/// The words of one slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry<'a> {
    V4(&'a [AtomicU64; V4_WORDS]),
    V6(&'a [AtomicU64; V6_WORDS]),
}

impl<'a> Entry<'a> {
    #[inline(always)]
    fn state(self) -> &'a AtomicU64 {
        match self {
            Entry::V4(w) => &w[W_STATE],
            Entry::V6(w) => &w[W_STATE],
        }
    }

    /// Word `N` of the tail, which both families share the form of.
    #[inline(always)]
    fn tail<const N: usize>(self) -> &'a AtomicU64 {
        const { assert!(N <= MARK) };
        match self {
            Entry::V4(w) => &w[V4_TAIL + N],
            Entry::V6(w) => &w[V6_TAIL + N],
        }
    }

    fn ports(self) -> u64 {
        match self {
            Entry::V4(w) => w[V4_PORTS].load(Relaxed),
            Entry::V6(w) => w[V6_PORTS].load(Relaxed),
        }
    }

    fn kind(self) -> u8 {
        self.ports() as u8
    }

    #[inline(always)]
    pub(super) fn prefetch(self) {
        mem::prefetch(self.state());
        if let Entry::V6(w) = self {
            mem::prefetch(&w[V6_DEST]);
        }
    }

    /// Fetches the cache line of word 0, and of IPv6 that of the tail, too.
    pub(super) fn prefetch_head(self) {
        mem::prefetch(self.state());
        if let Entry::V6(w) = self {
            mem::prefetch(&w[V6_TAIL]);
        }
    }

    /// Word 0.
    #[inline(always)]
    pub(super) fn word(self) -> State {
        State(self.state().load(Acquire))
    }

    /// Whether its key of direction `out` is `key`. Says something only between two looks at word 0.
    #[inline(always)]
    pub(super) fn has_key(self, key: &Key, out: bool) -> bool {
        match (self, key) {
            (Entry::V4(w), Key::V4([addrs, last])) => has_key_v4(w, *addrs, *last, out),
            (Entry::V6(w), Key::V6([s1, s2, d1, d2, last])) => {
                let ports = w[V6_PORTS].load(Relaxed);
                let is = |at: usize, a: &u64, b: &u64| {
                    w.get(at).is_some_and(|w| w.load(Relaxed) == *a)
                        && w.get(at + 1).is_some_and(|w| w.load(Relaxed) == *b)
                };
                if out {
                    is(V6_REAL, s1, s2) && is(V6_CLIENT, d1, d2) && ports & PORTS_OUT_MASK == ports_out(*last)
                } else {
                    is(V6_CLIENT, s1, s2) && is(V6_VIRT, d1, d2) && ports & PORTS_IN_MASK == ports_in(*last)
                }
            }
            _ => false,
        }
    }

    /// Its key of direction `out`; of `Out` only if that is indexed.
    pub(super) fn key(self, out: bool) -> Option<Key> {
        let ports = self.ports();
        let kind = ports as u8;
        if out && kind & KIND_OUT == 0 {
            return None;
        }
        let ((src, sport), (dst, dport)) = if out {
            ((self.real(), ports >> RPORT_SHIFT), (self.client(), ports >> CPORT_SHIFT))
        } else {
            ((self.client(), ports >> CPORT_SHIFT), (self.virt(), ports >> VPORT_SHIFT))
        };
        let t = Tuple {
            family: self.family(),
            proto: (ports >> PROTO_SHIFT) as u8,
            src,
            dst,
            sport: sport as u16,
            dport: dport as u16,
        };
        Some(Key::of(&t, kind & KIND_TEMPLATE != 0))
    }

    fn family(self) -> Family {
        match self {
            Entry::V4(_) => Family::V4,
            Entry::V6(_) => Family::V6,
        }
    }

    fn client(self) -> Addr {
        match self {
            Entry::V4(w) => Addr((w[V4_CLIENT_VIRT].load(Relaxed) >> 32).into()),
            Entry::V6(w) => addr(&w[V6_CLIENT], &w[V6_CLIENT + 1]),
        }
    }

    fn virt(self) -> Addr {
        match self {
            Entry::V4(w) => Addr((w[V4_CLIENT_VIRT].load(Relaxed) as u32).into()),
            Entry::V6(w) => addr(&w[V6_VIRT], &w[V6_VIRT + 1]),
        }
    }

    fn real(self) -> Addr {
        match self {
            Entry::V4(w) => Addr((w[V4_REAL_DEST].load(Relaxed) >> 32).into()),
            Entry::V6(w) => addr(&w[V6_REAL], &w[V6_REAL + 1]),
        }
    }

    /// Fills all words but word 0. The slot must be nobody's.
    pub(super) fn fill(self, now: Tick, new: &NewConn) {
        let kind = new.method & METHOD_MASK
            | if new.is_template { KIND_TEMPLATE } else { 0 }
            | if new.index_out && !new.is_template { KIND_OUT } else { 0 };
        let ports = (new.client.1 as u64) << CPORT_SHIFT
            | (new.virt.1 as u64) << VPORT_SHIFT
            | (new.real.1 as u64) << RPORT_SHIFT
            | (new.proto as u64) << PROTO_SHIFT
            | kind as u64;
        let set = |w: &AtomicU64, v| w.store(v, Relaxed);
        match self {
            Entry::V4(w) => {
                set(&w[V4_CLIENT_VIRT], v4_pair(new.client.0, new.virt.0));
                set(&w[V4_PORTS], ports);
                set(&w[V4_REAL_DEST], v4_pair(new.real.0, Addr(new.dest.into())));
            }
            Entry::V6(w) => {
                for (at, a) in [(V6_CLIENT, new.client.0), (V6_VIRT, new.virt.0), (V6_REAL, new.real.0)] {
                    for (w, v) in w.iter().skip(at).zip([high(a), low(a)]) {
                        set(w, v);
                    }
                }
                set(&w[V6_PORTS], ports);
                set(&w[V6_DEST], new.dest.into());
            }
        }
        let (template, generation) = new.template.map_or((0, 0), |t| (t.slot + 1, t.generation));
        self.set_seen(now, new.timeout);
        set(self.tail::<ROUTE>(), 0);
        set(self.tail::<COUNT>(), template.into());
        set(self.tail::<MARK>(), (new.fwmark as u64) << 32 | (generation as u64) << 8);
    }

    /// Publishes what was filled in, as the slot's next tenant; gives its generation.
    pub(super) fn publish(self, state: u8, flags: u32, half_open: bool) -> u32 {
        let old = self.word().generation();
        let generation = if old >= GENERATION_MAX { 1 } else { old + 1 };
        let word =
            State::new(generation, state, flags & FLAGS_MASK | LIVE | if half_open { HALF_OPEN } else { 0 });
        self.state().store(word.0, Release);
        generation
    }

    /// [`Entry::publish`] as if the last tenant had been of this generation.
    #[cfg(test)]
    pub(super) fn publish_after(self, generation: u32) -> u32 {
        self.state().store(State::new(generation, 0, 0).0, Release);
        self.publish(0, 0, false)
    }

    /// Compare-and-swap of word 0.
    pub(super) fn swap(self, old: State, new: State) -> Result<(), State> {
        match self.state().compare_exchange(old.0, new.0, AcqRel, Acquire) {
            Ok(_) => Ok(()),
            Err(now) => Err(State(now)),
        }
    }

    pub(super) fn seen(self) -> Seen {
        Seen(self.tail::<SEEN>().load(Relaxed))
    }

    pub(super) fn set_seen(self, now: Tick, timeout: u32) {
        let seen = Seen::new(now, timeout);
        let w = self.tail::<SEEN>();
        if w.load(Relaxed) != seen.0 {
            w.store(seen.0, Relaxed);
        }
    }
}

/// [`Entry::has_key`] for IPv4.
#[inline(always)]
pub(super) fn has_key_v4(w: &[AtomicU64; V4_WORDS], addrs: u64, last: u64, out: bool) -> bool {
    // both directions, and one chosen by a mask: half of all packets are replies, so a branch would be wrong half the time
    let ports = w[V4_PORTS].load(Relaxed);
    let client_virt = w[V4_CLIENT_VIRT].load(Relaxed);
    let real_client = w[V4_REAL_DEST].load(Relaxed) & !0xffff_ffff | client_virt >> 32;
    let wrong_in = (client_virt ^ addrs) | (ports ^ ports_in(last)) & PORTS_IN_MASK;
    let wrong_out = (real_client ^ addrs) | (ports ^ ports_out(last)) & PORTS_OUT_MASK;
    let chosen = u64::from(out).wrapping_neg();
    wrong_out & chosen | wrong_in & !chosen == 0
}

fn addr(high: &AtomicU64, low: &AtomicU64) -> Addr {
    Addr((high.load(Relaxed) as u128) << 64 | low.load(Relaxed) as u128)
}

/// The word that says when a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen(pub(super) u64);

impl Seen {
    #[inline(always)]
    pub(super) fn new(now: Tick, timeout: u32) -> Seen {
        let timeout = if timeout > TIMEOUT_MAX { TIMEOUT_MAX } else { timeout };
        Seen((now.0 as u64) << 32 | timeout as u64)
    }

    pub(super) fn last(self) -> Tick {
        Tick((self.0 >> 32) as u32)
    }

    #[inline(always)]
    pub(super) fn timeout(self) -> u32 {
        let timeout = self.0 as u32;
        if timeout > TIMEOUT_MAX { TIMEOUT_MAX } else { timeout }
    }

    /// First tick in which the connection is over: a full timeout after the last packet's tick has *ended*, so that the
    /// timeout is never cut short.
    pub(super) fn deadline(self) -> Tick {
        self.last().plus(self.timeout() + 1)
    }
}

/// The slots of a family.
#[derive(Debug)]
pub(super) struct Slots {
    region: Region,
    family: Family,
    count: u32,
}

impl Slots {
    pub(super) fn new(region: Region, family: Family, count: u32) -> Slots {
        Slots { region, family, count }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    #[inline(always)]
    pub(super) fn get(&self, slot: u32) -> Option<Entry<'_>> {
        match self.family {
            Family::V4 => self.region.words().as_chunks().0.get(slot as usize).map(Entry::V4),
            Family::V6 => self.region.words().as_chunks().0.get(slot as usize).map(Entry::V6),
        }
    }

    /// The live connection in a slot.
    #[inline(always)]
    pub(super) fn conn(&self, slot: u32) -> Option<Conn<'_>> {
        let entry = self.get(slot)?;
        let word = entry.word();
        word.is_live().then_some(Conn { entry, slot, generation: word.generation() })
    }
}

/// Word 0 of an entry at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(u64);

impl State {
    fn new(generation: u32, state: u8, flags: u32) -> State {
        State((generation as u64) << GENERATION_SHIFT | (state as u64) << STATE_SHIFT | flags as u64)
    }

    /// The protocol's state.
    pub fn state(self) -> u8 {
        (self.0 >> STATE_SHIFT) as u8
    }

    /// The engine's flags.
    pub fn flags(self) -> u32 {
        self.0 as u32 & FLAGS_MASK
    }

    /// Which tenant of the slot.
    pub fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// Whether there was a connection.
    pub fn is_live(self) -> bool {
        self.0 as u32 & LIVE != 0
    }

    /// Whether its end is being decided just now.
    pub fn is_expiring(self) -> bool {
        self.0 as u32 & EXPIRING != 0
    }

    /// Whether it was never established.
    pub fn is_half_open(self) -> bool {
        self.0 as u32 & HALF_OPEN != 0
    }

    pub(super) fn settled(self) -> State {
        State(self.0 & !u64::from(HALF_OPEN))
    }

    pub(super) fn expiring(self) -> State {
        State(self.0 | EXPIRING as u64)
    }

    pub(super) fn not_expiring(self) -> State {
        State(self.0 & !(EXPIRING as u64))
    }

    /// What is left when the connection is gone: the generation.
    pub(super) fn removed(self) -> State {
        State::new(self.generation(), 0, 0)
    }
}

/// A connection or template in the table.
///
/// This is no lock: the connection may be removed while one looks at it. Its slot is not used again for a tick at least,
/// so do not keep it longer; keep a [`ConnRef`].
#[derive(Clone, Copy, Debug)]
pub struct Conn<'a> {
    pub(super) entry: Entry<'a>,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl Conn<'_> {
    /// Its lasting name.
    pub fn id(&self) -> ConnRef {
        ConnRef { family: self.family(), slot: self.slot, generation: self.generation }
    }

    /// Family of client and virtual address.
    pub fn family(&self) -> Family {
        self.entry.family()
    }

    /// Transport protocol.
    pub fn proto(&self) -> u8 {
        (self.entry.ports() >> PROTO_SHIFT) as u8
    }

    /// Client's address and port.
    pub fn client(&self) -> (Addr, u16) {
        (self.entry.client(), (self.entry.ports() >> CPORT_SHIFT) as u16)
    }

    /// Virtual address and port.
    pub fn virt(&self) -> (Addr, u16) {
        (self.entry.virt(), (self.entry.ports() >> VPORT_SHIFT) as u16)
    }

    /// Real server's address and port.
    pub fn real(&self) -> (Addr, u16) {
        (self.entry.real(), (self.entry.ports() >> RPORT_SHIFT) as u16)
    }

    /// Destination's id.
    pub fn dest(&self) -> u32 {
        match self.entry {
            Entry::V4(w) => w[V4_REAL_DEST].load(Relaxed) as u32,
            Entry::V6(w) => w[V6_DEST].load(Relaxed) as u32,
        }
    }

    /// Forwarding method, 0..=63.
    pub fn method(&self) -> u8 {
        self.entry.kind() & METHOD_MASK
    }

    /// Whether it is a persistence template.
    pub fn is_template(&self) -> bool {
        self.entry.kind() & KIND_TEMPLATE != 0
    }

    /// Whether replies are found by their own 5-tuple.
    pub fn has_out_key(&self) -> bool {
        self.entry.kind() & KIND_OUT != 0
    }

    /// Firewall mark of its service, or 0.
    pub fn fwmark(&self) -> u32 {
        (self.entry.tail::<MARK>().load(Relaxed) >> 32) as u32
    }

    /// Word 0 as it is now.
    pub fn word(&self) -> State {
        self.entry.word()
    }

    /// Whether the connection is still in the table.
    pub fn is_live(&self) -> bool {
        let word = self.word();
        word.is_live() && word.generation() == self.generation
    }

    /// The protocol's state.
    pub fn state(&self) -> u8 {
        self.word().state()
    }

    /// The engine's flags.
    pub fn flags(&self) -> u32 {
        self.word().flags()
    }

    /// Changes state and flags (within [`FLAGS_MASK`]) if word 0 is still `old`.
    ///
    /// # Errors
    /// Word 0 as it is now. If that is not live or of another generation, the connection is gone; if it is expiring, its end is
    /// being decided, and its state stands still. Don't try again then.
    pub fn try_set(&self, old: State, state: u8, flags: u32) -> Result<(), State> {
        self.try_change(old, state, flags, |word| word)
    }

    pub(super) fn try_change(
        &self,
        old: State,
        state: u8,
        flags: u32,
        more: fn(State) -> State,
    ) -> Result<(), State> {
        if !old.is_live() || old.is_expiring() || old.generation() != self.generation {
            return Err(self.word());
        }
        let table = old.0 as u32 & !FLAGS_MASK;
        self.entry.swap(old, more(State::new(self.generation, state, flags & FLAGS_MASK | table)))
    }

    /// Tick of the last packet.
    pub fn last_seen(&self) -> Tick {
        self.entry.seen().last()
    }

    /// Timeout in ticks.
    pub fn timeout(&self) -> u32 {
        self.entry.seen().timeout()
    }

    /// Notes a packet at `now`, and that the connection ends when none comes for `timeout` ticks (at most [`TIMEOUT_MAX`]).
    /// When that is earlier than before, [`super::ConnTable::rearm`] must follow, or it ends when it would have before.
    #[inline]
    pub fn touch(&self, now: Tick, timeout: u32) {
        self.entry.set_seen(now, timeout);
    }

    /// The way back to the client, as the engine stored it: epoch and next hop; zeros at first.
    pub fn route(&self) -> (u32, u32) {
        let w = self.entry.tail::<ROUTE>().load(Relaxed);
        ((w >> 32) as u32, w as u32)
    }

    /// Stores the way back to the client.
    pub fn set_route(&self, epoch: u32, next_hop: u32) {
        self.entry.tail::<ROUTE>().store((epoch as u64) << 32 | next_hop as u64, Relaxed);
    }

    /// Packets from the client so far, modulo 2^32.
    pub fn packets(&self) -> u32 {
        (self.entry.tail::<COUNT>().load(Relaxed) >> 32) as u32
    }

    /// Counts a packet from the client; gives how many there were before, modulo 2^32.
    #[inline]
    pub fn count_packet(&self) -> u32 {
        (self.entry.tail::<COUNT>().fetch_add(1 << 32, Relaxed) >> 32) as u32
    }

    /// Of a template: connections that follow it now. (A template's packets are not counted; the place is used for this.)
    pub fn controlled(&self) -> u32 {
        self.packets()
    }

    /// Of a template: one more connection follows it, or one less.
    pub fn add_controlled(&self, more: bool) {
        let count = self.entry.tail::<COUNT>();
        if more {
            count.fetch_add(1 << 32, Relaxed);
        } else {
            count.fetch_sub(1 << 32, Relaxed);
        }
    }

    /// Of a template that another daemon made: nobody follows it yet, as far as is known.
    pub fn forget_controlled(&self) {
        self.entry.tail::<COUNT>().fetch_and(u64::from(u32::MAX), Relaxed);
    }

    /// The template that it follows; that may be gone.
    pub fn template(&self) -> Option<ConnRef> {
        let slot = (self.entry.tail::<COUNT>().load(Relaxed) as u32).checked_sub(1)?;
        let generation = (self.entry.tail::<MARK>().load(Relaxed) >> 8) as u32 & GENERATION_MAX;
        Some(ConnRef { family: self.family(), slot, generation })
    }
}
