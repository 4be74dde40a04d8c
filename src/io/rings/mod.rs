//! What ports with rings have in common: workers, the thread that follows interfaces, counters, sending by packet sockets.

pub(in crate::io) mod socket;
mod stats;
pub(in crate::io) mod supervisor;
pub(in crate::io) mod tx;
pub(in crate::io) mod vnet;
pub(in crate::io) mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ipvs_netlink::QueueStatus;

pub(in crate::io) use stats::Counters;
pub(in crate::io) use stats::Level;
pub use stats::{PortStats, QueueStats};

use crate::engine::FrameHandler;
use crate::io::{SetupError, netdev};
use crate::route::PortId;
use supervisor::{Holder, Port, Stop, Supervisor};
use worker::{Mail, Station, Worker};

/// Most workers that a port takes.
pub const MAX_WORKERS: usize = 64;

/// A datapath at work. Dropping it ends the workers and leaves the interfaces as they were.
pub trait Running: Send + Sync + std::fmt::Debug {
    /// Whether all workers are at work.
    fn healthy(&self) -> bool;
    /// Counters of each port and worker.
    fn stats(&self) -> Vec<PortStats>;
    /// The rows of `lvsctl status`, without rates: one for each queue of each interface.
    fn queues(&self) -> Vec<QueueStatus>;
    /// Its name, as `--datapath` has it.
    fn kind(&self) -> &'static str;
    /// Names of the hooks at which it has a program on each interface.
    fn hooks(&self) -> &'static [&'static str];
    /// Kind and modes, in a few words for the log.
    fn summary(&self) -> String;
}

/// Names and the number of workers, before anything is changed.
pub(in crate::io) fn check(interfaces: &[(PortId, String)], workers: usize) -> Result<(), SetupError> {
    if interfaces.is_empty() {
        return Err(SetupError::NoInterface);
    }
    if !(1..=MAX_WORKERS).contains(&workers) {
        return Err(SetupError::Workers(workers));
    }
    for (i, (id, name)) in interfaces.iter().enumerate() {
        if interfaces[..i].iter().any(|(other, n)| n == name || other == id) {
            return Err(SetupError::Duplicate(name.clone()));
        }
    }
    interfaces.iter().try_for_each(|(_, name)| netdev::ethernet_index(name).map(drop))
}

/// One port's sockets and counters, as a worker gets them at its start.
pub(in crate::io) type Seat<S> = (PortId, S, Arc<Counters>);

/// Threads and ports of a datapath.
pub(in crate::io) struct Threads<H: Holder> {
    mail: Vec<Arc<Mail<H::Sockets>>>,
    workers: Vec<JoinHandle<()>>,
    supervisor: Option<(Arc<Stop>, JoinHandle<()>)>,
    pub(in crate::io) ports: Arc<Vec<Mutex<Port<H>>>>,
    /// By port and worker.
    pub(in crate::io) counters: Vec<Vec<Arc<Counters>>>,
    failed: Arc<AtomicBool>,
}

impl<H: Holder> Threads<H> {
    /// Starts the workers and the supervisor on ports that have just been set up, each with its workers' sockets.
    pub(in crate::io) fn start<S: Station<Sockets = H::Sockets> + 'static>(
        ports: Vec<(H, Vec<H::Sockets>)>,
        workers: usize,
        pin: bool,
        mut make: impl FnMut(usize, Vec<Seat<H::Sockets>>) -> (S, Box<dyn FrameHandler + Send>),
    ) -> Result<Threads<H>, SetupError> {
        let mut seats: Vec<Vec<Seat<H::Sockets>>> = Vec::new();
        seats.resize_with(workers, Vec::new);
        let (mut held, mut counters) = (Vec::new(), Vec::new());
        for (holder, sockets) in ports {
            let port_counters: Vec<Arc<Counters>> = (0..workers).map(|_| Arc::default()).collect();
            for ((seat, sockets), counters) in seats.iter_mut().zip(sockets).zip(&port_counters) {
                seat.push((holder.id(), sockets, Arc::clone(counters)));
            }
            held.push(Mutex::new(Port::new(holder)));
            counters.push(port_counters);
        }
        let mut threads = Threads {
            mail: Vec::new(),
            workers: Vec::new(),
            supervisor: None,
            ports: Arc::new(held),
            counters,
            failed: Arc::default(),
        };
        for (number, seat) in seats.into_iter().enumerate() {
            let mail = Arc::new(Mail::new()?);
            let (station, handler) = make(number, seat);
            let worker = Worker { station, handler, mail: Arc::clone(&mail), counters_at: 0, grace: None };
            threads.mail.push(mail);
            threads.workers.push(spawn(number, worker, pin, Arc::clone(&threads.failed))?);
        }
        let supervisor = Supervisor { ports: Arc::clone(&threads.ports), workers: threads.mail.clone() };
        threads.supervisor = Some(supervisor.start()?);
        Ok(threads)
    }

    pub(in crate::io) fn healthy(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    /// The number of workers.
    pub(in crate::io) fn len(&self) -> usize {
        self.workers.len()
    }

    pub(in crate::io) fn stats(&self) -> Vec<PortStats> {
        let read = |(port, counters): (&Mutex<Port<H>>, &Vec<Arc<Counters>>)| {
            let port = port.lock().unwrap_or_else(PoisonError::into_inner);
            PortStats {
                port: port.holder.id(),
                interface: port.holder.name().into(),
                attached: port.holder.is_attached(),
                queues: counters.iter().map(|c| c.read()).collect(),
            }
        };
        self.ports.iter().zip(&self.counters).map(read).collect()
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
                    port.lock().unwrap_or_else(PoisonError::into_inner).holder.detach();
                }
            }
        }
        for mail in &self.mail {
            mail.stop.store(true, Ordering::Release);
            mail.wake();
        }
        for worker in self.workers.drain(..) {
            // a panic has been told of by its guard
            let _ = worker.join();
        }
    }
}

impl<H: Holder> Drop for Threads<H> {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn<S: Station + 'static>(
    number: usize,
    mut worker: Worker<S>,
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
