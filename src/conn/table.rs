//! The table: slots, index and timers of both families put together.

use super::entry::{Conn, Entry, Key, Slots, State};
use super::index::{Index, Place};
use super::layout::{self, pair, pair_slot};
use super::shard::Shard;
use super::types::*;
use crate::mem::Region;
use crate::time::Tick;
use modes::Family;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often an insertion makes room by moves before a key goes into the overflow map.
const TRIES: usize = 4;
/// Timers taken out under one hold of a shard's lock.
const BATCH: usize = 32;
/// How often [`ConnTable::remove`] gives way to an expiry that is being decided.
const YIELDS: usize = 1 << 16;

/// One family's half of the table.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) slots: Slots,
    pub(super) index: Index,
    pub(super) shards: Box<[Mutex<Shard>]>,
    pub(super) max: u32,
    pub(super) len: AtomicU32,
    /// All slots ever used are below.
    pub(super) high: AtomicU32,
    full: AtomicU64,
    /// Half-open connections.
    pub(super) half_open: AtomicU32,
    /// The same of each shard: where it is worth the lock to look for one.
    pub(super) waiting: Box<[AtomicU32]>,
    /// The shard that the next [`ConnTable::expire`] begins with.
    turn: AtomicUsize,
    hash_key: [u64; 2],
}

/// The connection table. All methods take `&self` and may be called by any thread at any time.
#[derive(Debug)]
pub struct ConnTable {
    pub(super) v4: Half,
    pub(super) v6: Half,
    pub(super) hash_key: [u64; 2],
}

impl ConnTable {
    /// A table in memory of its own.
    ///
    /// # Errors
    /// Limits out of range, or no memory.
    pub fn new(config: Config) -> Result<ConnTable, TableError> {
        check(&config)?;
        let region = |area, bytes| {
            Region::anonymous(bytes, true).map_err(|error| TableError::Map { area, bytes, error })
        };
        let (v4_entries, v4_index) = Memory::sizes(Family::V4, config.max_v4);
        let (v6_entries, v6_index) = Memory::sizes(Family::V6, config.max_v6);
        let memory = Memory {
            v4_entries: region("IPv4 entries", v4_entries)?,
            v4_index: region("IPv4 index", v4_index)?,
            v6_entries: region("IPv6 entries", v6_entries)?,
            v6_index: region("IPv6 index", v6_index)?,
        };
        Ok(ConnTable::assemble(config, memory, Tick(0)))
    }

    /// A table in given memory, for example mapped BPF arrays. Connections that are in it already (those of a daemon
    /// that went before, with the same limits and the same key) are taken over; that is not bounded work, but done once.
    ///
    /// # Errors
    /// Limits out of range, or an area too short.
    pub fn with_memory(config: Config, memory: Memory, now: Tick) -> Result<ConnTable, TableError> {
        check(&config)?;
        let (v4_entries, v4_index) = Memory::sizes(Family::V4, config.max_v4);
        let (v6_entries, v6_index) = Memory::sizes(Family::V6, config.max_v6);
        for (area, region, needed) in [
            ("IPv4 entries", &memory.v4_entries, v4_entries),
            ("IPv4 index", &memory.v4_index, v4_index),
            ("IPv6 entries", &memory.v6_entries, v6_entries),
            ("IPv6 index", &memory.v6_index, v6_index),
        ] {
            let given = region.words().len() * 8;
            if given < needed {
                return Err(TableError::TooShort { area, given, needed });
            }
        }
        let table = ConnTable::assemble(config, memory, now);
        table.v4.adopt(now);
        table.v6.adopt(now);
        Ok(table)
    }

    fn assemble(c: Config, m: Memory, now: Tick) -> ConnTable {
        let v4 =
            Half::new(&c, Family::V4, c.max_v4, (m.v4_entries, m.v4_index), layout::buckets(c.max_v4), now);
        let v6 =
            Half::new(&c, Family::V6, c.max_v6, (m.v6_entries, m.v6_index), layout::buckets(c.max_v6), now);
        ConnTable { v4, v6, hash_key: c.hash_key }
    }

