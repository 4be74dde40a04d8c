//! The connection table: entries, their index, timers.
//!
//! Entries live in slots and never move; an index of (tag, slot) pairs finds them by the 5-tuple of a packet in either
//! direction. Readers take no lock, and BPF programs read the same memory: [`layout`] and `docs/table.md` fix it. Writers
//! hold short locks: of a few stripes of the index, or of one shard of slots and timers, in this order.

mod adopt;
mod entry;
pub mod hash;
mod index;
pub mod layout;
mod queue;
mod room;
mod shard;
mod table;
mod types;
mod usual;
mod wheel;

pub use entry::{Conn, State};
pub use table::ConnTable;
pub use types::{
    Config, ConnRef, Direction, Evicted, Expiry, Hint, InsertError, Memory, NewConn, Stats, TableError, Tuple,
};

#[cfg(test)]
mod tests;
