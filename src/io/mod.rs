//! Ports: what carries frames between the network and the sans-IO core. With `mem`, the only place for `unsafe`.
//!
//! * [`afpacket`]: `AF_PACKET` rings under a BPF classifier ([`bpf`]) that says what is ours;
//! * [`afxdp`]: `AF_XDP` sockets under an XDP program that says the same;
//! * [`pcap`]: a file in, a file out, for `lvsd replay` and tests.
#![allow(unsafe_code)]

pub mod afpacket;
pub mod afxdp;
mod attach;
pub mod bpf;
mod error;
mod netdev;
mod netlink;
pub mod pcap;
pub mod rings;
#[cfg(test)]
mod testlab;
#[cfg(test)]
mod testnet;

pub use attach::Hook;
pub use bpf::{BpfTables, TableMap, TableShape, TierPlan};
pub use error::SetupError;

/// MTU of an interface in bytes; none where there is no such interface in this network namespace.
pub fn mtu(interface: &str) -> Option<u32> {
    netdev::mtu(interface).ok()
}
