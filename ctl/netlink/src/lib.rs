//! IPVS's generic netlink messages, typed: the same crate for the daemon, `lvsctl` and tests.
//!
//! Source: `linux/ip_vs.h` (user API), and messages captured from `ipvsadm` 1.31.
#![forbid(unsafe_code)]

mod types;
pub use types::*;
