//! `maglev`, Maglev hashing as published: Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4.
//!
//! A table of M slots (M prime, much larger than the number of servers) is shared out among the servers; a connection's
//! hash chooses a slot. The shares are almost exactly equal, every director with the same servers makes the same table,
//! and when a server comes or goes few connections change theirs. `mh` is the kernel's variant, for clusters with
//! kernel directors; this one has the larger table and the paper's hash.
//!
//! * **Identity.** A server's permutation of the slots comes from two independent hashes (SipHash-1-3 under two fixed
//!   keys) of its address and port. Turns are taken in the order of the first hash. So the table does not depend on the
//!   order in which servers were added.
//! * **Weights.** Server i gets M × weight / (sum of weights) slots, rounded by largest remainder, but at least one;
//!   weight 0 gets none. Turns are spread evenly over the rounds: while the heaviest server takes a slot in each
//!   round, one of half its weight takes one in every second. With equal weights that is the paper's algorithm.
//! * **Flow.** The slot is SipHash-1-3 of client address, client port, virtual address and virtual port, modulo M. (The
//!   paper hashes the 5-tuple; the protocol is the service's.) The keys are fixed and public, as directors must agree.
//! * **Unavailable server.** Where the slot's server takes no new connections, the hash is mixed again to give another
//!   slot, up to 128 times; then all servers are asked in the order of their turns. So the load of a server that is full
//!   spreads over all others by weight, on every director alike. (Neighbouring slots would not do: permutations run in
//!   constant steps, so some servers are neighbours much oftener than others.) There are no flags.
//! * **Changes** are noted, and the table is built at the next [`Scheduler::prepare`] or pick: restoring a thousand
//!   servers builds one table, not a thousand. Or it is [planned](Scheduler::plan) and built while picks go on by the old table, in which a
//!   server that is gone counts as one that takes no connections.
//! * **Limits.** M is at most [`MAX_TABLE_SIZE`]. When servers are added until there are M or more (or more than
//!   65,535), those last in the order of turns get no slots.

mod fill;

use crate::hash::siphash13;
use crate::{Built, CreateError, Flow, Options, Plan, Scheduler, Servers, TableSizeError, is_prime};
use fill::Candidate;
use std::net::IpAddr;

/// Slots of the table unless chosen otherwise: the paper's smaller size, 100 for each of 655 servers.
pub const DEFAULT_TABLE_SIZE: u32 = 65_537;
/// The largest table size, in slots of 2 bytes: the largest prime below 2^21.
pub const MAX_TABLE_SIZE: u32 = 2_097_143;
/// Servers that can have slots: their positions are kept in 16 bits.
const MAX_SERVERS: usize = u16::MAX as usize;
/// The name in the registry.
const NAME: &str = "maglev";
/// Further slots that a pick looks at before it asks every server.
const PROBES: usize = 128;
/// Keys of the hashes of a flow, and of a server for the start of its permutation and for the step: the fraction of pi.
const KEY_FLOW: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];
const KEY_OFFSET: [u64; 2] = [0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];
const KEY_SKIP: [u64; 2] = [0x4528_21e6_38d0_1377, 0xbe54_66cf_34e9_0c6c];

/// State of Maglev hashing for one service.
#[derive(Debug)]
struct Maglev {
    /// M.
    size: u32,
    table: Table,
    /// The weights that the table was or will be built for, in the order of the service's list.
    weights: Vec<u32>,
    /// Counts changes.
    changes: u64,
    /// Somebody builds the table for the servers of now.
    planned: bool,
}

/// Which server has which slot.
#[derive(Debug, Default)]
struct Table {
    /// The server of each slot, as a position in `order`; empty where no server has a weight.
    slots: Vec<u16>,
    /// The servers that have slots, as indices into the service's list ([`GONE`] where one was removed), in the order of their
    /// turns.
    order: Vec<usize>,
    /// The changes that it takes account of.
    changes: u64,
}

/// Index of a server that was removed.
const GONE: usize = usize::MAX;

pub(crate) fn create(options: &Options, servers: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    let size = options.table_size.unwrap_or(DEFAULT_TABLE_SIZE);
    let wrong = |reason| Err(CreateError::TableSize { scheduler: NAME, size, reason });
    if size > MAX_TABLE_SIZE {
        return wrong(TableSizeError::TooLarge { limit: MAX_TABLE_SIZE });
    }
    if !is_prime(size) {
        return wrong(TableSizeError::NotPrime);
    }
    if servers.len() >= size as usize {
        return wrong(TableSizeError::TooFew { servers: servers.len() });
    }
    let weights = (0..servers.len()).map(|index| servers.load(index).weight).collect();
    let mut maglev = Maglev { size, table: Table::default(), weights, changes: 0, planned: false };
    maglev.table = maglev.blueprint(servers).build(Vec::new());
    Ok(Box::new(maglev))
}

/// All that a table is made from.
#[derive(Debug)]
struct Blueprint {
    size: u32,
    /// Address and port, and weight, of each server that has one, with its index.
    servers: Vec<((IpAddr, u16), u32, usize)>,
    changes: u64,
}

