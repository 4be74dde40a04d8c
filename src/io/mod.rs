//! Ports: what carries frames between the network and the sans-IO core. With `mem`, the only place for `unsafe`.
//!
//! * [`afpacket`]: `AF_PACKET` rings under a BPF classifier ([`bpf`]) that says what is ours;
//! * [`pcap`]: a file in, a file out, for `lvsd replay` and tests.
#![allow(unsafe_code)]

pub mod afpacket;
mod attach;
pub mod bpf;
mod error;
mod netdev;
pub mod pcap;
#[cfg(test)]
mod testnet;

pub use bpf::{BpfTables, TableMap, TableShape};
pub use error::SetupError;
