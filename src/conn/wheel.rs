//! A hierarchical timing wheel over numbered items: six levels of 64 buckets of 1, 64, 64^2 … ticks.
//!
//! (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", scheme 7.) An item lies in the bucket of the highest base-64
//! digit in which its deadline differs from the current tick; when the current tick gets there, the bucket's items move
//! down. Where an item's deadline is kept is the caller's business: it is asked for when the item moves, so a deadline
//! that became later costs nothing until then. Two numbers an item, in which also lists of idle items are chained.

use crate::time::Tick;

const DIGIT: u32 = 6;
const LEVELS: usize = 6;
const BUCKETS: usize = 1 << DIGIT;
/// Items that are announced before they are asked about.
const AHEAD: usize = 8;
/// Bit of `prev` that says that the rest is a bucket, and the item its first.
const HEAD: u32 = 1 << 31;

/// Links of an item. Numbers are item + 1, so that untouched memory is valid: 0 is none.
type Link = [u32; 2];
const NEXT: usize = 0;
/// 0 where the item is not in the wheel.
const PREV: usize = 1;

/// A singly linked list of items that are not in the wheel.
#[derive(Default, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.first == 0
    }
}

#[derive(Debug)]
pub(super) struct Wheel {
    /// All ticks before this one are done.
    current: u64,
    /// First item + 1 of each bucket.
    heads: [[u32; BUCKETS]; LEVELS],
    /// Which buckets have items.
    used: [u64; LEVELS],
    links: Vec<Link>,
    armed: u32,
}

/// A tick as a 64-bit one with room for earlier ticks below.
const fn around(now: Tick) -> u64 {
    1 << 32 | now.0 as u64
}

/// The bits of digit `level` and below.
const fn below(level: u32) -> u64 {
    (1 << (DIGIT * level)) - 1
}

impl Wheel {
    /// For items 0..`items` (at most 2^31 - 1). Their memory is touched only as they are used.
    pub(super) fn new(items: u32, now: Tick) -> Wheel {
        Wheel {
            current: around(now),
            heads: [[0; BUCKETS]; LEVELS],
            used: [0; LEVELS],
            links: vec![[0; 2]; items as usize],
            armed: 0,
        }
    }

    /// Items in the wheel.
    pub(super) fn armed(&self) -> u32 {
        self.armed
    }

    /// A tick as a 64-bit one near the current.
    fn extend(&self, t: Tick) -> u64 {
        let distance = t.0.wrapping_sub(self.current as u32) as i32;
        self.current.saturating_add_signed(distance.into())
    }

    /// Sets an item's timer, whether it has one or not. A deadline that is past is the current tick.
    pub(super) fn arm(&mut self, item: u32, now: Tick, deadline: Tick) {
        self.cancel(item);
        if self.armed == 0 {
            // it may have stood still for years, and knows the distance to `now` no more
            self.current = around(now);
        }
        let deadline = self.extend(deadline).max(self.current);
        self.link(item, deadline);
    }

    fn link(&mut self, item: u32, deadline: u64) {
        // past the top level's range (in 128 years) it comes early, and is put in again
        let deadline = deadline.min(self.current | below(LEVELS as u32));
        let differ = deadline ^ self.current;
        let level = (63 - (differ | 1).leading_zeros()) / DIGIT;
        let digit = (deadline >> (DIGIT * level)) as usize % BUCKETS;
        let Some(link) = self.links.get_mut(item as usize) else { return };
        let head = &mut self.heads[level as usize % LEVELS][digit];
        let next = std::mem::replace(head, item + 1);
        *link = [next, HEAD | (level * BUCKETS as u32) | digit as u32];
        self.used[level as usize % LEVELS] |= 1 << digit;
        if let Some(l) = next.checked_sub(1).and_then(|i| self.links.get_mut(i as usize)) {
            l[PREV] = item + 1;
        }
        self.armed += 1;
    }

