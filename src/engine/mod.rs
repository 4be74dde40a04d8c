//! Frame and time in, verdict out: the director's data path, deterministic and without IO.
//!
//! [`Worker::batch`](handler::FrameHandler::batch) takes frames through stages (`stages.rs`), so that table look-ups overlap: parse and
//! fetch the index, fetch the entries, judge. What a packet meets, in the order of cost:
//!
//! 1. the usual packet of a known connection: a few loads, no lock, hardly a branch (`usual.rs`);
//! 2. any other packet of a known connection: no lock either ([`crate::conn`]);
//! 3. a known connection whose cached next hop is stale: one route look-up under a read lock;
//! 4. a new connection: the service's lock, held while its server is chosen and its entry made.
#![forbid(unsafe_code)]

mod admin;
mod adopt;
mod answer;
mod around;
mod director;
mod flood;
mod forward;
mod frame;
mod handler;
mod path;
mod pending;
mod reason;
mod related;
mod schedule;
mod stages;
mod tagged;
pub mod tcp;
mod tier;
mod tunnel;
mod usual;
mod worker;

pub use adopt::Adopted;
pub use around::Surroundings;
pub use director::{Director, MAX_DESTS, MAX_WORKERS, Sysctls, TierMemory};
pub use frame::{Frame, Gso, Out, RxChecksum, Verdict};
pub use handler::FrameHandler;
pub use reason::{Count, Counters, Reason};
pub use worker::Worker;

/// Entry flag of a template: a connection that it led to was established.
const FLAG_ASSURED: u32 = 1;

use modes::packet::proto::{TCP as PROTO_TCP, UDP as PROTO_UDP};
