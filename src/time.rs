//! Time as the core sees it: given by the caller, never read.

/// A point in time: nanoseconds of a clock that never goes back (`CLOCK_MONOTONIC` under the daemon).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Now(pub u64);

/// Coarse time in steps of 2^26 ns (67.1 ms): what entries and timers count in. Wraps after nine years.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Tick(pub u32);

/// log2 of a tick in nanoseconds.
pub const TICK_SHIFT: u32 = 26;

impl Now {
    /// From whole seconds.
    pub const fn from_secs(s: u64) -> Now {
        Now(s * 1_000_000_000)
    }
    /// The tick that holds this moment.
    pub const fn tick(self) -> Tick {
        Tick((self.0 >> TICK_SHIFT) as u32)
    }
}

impl Tick {
    /// This tick and `n` more, wrapping.
    pub const fn plus(self, n: u32) -> Tick {
        Tick(self.0.wrapping_add(n))
    }
    /// Ticks from `earlier` to this one; 0 if `earlier` is later (by less than half the range).
    pub const fn since(self, earlier: Tick) -> u32 {
        let d = self.0.wrapping_sub(earlier.0);
        if d > u32::MAX / 2 { 0 } else { d }
    }
    /// Whether this tick is not before `other` (within half the range).
    pub const fn reached(self, other: Tick) -> bool {
        self.0.wrapping_sub(other.0) <= u32::MAX / 2
    }
}

/// Seconds as ticks, rounded up, so that a timeout is never shorter than asked for; at most `u32::MAX`.
pub const fn ticks(secs: u64) -> u32 {
    let ticks = secs.saturating_mul(1_000_000_000).div_ceil(1 << TICK_SHIFT);
    if ticks > u32::MAX as u64 { u32::MAX } else { ticks as u32 }
}
