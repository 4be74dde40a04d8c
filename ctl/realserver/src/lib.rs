//! What a real server needs on its own machine: the virtual address where nobody hears of it, and for tunnels something that
//! takes the director's headers off.
//!
//! [`setup`] makes it and writes down what was before, [`undo`] restores that, [`check`] says what is wrong. [`load`] and
//! [`unload`] are the decapsulator alone, an XDP program (`modes/bpf/decap.bpf.c`) for kernels without tunnel devices.
//!
//! All act in the network namespace of the calling thread.
#![forbid(unsafe_code)]

mod check;
mod decap;
mod error;
mod machine;
mod mss;
mod plan;
mod record;
mod rtnl;
mod setup;
mod step;
mod sysctl;
mod wish;

pub use check::{Finding, Report, check};
pub use decap::{Held, Loaded, MAX_ADDRESSES, load, unload};
pub use error::Error;
pub use record::default_record;
pub use rtnl::XdpKind;
pub use setup::{Undone, setup, undo};
pub use wish::{Mode, Question, Wish};
