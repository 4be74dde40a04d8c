//! The `AF_PACKET` port: TPACKET_V2 receive rings under a BPF classifier, sending by `sendmmsg` from the ring itself.
//!
//! Each of N workers has a ring on each interface (fanout by flow hash). Super-packets and partial checksums pass as they
//! are, by the vnet header on both sides. A socket filter lets the ring see only what is ours; a program at the ingress
//! hook takes just that away from the kernel's stack. What the core passes goes back to the stack by a marked frame
//! that the egress hook turns round (`docs/reinjection.md`).

mod ring;
mod socket;
mod stats;
mod supervisor;
mod tx;
mod vnet;
mod worker;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use aya::programs::Program;
use ipvs_netlink::QueueStatus;
use rustix::event::{EventfdFlags, eventfd};

pub use crate::io::attach::Hook;
pub use ring::RingShape;
pub use stats::{PortStats, QueueStats};

use crate::engine::FrameHandler;
use crate::io::{BpfTables, SetupError, netdev};
use crate::route::PortId;
use socket::{PortPlan, PortSockets};
use stats::Counters;
use supervisor::{PortState, Stop, Supervisor};
use worker::{Shared, Worker};

/// Most workers that a port takes.
pub const MAX_WORKERS: usize = 64;

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

/// The port at work. Dropping it is [`Running::stop`].
pub struct Running {
    shared: Vec<Arc<Shared>>,
    workers: Vec<JoinHandle<()>>,
    supervisor: Option<(Arc<Stop>, JoinHandle<()>)>,
    ports: Arc<Vec<Mutex<PortState>>>,
    counters: Vec<Vec<Arc<Counters>>>,
    failed: Arc<AtomicBool>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// Sets up sockets and classifier on all interfaces (of the calling thread's network namespace) and starts the workers.
/// `make_worker` is called once for each worker, in order, on the calling thread.
///
/// # Errors
///
/// [`SetupError`], naming the interface; nothing stays changed then.
pub fn start(
    config: AfPacketConfig,
    tables: &Arc<BpfTables>,
    make_worker: impl Fn(usize) -> Box<dyn FrameHandler + Send>,
) -> Result<Running, SetupError> {
    check(&config)?;
    let mut states = Vec::new();
    let mut by_worker: Vec<Vec<(PortId, PortSockets, Arc<Counters>)>> = Vec::new();
    by_worker.resize_with(config.workers, Vec::new);
    let mut counters = Vec::new();
    for (id, name) in &config.interfaces {
        let (state, sockets) = PortState::attach(*id, name, &config, tables)?;
        let port_counters: Vec<Arc<Counters>> = (0..config.workers).map(|_| Arc::default()).collect();
        for ((worker, sockets), counters) in by_worker.iter_mut().zip(sockets).zip(&port_counters) {
            worker.push((*id, sockets, Arc::clone(counters)));
        }
        states.push(Mutex::new(state));
        counters.push(port_counters);
    }
    let mut running = Running {
        shared: Vec::new(),
        workers: Vec::new(),
        supervisor: None,
        ports: Arc::new(states),
        counters,
        failed: Arc::default(),
    };
    for (number, ports) in by_worker.into_iter().enumerate() {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| SetupError::os("making an eventfd", "", e.into()))?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            wake,
            news: AtomicBool::new(false),
            inbox: Mutex::default(),
        });
        let worker = Worker::new(ports, make_worker(number), Arc::clone(&shared));
        running.shared.push(shared);
        running.workers.push(spawn(number, worker, config.pin, Arc::clone(&running.failed))?);
    }
    let supervisor =
        Supervisor::new(config, Arc::clone(tables), Arc::clone(&running.ports), running.shared.clone());
    running.supervisor = Some(supervisor.start()?);
    Ok(running)
}

fn check(config: &AfPacketConfig) -> Result<(), SetupError> {
    if config.interfaces.is_empty() {
        return Err(SetupError::NoInterface);
    }
    if !(1..=MAX_WORKERS).contains(&config.workers) {
        return Err(SetupError::Workers(config.workers));
    }
    for (i, (id, name)) in config.interfaces.iter().enumerate() {
        if config.interfaces[..i].iter().any(|(other, n)| n == name || other == id) {
            return Err(SetupError::Duplicate(name.clone()));
        }
    }
    // all names before anything is changed
    config.interfaces.iter().try_for_each(|(_, name)| netdev::ethernet_index(name).map(drop))
}

