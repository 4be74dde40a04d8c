//! Taking over a table that another daemon left in pinned memory, perhaps in the middle of a change, while the kernel goes
//! on reading it.

use super::entry::{Conn, State};
use super::index::Place;
use super::layout::{PAIR_OUT, pair, pair_slot};
use super::table::{Half, lock};
use crate::time::Tick;
use std::sync::atomic::Ordering::Relaxed;

/// Changes word 0. There is no other daemon now, but programs in the kernel may take their flags away meanwhile, which is done once.
fn change(conn: &Conn<'_>, to: impl Fn(State) -> State) -> bool {
    (0..8).any(|_| {
        let word = conn.word();
        conn.entry.swap(word, to(word)).is_ok()
    })
}

impl Half {
    /// Makes private state (timers, free slots, counts) from what is in the memory, and mends the index. Before anybody
    /// else uses the table.
    pub(super) fn adopt(&self, now: Tick) {
        let live = (0..self.slots.count()).rev().find(|&slot| self.slots.conn(slot).is_some());
        self.index.sweep(|pair| self.place_of(pair));
        let Some(high) = live.map(|slot| slot + 1) else { return };
        self.high.store(high, Relaxed);
        let ways = self.shards.len() as u32;
        for (s, shard) in (0..ways).zip(&self.shards) {
            lock(shard).adopt(high / ways + u32::from(s < high % ways));
        }
        for slot in 0..high {
            self.adopt_slot(slot, now);
        }
    }

    /// Where a pair should be; `None` if it points to nothing that has such a key.
    fn place_of(&self, pair: u64) -> Option<Place> {
        let conn = self.slots.conn(pair_slot(pair))?;
        Some(self.key_place(&conn.entry.key(pair & PAIR_OUT != 0)?))
    }

    fn adopt_slot(&self, slot: u32, now: Tick) {
        let Some((mut shard, item)) = self.shard(slot) else { return };
        let Some(conn) = self.slots.conn(slot) else {
            shard.release(item);
            return;
        };
        // the old daemon may have stopped while its timer decided
        let settled = change(&conn, State::not_expiring);
        if !settled || !self.adopt_keys(slot) {
            change(&conn, State::removed);
            shard.release(item);
            return;
        }
        // a clock that began anew (the machine did not, or the memory would be gone) is not expected; a last packet in
        // the future would keep the connection for ever
        if !now.reached(conn.last_seen()) {
            conn.touch(now, conn.timeout());
        }
        shard.wheel.arm(item, now, conn.entry.seen().deadline());
        if conn.word().is_half_open() {
            self.enqueue(&mut shard, slot);
        }
        self.len.fetch_add(1, Relaxed);
    }

    /// Puts those of a connection's keys into the index that are not there. False if another connection has one of them; then
    /// none is left there.
    fn adopt_keys(&self, slot: u32) -> bool {
        let Some(conn) = self.slots.conn(slot) else { return false };
        let keys = [false, true].map(|out| conn.entry.key(out).map(|key| (key, self.key_place(&key), out)));
        let others = |(key, place, _): &(_, Place, bool)| {
            self.owner(place, key).is_some_and(|owner| owner.slot != slot)
        };
        if keys.iter().flatten().any(others) {
            for (_, place, out) in keys.iter().flatten() {
                self.index.take(place, pair(place.tag, *out, slot));
            }
            return false;
        }
        for (_, place, out) in keys.iter().flatten() {
            let wanted = pair(place.tag, *out, slot);
            if self.index.find_locked(place, |p| (p == wanted).then_some(())).is_none() {
                if self.index.free_words(place, None)[0].is_none() {
                    self.index.make_room(place);
                }
                self.index.put(place, self.index.free_words(place, None)[0], wanted);
            }
        }
        true
    }
}
