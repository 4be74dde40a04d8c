//! Follows interfaces that vanish and come back, so that no worker has to.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::socket::{PortSockets, bound_to};
use super::worker::Shared;
use super::{AfPacketConfig, filter_fd, plan};
use crate::io::attach::Attachment;
use crate::io::netdev::{self, PortLock};
use crate::io::{BpfTables, SetupError};
use crate::route::PortId;

/// How often interfaces are looked at.
const PERIOD: Duration = Duration::from_millis(250);

/// A port and what holds it on its interface.
pub(super) struct PortState {
    pub(super) id: PortId,
    pub(super) name: String,
    attached: Option<Attached>,
    /// The last failure to attach it again, so that it is logged once.
    complaint: String,
}

struct Attached {
    index: u32,
    classifier: Attachment,
    probe: OwnedFd,
    _lock: PortLock,
}

impl PortState {
    /// Sets a port up; the sockets are one set for each worker.
    pub(super) fn attach(
        id: PortId,
        name: &str,
        config: &AfPacketConfig,
        tables: &BpfTables,
    ) -> Result<(PortState, Vec<PortSockets>), SetupError> {
        let mut state = PortState { id, name: name.into(), attached: None, complaint: String::new() };
        let sockets = state.set_up(config, tables)?;
        Ok((state, sockets))
    }

    fn set_up(
        &mut self,
        config: &AfPacketConfig,
        tables: &BpfTables,
    ) -> Result<Vec<PortSockets>, SetupError> {
        let index = netdev::ethernet_index(&self.name)?;
        let lock = PortLock::take(&self.name, index)?;
        let filter = filter_fd(tables)?;
        let mtu = netdev::mtu(&self.name)?;
        let set = plan(config, &self.name, (index, mtu), &filter, tables.magic()).make()?;
        let classifier = Attachment::new(tables, &self.name, index, config.hook)?;
        self.attached = Some(Attached { index, classifier, probe: set.probe, _lock: lock });
        Ok(set.sockets)
    }

    pub(super) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// How its classifier is attached; none while the interface is gone.
    pub(super) fn mode(&self) -> Option<&'static str> {
        self.attached.as_ref().map(|a| a.classifier.hook())
    }

    pub(super) fn detach(&mut self) {
        self.attached = None;
    }

    /// Whether the sockets are still on the interface that now has the name.
    fn holds(&self) -> bool {
        self.attached.as_ref().is_some_and(|a| {
            netdev::index(&self.name) == Some(a.index) && bound_to(a.probe.as_fd()) == Some(a.index)
        })
    }
}

/// Ends the supervisor.
#[derive(Default)]
pub(super) struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(super) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits a period; whether to go on.
    fn wait(&self) -> bool {
        let guard = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let (guard, _) = self
            .changed
            .wait_timeout_while(guard, PERIOD, |stopped| !*stopped)
            .unwrap_or_else(PoisonError::into_inner);
        !*guard
    }
}

pub(super) struct Supervisor {
    config: AfPacketConfig,
    tables: Arc<BpfTables>,
    ports: Arc<Vec<Mutex<PortState>>>,
    workers: Vec<Arc<Shared>>,
}

impl Supervisor {
    pub(super) fn new(
        config: AfPacketConfig,
        tables: Arc<BpfTables>,
        ports: Arc<Vec<Mutex<PortState>>>,
        workers: Vec<Arc<Shared>>,
    ) -> Supervisor {
        Supervisor { config, tables, ports, workers }
    }

    /// Starts its thread, which stays in the caller's network namespace.
    pub(super) fn start(self) -> Result<(Arc<Stop>, JoinHandle<()>), SetupError> {
        let stop = Arc::new(Stop::default());
        let theirs = Arc::clone(&stop);
        let body = move || {
            while theirs.wait() {
                (0..self.ports.len()).for_each(|place| self.look_after(place));
            }
            // here, because this thread is in the interfaces' network namespace, wherever the one that stops us is
            for port in self.ports.iter() {
                port.lock().unwrap_or_else(PoisonError::into_inner).detach();
            }
        };
        let thread = std::thread::Builder::new()
            .name("lvsd-ports".into())
            .spawn(body)
            .map_err(|e| SetupError::os("starting the thread that follows interfaces", "", e))?;
        Ok((stop, thread))
    }

    fn look_after(&self, place: usize) {
        let Some(port) = self.ports.get(place) else { return };
        let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
        if port.holds() {
            return;
        }
        if port.is_attached() {
            tracing::warn!("interface {}: gone; waiting for it to come back", port.name);
            port.detach();
            self.workers.iter().for_each(|w| tell(w, place, None));
        }
        if netdev::index(&port.name).is_none() {
            return;
        }
        match port.set_up(&self.config, &self.tables) {
            Ok(sockets) => {
                tracing::info!("interface {}: back", port.name);
                port.complaint.clear();
                for (worker, sockets) in self.workers.iter().zip(sockets) {
                    tell(worker, place, Some(sockets));
                }
            }
            Err(e) => {
                let complaint = e.to_string();
                if complaint != port.complaint {
                    tracing::warn!("{complaint}");
                    port.complaint = complaint;
                }
            }
        }
    }
}

fn tell(worker: &Shared, place: usize, sockets: Option<PortSockets>) {
    worker.inbox.lock().unwrap_or_else(PoisonError::into_inner).push((place, sockets));
    worker.news.store(true, Ordering::Release);
    worker.wake();
}
