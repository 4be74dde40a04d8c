//! What a real server needs on its own machine. So far: the decapsulator, an XDP program that takes a director's
//! tunnel headers off (`modes/bpf/decap.bpf.c`), for kernels without tunnel devices.
//!
//! [`load`] and [`unload`] act in the network namespace of the calling thread.
#![forbid(unsafe_code)]

mod decap;
mod error;
mod rtnl;

pub use decap::{Held, Loaded, MAX_ADDRESSES, load, unload};
pub use error::Error;
pub use rtnl::XdpKind;
