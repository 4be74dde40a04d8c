//! `wlc`, weighted least connections: the server with the smallest [overhead](Load::overhead) for its weight; of
//! equals the newest.

use crate::{CreateError, Flow, Load, Options, Scheduler, Servers};

/// Weighted least connections keeps no state.
#[derive(Debug, Default)]
struct WeightedLeastConnections;

pub(crate) fn create(_: &Options, _: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(WeightedLeastConnections))
}

impl Scheduler for WeightedLeastConnections {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        let mut least: Option<(usize, Load)> = None;
        for index in 0..servers.len() {
            let load = servers.load(index);
            if load.is_available() && least.is_none_or(|(_, best)| lighter(&load, &best)) {
                least = Some((index, load));
            }
        }
        least.map(|(index, _)| index)
    }
}

/// Whether overhead / weight of `a` is below that of `b`, compared crosswise: no division, no rounding.
fn lighter(a: &Load, b: &Load) -> bool {
    // 41 bits of overhead times 31 of weight do not fit 64.
    u128::from(a.overhead()) * u128::from(b.weight) < u128::from(b.overhead()) * u128::from(a.weight)
}
