//! Half-open connections: how many there are, and which goes where room is needed.
//!
//! A connection that is inserted as half-open (and a template made for one) waits in its shard's queue until it is established or gone.
//! Who needs room takes the one that has waited longest of the shard that the new connection comes into, or where fewer wait there
//! than on average, of the next one where more do. So queues stay of about the same length, and what is taken is about the
//! oldest of all. The bit in word 0 decides who is right where a connection is established and evicted at the same time.

use super::entry::{Conn, Key, State};
use super::shard::Shard;
use super::table::{ConnTable, Half, lock};
use super::types::{Evicted, NewConn};
use modes::Family;
use std::sync::atomic::Ordering::Relaxed;

/// How often an eviction that others were quicker with begins anew in the same shard.
const TRIES: usize = 4;
/// Shards in which an eviction is tried.
const SHARDS: usize = 4;

impl ConnTable {
    /// Whether a connection of this family that comes now needs the place of a half-open one: the table is full, or has `bound`
    /// half-open ones (`u32::MAX` where their number does not matter). Takes no lock.
    #[inline]
    pub fn is_pressed(&self, family: Family, bound: u32) -> bool {
        let half = self.half(family);
        half.half_open.load(Relaxed) >= bound || half.len.load(Relaxed) >= half.max
    }

    /// Half-open connections and templates of a family.
    pub fn half_open(&self, family: Family) -> u32 {
        self.half(family).half_open.load(Relaxed)
    }

    /// Removes a half-open connection, about the one that has waited longest, so that `new` finds a place. None if there is
    /// none. The work is the same however many there are.
    pub fn evict(&self, new: &NewConn) -> Option<Evicted> {
        let half = self.half(new.family);
        let all = half.half_open.load(Relaxed);
        if all == 0 {
            return None;
        }
        let first = half.first_shard(Key::of(&new.tuple_in(), new.is_template).hash(self.hash_key));
        let ways = half.ways();
        let shards = || (0..ways).map(|n| (first + n) % ways);
        // some have as many as the average; meanwhile they may have fewer, and then any will do
        let gone = shards().filter(|s| half.waiting_in(*s) * u64::from(ways) >= all.into());
        gone.chain(shards().filter(|s| half.waiting_in(*s) > 0)).take(SHARDS).find_map(|s| half.evict_from(s))
    }

    /// Sets state and flags as [`Conn::try_set`] does, and that the connection is established: it is not evicted any more.
    ///
    /// # Errors
    /// As [`Conn::try_set`].
    pub fn settle(&self, conn: &Conn<'_>, old: State, state: u8, flags: u32) -> Result<(), State> {
        conn.try_change(old, state, flags, State::settled)?;
        let half = self.half(conn.family());
        // whoever clears the word comes for the shard's lock afterwards, so a live entry's place in the queue is its own
        if let Some((mut shard, item)) = half.shard(conn.slot)
            && conn.is_live()
            && shard.half_open.remove(item)
        {
            half.note_left(&shard, conn.slot);
        }
        Ok(())
    }
}

impl Half {
    fn waiting_in(&self, shard: u32) -> u64 {
        self.waiting.get(shard as usize).map_or(0, |n| n.load(Relaxed).into())
    }

    /// Puts the connection in a slot of a locked shard at the end of its queue.
    pub(super) fn enqueue(&self, shard: &mut Shard, slot: u32) {
        shard.half_open.push(slot / self.ways());
        self.half_open.fetch_add(1, Relaxed);
        self.note(shard, slot);
    }

    /// Counts one that has left the queue of a shard, which is still locked.
    pub(super) fn note_left(&self, shard: &Shard, slot: u32) {
        self.half_open.fetch_sub(1, Relaxed);
        self.note(shard, slot);
    }

    fn note(&self, shard: &Shard, slot: u32) {
        if let Some(n) = self.waiting.get((slot % self.ways()) as usize) {
            n.store(shard.half_open.len(), Relaxed);
        }
    }

    fn evict_from(&self, s: u32) -> Option<Evicted> {
        let shard = self.shards.get(s as usize)?;
        for _ in 0..TRIES {
            let item = lock(shard).half_open.first()?;
            let slot = item * self.ways() + s;
            if let Some(conn) = self.slots.conn(slot)
                && let Some(gone) = take(&conn)
            {
                self.forget(conn.entry, slot);
                return Some(gone);
            }
        }
        None
    }
}

/// Clears the word of a connection that is half-open; none if it is not any more, or its end is being decided.
fn take(conn: &Conn<'_>) -> Option<Evicted> {
    let mut word = conn.word();
    // read before it is removed: afterwards it may be another's any time; and right if it is this one that is removed
    let (id, dest, template, is_template) = (conn.id(), conn.dest(), conn.template(), conn.is_template());
    while word.is_live() && word.generation() == conn.generation && word.is_half_open() && !word.is_expiring()
    {
        match conn.entry.swap(word, word.removed()) {
            Ok(()) => return Some(Evicted { id, dest, state: word.state(), template, is_template }),
            Err(now) => word = now,
        }
    }
    None
}