impl Blueprint {
    /// Makes the table, in the memory of an older one's slots.
    fn build(self, mut slots: Vec<u16>) -> Table {
        let hash = |at: &usize| hash_server(self.servers[*at].0, KEY_OFFSET);
        let mut turns: Vec<(u64, usize)> = (0..self.servers.len()).map(|at| (hash(&at), at)).collect();
        turns.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| self.servers[a.1].0.cmp(&self.servers[b.1].0))
        });
        turns.truncate((self.size as usize - 1).min(MAX_SERVERS));
        let weights: Vec<u32> = turns.iter().map(|&(_, at)| self.servers[at].1).collect();
        let modulus = u64::from(self.size);
        let candidates = turns.iter().zip(fill::quotas(&weights, self.size)).map(|(&(hash, at), quota)| {
            let skip = hash_server(self.servers[at].0, KEY_SKIP) % (modulus - 1) + 1;
            Candidate::new((hash % modulus) as u32, skip as u32, quota)
        });
        fill::fill(candidates.collect(), self.size, &mut slots);
        let order = turns.iter().map(|&(_, at)| self.servers[at].2).collect();
        Table { slots, order, changes: self.changes }
    }
}

impl Maglev {
    /// What the table for the servers of now is made from.
    fn blueprint(&self, servers: &dyn Servers) -> Blueprint {
        let weights = self.weights.iter().take(servers.len()).enumerate().filter(|(_, weight)| **weight > 0);
        let servers = weights.map(|(index, weight)| (servers.identity(index), *weight, index)).collect();
        Blueprint { size: self.size, servers, changes: self.changes }
    }

    fn is_stale(&self) -> bool {
        self.table.changes != self.changes
    }

    fn change(&mut self) {
        self.changes += 1;
        self.planned = false;
    }

    fn server(&self, slot: usize) -> Option<usize> {
        self.table.order.get(usize::from(*self.table.slots.get(slot)?)).copied()
    }

    fn slot(&self, hash: u64) -> usize {
        (hash % u64::from(self.size)) as usize
    }

    /// Another server for a connection whose own takes none.
    fn substitute(&self, servers: &dyn Servers, hash: u64) -> Option<usize> {
        let usable = |index: &usize| *index != GONE && servers.load(*index).is_available();
        // Without this look a service that is full would cost the whole search for every attempt.
        let order = &self.table.order;
        if !order.iter().any(usable) {
            return None;
        }
        let hashes = std::iter::successors(Some(hash), |hash| Some(mix(*hash)));
        let probed = hashes.skip(1).take(PROBES).filter_map(|hash| self.server(self.slot(hash))).find(usable);
        probed.or_else(|| {
            let first = usize::from(*self.table.slots.get(self.slot(hash))?);
            order.iter().cycle().skip(first).take(order.len()).copied().find(usable)
        })
    }
}

/// The next number of the generator SplitMix64 (Steele, Lea and Flood, 2014), each output being the next state.
fn mix(state: u64) -> u64 {
    let a = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ a >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ b >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ c >> 31
}

impl Scheduler for Maglev {
    fn is_consistent(&self) -> bool {
        true
    }

    fn pick(&mut self, servers: &dyn Servers, flow: &Flow) -> Option<usize> {
        self.prepare(servers);
        let hash = hash_flow(flow);
        let index = self.server(self.slot(hash))?;
        let usable = index != GONE && servers.load(index).is_available();
        if usable { Some(index) } else { self.substitute(servers, hash) }
    }

    fn added(&mut self, servers: &dyn Servers, index: usize) {
        self.weights.insert(index.min(self.weights.len()), servers.load(index).weight);
        for known in self.table.order.iter_mut().filter(|known| **known >= index && **known != GONE) {
            *known += 1;
        }
        self.change();
    }

    fn removed(&mut self, _servers: &dyn Servers, index: usize) {
        if index < self.weights.len() {
            self.weights.remove(index);
        }
        for known in self.table.order.iter_mut().filter(|known| **known >= index && **known != GONE) {
            *known = if *known == index { GONE } else { *known - 1 };
        }
        self.change();
    }

    fn changed(&mut self, servers: &dyn Servers, index: usize) {
        let weight = servers.load(index).weight;
        match self.weights.get_mut(index) {
            Some(known) if *known != weight => *known = weight,
            _ => return,
        }
        self.change();
    }

    fn prepare(&mut self, servers: &dyn Servers) {
        if self.is_stale() && !self.planned {
            let slots = std::mem::take(&mut self.table.slots);
            self.table = self.blueprint(servers).build(slots);
        }
    }

    fn plan(&mut self, servers: &dyn Servers) -> Option<Plan> {
        if !self.is_stale() || self.planned {
            return None;
        }
        self.planned = true;
        let blueprint = self.blueprint(servers);
        Some(Plan::new(move || blueprint.build(Vec::new())))
    }

    fn install(&mut self, built: &mut Built) {
        if let Some(table) = built.of::<Table>().filter(|table| table.changes == self.changes) {
            std::mem::swap(&mut self.table, table);
            self.planned = false;
        }
    }
}

/// Bytes of addresses and ports in network order, for hashing: at most two of each.
struct Message {
    bytes: [u8; 36],
    len: usize,
}

impl Message {
    fn new() -> Self {
        Message { bytes: [0; 36], len: 0 }
    }

    fn with(mut self, address: IpAddr, port: u16) -> Self {
        match address {
            IpAddr::V4(v4) => self.push(&v4.octets()),
            IpAddr::V6(v6) => self.push(&v6.octets()),
        }
        self.push(&port.to_be_bytes());
        self
    }

    fn push(&mut self, part: &[u8]) {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    fn hash(&self, key: [u64; 2]) -> u64 {
        siphash13(key, &self.bytes[..self.len])
    }
}

fn hash_server((address, port): (IpAddr, u16), key: [u64; 2]) -> u64 {
    Message::new().with(address, port).hash(key)
}

fn hash_flow(flow: &Flow) -> u64 {
    Message::new().with(flow.client, flow.client_port).with(flow.virt, flow.virt_port).hash(KEY_FLOW)
}

#[cfg(test)]
mod tests;
