//! `mh`, Maglev hashing as the kernel does it: its hash, its permutation, its weights and its table of 4093 slots, so
//! that kernel directors and this one choose alike. For the algorithm of the paper see [`maglev`](crate::maglev).
//!
//! Flags: `mh-port` hashes the client's port too; `mh-fallback` looks for another server where the slot's takes no new
//! connections, instead of refusing.
//!
//! A server whose weight is set to 0 keeps its slots: the table is made from [`Servers::last_weight`]. So its clients
//! are refused (or fall back), nobody else moves, and setting the weight back restores everything.

use crate::hash::{fold, siphash13};
use crate::{CreateError, Flow, Options, Scheduler, Servers, gcd};

/// Slots of the table: a prime; IPVS as it is usually built (`CONFIG_IP_VS_MH_TAB_INDEX` = 12).
const TABLE_SIZE: u32 = 4093;
/// Weights are scaled so that one round gives a server less than 2^6 slots (half of `CONFIG_IP_VS_MH_TAB_INDEX`).
const TURN_BITS: u32 = 6;
/// Key of the hash that gives an address's slot and a server's first preference.
const KEY_OFFSET: u64 = 2_654_435_761;
/// Key of the hash that gives the distance between a server's preferences.
const KEY_SKIP: u64 = 2_654_446_892;

/// In place of a server's number.
const NOBODY: u16 = u16::MAX;

/// State of the kernel's Maglev hashing for one service.
#[derive(Debug)]
struct MaglevHashing {
    /// The server of each slot. Empty where no server has a weight; a slot is [`NOBODY`]'s only while there are more servers
    /// than slots, which IPVS refuses to make a table for. Numbers of 16 bits, so that the table stays in the first-level cache
    /// while it is filled.
    slots: Vec<u16>,
    /// [`Servers::last_weight`] of each server.
    last_weights: Vec<u32>,
    port: bool,
    fallback: bool,
}

pub(crate) fn create(options: &Options, servers: &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError> {
    let last_weights: Vec<u32> = (0..servers.len()).map(|index| servers.last_weight(index)).collect();
    let slots =
        if last_weights.len() > TABLE_SIZE as usize { Vec::new() } else { fill(servers, &last_weights) };
    Ok(Box::new(MaglevHashing { slots, last_weights, port: options.port, fallback: options.fallback }))
}

impl MaglevHashing {
    /// Makes the table anew; with more servers than slots, the old one stays.
    fn refill(&mut self, servers: &dyn Servers) {
        if self.last_weights.len() <= TABLE_SIZE as usize {
            self.slots = fill(servers, &self.last_weights);
        }
    }

    fn slot(&self, key: u32) -> Option<usize> {
        let server = *self.slots.get(slot_of(key, KEY_OFFSET) as usize)?;
        (server != NOBODY).then_some(server.into())
    }
}

impl Scheduler for MaglevHashing {
    fn is_consistent(&self) -> bool {
        true
    }

    fn pick(&mut self, servers: &dyn Servers, flow: &Flow) -> Option<usize> {
        let port = if self.port { u32::from(flow.client_port) } else { 0 };
        let key = port.wrapping_add(fold(flow.client));
        let usable = |index: &usize| servers.load(*index).is_available();
        let first = self.slot(key)?;
        if usable(&first) {
            return Some(first);
        }
        // With nobody there the search over all slots would be in vain, and dear.
        if !self.fallback || !(0..servers.len()).any(|index| usable(&index)) {
            return None;
        }
        // The probes hash anew with a running offset, which starts at the slot's own number: IPVS's order.
        let start = slot_of(key, KEY_OFFSET);
        let offsets = (0..TABLE_SIZE).map(|step| (start + step) % TABLE_SIZE);
        offsets.filter_map(|offset| self.slot(key.wrapping_add(offset))).find(usable)
    }

    fn added(&mut self, servers: &dyn Servers, index: usize) {
        self.last_weights.insert(index.min(self.last_weights.len()), servers.last_weight(index));
        for server in &mut self.slots {
            *server += u16::from(*server != NOBODY && usize::from(*server) >= index);
        }
        self.refill(servers);
    }

    fn removed(&mut self, servers: &dyn Servers, index: usize) {
        if index < self.last_weights.len() {
            self.last_weights.remove(index);
        }
        for slot in &mut self.slots {
            *slot = match usize::from(*slot) {
                server if *slot == NOBODY || server < index => *slot,
                server if server == index => NOBODY,
                _ => *slot - 1,
            };
        }
        self.refill(servers);
    }

    fn changed(&mut self, servers: &dyn Servers, index: usize) {
        let weight = servers.load(index).weight;
        match self.last_weights.get_mut(index) {
            Some(last) if weight != 0 && *last != weight => *last = weight,
            _ => return,
        }
        self.refill(servers);
    }
}

/// The kernel's 32-bit keyed hash of a 32-bit value; on 64-bit machines it is the low half of SipHash-1-3, here with
/// the key given twice.
fn hash(value: u32, key: u64) -> u32 {
    siphash13([key, key], &value.to_le_bytes()) as u32
}

fn slot_of(value: u32, key: u64) -> u32 {
    hash(value, key) % TABLE_SIZE
}

/// A server on its way through its preferences while the table is filled.
struct Candidate {
    /// The next preferred slot.
    next: u32,
    /// Distance between preferred slots, 1 to `TABLE_SIZE` - 1.
    skip: u32,
    /// Slots it takes in one round; 0: none at all.
    turns: u32,
}

/// Fills the table: in rounds, each server takes the next free slots of its preference list. Empty without weights.
fn fill(servers: &dyn Servers, weights: &[u32]) -> Vec<u16> {
    let divisor = weights.iter().fold(0, |divisor, weight| gcd(divisor, *weight));
    let heaviest = weights.iter().max().map_or(0, |weight| weight.checked_div(divisor).unwrap_or(0));
    if heaviest == 0 {
        return Vec::new();
    }
    let shift = (u32::BITS - heaviest.leading_zeros()).saturating_sub(TURN_BITS);
    let mut candidates: Vec<Candidate> = (0..)
        .zip(weights)
        .map(|(index, weight)| {
            let (address, port) = servers.identity(index);
            let key = u32::from(port).wrapping_add(fold(address));
            let turns = ((weight / divisor) >> shift).max(u32::from(*weight != 0));
            Candidate {
                next: slot_of(key, KEY_OFFSET),
                skip: hash(key, KEY_SKIP) % (TABLE_SIZE - 1) + 1,
                turns,
            }
        })
        .collect();
    let mut slots = vec![NOBODY; TABLE_SIZE as usize];
    let mut free = TABLE_SIZE;
    loop {
        for (index, candidate) in (0..).zip(&mut candidates) {
            for _ in 0..candidate.turns {
                while slots[candidate.next as usize] != NOBODY {
                    let next = candidate.next + candidate.skip;
                    candidate.next = if next >= TABLE_SIZE { next - TABLE_SIZE } else { next };
                }
                slots[candidate.next as usize] = index;
                free -= 1;
                if free == 0 {
                    return slots;
                }
            }
        }
    }
}
