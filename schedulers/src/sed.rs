//! `sed`, shortest expected delay: the server on which the new connection waits least, by (active connections + 1) / weight; of equals
//! the newest.

use crate::{CreateError, Flow, Load, Options, Scheduler, Servers};

/// Shortest expected delay keeps no state.
#[derive(Debug, Default)]
struct ShortestExpectedDelay;

pub(crate) fn create(_: &Options, _: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(ShortestExpectedDelay))
}

impl Scheduler for ShortestExpectedDelay {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        shortest(servers)
    }
}

/// The choice itself, which `nq` makes too where nobody is idle.
pub(crate) fn shortest(servers: &dyn Servers) -> Option<usize> {
    let mut best: Option<(usize, Load)> = None;
    for index in 0..servers.len() {
        let load = servers.load(index);
        if load.is_available() && best.is_none_or(|(_, b)| sooner(&load, &b)) {
            best = Some((index, load));
        }
    }
    best.map(|(index, _)| index)
}

/// Whether the expected delay of `a` is below that of `b`, compared crosswise: no division, no rounding.
fn sooner(a: &Load, b: &Load) -> bool {
    // 33 bits times 31 fit 64
    (u64::from(a.active) + 1) * u64::from(b.weight) < (u64::from(b.active) + 1) * u64::from(a.weight)
}
