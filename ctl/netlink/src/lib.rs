//! IPVS's generic netlink messages, typed: the same crate for the daemon, `lvsctl` and tests.
//!
//! Source: `linux/ip_vs.h` (user API), and messages captured from `ipvsadm` 1.31 and kernel 6.1.
//!
//! - [`Request`] and [`Reply`] are the messages; both can be written and read, so either end can be played.
//! - [`Backend`] is what a server administers; [`serve`] turns one datagram of requests into datagrams of replies, without
//!   IO.
//! - [`Client`] asks a server on a Unix socket; [`Exchange`] is its half without IO.
//! - [`procfs`] writes what a kernel's IPVS shows below `/proc/net`.
//! - [`memory::Memory`] is a back-end that keeps what it is told and forwards nothing: for tests.
#![forbid(unsafe_code)]

mod attr;
mod backend;
mod client;
mod daemons;
mod errno;
pub mod memory;
mod parse;
pub mod procfs;
mod reply;
mod request;
mod save;
mod server;
mod status;
#[cfg(test)]
mod tests;
mod types;
mod wire;

pub use attr::TooLong;
pub use backend::{Backend, TIMEOUT_MAX, check_dest, check_service};
pub use client::{Client, ClientError, Exchange, ExchangeError};
pub use daemons::Daemons;
pub use errno::Errno;
pub use parse::{Saved, SavedError, parse_line};
pub use reply::{FamilyInfo, Message, Reply, ReplyError};
pub use request::{Envelope, Family, Request, RequestError};
pub use save::{
    save_line, save_line_daemon, save_line_dest, save_line_sysctl, save_line_timeouts, save_thresholds,
};
pub use server::{DATAGRAM_MAX, FAMILY_IPVS, FAMILY_LVSD, Replies, serve, serve_unprivileged};
pub use status::{Notice, Overview, QueueStatus, RingLevel, SchedulerInfo, Traffic};
pub use types::*;
