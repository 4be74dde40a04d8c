//! `lc`, least connections: the server with the smallest [overhead](Load::overhead); of equals the newest.

use crate::{CreateError, Flow, Load, Options, Scheduler, Servers};

/// Least connections keeps no state.
#[derive(Debug, Default)]
struct LeastConnections;

pub(crate) fn create(_: &Options, _: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(LeastConnections))
}

impl Scheduler for LeastConnections {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        let loads = (0..servers.len()).map(|index| (index, servers.load(index)));
        // min_by_key takes the first of equals.
        loads
            .filter(|(_, load)| load.is_available())
            .min_by_key(|(_, load)| Load::overhead(load))
            .map(|(index, _)| index)
    }
}
