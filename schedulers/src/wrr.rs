//! `wrr`, weighted round robin: the list is walked at falling weight levels, so that the turns of the heavy servers
//! lie between those of the light ones.
//!
//! With `step` = the greatest common divisor of all weights, the levels run from `top` = (largest weight − step + 1)
//! down to 1 in steps of `step`; at each level every server whose weight reaches the level gets one connection. One
//! cycle over all levels gives each server weight / step connections. IPVS steps through every level even when it
//! finds nobody there, which takes seconds where the only heavy server is overloaded; here the pick jumps to the next
//! level at which somebody can be found, with the same result.

use crate::{CreateError, Flow, Options, Scheduler, Servers, gcd};

/// State of weighted round robin for one service.
#[derive(Debug)]
struct WeightedRoundRobin {
    /// The server chosen last; `None`: before the first of the list.
    last: Option<usize>,
    /// The level at which servers are now chosen; 0 only while every weight is 0.
    level: u32,
    /// The highest level; 0 where no server has a weight.
    top: u32,
    /// Distance between levels: the greatest common divisor of the weights, at least 1.
    step: u32,
}

pub(crate) fn create(_: &Options, servers: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    let (top, step) = levels(servers);
    Ok(Box::new(WeightedRoundRobin { last: None, level: top, top, step }))
}

/// The highest level and the step for these servers. Overloaded servers count too.
fn levels(servers: &dyn Servers) -> (u32, u32) {
    let weights = (0..servers.len()).map(|index| servers.load(index).weight);
    let (divisor, heaviest) =
        weights.fold((0, 0), |(divisor, heaviest), w| (gcd(divisor, w), w.max(heaviest)));
    let step = divisor.max(1);
    (heaviest.saturating_sub(step - 1), step)
}

impl WeightedRoundRobin {
    /// Any change of the list starts the walk at its head again; the level is kept as far as it still exists.
    fn restart(&mut self, servers: &dyn Servers) {
        (self.top, self.step) = levels(servers);
        self.last = None;
        if self.level > self.top || self.level == 0 {
            self.level = self.top;
        } else if self.step > 1 {
            // Onto the new ladder: 1, 1 + step, 1 + 2 step, ... top.
            self.level = self.level / self.step * self.step + 1;
        }
    }

    /// The first level below the current one (after 1 comes `top`) that a server of weight `best` reaches.
    fn next_level(&self, best: u32) -> u32 {
        let next = if self.level > self.step { self.level - self.step } else { self.top };
        if best >= next { next } else { next - (next - best).div_ceil(self.step) * self.step }
    }
}

impl Scheduler for WeightedRoundRobin {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        if self.top == 0 {
            return None;
        }
        let len = servers.len();
        let capacity = |index| {
            let load = servers.load(index);
            if load.overloaded { 0 } else { load.weight }
        };
        let after = self.last.map_or(0, |last| last + 1).min(len);
        if let Some(found) = (after..len).find(|&index| capacity(index) >= self.level) {
            self.last = Some(found);
            return Some(found);
        }
        let best = (0..len).map(capacity).max().unwrap_or(0);
        if best == 0 {
            // As IPVS leaves it: all levels were walked, unless the walk began within the last one.
            if self.level > self.step || self.last.is_none() {
                (self.level, self.last) = (self.top, None);
            }
            return None;
        }
        self.level = self.next_level(best);
        self.last = (0..len).find(|&index| capacity(index) >= self.level);
        self.last
    }

    fn added(&mut self, servers: &dyn Servers, _index: usize) {
        self.restart(servers);
    }

    fn removed(&mut self, servers: &dyn Servers, _index: usize) {
        self.restart(servers);
    }

    fn changed(&mut self, servers: &dyn Servers, _index: usize) {
        self.restart(servers);
    }
}
