//! `fo`, weighted failover: the server with the highest weight; of equals the newest. Another one only where that takes no connections.

use crate::{CreateError, Flow, Options, Scheduler, Servers};

/// Failover keeps no state.
#[derive(Debug, Default)]
struct Failover;

pub(crate) fn create(_: &Options, _: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(Failover))
}

impl Scheduler for Failover {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        heaviest(servers, |_| true)
    }
}

/// The available server with the highest weight among those that are wanted; of equals the first.
pub(crate) fn heaviest(servers: &dyn Servers, wanted: impl Fn(&crate::Load) -> bool) -> Option<usize> {
    let mut best: Option<(usize, u32)> = None;
    for index in 0..servers.len() {
        let load = servers.load(index);
        if load.is_available() && wanted(&load) && best.is_none_or(|(_, weight)| load.weight > weight) {
            best = Some((index, load.weight));
        }
    }
    best.map(|(index, _)| index)
}
