//! What happens to a packet's bytes: views of the wire formats, checksums, and the forwarding methods.
//!
//! No IO, no clock, no state: a frame goes in, a changed frame or a new one comes out.
#![forbid(unsafe_code)]

mod addr;
pub use addr::{Addr, Family};
pub mod checksum;
mod crc32c;
pub mod fast;
pub mod forward;
pub mod icmp;
pub mod nat;
pub mod options;
pub mod packet;
pub mod reset;
pub mod segment;
#[cfg(test)]
mod testing;
pub mod tunnel;
pub mod wire;
