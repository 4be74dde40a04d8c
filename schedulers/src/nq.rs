//! `nq`, never queue: a server without active connections, the newest of several; where there is none, as [`sed`](crate::sed).

use crate::sed::shortest;
use crate::{CreateError, Flow, Options, Scheduler, Servers};

/// Never queue keeps no state.
#[derive(Debug, Default)]
struct NeverQueue;

pub(crate) fn create(_: &Options, _: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(NeverQueue))
}

impl Scheduler for NeverQueue {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        let idle = (0..servers.len()).find(|index| {
            let load = servers.load(*index);
            load.is_available() && load.active == 0
        });
        idle.or_else(|| shortest(servers))
    }
}
