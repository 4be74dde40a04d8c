//! Measurements of the core alone: no network, no privilege, one thread.

mod cost;
mod frames;
mod hit;
mod hold;
mod lookup;
mod maglev;
mod rig;
mod scale;

pub(crate) use cost::cost;
pub(crate) use hit::hit;
pub(crate) use hold::{Options as HoldOptions, memory, run as hold};
pub(crate) use lookup::lookups;
pub(crate) use maglev::maglev;
pub(crate) use scale::scale;

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use lvsd::conn::Tuple;
use lvsd::mem::Region;
use lvsd::time::Now;
use modes::{Addr, Family};

use crate::Failure;
use frames::Random;

/// The time that the core is told.
fn now() -> Now {
    lvsd::datapath::now()
}

/// Processor time that this thread has used: unlike the time on the wall it stands still while another program has the
/// processor.
#[derive(Clone, Copy)]
struct CpuTime(Duration);

impl CpuTime {
    fn now() -> CpuTime {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        CpuTime(Duration::new(t.tv_sec as u64, t.tv_nsec as u32))
    }

    fn elapsed(self) -> Duration {
        CpuTime::now().0.saturating_sub(self.0)
    }
}

fn tuple(src: u32, sport: u16, dst: u32, dport: u16, tcp: bool) -> Tuple {
    Tuple {
        family: Family::V4,
        proto: if tcp { 6 } else { 17 },
        src: Addr(src.into()),
        dst: Addr(dst.into()),
        sport,
        dport,
    }
}

/// A table of 128 MiB in which each look-up depends on the one before: what a cache miss costs on this machine just now.
struct Probe {
    memory: Region,
    at: u64,
}

impl Probe {
    const BYTES: usize = 128 << 20;
    const LOOKS: u32 = 20_000;

    /// With or without huge pages.
    fn new(huge: bool) -> Result<Probe, Failure> {
        let memory = Region::anonymous(Probe::BYTES, huge)?;
        let words = memory.words();
        // Sattolo's algorithm: one cycle through all lines
        let lines = Probe::BYTES / 64;
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for i in (1..lines).rev() {
            order.swap(i, random.below(i));
        }
        for (line, next) in order.iter().enumerate() {
            words[line * 8].store(u64::from(*next) * 8, Relaxed);
        }
        Ok(Probe { memory, at: 0 })
    }

    /// Nanoseconds a look-up.
    fn measure(&mut self) -> f64 {
        let words = self.memory.words();
        let begin = CpuTime::now();
        for _ in 0..Probe::LOOKS {
            self.at = words[self.at as usize].load(Relaxed);
        }
        let ns = begin.elapsed().as_nanos() as f64 / f64::from(Probe::LOOKS);
        black_box(self.at);
        ns
    }
}
