//! The connection table: entries, their index, timers.

pub mod hash;
pub mod layout;