    /// Takes an item out of the wheel, if it is there.
    pub(super) fn cancel(&mut self, item: u32) {
        let Some(link) = self.links.get_mut(item as usize) else { return };
        let [next, prev] = std::mem::take(link);
        if prev == 0 {
            link[NEXT] = next;
            return;
        }
        if prev & HEAD != 0 {
            let bucket = (prev & !HEAD) as usize;
            let (level, digit) = (bucket / BUCKETS % LEVELS, bucket % BUCKETS);
            self.heads[level][digit] = next;
            if next == 0 {
                self.used[level] &= !(1 << digit);
            }
        } else if let Some(l) = self.links.get_mut(prev as usize - 1) {
            l[NEXT] = next;
        }
        if let Some(l) = next.checked_sub(1).and_then(|i| self.links.get_mut(i as usize)) {
            l[PREV] = prev;
        }
        self.armed -= 1;
    }

    /// The next tick, current or later, with something to do (an item due or a bucket to move down), its level and digit.
    fn next_event(&self) -> Option<(u64, usize, usize)> {
        let mut first = None;
        for (level, used) in self.used.iter().enumerate() {
            let shift = DIGIT * level as u32;
            let now = (self.current >> shift) as u32 % BUCKETS as u32;
            let ahead = used >> now << now;
            if ahead == 0 {
                continue;
            }
            let digit = ahead.trailing_zeros();
            let start = self.current & !below(level as u32 + 1) | (digit as u64) << shift;
            let at = start.max(self.current);
            // of two at the same tick, the higher moves down first
            if first.is_none_or(|(t, _, _)| at <= t) {
                first = Some((at, level, digit as usize));
            }
        }
        first
    }

    /// A tick at which [`Wheel::advance`] should be called next: no timer is due before.
    pub(super) fn next_deadline(&self) -> Option<Tick> {
        self.next_event().map(|(t, _, _)| Tick(t as u32))
    }

    /// Takes out items whose time has come by `now`, into `due`, until that is full or `budget` moves are made; gives the
    /// moves made, so a result below the budget with room left in `due` means that all is done.
    ///
    /// `deadline` tells an item's present deadline, or `None` for one that needs no timer any more (it is dropped). `announce` is
    /// told a little earlier which items will be asked about.
    pub(super) fn advance(
        &mut self,
        now: Tick,
        budget: usize,
        due: &mut Vec<u32>,
        announce: impl Fn(u32),
        mut deadline: impl FnMut(u32) -> Option<Tick>,
    ) -> usize {
        let until = self.extend(now);
        let mut moves = 0;
        let mut announced = 0;
        while moves < budget && due.len() < due.capacity() {
            let Some((at, level, digit)) = self.next_event().filter(|e| e.0 <= until) else {
                self.current = self.current.max(until);
                break;
            };
            self.current = at;
            let Some(item) = self.heads[level][digit].checked_sub(1) else { break };
            if announced == 0 {
                announced = self.announce(item, AHEAD.min(budget - moves), &announce);
            }
            announced -= 1;
            moves += 1;
            self.cancel(item);
            let Some(tick) = deadline(item) else { continue };
            let tick = self.extend(tick);
            if tick <= self.current {
                due.push(item);
            } else {
                self.link(item, tick);
            }
        }
        moves
    }

    /// Announces an item and those that follow it in its bucket, at most `n`, at least one; gives their number.
    fn announce(&self, first: u32, n: usize, f: &impl Fn(u32)) -> usize {
        let next = |item: &u32| self.links.get(*item as usize)?[NEXT].checked_sub(1);
        std::iter::successors(Some(first), next).take(n.max(1)).inspect(|item| f(*item)).count()
    }

    /// Appends an item that is not in the wheel to a list.
    pub(super) fn push(&mut self, list: &mut List, item: u32) {
        if let Some(link) = self.links.get_mut(item as usize) {
            *link = [list.first, 0];
            if list.first == 0 {
                list.last = item + 1;
            }
            list.first = item + 1;
        }
    }

    /// Takes an item from a list.
    pub(super) fn pop(&mut self, list: &mut List) -> Option<u32> {
        let item = list.first.checked_sub(1)?;
        let link = self.links.get_mut(item as usize)?;
        list.first = std::mem::take(link)[NEXT];
        Some(item)
    }

    /// Puts all of a list before another.
    pub(super) fn append(&mut self, to: &mut List, from: List) {
        let Some(link) = from.last.checked_sub(1).and_then(|i| self.links.get_mut(i as usize)) else {
            return;
        };
        if from.first == 0 {
            return;
        }
        link[NEXT] = to.first;
        if to.first == 0 {
            to.last = from.last;
        }
        to.first = from.first;
    }
}

#[cfg(test)]
mod tests;
