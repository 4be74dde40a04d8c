//! The index: buckets of (tag, slot) pairs, two for each key, with moves between them.
//!
//! Readers take no lock. Writers hold the locks of the stripes of all buckets that they change. A move copies a pair to its
//! other bucket, counts the move in the stripe of the bucket that it leaves, and clears it there, in this order; so a reader
//! that found nothing, and finds the counts of its two stripes unchanged, missed nothing. What finds no place goes into an
//! overflow map, which is looked into only while it holds something.

use super::layout::*;
use crate::mem::{self, Region};
use std::collections::BTreeSet;
use std::ops::Bound::Included;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most stripes.
const STRIPES: usize = 1024;
/// Shards of the overflow map.
const OVERFLOW_SHARDS: usize = 16;
/// Most buckets that a search for a place looks at; at 8 pairs a bucket that is two moves deep, and some at three.
const SEARCH: usize = 256;
/// How often a look-up repeats without a lock when pairs move meanwhile.
const REPEATS: usize = 16;

type Bucket = [AtomicU64; BUCKET_WORDS];
/// Keys without a place in the index: (hash, pair).
type Overflow = BTreeSet<(u64, u64)>;

/// Where a key may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) hash: u64,
    pub(super) tag: u32,
    // two fields and not an array: an array goes through memory, written in halves and read whole, and the look-up waits
    // for that longer than for anything else
    pub(super) first: u32,
    pub(super) second: u32,
}

impl Place {
    fn buckets(&self) -> [u32; 2] {
        [self.first, self.second]
    }
}

#[derive(Debug)]
pub(super) struct Index {
    region: Region,
    buckets: u32,
    locks: Box<[Mutex<()>]>,
    /// Moves out of the buckets of each stripe, modulo 2^32.
    moved: Box<[AtomicU32]>,
    overflow: Box<[Mutex<Overflow>]>,
    overflowing: AtomicU64,
    moves: AtomicU64,
    repeats: AtomicU64,
}

/// Locks of the stripes of some buckets.
pub(super) struct Locked<'a> {
    _guards: [Option<MutexGuard<'a, ()>>; 4],
}

/// A step of a search for a place: a bucket, and from which step and pair it was reached.
#[derive(Clone, Copy)]
struct Step {
    bucket: u32,
    from: u16,
    pair: u64,
}

