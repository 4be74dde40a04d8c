//! `sh`, source hashing: the client's address chooses one of 256 buckets, which the servers fill by weight.
//!
//! Flags: `sh-port` hashes the client's port too; `sh-fallback` looks for another server where the bucket's takes no
//! new connections, instead of refusing.

use crate::hash::{fold, golden_ratio_hash};
use crate::{CreateError, Flow, Options, Scheduler, Servers};

/// Buckets, as in IPVS as it is usually built (`CONFIG_IP_VS_SH_TAB_BITS` = 8).
const BUCKETS: usize = 256;
const BUCKET_BITS: u32 = BUCKETS.trailing_zeros();

/// State of source hashing for one service.
#[derive(Debug)]
struct SourceHashing {
    buckets: Buckets,
    port: bool,
    fallback: bool,
}

pub(crate) fn create(options: &Options, servers: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    let buckets = Buckets::fill(servers, |index| servers.load(index).weight);
    Ok(Box::new(SourceHashing { buckets, port: options.port, fallback: options.fallback }))
}

impl SourceHashing {
    fn refill(&mut self, servers: &dyn Servers) {
        self.buckets = Buckets::fill(servers, |index| servers.load(index).weight);
    }
}

impl Scheduler for SourceHashing {
    fn is_consistent(&self) -> bool {
        true
    }

    fn pick(&mut self, servers: &dyn Servers, flow: &Flow) -> Option<usize> {
        let port = if self.port { u32::from(flow.client_port) } else { 0 };
        let hash = golden_ratio_hash(port.wrapping_add(fold(flow.client)), BUCKET_BITS);
        let usable = |index: &usize| servers.load(*index).is_available();
        let first = self.buckets.get(hash)?;
        if usable(&first) {
            return Some(first);
        }
        if !self.fallback {
            return None;
        }
        // The probes start at the bucket's own number, added to the hash once more: IPVS's order.
        let start = hash % BUCKETS as u32;
        (0..BUCKETS as u32)
            .filter_map(|offset| self.buckets.get(hash + (start + offset) % BUCKETS as u32))
            .find(usable)
    }

    fn added(&mut self, servers: &dyn Servers, _index: usize) {
        self.refill(servers);
    }

    fn removed(&mut self, servers: &dyn Servers, _index: usize) {
        self.refill(servers);
    }

    fn changed(&mut self, servers: &dyn Servers, _index: usize) {
        self.refill(servers);
    }
}

/// Which server has which bucket: shared by `sh` and `dh`.
#[derive(Debug)]
pub(crate) struct Buckets(Vec<usize>);

impl Buckets {
    /// Goes round the list until all buckets are given out; each server gets `run(index)` in a row, at least one.
    pub(crate) fn fill(servers: &dyn Servers, run: impl Fn(usize) -> u32) -> Self {
        let turns = (0..servers.len()).cycle().flat_map(|index| (0..run(index).max(1)).map(move |_| index));
        Buckets(turns.take(BUCKETS).collect())
    }

    /// The server of bucket `hash` modulo the number of buckets; `None` where there is no server at all.
    pub(crate) fn get(&self, hash: u32) -> Option<usize> {
        self.0.get(hash as usize % BUCKETS).copied()
    }

    /// The number of bits of a bucket's number.
    pub(crate) const BITS: u32 = BUCKET_BITS;
}