fn spawn(
    number: usize,
    mut worker: Worker,
    pin: bool,
    failed: Arc<AtomicBool>,
) -> Result<JoinHandle<()>, SetupError> {
    let body = move || {
        let guard = FailGuard(failed);
        if pin {
            pin_to_processor(number);
        }
        worker.run();
        std::mem::forget(guard);
    };
    std::thread::Builder::new()
        .name(format!("lvsd-rx-{number}"))
        .spawn(body)
        .map_err(|e| SetupError::os("starting a worker thread", "", e))
}

/// Tells of a worker that ended by a panic.
struct FailGuard(Arc<AtomicBool>);

impl Drop for FailGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        tracing::error!("a worker has failed; lvsd stops, since its share of the traffic would be lost");
    }
}

fn pin_to_processor(number: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let usable: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&c| allowed.is_set(c)).collect();
    if let Some(&processor) = usable.get(number % usable.len().max(1)) {
        let mut one = rustix::thread::CpuSet::new();
        one.set(processor);
        if let Err(e) = rustix::thread::sched_setaffinity(None, &one) {
            tracing::warn!("worker {number}: cannot bind to processor {processor}: {e}");
        }
    }
}

impl Running {
    /// Ends the workers, detaches the classifier and closes the sockets: the interfaces are as they were.
    pub fn stop(mut self) {
        self.end();
    }

    /// Whether all workers are at work.
    pub fn healthy(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    /// Counters of each port and queue.
    pub fn stats(&self) -> Vec<PortStats> {
        let read = |(port, counters): (&Mutex<PortState>, &Vec<Arc<Counters>>)| {
            let port = port.lock().unwrap_or_else(PoisonError::into_inner);
            PortStats {
                port: port.id,
                interface: port.name.clone(),
                attached: port.is_attached(),
                queues: counters.iter().map(|c| c.read()).collect(),
            }
        };
        self.ports.iter().zip(&self.counters).map(read).collect()
    }

    /// The rows of `lvsctl status`, without rates: one for each worker's ring on each interface.
    pub fn queues(&self) -> Vec<QueueStatus> {
        let mut rows = Vec::new();
        for (port, counters) in self.ports.iter().zip(&self.counters) {
            let port = port.lock().unwrap_or_else(PoisonError::into_inner);
            let rings = (0..).zip(counters).map(|(queue, c)| c.status(&port.name, queue, port.mode()));
            rows.extend(rings);
        }
        rows
    }

    fn end(&mut self) {
        // the stack gets its frames back before the rings stop taking them
        match self.supervisor.take() {
            Some((stop, thread)) => {
                stop.stop();
                let _ = thread.join();
            }
            // not started yet: this is still the thread that set the ports up, or nothing is left to be done
            None => {
                for port in self.ports.iter() {
                    port.lock().unwrap_or_else(PoisonError::into_inner).detach();
                }
            }
        }
        for shared in &self.shared {
            shared.stop.store(true, Ordering::Release);
            shared.wake();
        }
        for worker in self.workers.drain(..) {
            // a panic has been told of by its guard
            let _ = worker.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A duplicate of the socket filter's descriptor.
fn filter_fd(tables: &BpfTables) -> Result<OwnedFd, SetupError> {
    let programs = tables.programs();
    let missing = || SetupError::Bpf { what: "BPF program lvsd_ring".into(), reason: "not loaded".into() };
    let Some(Program::SocketFilter(p)) = programs.program("lvsd_ring") else {
        return Err(missing());
    };
    let fd = p.fd().map_err(|_| missing())?;
    std::os::fd::AsFd::as_fd(fd)
        .try_clone_to_owned()
        .map_err(|e| SetupError::os("duplicating a program's descriptor", "", e))
}

fn plan<'a>(
    config: &AfPacketConfig,
    name: &'a str,
    (index, mtu): (u32, u32),
    filter: &'a OwnedFd,
    magic: u32,
) -> PortPlan<'a> {
    let filter = std::os::fd::AsFd::as_fd(filter);
    PortPlan { name, index, mtu, workers: config.workers, ring: config.ring, filter, magic }
}

#[cfg(test)]
mod tests;
