//! The director: a user-space Linux Virtual Server.
//!
//! The core ([`engine`], [`conn`], [`service`], [`route`]) is deterministic: frames and the time go in, verdicts come
//! out; it does no IO and reads no clock. [`io`] holds the ports under it, [`control`] what configures it.
#![deny(unsafe_code)]

/// Some unit tests share files with the integration tests, which know the crate by its name.
#[cfg(all(test, feature = "daemon"))]
extern crate self as lvsd;

pub mod conn;
#[cfg(feature = "daemon")]
pub mod control;
#[cfg(feature = "daemon")]
pub mod datapath;
pub mod engine;
#[cfg(feature = "daemon")]
pub mod handover;
#[cfg(feature = "daemon")]
pub mod io;
#[allow(unsafe_code)]
pub mod mem;
pub mod route;
pub mod service;
#[cfg(feature = "daemon")]
pub mod status;
pub mod time;
#[cfg(feature = "daemon")]
pub mod watch;
