//! `ovf`, weighted overflow: the server with the highest weight until it has more active connections than its weight says, then the next.
//! Where all have, there is none.

use crate::fo::heaviest;
use crate::{CreateError, Flow, Options, Scheduler, Servers};

/// Overflow keeps no state.
#[derive(Debug, Default)]
struct Overflow;

pub(crate) fn create(_: &Options, _: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(Overflow))
}

impl Scheduler for Overflow {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        heaviest(servers, |load| load.active <= load.weight)
    }
}
