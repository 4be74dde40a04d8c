//! Filling the table of M slots: how many slots each server gets, and which.
//!
//! The published algorithm, servers taking turns to claim the next free slot of their permutations, makes about
//! M ln M attempts, nearly all of them on slots already taken and half of them for the last √M slots. So the fill has
//! two phases with one result:
//!
//! * While many slots are free, permutations are walked by adding and subtracting (no modulo), four slots at a time:
//!   the four looks do not depend on each other, and one branch, mostly foreseen, serves them all.
//! * When few are free, √M or less, it is quicker to ask each free slot for its place in the server's permutation,
//!   which is (slot − offset) / skip modulo M, and to take the first.

/// A server on its way through its permutation of the slots, which is (offset + i × skip) modulo M for i = 0, 1, ...
/// Small, for a thousand of them to stay in the first-level cache beside a part of the table.
pub(super) struct Candidate {
    /// Where the walk stands: all slots before it in the permutation are taken.
    next: u32,
    /// Distance between successive slots, 1 to M − 1.
    skip: u32,
    /// Slots it is to get.
    quota: u32,
    /// Rises by `quota` each round; a turn costs the number of rounds.
    credit: u32,
}

impl Candidate {
    pub(super) fn new(offset: u32, skip: u32, quota: u32) -> Self {
        Candidate { next: offset, skip, quota, credit: 0 }
    }
}

/// How many of `size` slots each server gets: in proportion to its weight, rounded by largest remainder (of equal ones
/// the earlier gains), but at least one. The weights must not be 0, nor more than `size` in number.
pub(super) fn quotas(weights: &[u32], size: u32) -> Vec<u32> {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    // 21 bits of size times 31 of weight: no overflow.
    let share = |weight: &u32| u64::from(*weight) * u64::from(size);
    let mut quotas: Vec<u32> = weights.iter().map(|weight| ((share(weight) / total) as u32).max(1)).collect();
    let given: u64 = quotas.iter().map(|quota| u64::from(*quota)).sum();
    let mut ranking: Vec<usize> = (0..weights.len()).collect();
    if given <= u64::from(size) {
        ranking.sort_by_key(|&i| std::cmp::Reverse(share(&weights[i]) % total));
        let missing = (u64::from(size) - given) as usize;
        ranking.iter().cycle().take(missing).for_each(|&i| quotas[i] += 1);
    } else {
        // The single slots of many light servers came out of nowhere: the heaviest give them.
        ranking.sort_by_key(|&i| std::cmp::Reverse(quotas[i]));
        let mut excess = (given - u64::from(size)) as usize;
        while excess > 0 {
            // Falling order, and all that have more than one give one: the order stays.
            let givers = ranking.partition_point(|&i| quotas[i] > 1).min(excess);
            if givers == 0 {
                break;
            }
            ranking[..givers].iter().for_each(|&i| quotas[i] -= 1);
            excess -= givers;
        }
    }
    quotas
}

/// Fills `slots` with `size` positions in `candidates`, whose quotas sum up to `size`; empty without candidates.
pub(super) fn fill(mut candidates: Vec<Candidate>, size: u32, slots: &mut Vec<u16>) {
    slots.clear();
    let Some(heaviest) = candidates.iter().map(|candidate| candidate.quota).max() else { return };
    slots.resize(size as usize, 0);
    // One turn a round for the heaviest, unless the light ones would then have too many rounds without a turn.
    let rounds = heaviest.min((4 * size).div_ceil(candidates.len() as u32)).max(1);
    for candidate in &mut candidates {
        candidate.credit = rounds - 1;
    }
    let tail_size = size.isqrt();
    let mut walk = Walk { taken: vec![0; size as usize], size };
    let mut tail: Option<Tail> = None;
    let mut free = size;
    let slots = slots.as_mut_slice();
    for _ in 0..rounds {
        for (candidate, position) in candidates.iter_mut().zip(0..) {
            let mut credit = candidate.credit + candidate.quota;
            while credit >= rounds {
                credit -= rounds;
                let slot = if free > tail_size {
                    walk.claim(candidate)
                } else {
                    let tail = tail.get_or_insert_with(|| Tail::after(&walk));
                    let Some(slot) = tail.claim(position, candidate) else { return };
                    slot
                };
                slots[slot as usize] = position;
                free -= 1;
            }
            candidate.credit = credit;
        }
    }
}

