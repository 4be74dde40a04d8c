//! `rr`, round robin: each server in turn, whatever its weight (0 still means none).
//!
//! The pointer rests on the server chosen last. It follows that server when others come and go; when the server
//! itself is removed, the pointer falls back to the one before it, so that nobody's turn is lost. A failed pick
//! leaves it alone.

use crate::{CreateError, Flow, Options, Scheduler, Servers};

/// State of round robin for one service.
#[derive(Debug, Default)]
struct RoundRobin {
    /// The server chosen last; `None`: before the first of the list.
    last: Option<usize>,
}

pub(crate) fn create(_: &Options, _: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(RoundRobin::default()))
}

impl Scheduler for RoundRobin {
    fn pick(&mut self, servers: &dyn Servers, _flow: &Flow) -> Option<usize> {
        let after = self.last.map_or(0, |last| last + 1).min(servers.len());
        let found =
            (after..servers.len()).chain(0..after).find(|&index| servers.load(index).is_available())?;
        self.last = Some(found);
        Some(found)
    }

    fn added(&mut self, _servers: &dyn Servers, index: usize) {
        self.last = self.last.map(|last| if last >= index { last + 1 } else { last });
    }

    fn removed(&mut self, _servers: &dyn Servers, index: usize) {
        self.last = match self.last {
            Some(last) if last >= index => last.checked_sub(1),
            other => other,
        };
    }
}
