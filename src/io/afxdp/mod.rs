//! The `AF_XDP` port: an XDP program hands what is ours to sockets, one for each queue; everything else goes on to the stack.
//!
//! A worker has all its frames in one memory, which its sockets on all interfaces use; so a frame is sent from where it was
//! received. `docs/afxdp.md` has the whole.

mod far;
pub(in crate::io) mod occupant;
mod port;
mod queue;
mod ring;
mod socket;
mod station;
mod suits;
mod umem;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use ipvs_netlink::QueueStatus;

use crate::engine::FrameHandler;
use crate::io::attach::{EGRESS, INGRESS};
use crate::io::bpf::{XDP_HOOK, XDP_PORTS};
use crate::io::rings::supervisor::Holder;
use crate::io::rings::{Counters, PortStats, QueueStats, Running, Threads, check};
use crate::io::{BpfTables, SetupError, netdev};
use crate::route::PortId;
use port::{Common, XdpPort};
use socket::Live;
use station::Xsks;
pub use suits::suits;
use umem::Area;

/// Where the XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attach {
    /// In the driver, or where that has no XDP, in the stack.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the stack.
    Generic,
}

/// What to set up.
#[derive(Clone, Debug)]
pub struct AfXdpConfig {
    /// The interfaces, by the numbers that verdicts name them with.
    pub interfaces: Vec<(PortId, String)>,
    /// Threads, 1 to 64; queue n of each interface is served by thread n, round again.
    pub workers: usize,
    /// Frames that each of a socket's four rings holds: a power of two, 64 to 65536.
    pub ring: u32,
    /// Where the program runs.
    pub attach: Attach,
    /// Try zero-copy.
    pub zero_copy: bool,
    /// Microseconds that a worker polls busily after the last frame; 0: not at all.
    pub busy_poll: u32,
    /// Bind worker n to the n-th processor that this process may use (round again where there are fewer).
    pub pin: bool,
}

impl AfXdpConfig {
    /// The usual settings.
    pub fn new(interfaces: Vec<(PortId, String)>, workers: usize) -> AfXdpConfig {
        AfXdpConfig {
            interfaces,
            workers,
            ring: 2048,
            attach: Attach::Auto,
            zero_copy: true,
            busy_poll: 0,
            pin: false,
        }
    }
}

/// The port at work. Dropping it ends the workers, detaches the program and closes the sockets: the interfaces are as they were.
pub struct AfXdp {
    threads: Threads<XdpPort>,
    tables: Arc<BpfTables>,
    ring: u32,
}

impl std::fmt::Debug for AfXdp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AfXdp").field("workers", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Sets up program and sockets on all interfaces (of the calling thread's network namespace) and starts the workers.
/// `ready` is called before anything is changed (a queue can have one socket only); what it gives is called once for each worker, in order,
/// on the calling thread.
///
/// # Errors
///
/// [`SetupError`], naming the interface, or that of `ready`; nothing stays changed then.
pub fn start<M: Fn(usize) -> Box<dyn FrameHandler + Send>>(
    config: AfXdpConfig,
    tables: &Arc<BpfTables>,
    ready: impl FnOnce() -> Result<M, SetupError>,
) -> Result<AfXdp, SetupError> {
    check(&config.interfaces, config.workers)?;
    let wrong = |what: &str, reason: String| SetupError::Bpf { what: what.into(), reason };
    if config.interfaces.len() > XDP_PORTS {
        return Err(wrong("AF_XDP", format!("{} interfaces; at most {XDP_PORTS}", config.interfaces.len())));
    }
    if !config.ring.is_power_of_two() || !(64..=65_536).contains(&config.ring) {
        return Err(wrong("AF_XDP", format!("rings of {}; a power of two from 64 to 65536", config.ring)));
    }
    tables.load_xdp()?;
    let areas = areas(&config)?;
    let make_worker = ready()?;
    let (workers, ring, pin, busy_poll) = (config.workers, config.ring, config.pin, config.busy_poll);
    let common = Arc::new(Common { config, tables: Arc::clone(tables), areas });
    let mut ports = Vec::new();
    for (place, (id, name)) in common.config.interfaces.iter().enumerate() {
        let mut port = XdpPort::new(*id, name, place as u32, Arc::clone(&common));
        let sockets = port.attach()?;
        ports.push((port, sockets));
    }
    let make = |number: usize, seats| {
        let tables = Arc::clone(&common.tables);
        (Xsks::new(Arc::clone(&common.areas[number]), tables, busy_poll, seats), make_worker(number))
    };
    Ok(AfXdp { threads: Threads::start(ports, workers, pin, make)?, tables: Arc::clone(tables), ring })
}