/// The first phase: which slots are taken (1) and free (0).
struct Walk {
    taken: Vec<u8>,
    size: u32,
}

impl Walk {
    /// Gives the candidate the next free slot of its permutation. At least one slot must be free.
    #[inline(always)]
    fn claim(&mut self, candidate: &mut Candidate) -> u32 {
        let (size, skip) = (self.size, candidate.skip);
        let twice = step(skip, skip, size);
        let fourfold = step(twice, twice, size);
        let mut a = candidate.next;
        let mut b = step(a, skip, size);
        let mut c = step(a, twice, size);
        let mut d = step(b, twice, size);
        let slot = loop {
            let taken = |slot: u32| self.taken[slot as usize];
            let (in_a, in_b, in_c, in_d) = (taken(a), taken(b), taken(c), taken(d));
            if in_a & in_b & in_c & in_d == 0 {
                let first = if in_a == 0 { a } else { b };
                let second = if in_c == 0 { c } else { d };
                break if in_a & in_b == 0 { first } else { second };
            }
            (a, b) = (step(a, fourfold, size), step(b, fourfold, size));
            (c, d) = (step(c, fourfold, size), step(d, fourfold, size));
        };
        self.taken[slot as usize] = 1;
        candidate.next = step(slot, skip, size);
        slot
    }
}

/// The second phase: the slots still free.
struct Tail {
    free: Vec<u32>,
    size: u32,
    /// For each candidate that had a turn, 1 / skip modulo M as a [`fraction`] of M; 0: not yet known.
    units: Vec<u64>,
}

impl Tail {
    fn after(walk: &Walk) -> Self {
        let mut free = Vec::with_capacity(walk.size.isqrt() as usize);
        // Nearly all are taken: look at sixteen at once.
        for (first, some) in (0..).step_by(16).zip(walk.taken.chunks(16)) {
            if some != [1; 16] {
                free.extend((first..).zip(some).filter(|(_, taken)| **taken == 0).map(|(slot, _)| slot));
            }
        }
        Tail { free, size: walk.size, units: Vec::new() }
    }

    /// Gives the candidate the free slot that comes first in its permutation; `None` where none is free.
    #[inline(never)]
    fn claim(&mut self, position: u16, candidate: &Candidate) -> Option<u32> {
        let position = usize::from(position);
        if self.units.len() <= position {
            self.units.resize(position + 1, 0);
        }
        if self.units[position] == 0 {
            self.units[position] = fraction(inverse(candidate.skip, self.size), self.size);
        }
        // The places are counted from `next`, before which nothing is free.
        let (unit, start) = (self.units[position], u64::from(candidate.next));
        let place = |slot: &u32| unit.wrapping_mul(u64::from(*slot).wrapping_sub(start));
        // Two passes are quicker than one that carries the index along.
        let first = self.free.iter().map(place).min()?;
        let at = self.free.iter().position(|slot| place(slot) == first)?;
        Some(self.free.swap_remove(at))
    }
}

/// `slot` + `skip` modulo `size`, both below `size`, without division or branch.
#[inline(always)]
fn step(slot: u32, skip: u32, size: u32) -> u32 {
    let sum = slot + skip;
    sum.min(sum.wrapping_sub(size))
}

/// The number whose product with `value` is 1 modulo the prime `size`; 1 ≤ `value` < `size`. (Extended Euclid.)
fn inverse(value: u32, size: u32) -> u32 {
    let (mut old, mut new) = (size, value);
    let (mut old_factor, mut factor) = (0_i64, 1_i64);
    while new > 1 {
        let quotient = old / new;
        (old, new) = (new, old - quotient * new);
        (old_factor, factor) = (factor, old_factor - i64::from(quotient) * factor);
    }
    factor.rem_euclid(i64::from(size)) as u32
}

/// `numerator` / `size` as a fraction of 2^64, rounded down. Products with it modulo 2^64 are ordered like products with
/// `numerator` modulo `size`: for factors up to `size` < 2^21 the error stays below 2^21, while different
/// products are at least 2^64 / `size` > 2^43 apart.
fn fraction(numerator: u32, size: u32) -> u64 {
    let (numerator, size) = (u64::from(numerator), u64::from(size));
    // 2^64 = quotient × size + remainder, in 64 bits.
    let quotient = u64::MAX / size;
    let remainder = u64::MAX % size + 1;
    numerator * quotient + numerator * remainder / size
}