impl Index {
    pub(super) fn new(region: Region, buckets: u32) -> Index {
        let stripes = (buckets as usize).next_power_of_two().min(STRIPES);
        Index {
            region,
            buckets,
            locks: (0..stripes).map(|_| Mutex::new(())).collect(),
            moved: (0..stripes).map(|_| AtomicU32::new(0)).collect(),
            overflow: (0..OVERFLOW_SHARDS).map(|_| Mutex::default()).collect(),
            overflowing: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub(super) fn place(&self, hash: u64) -> Place {
        let tag = tag(hash);
        let b = bucket(hash, self.buckets);
        Place { hash, tag, first: b, second: other_bucket(b, tag, self.buckets) }
    }

    /// The words of a bucket; `None` only where there are no buckets.
    #[inline(always)]
    fn bucket(&self, b: u32) -> Option<&Bucket> {
        self.region.words().as_chunks().0.get(b as usize)
    }

    #[inline(always)]
    fn stripe(&self, b: u32) -> usize {
        b as usize & (self.locks.len() - 1)
    }

    #[inline(always)]
    fn moved(&self, p: &Place) -> (u32, u32) {
        let of = |b| self.moved.get(self.stripe(b)).map_or(0, |m| m.load(Acquire));
        (of(p.first), of(p.second))
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, p: &Place) {
        if let (Some(a), Some(b)) = (self.bucket(p.first), self.bucket(p.second)) {
            mem::prefetch(&a[0]);
            mem::prefetch(&b[0]);
        }
    }

    /// Fetches the first bucket only, where nine in ten keys are.
    #[inline(always)]
    pub(super) fn prefetch_first(&self, p: &Place) {
        if let Some(bucket) = self.bucket(p.first) {
            mem::prefetch(&bucket[0]);
        }
    }

    /// Fetches the second bucket only.
    #[inline(always)]
    pub(super) fn prefetch_second(&self, p: &Place) {
        if let Some(bucket) = self.bucket(p.second) {
            mem::prefetch(&bucket[0]);
        }
    }

    /// The first pair with the key's tag in its first or second bucket, or 0. There may be others.
    #[inline(always)]
    pub(super) fn likely(&self, p: &Place, second: bool) -> u64 {
        let bucket = self.bucket(if second { p.second } else { p.first });
        bucket.and_then(|b| Index::scan_bucket(b, p.tag, &mut Some)).unwrap_or(0)
    }

    /// Calls `f` for the pairs with the key's tag until it gives something. With the locks held or nothing moving that is all
    /// of them.
    #[inline(always)]
    pub(super) fn scan<T>(&self, p: &Place, mut f: impl FnMut(u64) -> Option<T>) -> Option<T> {
        let found = Index::scan_bucket(self.bucket(p.first)?, p.tag, &mut f);
        if found.is_some() {
            return found;
        }
        Index::scan_bucket(self.bucket(p.second)?, p.tag, &mut f)
    }

    #[inline(always)]
    fn scan_bucket<T>(bucket: &Bucket, tag: u32, f: &mut impl FnMut(u64) -> Option<T>) -> Option<T> {
        // all eight compared without a branch: mostly one matches or none
        let mut hits = 0u32;
        for (i, w) in bucket.iter().enumerate() {
            hits |= u32::from(pair_tag(w.load(Relaxed)) == tag) << i;
        }
        while hits != 0 {
            let pair = bucket[hits.trailing_zeros() as usize % BUCKET_WORDS].load(Acquire);
            hits &= hits - 1;
            if pair_tag(pair) == tag
                && let Some(found) = f(pair)
            {
                return Some(found);
            }
        }
        None
    }

    /// The same for the overflow map.
    fn scan_overflow<T>(&self, p: &Place, mut f: impl FnMut(u64) -> Option<T>) -> Option<T> {
        if self.overflowing.load(Acquire) == 0 {
            return None;
        }
        let map = self.overflow_shard(p.hash)?;
        map.range((Included((p.hash, 0)), Included((p.hash, u64::MAX)))).find_map(|&(_, pair)| f(pair))
    }

    fn overflow_shard(&self, hash: u64) -> Option<MutexGuard<'_, Overflow>> {
        let shard = self.overflow.get(hash as usize % OVERFLOW_SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Finds the pair for which `f` gives something, whatever moves meanwhile.
    #[inline]
    pub(super) fn find<T>(&self, p: &Place, mut f: impl FnMut(u64) -> Option<T>) -> Option<T> {
        let before = self.moved(p);
        if let Some(found) = self.scan(p, &mut f) {
            return Some(found);
        }
        self.find_again(p, before, f)
    }

    #[cold]
    fn find_again<T>(
        &self,
        p: &Place,
        mut before: (u32, u32),
        mut f: impl FnMut(u64) -> Option<T>,
    ) -> Option<T> {
        for _ in 0..REPEATS {
            if let Some(found) = self.scan_overflow(p, &mut f) {
                return Some(found);
            }
            fence(Acquire);
            let now = self.moved(p);
            if now == before {
                return None;
            }
            self.repeats.fetch_add(1, Relaxed);
            before = now;
            if let Some(found) = self.scan(p, &mut f) {
                return Some(found);
            }
        }
        let _locked = self.lock(&[p]);
        self.find_locked(p, f)
    }

    /// [`Index::find`] with the place's locks held.
    pub(super) fn find_locked<T>(&self, p: &Place, mut f: impl FnMut(u64) -> Option<T>) -> Option<T> {
        self.scan(p, &mut f).or_else(|| self.scan_overflow(p, &mut f))
    }

    /// Locks the stripes of one or two places.
    pub(super) fn lock(&self, places: &[&Place]) -> Locked<'_> {
        let mut stripes = [usize::MAX; 4];
        let wanted = places.iter().flat_map(|p| p.buckets()).map(|b| self.stripe(b));
        for (s, wanted) in stripes.iter_mut().zip(wanted) {
            *s = wanted;
        }
        self.lock_stripes(stripes)
    }

    fn lock_stripes(&self, mut stripes: [usize; 4]) -> Locked<'_> {
        // in ascending order and each once, so that no two writers wait for each other
        stripes.sort_unstable();
        let mut guards = [None, None, None, None];
        let mut last = usize::MAX;
        for (guard, s) in guards.iter_mut().zip(stripes) {
            if s != last {
                *guard = self.locks.get(s).map(|l| l.lock().unwrap_or_else(PoisonError::into_inner));
            }
            last = s;
        }
        Locked { _guards: guards }
    }

    /// A free word for the key: in its first bucket if there is one, so that most look-ups need one bucket only.
    fn free_word(&self, p: &Place, but: Option<&AtomicU64>) -> Option<&AtomicU64> {
        let mut words = p.buckets().into_iter().filter_map(|b| self.bucket(b)).flatten();
        words.find(|w| w.load(Relaxed) == 0 && but.is_none_or(|o| !std::ptr::eq(o, *w)))
    }

    /// Free words for one or two keys, whose locks are held.
    pub(super) fn free_words(&self, p: &Place, q: Option<&Place>) -> [Option<&AtomicU64>; 2] {
        let first = self.free_word(p, None);
        let mut second = q.and_then(|q| self.free_word(q, first));
        if let (Some(q), None, Some(taken)) = (q, second, first) {
            // the one place of the second key may be the one that the first took, while that has another
            if let Some(other) = self.free_word(p, Some(taken)) {
                second = self.free_word(q, None);
                return [Some(other), second];
            }
        }
        if first.is_none() {
            second = q.and_then(|q| self.free_word(q, None));
        }
        [first, second]
    }

    /// Stores a pair in a free word or, without one, in the overflow map. Locks held.
    pub(super) fn put(&self, p: &Place, word: Option<&AtomicU64>, pair: u64) {
        if let Some(word) = word {
            word.store(pair, Release);
        } else if let Some(mut map) = self.overflow_shard(p.hash)
            && map.insert((p.hash, pair))
        {
            self.overflowing.fetch_add(1, Release);
        }
    }

    /// Removes a pair, wherever it is; false if it is nowhere. Locks held.
    pub(super) fn take(&self, p: &Place, pair: u64) -> bool {
        for w in p.buckets().into_iter().filter_map(|b| self.bucket(b)).flatten() {
            if w.load(Relaxed) == pair {
                w.store(0, Release);
                return true;
            }
        }
        let taken = self.overflow_shard(p.hash).is_some_and(|mut map| map.remove(&(p.hash, pair)));
        if taken {
            self.overflowing.fetch_sub(1, Release);
        }
        taken
    }

    /// Tries to make a place in one of the key's buckets by moving other pairs to their other buckets. Takes locks itself,
    /// so somebody else may be quicker to use the place.
    pub(super) fn make_room(&self, p: &Place) {
        // where there is a place and the caller still asks, that is meant for the key's companion: one more is needed
        let more = self.free_word(p, None).is_some();
        let mut steps = [Step { bucket: 0, from: 0, pair: 0 }; SEARCH];
        let [b1, b2] = p.buckets();
        steps[0].bucket = b1;
        steps[1].bucket = b2;
        let mut found = 2;
        let mut at = 0;
        // breadth first: the shortest row of moves
        while at < found {
            let Some(step) = steps.get(at).copied() else { return };
            let Some(bucket) = self.bucket(step.bucket) else { return };
            let is_root = at < 2;
            if !(is_root && more) && bucket.iter().any(|w| w.load(Relaxed) == 0) {
                return self.shift(&steps, at);
            }
            for pair in bucket.iter().map(|w| w.load(Relaxed)).filter(|&pair| pair != 0) {
                let to = other_bucket(step.bucket, pair_tag(pair), self.buckets);
                let Some(next) = steps.get_mut(found) else { break };
                if to != step.bucket {
                    *next = Step { bucket: to, from: at as u16, pair };
                    found += 1;
                }
            }
            at += 1;
        }
    }

    /// Makes the moves that lead to `steps[at]`, the last first. Stops where the index is no more as the search saw it.
    fn shift(&self, steps: &[Step; SEARCH], mut at: usize) {
        while at >= 2 {
            let Some(step) = steps.get(at) else { return };
            let from = step.from as usize;
            let Some(source) = steps.get(from) else { return };
            if !self.relocate(source.bucket, step.bucket, step.pair) {
                return;
            }
            at = from;
        }
    }

    /// Moves a pair from one bucket to the other, if it is there and there is a place.
    fn relocate(&self, from: u32, to: u32, pair: u64) -> bool {
        let (Some(source), Some(target)) = (self.bucket(from), self.bucket(to)) else { return false };
        let stripe = self.stripe(from);
        let _locked = self.lock_stripes([stripe, self.stripe(to), usize::MAX, usize::MAX]);
        let Some(old) = source.iter().find(|w| w.load(Relaxed) == pair) else { return false };
        let Some(new) = target.iter().find(|w| w.load(Relaxed) == 0) else { return false };
        new.store(pair, Release);
        if let Some(moved) = self.moved.get(stripe) {
            moved.fetch_add(1, Release);
        }
        old.store(0, Release);
        self.moves.fetch_add(1, Relaxed);
        true
    }

    /// Clears the pairs that are not where `place_of` says that they should be, and second copies. Only while nobody else
    /// writes.
    pub(super) fn sweep(&self, mut place_of: impl FnMut(u64) -> Option<Place>) {
        for b in 0..self.buckets {
            for w in self.bucket(b).into_iter().flatten() {
                let pair = w.load(Relaxed);
                if pair != 0 && !place_of(pair).is_some_and(|p| self.is_right(&p, pair, w)) {
                    w.store(0, Release);
                }
            }
        }
    }

    /// Whether `word` is the first in the key's buckets that holds its pair.
    fn is_right(&self, p: &Place, pair: u64, word: &AtomicU64) -> bool {
        let mut words = p.buckets().into_iter().filter_map(|b| self.bucket(b)).flatten();
        let first = words.find(|w| w.load(Relaxed) == pair);
        pair_tag(pair) == p.tag && first.is_some_and(|f| std::ptr::eq(f, word))
    }

    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Relaxed)
    }

    pub(super) fn repeats(&self) -> u64 {
        self.repeats.load(Relaxed)
    }

    pub(super) fn overflowing(&self) -> u64 {
        self.overflowing.load(Relaxed)
    }

    /// How many buckets hold 0, 1, … 8 pairs.
    #[cfg(test)]
    pub(super) fn fill(&self) -> [u32; BUCKET_WORDS + 1] {
        let mut fill = [0; BUCKET_WORDS + 1];
        for b in 0..self.buckets {
            fill[self.bucket(b).unwrap().iter().filter(|w| w.load(Relaxed) != 0).count()] += 1;
        }
        fill
    }
}