/// Memory for each worker: two rings full of frames for each of its queues, or as if it had one of each interface.
fn areas(config: &AfXdpConfig) -> Result<Vec<Arc<Area>>, SetupError> {
    let mut mtu = 0;
    let mut sockets = vec![0; config.workers];
    for (_, name) in &config.interfaces {
        mtu = mtu.max(netdev::mtu(name)?);
        for queue in 0..port::queues(name)? {
            sockets[queue as usize % config.workers] += 1;
        }
    }
    let at_least = config.interfaces.len();
    let area = |n: usize| {
        let chunks = n.max(at_least) as u32 * 2 * config.ring;
        Area::new(umem::chunk_for(mtu), chunks)
            .map(Arc::new)
            .map_err(|e| SetupError::os(format!("memory for {chunks} frames"), "", e))
    };
    sockets.into_iter().map(area).collect()
}

impl AfXdp {
    /// Ends it, as dropping it does.
    pub fn stop(self) {}
}

impl Running for AfXdp {
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
            let (name, live) = (port.holder.name(), port.holder.live());
            if live.is_empty() {
                rows.extend((0..).zip(counters).map(|(queue, c)| c.status("afxdp", name, queue, None)));
            }
            let mut own: Vec<_> = live.iter().map(|live| live.status(name, self.ring)).collect();
            add_by_worker(&mut own, live, counters);
            rows.append(&mut own);
        }
        if let Some(tier) = self.tables.tier() {
            rows.extend(tier.rows("xdp"));
        }
        rows
    }

    fn kind(&self) -> &'static str {
        if self.tables.tier().is_some() { "xdp" } else { "afxdp" }
    }

    fn hooks(&self) -> &'static [&'static str] {
        &[INGRESS, EGRESS, XDP_HOOK]
    }

    fn summary(&self) -> String {
        let rows = self.queues().into_iter().filter(|r| r.datapath == "afxdp");
        let mut modes: Vec<String> = rows.map(|r| format!("{} {}", r.interface, r.mode)).collect();
        modes.dedup();
        let over = if self.tables.tier().is_some() { "xdp over " } else { "" };
        format!("{over}afxdp ({})", modes.join(", "))
    }
}

/// Adds to the rows of an interface's queues, whose traffic is what their sockets have carried, what is counted by worker only: drops, what
/// packet sockets sent (super-packets, the core's own frames, all of generic mode), and what sockets carried that are no more.
/// It stands with the worker's first queue on the interface, or with the interface's first where the worker has none there.
fn add_by_worker(rows: &mut [QueueStatus], live: &[Arc<Live>], counters: &[Arc<Counters>]) {
    let mut stats = vec![None; rows.len()];
    for (worker, counters) in counters.iter().enumerate() {
        // A frame that is counted meanwhile may be missing for the moment, but is never told twice.
        let all = counters.read();
        let mut others = [all.rx_frames, all.rx_bytes, all.tx_frames, all.tx_bytes];
        for live in live.iter().filter(|live| live.worker == worker) {
            for (n, carried) in others.iter_mut().zip(live.rx.iter().chain(&live.tx)) {
                *n = n.saturating_sub(carried.load(Ordering::Relaxed));
            }
        }
        let at = live.iter().position(|live| live.worker == worker).unwrap_or(0);
        let (Some(row), Some(sum)) = (rows.get_mut(at), stats.get_mut(at)) else { continue };
        let t = &mut row.traffic;
        let to = [&mut t.rx_packets, &mut t.rx_bytes, &mut t.tx_packets, &mut t.tx_bytes];
        to.into_iter().zip(others).for_each(|(to, n)| *to += n);
        *sum.get_or_insert_with(QueueStats::default) += all;
    }
    for (row, stats) in rows.iter_mut().zip(stats) {
        row.drops = stats.map_or_else(Vec::new, |s| s.drops());
    }
}

#[cfg(test)]
mod tests;
