//! What goes into the table and comes out of it.

use super::layout;
use crate::mem::Region;
use modes::{Addr, Family};
use std::io;

/// Size and secret of a table; fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most IPv4 connections and templates at a time, at most 2^31 - 1; 0: none.
    pub max_v4: u32,
    /// Most IPv6 connections and templates at a time, at most 2^31 - 1; 0: none.
    pub max_v6: u32,
    /// Key of the hash: random, so that nobody can aim at one bucket.
    pub hash_key: [u64; 2],
    /// Parts of the slots and timers with a lock each, 1..=[`Config::MAX_SHARDS`]; a few times the number of threads.
    pub shards: usize,
}

impl Config {
    /// Most shards.
    pub const MAX_SHARDS: usize = 1024;
}

/// The memory of a table (see `docs/table.md`), each area at least as long as its size.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Memory {
    pub v4_entries: Region,
    pub v4_index: Region,
    pub v6_entries: Region,
    pub v6_index: Region,
}

impl Memory {
    /// Bytes of entries and of index that `max` connections of a family need.
    pub fn sizes(family: Family, max: u32) -> (usize, usize) {
        let entry = match family {
            Family::V4 => layout::V4_WORDS,
            Family::V6 => layout::V6_WORDS,
        };
        (layout::slots(max) as usize * entry * 8, layout::buckets(max) as usize * layout::BUCKET_WORDS * 8)
    }
}

/// Why a table can't be made.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// More than slots can be numbered.
    #[error("{connections} {family:?} connections are more than the limit of {max}", max = layout::SLOT_MAX)]
    TooMany {
        /// Of which family.
        family: Family,
        /// Asked for.
        connections: u32,
    },
    /// No shards, or too many.
    #[error("{0} shards of the connection table: must be 1 to {max}", max = Config::MAX_SHARDS)]
    Shards(usize),
    /// An area that was given is too short.
    #[error("the connection table's {area} area has {given} bytes and needs {needed}")]
    TooShort {
        /// Name of the area.
        area: &'static str,
        /// Its bytes.
        given: usize,
        /// The bytes that the configuration needs.
        needed: usize,
    },
    /// The kernel gave no memory.
    #[error("cannot map {bytes} bytes for the connection table's {area} area: {error}")]
    Map {
        /// Name of the area.
        area: &'static str,
        /// Asked for.
        bytes: usize,
        /// The kernel's answer.
        error: io::Error,
    },
}

/// A packet's 5-tuple, as on the wire. For templates `sport` is 0 and `src` may be a network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct Tuple {
    pub family: Family,
    pub proto: u8,
    pub src: Addr,
    pub dst: Addr,
    pub sport: u16,
    pub dport: u16,
}

/// Where a key's connection probably is: what the stages of a batch of look-ups hand on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hint(pub(super) u64);

impl Hint {
    /// Nothing is known.
    pub const NONE: Hint = Hint(0);

    /// Whether nothing is known.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Which of a connection's keys a packet has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Client to virtual service.
    In,
    /// Real server to client.
    Out,
}

/// Names one connection for good: a slot, and which of its tenants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnRef {
    /// Of which half of the table.
    pub family: Family,
    /// Slot, 0..2^31.
    pub slot: u32,
    /// Which tenant of the slot, 1..2^24.
    pub generation: u32,
}

impl ConnRef {
    /// In one word, never 0: generation:24 | IPv6:1 (bit 32) | slot:31.
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << layout::GENERATION_SHIFT
            | (matches!(self.family, Family::V6) as u64) << 32
            | self.slot as u64
    }

    /// From [`ConnRef::to_u64`]. Any other word gives the name of some connection, probably of none.
    pub const fn from_u64(word: u64) -> ConnRef {
        ConnRef {
            family: if word & 1 << 32 != 0 { Family::V6 } else { Family::V4 },
            slot: word as u32 & layout::SLOT_MAX,
            generation: (word >> layout::GENERATION_SHIFT) as u32,
        }
    }
}

/// A connection or template to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewConn {
    /// Of the client's and the virtual address.
    pub family: Family,
    /// Transport protocol.
    pub proto: u8,
    /// Client's address and port (of a template: network, 0).
    pub client: (Addr, u16),
    /// Virtual address and port.
    pub virt: (Addr, u16),
    /// Real server's address and port. An address of the other family (tunnels) is not kept whole.
    pub real: (Addr, u16),
    /// Destination's id.
    pub dest: u32,
    /// Forwarding method, 0..=63.
    pub method: u8,
    /// First state.
    pub state: u8,
    /// First flags, within [`layout::FLAGS_MASK`].
    pub flags: u32,
    /// Timeout in ticks, at most [`layout::TIMEOUT_MAX`].
    pub timeout: u32,
    /// The template that it follows.
    pub template: Option<ConnRef>,
    /// Firewall mark of the service, or 0.
    pub fwmark: u32,
    /// Whether replies come through the director and are found by their own 5-tuple (NAT).
    pub index_out: bool,
    /// Whether it is not established yet, and may be evicted until [`super::ConnTable::settle`] says that it is.
    pub half_open: bool,
    /// Whether this is a template: found by [`super::ConnTable::lookup_template`] only.
    pub is_template: bool,
}

impl NewConn {
    /// The 5-tuple of the client's packets.
    pub fn tuple_in(&self) -> Tuple {
        Tuple {
            family: self.family,
            proto: self.proto,
            src: self.client.0,
            dst: self.virt.0,
            sport: self.client.1,
            dport: self.virt.1,
        }
    }

    /// The 5-tuple of the server's packets.
    pub fn tuple_out(&self) -> Tuple {
        Tuple {
            family: self.family,
            proto: self.proto,
            src: self.real.0,
            dst: self.client.0,
            sport: self.real.1,
            dport: self.client.1,
        }
    }
}

/// Why a connection was not inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InsertError {
    /// The table holds as many connections of this family as it may, or freed slots still rest.
    #[error("connection table full")]
    Full,
    /// This connection has the client's 5-tuple already.
    #[error("connection exists")]
    Existing(ConnRef),
    /// Another connection has the reply's 5-tuple: the same client port to the same server by another virtual service.
    #[error("another connection has the same reply 5-tuple")]
    ReplyTaken,
}

/// A connection or template that was evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evicted {
    /// The name that it had.
    pub id: ConnRef,
    /// Destination's id.
    pub dest: u32,
    /// Last state.
    pub state: u8,
    /// The template that it followed.
    pub template: Option<ConnRef>,
    /// Whether it was a template.
    pub is_template: bool,
}

/// What becomes of a connection whose time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// It goes.
    Remove,
    /// It stays, with this timeout in ticks from now.
    Keep(u32),
}

/// Counts of one family's half of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Connections and templates.
    pub connections: u32,
    /// Of these, half-open ones.
    pub half_open: u32,
    /// Pairs of the index moved to their other bucket, ever.
    pub moves: u64,
    /// Keys that found no place in the index and live in the overflow map now.
    pub overflow: u64,
    /// Look-ups that were repeated because something moved meanwhile, ever.
    pub repeats: u64,
    /// Insertions refused because the table was full, ever.
    pub full: u64,
}
