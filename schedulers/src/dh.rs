//! `dh`, destination hashing: the destination address chooses one of 256 buckets, dealt out to the servers in turn
//! without regard to weight. Made for transparent proxies behind a firewall mark, where one service has many
//! destinations; with one virtual address every connection goes to one server.

use crate::hash::{fold, golden_ratio_hash};
use crate::sh::Buckets;
use crate::{CreateError, Flow, Options, Scheduler, Servers};

/// State of destination hashing for one service.
#[derive(Debug)]
struct DestinationHashing {
    buckets: Buckets,
}

pub(crate) fn create(_: &Options, servers: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    Ok(Box::new(DestinationHashing { buckets: Buckets::fill(servers, |_| 1) }))
}

impl Scheduler for DestinationHashing {
    fn is_consistent(&self) -> bool {
        true
    }

    fn pick(&mut self, servers: &dyn Servers, flow: &Flow) -> Option<usize> {
        let index = self.buckets.get(golden_ratio_hash(fold(flow.virt), Buckets::BITS))?;
        servers.load(index).is_available().then_some(index)
    }

    fn added(&mut self, servers: &dyn Servers, _index: usize) {
        self.buckets = Buckets::fill(servers, |_| 1);
    }

    fn removed(&mut self, servers: &dyn Servers, _index: usize) {
        self.buckets = Buckets::fill(servers, |_| 1);
    }
}
