//! A shard of a family's slots: which are free, and their timers. Shard `s` of `n` has the slots `s`, `s + n`, `s + 2n` …;
//! inside they are items 0, 1, 2 ….
//!
//! A freed slot is not used again before a full tick has passed, so that a reader that still looks at it, in this process or
//! in the kernel, is done: freed slots gather in `open`; that becomes `closed` with the tick of that moment; two
//! ticks after that they are free.

use super::queue::Queue;
use super::wheel::{List, Wheel};
use crate::time::Tick;

/// Ticks between the closing of a list of freed slots and their use: one whole tick lies between, at least.
const REST: u32 = 2;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) wheel: Wheel,
    /// Half-open connections, the oldest first.
    pub(super) half_open: Queue,
    /// Items from here on were never used.
    fresh: u32,
    items: u32,
    free: List,
    open: List,
    closed: List,
    closed_at: Tick,
}

impl Shard {
    pub(super) fn new(items: u32, now: Tick) -> Shard {
        Shard {
            wheel: Wheel::new(items, now),
            half_open: Queue::new(items),
            fresh: 0,
            items,
            free: List::default(),
            open: List::default(),
            closed: List::default(),
            closed_at: now,
        }
    }

    /// An item for use at `now`.
    pub(super) fn alloc(&mut self, now: Tick) -> Option<u32> {
        self.rest(now);
        if let Some(item) = self.wheel.pop(&mut self.free) {
            return Some(item);
        }
        if self.fresh >= self.items {
            return None;
        }
        self.fresh += 1;
        Some(self.fresh - 1)
    }

    fn rest(&mut self, now: Tick) {
        // a clock that stood behind (or was never set) must not make a slot free early, so the distance is the measure
        if !self.closed.is_empty() {
            if now.since(self.closed_at) < REST {
                return;
            }
            let closed = std::mem::take(&mut self.closed);
            self.wheel.append(&mut self.free, closed);
        }
        if !self.open.is_empty() {
            self.closed = std::mem::take(&mut self.open);
            self.closed_at = now;
        }
    }

    /// Gives an item back: its timer is off, and it rests. True if it was half-open.
    pub(super) fn release(&mut self, item: u32) -> bool {
        self.wheel.cancel(item);
        self.wheel.push(&mut self.open, item);
        self.half_open.remove(item)
    }

    /// Time passes: slots at rest become free.
    pub(super) fn tick(&mut self, now: Tick) {
        self.rest(now);
    }

    /// Marks the items below `fresh` as used before; which of them are free is told by [`Shard::release`].
    pub(super) fn adopt(&mut self, fresh: u32) {
        self.fresh = fresh.min(self.items);
    }
}