    #[inline(always)]
    pub(super) fn half(&self, family: Family) -> &Half {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// The hash of a flow's key, for [`ConnTable::prefetch`] and [`ConnTable::lookup`].
    #[inline]
    pub fn hash(&self, tuple: &Tuple) -> u64 {
        Key::of(tuple, false).hash(self.hash_key)
    }

    /// Fetches a key's first bucket into the cache: first stage of a batch of look-ups.
    #[inline]
    pub fn prefetch(&self, family: Family, hash: u64) {
        let index = &self.half(family).index;
        index.prefetch_first(&index.place(hash));
    }

    /// Second stage, some 20 keys after the first: fetches the entry that the first bucket points to and gives its
    /// [`Hint`]; without one, as for one key in ten, fetches the second bucket.
    #[inline]
    pub fn prefetch_entry(&self, family: Family, hash: u64) -> Hint {
        let half = self.half(family);
        let place = half.index.place(hash);
        let hint = half.hint(&place, false);
        if hint.is_none() {
            half.index.prefetch_second(&place);
        }
        hint
    }

    /// Third stage, for the keys without a hint: fetches the entry that the second bucket points to.
    #[inline]
    pub fn prefetch_entry_again(&self, family: Family, hash: u64) -> Hint {
        let half = self.half(family);
        half.hint(&half.index.place(hash), true)
    }

    /// As [`ConnTable::lookup`], but looks first where a hint says. The answer is the same with any hint, of this key or
    /// not, fresh or stale.
    #[inline]
    pub fn lookup_by(&self, hint: Hint, hash: u64, tuple: &Tuple) -> Option<(Conn<'_>, Direction)> {
        let half = self.half(tuple.family);
        let key = Key::of(tuple, false);
        // No two entries share a key: an entry that has it is the one, wherever it was found.
        if !hint.is_none()
            && let Some(checked) = half.check(hint.0, &key)
        {
            return half.found(checked);
        }
        half.find(&half.index.place(hash), &key)
    }

    /// The connection that a packet belongs to, and in which direction it goes. `hash` is [`ConnTable::hash`] of the tuple.
    #[inline]
    pub fn lookup(&self, hash: u64, tuple: &Tuple) -> Option<(Conn<'_>, Direction)> {
        let half = self.half(tuple.family);
        half.find(&half.index.place(hash), &Key::of(tuple, false))
    }

    /// The template for a client (`src`; `sport` 0) of a virtual service (`dst`, `dport`).
    pub fn lookup_template(&self, tuple: &Tuple) -> Option<Conn<'_>> {
        let half = self.half(tuple.family);
        let key = Key::of(tuple, true);
        half.find(&half.key_place(&key), &key).map(|(conn, _)| conn)
    }

