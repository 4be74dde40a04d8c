//! Filling the table of M slots: how many slots each server gets, and which.
//!
//! The published algorithm, servers taking turns to claim the next free slot of their permutations, makes about
//! M ln M attempts, nearly all of them on slots already taken and half of them for the last √M slots. So the fill has
//! two phases with one result:
//!
//! * While many slots are free, permutations are walked by adding and subtracting (no modulo), against one bit a slot,
//!   8 KiB for M = 65,537, which stays in the first-level cache.
//! * When few are free, it is quicker to ask each free slot for its place in the server's permutation, which is
//!   (slot − offset) / skip modulo M, and to take the first.

/// Free slots are asked for their places when at most this many times √M are left: both ways then cost about the same.
const TAIL_FACTOR: f64 = 1.5;

/// A server on its way through its permutation of the slots, which is (offset + i × skip) modulo M for i = 0, 1, ...
#[derive(Debug)]
pub(super) struct Candidate {
    /// First slot of the permutation.
    offset: u32,
    /// Distance between successive slots, 1 to M − 1.
    skip: u32,
    /// Where the walk stands: all slots before it in the permutation are taken.
    next: u32,
    /// Slots it is to get.
    quota: u32,
    /// Rises by `quota` each round; a turn costs the number of rounds.
    credit: u32,
}

impl Candidate {
    pub(super) fn new(offset: u32, skip: u32, quota: u32) -> Self {
        Candidate { offset, skip, next: offset, quota, credit: 0 }
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
    let mut walk = Walk { slots, taken: vec![0; size as usize / 64 + 1], size, free: size };
    let tail = ((f64::from(size).sqrt() * TAIL_FACTOR) as u32).max(1);
    let mut turns = Turns { round: 0, rounds, position: 0 };
    while walk.free > tail {
        let Some(position) = turns.next(&mut candidates) else { return };
        walk.claim(position, &mut candidates[position]);
    }
    let mut rest = walk.free_slots();
    let mut steps = vec![0; candidates.len()];
    while !rest.is_empty() {
        let Some(position) = turns.next(&mut candidates) else { return };
        let candidate = &candidates[position];
        if steps[position] == 0 {
            steps[position] = fraction(inverse(candidate.skip, size), size);
        }
        let step: u64 = steps[position];
        let place = |slot: u32| step.wrapping_mul(u64::from(slot).wrapping_sub(u64::from(candidate.offset)));
        let Some((at, _)) = rest.iter().enumerate().min_by_key(|(_, slot)| place(**slot)) else { return };
        let slot = rest.swap_remove(at);
        slots[slot as usize] = position as u16;
    }
}

/// Whose turn it is.
struct Turns {
    round: u32,
    rounds: u32,
    position: usize,
}

impl Turns {
    /// The next candidate with a turn; `None` after the last round, when all quotas are used up.
    #[inline(always)]
    fn next(&mut self, candidates: &mut [Candidate]) -> Option<usize> {
        loop {
            while let Some(candidate) = candidates.get_mut(self.position) {
                // A new round for this candidate begins when its credit was too small for another turn.
                if candidate.credit >= self.rounds {
                    candidate.credit -= self.rounds;
                    return Some(self.position);
                }
                self.position += 1;
            }
            if self.round == self.rounds {
                return None;
            }
            self.round += 1;
            self.position = 0;
            candidates.iter_mut().for_each(|candidate| candidate.credit += candidate.quota);
        }
    }
}

/// The first phase.
struct Walk<'a> {
    slots: &'a mut [u16],
    /// One bit a slot.
    taken: Vec<u64>,
    size: u32,
    free: u32,
}

impl Walk<'_> {
    /// Gives the candidate the next free slot of its permutation. There must be one.
    #[inline(always)]
    fn claim(&mut self, position: usize, candidate: &mut Candidate) {
        let mut slot = candidate.next;
        while self.taken[(slot / 64) as usize] >> (slot % 64) & 1 != 0 {
            slot = step(slot, candidate.skip, self.size);
        }
        self.taken[(slot / 64) as usize] |= 1 << (slot % 64);
        self.slots[slot as usize] = position as u16;
        self.free -= 1;
        candidate.next = step(slot, candidate.skip, self.size);
    }

    fn free_slots(&self) -> Vec<u32> {
        let mut free = Vec::with_capacity(self.free as usize);
        for (at, word) in (0..).step_by(64).zip(&self.taken) {
            let mut bits = !word;
            while bits != 0 {
                let slot = at + bits.trailing_zeros();
                if slot < self.size {
                    free.push(slot);
                }
                bits &= bits - 1;
            }
        }
        free
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
    ((u128::from(numerator) << 64) / u128::from(size)) as u64
}
