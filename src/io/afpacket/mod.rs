//! The `AF_PACKET` port: TPACKET_V2 receive rings under a BPF classifier, sending by `sendmmsg` from the ring itself.
//!
//! Each of N workers has a ring on each interface (fanout by flow hash). Super-packets and partial checksums pass as they
//! are, by the vnet header on both sides. A socket filter lets the ring see only what is ours; a program at the ingress
//! hook takes just that away from the kernel's stack. What the core passes goes back to the stack by a marked frame
//! that the egress hook turns round (`docs/reinjection.md`).

mod port;
mod ring;
mod socket;
mod worker;

use std::sync::{Arc, PoisonError};

use ipvs_netlink::QueueStatus;

pub use crate::io::attach::Hook;
pub use crate::io::rings::{MAX_WORKERS, PortStats, QueueStats};
pub use ring::RingShape;

use crate::engine::FrameHandler;
use crate::io::attach::{EGRESS, INGRESS};
use crate::io::rings::supervisor::Holder;
use crate::io::rings::{Running, Threads, check};
use crate::io::{BpfTables, SetupError};
use crate::route::PortId;
use port::PacketPort;
use worker::Rings;

/// What to set up.
#[derive(Clone, Debug)]
pub struct AfPacketConfig {
    /// The interfaces, by the numbers that verdicts name them with.
    pub interfaces: Vec<(PortId, String)>,
    /// Threads, 1 to [`MAX_WORKERS`]; each has a ring on each interface.
    pub workers: usize,
    /// Size of each ring.
    pub ring: RingShape,
    /// How the classifier is attached.
    pub hook: Hook,
    /// Bind worker n to the n-th processor that this process may use (round again where there are fewer).
    pub pin: bool,
}

impl AfPacketConfig {
    /// The usual settings.
    pub fn new(interfaces: Vec<(PortId, String)>, workers: usize) -> AfPacketConfig {
        AfPacketConfig { interfaces, workers, ring: RingShape::default(), hook: Hook::Auto, pin: false }
    }
}

/// The port at work. Dropping it ends the workers, detaches the classifier and closes the sockets: the interfaces are as
/// they were.
pub struct AfPacket {
    threads: Threads<PacketPort>,
    tables: Arc<BpfTables>,
}

impl std::fmt::Debug for AfPacket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AfPacket").field("workers", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Sets up sockets and classifier on all interfaces (of the calling thread's network namespace) and starts the workers.
/// `ready` is called when the sockets stand and no worker works yet; what it gives is called once for each worker, in order, on the calling
/// thread.
///
/// # Errors
///
/// [`SetupError`], naming the interface, or that of `ready`; nothing stays changed then.
pub fn start<M: Fn(usize) -> Box<dyn FrameHandler + Send>>(
    config: AfPacketConfig,
    tables: &Arc<BpfTables>,
    ready: impl FnOnce() -> Result<M, SetupError>,
) -> Result<AfPacket, SetupError> {
    check(&config.interfaces, config.workers)?;
    let config = Arc::new(config);
    let mut ports = Vec::new();
    for (id, name) in &config.interfaces {
        let mut port = PacketPort::new(*id, name, Arc::clone(&config), Arc::clone(tables));
        let sockets = port.attach()?;
        ports.push((port, sockets));
    }
    let make_worker = ready()?;
    let make = |number, seats| (Rings::new(seats, Arc::clone(tables)), make_worker(number));
    Ok(AfPacket {
        threads: Threads::start(ports, config.workers, config.pin, make)?,
        tables: Arc::clone(tables),
    })
}

impl AfPacket {
    /// Ends it, as dropping it does.
    pub fn stop(self) {}

    /// Counters of each port and worker.
    pub fn stats(&self) -> Vec<PortStats> {
        self.threads.stats()
    }

    /// Whether all workers are at work.
    pub fn healthy(&self) -> bool {
        self.threads.healthy()
    }
}

impl Running for AfPacket {
    fn healthy(&self) -> bool {
        self.threads.healthy()
    }

    fn stats(&self) -> Vec<PortStats> {
        self.threads.stats()
    }

    fn queues(&self) -> Vec<QueueStatus> {
        let mut rows = Vec::new();
        for (port, counters) in self.threads.ports.iter().zip(&self.threads.counters) {
            let port = port.lock().unwrap_or_else(PoisonError::into_inner);
            let (name, mode) = (port.holder.name(), port.holder.mode());
            rows.extend((0..).zip(counters).map(|(queue, c)| c.status("afpacket", name, queue, mode)));
        }
        if let Some(tier) = self.tables.tier() {
            rows.extend(tier.rows("tc"));
        }
        rows
    }

    fn kind(&self) -> &'static str {
        if self.tables.tier().is_some() { "tc" } else { "afpacket" }
    }

    fn hooks(&self) -> &'static [&'static str] {
        &[INGRESS, EGRESS]
    }

    fn summary(&self) -> String {
        if self.tables.tier().is_some() { "tc over afpacket".into() } else { "afpacket".into() }
    }
}

#[cfg(test)]
mod tests;