    /// Makes a connection. Of several workers that make the same at the same time one succeeds.
    ///
    /// # Errors
    /// See [`InsertError`]; nothing has changed then.
    pub fn insert(&self, now: Tick, new: &NewConn) -> Result<Conn<'_>, InsertError> {
        self.half(new.family).insert(now, new)
    }

    /// The connection of that name, if it is still there.
    pub fn get(&self, id: ConnRef) -> Option<Conn<'_>> {
        self.half(id.family).slots.conn(id.slot).filter(|c| c.generation == id.generation)
    }

    /// Removes a connection; for the one caller who did it, its last state and flags. While an expiry is being decided on the same connection this
    /// waits for it; so the expiry's own callback must not remove it, but say [`Expiry::Remove`] (it would get nothing).
    pub fn remove(&self, id: ConnRef) -> Option<State> {
        let half = self.half(id.family);
        let entry = half.slots.get(id.slot)?;
        for _ in 0..YIELDS {
            let word = entry.word();
            if !word.is_live() || word.generation() != id.generation {
                return None;
            }
            if word.is_expiring() {
                std::thread::yield_now();
            } else if entry.swap(word, word.removed()).is_ok() {
                half.forget(entry, id.slot);
                return Some(word);
            }
        }
        None
    }

    /// Sets a connection's timer by its last packet and timeout. Needed where its end came nearer (see [`Conn::touch`]); where
    /// it only moved away the timer finds out by itself.
    pub fn rearm(&self, id: ConnRef, now: Tick) {
        self.half(id.family).rearm(id.slot, id.generation, now);
    }

    /// Asks `on_expire` about connections whose time is over, and removes those that it does not keep. While it is asked, a
    /// connection is still found by look-ups, and nobody else removes it: each removal is reported once, either here or by
    /// [`ConnTable::remove`] giving its state. The callback may use the table, but see [`ConnTable::remove`].
    ///
    /// Handles at most `budget` timers (due or to be re-sorted) and gives their number: less than `budget` means that all is
    /// done up to `now`; otherwise the next call goes on where this one stopped.
    pub fn expire(&self, now: Tick, budget: usize, on_expire: &mut dyn FnMut(Conn<'_>) -> Expiry) -> usize {
        let done = self.v4.expire(now, budget, on_expire);
        done + self.v6.expire(now, budget - done, on_expire)
    }

    /// When [`ConnTable::expire`] should be called next; nothing is due before (at that tick it may be only timers to be
    /// re-sorted). May come nearer with each insertion and re-arming.
    pub fn next_deadline(&self) -> Option<Tick> {
        let deadlines = [&self.v4, &self.v6].into_iter().flat_map(|half| {
            let occupied = half.len.load(Relaxed) != 0;
            let shards = if occupied { &half.shards[..] } else { &[] };
            shards.iter().filter_map(|s| lock(s).wheel.next_deadline())
        });
        deadlines.reduce(|a, b| if a.reached(b) { b } else { a })
    }

    /// Connections and templates of a family.
    pub fn len(&self, family: Family) -> usize {
        self.half(family).len.load(Relaxed) as usize
    }

    /// Whether there is neither connection nor template.
    pub fn is_empty(&self) -> bool {
        self.len(Family::V4) == 0 && self.len(Family::V6) == 0
    }

    /// The limit of [`ConnTable::len`].
    pub fn capacity(&self, family: Family) -> usize {
        self.half(family).max as usize
    }

    /// Counts of a family's half.
    pub fn stats(&self, family: Family) -> Stats {
        let half = self.half(family);
        Stats {
            connections: half.len.load(Relaxed),
            half_open: half.half_open.load(Relaxed),
            moves: half.index.moves(),
            overflow: half.index.overflowing(),
            repeats: half.index.repeats(),
            full: half.full.load(Relaxed),
        }
    }

    /// Shows the live connections and templates in up to `n` slots from `cursor` (0: the first; IPv4, then IPv6), and gives
    /// the cursor to go on with, `None` at the end. Takes no lock. A connection that is there all the time is shown exactly
    /// once, one that comes or goes meanwhile at most once.
    pub fn scan(&self, cursor: u64, n: usize, f: &mut dyn FnMut(Conn<'_>)) -> Option<u64> {
        const V6: u64 = 1 << 32;
        let half = if cursor < V6 { &self.v4 } else { &self.v6 };
        let from = cursor % V6;
        let high = u64::from(half.high.load(Relaxed));
        let to = from.saturating_add(n.max(1) as u64).min(high);
        for slot in from..to {
            if let Some(conn) = half.slots.conn(slot as u32) {
                f(conn);
            }
        }
        match (to < high, cursor < V6) {
            (true, true) => Some(to),
            (true, false) => Some(to | V6),
            (false, true) => Some(V6),
            (false, false) => None,
        }
    }
}

fn check(config: &Config) -> Result<(), TableError> {
    for (family, connections) in [(Family::V4, config.max_v4), (Family::V6, config.max_v6)] {
        if connections > layout::SLOT_MAX {
            return Err(TableError::TooMany { family, connections });
        }
    }
    if config.shards == 0 || config.shards > Config::MAX_SHARDS {
        return Err(TableError::Shards(config.shards));
    }
    Ok(())
}

pub(super) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Half {
    pub(super) fn new(
        config: &Config,
        family: Family,
        max: u32,
        (entries, index): (Region, Region),
        buckets: u32,
        now: Tick,
    ) -> Half {
        let slots = layout::slots(max);
        // a shard without slots is no use
        let shards = config.shards.min(slots as usize).max(1) as u32;
        let items = |s: u32| slots / shards + u32::from(s < slots % shards);
        Half {
            slots: Slots::new(entries, family, slots),
            index: Index::new(index, buckets),
            shards: (0..shards).map(|s| Mutex::new(Shard::new(items(s), now))).collect(),
            max,
            len: AtomicU32::new(0),
            high: AtomicU32::new(0),
            full: AtomicU64::new(0),
            half_open: AtomicU32::new(0),
            waiting: (0..shards).map(|_| AtomicU32::new(0)).collect(),
            turn: AtomicUsize::new(0),
            hash_key: config.hash_key,
        }
    }

    /// Number of shards.
    pub(super) fn ways(&self) -> u32 {
        self.shards.len() as u32
    }

    /// The shard in which a slot is looked for first: by bits of the hash that the bucket hardly depends on.
    pub(super) fn first_shard(&self, hash: u64) -> u32 {
        (hash as u32 & 0xffff) % self.ways()
    }

    /// The shard of a slot, locked, and the slot's item in it.
    pub(super) fn shard(&self, slot: u32) -> Option<(MutexGuard<'_, Shard>, u32)> {
        let shard = self.shards.get((slot % self.ways()) as usize)?;
        Some((lock(shard), slot / self.ways()))
    }

    /// The pair with the generation of the connection that it points to, if its key is the one looked for and the connection
    /// stays there while it is looked at. (One word, and not a [`Conn`], so that it stays in a register.)
    #[inline(always)]
    fn check(&self, pair: u64, key: &Key) -> Option<u64> {
        let entry = self.slots.get(pair_slot(pair))?;
        let before = entry.word();
        if !before.is_live() || !entry.has_key(key, pair & layout::PAIR_OUT != 0) {
            return None;
        }
        fence(Acquire);
        let after = entry.word();
        let same = after.is_live() && after.generation() == before.generation();
        same.then_some((before.generation() as u64) << 32 | pair & 0xffff_ffff)
    }

    /// What [`Half::check`] found.
    #[inline(always)]
    fn found(&self, checked: u64) -> Option<(Conn<'_>, Direction)> {
        let slot = pair_slot(checked);
        let conn = Conn { entry: self.slots.get(slot)?, slot, generation: (checked >> 32) as u32 };
        Some((conn, if checked & layout::PAIR_OUT != 0 { Direction::Out } else { Direction::In }))
    }

    #[inline(always)]
    fn find(&self, place: &Place, key: &Key) -> Option<(Conn<'_>, Direction)> {
        self.found(self.index.find(place, |pair| self.check(pair, key))?)
    }

    #[inline(always)]
    fn hint(&self, place: &Place, second: bool) -> Hint {
        let pair = self.index.likely(place, second);
        if pair != 0
            && let Some(entry) = self.slots.get(pair_slot(pair))
        {
            entry.prefetch();
        }
        Hint(pair)
    }

    pub(super) fn key_place(&self, key: &Key) -> Place {
        self.index.place(key.hash(self.hash_key))
    }

    /// Whose key this is. Locks held.
    pub(super) fn owner(&self, place: &Place, key: &Key) -> Option<Conn<'_>> {
        self.found(self.index.find_locked(place, |pair| self.check(pair, key))?).map(|(conn, _)| conn)
    }

    fn insert(&self, now: Tick, new: &NewConn) -> Result<Conn<'_>, InsertError> {
        let key = Key::of(&new.tuple_in(), new.is_template);
        let place = self.key_place(&key);
        let out_key = (new.index_out && !new.is_template).then(|| Key::of(&new.tuple_out(), false));
        let out = out_key.map(|k| (k, self.key_place(&k)));
        if let Some((_, p)) = &out {
            self.index.prefetch(p);
        }
        for tries in 0.. {
            let places = [&place, out.as_ref().map_or(&place, |(_, p)| p)];
            let locked = self.index.lock(&places);
            if let Some(owner) = self.owner(&place, &key) {
                return Err(InsertError::Existing(owner.id()));
            }
            if let Some((k, p)) = &out
                && (*k == key || self.owner(p, k).is_some())
            {
                return Err(InsertError::ReplyTaken);
            }
            let [word, out_word] = self.index.free_words(&place, out.as_ref().map(|(_, p)| p));
            let lacking = match (&out, word, out_word) {
                (_, None, _) => Some(&place),
                (Some((_, p)), _, None) => Some(p),
                _ => None,
            };
            if let Some(p) = lacking
                && tries < TRIES
                && self.len.load(Relaxed) < self.max
            {
                drop(locked);
                self.index.make_room(p);
                continue;
            }
            let conn = self.create(now, new, place.hash).ok_or_else(|| {
                self.full.fetch_add(1, Relaxed);
                InsertError::Full
            })?;
            self.index.put(&place, word, pair(place.tag, false, conn.slot));
            if let Some((_, p)) = &out {
                self.index.put(p, out_word, pair(p.tag, true, conn.slot));
            }
            return Ok(conn);
        }
        Err(InsertError::Full)
    }

    /// Fills and publishes a slot, and starts its timer. `None` if there is none.
    fn create(&self, now: Tick, new: &NewConn, hash: u64) -> Option<Conn<'_>> {
        if self.len.fetch_add(1, Relaxed) >= self.max {
            self.len.fetch_sub(1, Relaxed);
            return None;
        }
        // if the first has no slot the next may have
        let first = self.first_shard(hash);
        for n in 0..self.ways() {
            let s = (first + n) % self.ways();
            let Some(mut shard) = self.shards.get(s as usize).map(lock) else { break };
            let Some(item) = shard.alloc(now) else { continue };
            let slot = item * self.ways() + s;
            let Some(entry) = self.slots.get(slot) else { break };
            self.high.fetch_max(slot + 1, Relaxed);
            entry.fill(now, new);
            let generation = entry.publish(new.state, new.flags, new.half_open);
            shard.wheel.arm(item, now, entry.seen().deadline());
            if new.half_open {
                self.enqueue(&mut shard, slot);
            }
            return Some(Conn { entry, slot, generation });
        }
        self.len.fetch_sub(1, Relaxed);
        None
    }

    /// What follows on the clearing of an entry's word, by the one who cleared it: pairs, timer and slot.
    pub(super) fn forget(&self, entry: Entry<'_>, slot: u32) {
        let mut places = [None, None];
        for (place, out) in places.iter_mut().zip([false, true]) {
            *place = entry.key(out).map(|key| self.key_place(&key));
            if let Some(p) = place {
                self.index.prefetch(p);
            }
        }
        if let [Some(p), q] = &places {
            let _locked = self.index.lock(&[p, q.as_ref().unwrap_or(p)]);
            let taken = self.index.take(p, pair(p.tag, false, slot));
            debug_assert!(taken, "pair of slot {slot} missing");
            if let Some(q) = q {
                let taken = self.index.take(q, pair(q.tag, true, slot));
                debug_assert!(taken, "reply's pair of slot {slot} missing");
            }
        }
        if let Some((mut shard, item)) = self.shard(slot)
            && shard.release(item)
        {
            self.note_left(&shard, slot);
        }
        self.len.fetch_sub(1, Relaxed);
    }

    /// Sets the timer of a slot if its tenant is still the one that is meant.
    fn rearm(&self, slot: u32, generation: u32, now: Tick) {
        let Some((mut shard, item)) = self.shard(slot) else { return };
        shard.tick(now);
        // whoever clears the word comes for the shard's lock afterwards, so the slot of a live entry is in no list
        if let Some(conn) = self.slots.conn(slot).filter(|c| c.generation == generation) {
            shard.wheel.arm(item, now, conn.entry.seen().deadline());
        }
    }

    fn expire(&self, now: Tick, budget: usize, on_expire: &mut dyn FnMut(Conn<'_>) -> Expiry) -> usize {
        let mut done = 0;
        let mut due = Vec::with_capacity(BATCH);
        let first = self.turn.fetch_add(1, Relaxed) % self.shards.len();
        let shards = self.shards.iter().enumerate();
        for (s, shard) in shards.clone().skip(first).chain(shards.take(first)) {
            loop {
                due.clear();
                let mut locked = lock(shard);
                locked.tick(now);
                if locked.wheel.armed() == 0 {
                    break;
                }
                let slot = |item| item * self.ways() + s as u32;
                let fetch = |item| self.slots.get(slot(item)).into_iter().for_each(Entry::prefetch_head);
                done += locked.wheel.advance(now, budget - done, &mut due, fetch, |item| {
                    Some(self.slots.conn(slot(item))?.entry.seen().deadline())
                });
                drop(locked);
                // all at once, so that the memory works on many
                for &item in &due {
                    self.prefetch_keys(slot(item));
                }
                for &item in &due {
                    self.decide(now, item * self.ways() + s as u32, on_expire);
                }
                if due.len() < BATCH {
                    break;
                }
            }
            if done >= budget {
                break;
            }
        }
        done
    }

    /// Fetches what is needed to remove the connection in a slot.
    fn prefetch_keys(&self, slot: u32) {
        let Some(entry) = self.slots.get(slot) else { return };
        for key in [entry.key(false), entry.key(true)].into_iter().flatten() {
            self.index.prefetch(&self.key_place(&key));
        }
    }

    /// What becomes of a connection whose timer was taken out as due.
    fn decide(&self, now: Tick, slot: u32, on_expire: &mut dyn FnMut(Conn<'_>) -> Expiry) {
        let Some(conn) = self.slots.conn(slot) else { return };
        let Some(claimed) = claim(&conn) else { return };
        // a packet of the very last moment counts
        if now.reached(conn.entry.seen().deadline()) {
            match on_expire(conn) {
                Expiry::Remove => {
                    update(&conn, claimed, State::removed);
                    self.forget(conn.entry, slot);
                    return;
                }
                Expiry::Keep(timeout) => conn.touch(now, timeout),
            }
        }
        update(&conn, claimed, State::not_expiring);
        self.rearm(slot, conn.generation, now);
    }
}

/// Marks a connection as expiring. `None` if it is gone or somebody else decides on it.
fn claim(conn: &Conn<'_>) -> Option<State> {
    let mut word = conn.word();
    loop {
        if !word.is_live() || word.generation() != conn.generation || word.is_expiring() {
            return None;
        }
        match conn.entry.swap(word, word.expiring()) {
            Ok(()) => return Some(word.expiring()),
            Err(now) => word = now,
        }
    }
}

/// Changes the word of a connection that this thread has marked as expiring: others may change its state meanwhile, but not
/// remove it, so this ends as soon as they pause.
fn update(conn: &Conn<'_>, mut word: State, change: fn(State) -> State) {
    while let Err(now) = conn.entry.swap(word, change(word)) {
        word = now;
    }
}
