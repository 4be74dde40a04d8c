//! Rates: connections, packets and bytes a second, as IPVS estimates them.
//!
//! Every two seconds the average moves a quarter of the way to the last two seconds' rate.

use super::RawStats;

/// Seconds between two steps.
pub(super) const PERIOD_SECS: u64 = 2;

/// Averages of one service or destination, scaled by 2^10 to keep fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    last: RawStats,
    avg: RawStats,
}

const SCALE: u32 = 10;

fn step(avg: &mut u64, last: &mut u64, now: u64) {
    let rate = ((now.wrapping_sub(*last)) << SCALE) / PERIOD_SECS;
    *last = now;
    *avg = if rate >= *avg { *avg + ((rate - *avg) >> 2) } else { *avg - ((*avg - rate) >> 2) };
}

impl Rates {
    /// Starts at the present counts, with a rate of 0.
    pub fn starting_at(now: RawStats) -> Rates {
        Rates { last: now, avg: RawStats::default() }
    }

    /// Takes the counts [`PERIOD_SECS`] after the last call.
    pub fn update(&mut self, now: RawStats) {
        let (a, l) = (&mut self.avg, &mut self.last);
        step(&mut a.conns, &mut l.conns, now.conns);
        step(&mut a.in_pkts, &mut l.in_pkts, now.in_pkts);
        step(&mut a.out_pkts, &mut l.out_pkts, now.out_pkts);
        step(&mut a.in_bytes, &mut l.in_bytes, now.in_bytes);
        step(&mut a.out_bytes, &mut l.out_bytes, now.out_bytes);
    }

    /// Rates a second, rounded to the nearest.
    pub fn per_second(&self) -> RawStats {
        let r = |v: u64| (v + (1 << (SCALE - 1))) >> SCALE;
        RawStats {
            conns: r(self.avg.conns),
            in_pkts: r(self.avg.in_pkts),
            out_pkts: r(self.avg.out_pkts),
            in_bytes: r(self.avg.in_bytes),
            out_bytes: r(self.avg.out_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settles_at_a_steady_rate_and_falls_to_zero() {
        let mut rates = Rates::default();
        let mut count = RawStats::default();
        for _ in 0..20 {
            count.conns += 2000;
            rates.update(count);
        }
        let cps = rates.per_second().conns;
        assert!((990..=1000).contains(&cps), "{cps}");
        for _ in 0..60 {
            rates.update(count);
        }
        assert_eq!(rates.per_second().conns, 0);
    }
}
