//! Follows interfaces that vanish, come back or change, so that no worker has to.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::worker::Mail;
use crate::io::SetupError;
use crate::route::PortId;

/// How often interfaces are looked at.
const PERIOD: Duration = Duration::from_millis(250);
/// How long a failure to attach again may last before it is told of: what held the interface may just be going.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a port's sockets are found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::io) enum Hold {
    /// As they should be.
    Fast,
    /// Not on the interface that now has the name, if there is one.
    Gone,
    /// On the interface, which wants other ones by now; why.
    Changed(String),
}

/// A port on an interface, and what it is set up with.
pub(in crate::io) trait Holder: Send + 'static {
    /// What one worker gets to work with.
    type Sockets: Send + 'static;

    /// The port's number.
    fn id(&self) -> PortId;
    /// The interface's name.
    fn name(&self) -> &str;
    /// Whether it is set up.
    fn is_attached(&self) -> bool;
    /// Looks whether it still is as it should be, and takes over small changes.
    fn look(&mut self) -> Hold;
    /// Sets it up (again); one set of sockets for each worker.
    fn set_up(&mut self) -> Result<Vec<Self::Sockets>, SetupError>;
    /// Gives the workers' sockets up, before [`Holder::set_up`] makes others on the same interface.
    fn loosen(&mut self);
    /// Takes everything away from the interface.
    fn detach(&mut self);
    /// Whether the interface is there at all.
    fn exists(&self) -> bool;
}

/// A port, and what went wrong last.
pub(in crate::io) struct Port<H> {
    pub(in crate::io) holder: H,
    complaint: String,
    failing: Option<Instant>,
}

impl<H: Holder> Port<H> {
    pub(in crate::io) fn new(holder: H) -> Port<H> {
        Port { holder, complaint: String::new(), failing: None }
    }
}

/// Ends the supervisor.
#[derive(Default)]
pub(in crate::io) struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(in crate::io) fn stop(&self) {
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

pub(in crate::io) struct Supervisor<H: Holder> {
    pub(in crate::io) ports: Arc<Vec<Mutex<Port<H>>>>,
    pub(in crate::io) workers: Vec<Arc<Mail<H::Sockets>>>,
}

impl<H: Holder> Supervisor<H> {
    /// Starts its thread, which stays in the caller's network namespace.
    pub(in crate::io) fn start(self) -> Result<(Arc<Stop>, JoinHandle<()>), SetupError> {
        let stop = Arc::new(Stop::default());
        let theirs = Arc::clone(&stop);
        let body = move || {
            while theirs.wait() {
                (0..self.ports.len()).for_each(|place| self.look_after(place));
            }
            // here, because this thread is in the interfaces' network namespace, wherever the one that stops us is
            for port in self.ports.iter() {
                port.lock().unwrap_or_else(PoisonError::into_inner).holder.detach();
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
        let name = port.holder.name().to_owned();
        if port.holder.is_attached() {
            match port.holder.look() {
                Hold::Fast => return,
                Hold::Gone => {
                    tracing::warn!("interface {name}: gone; waiting for it to come back");
                    port.holder.detach();
                }
                Hold::Changed(how) => {
                    tracing::info!("interface {name}: {how}; attaching anew");
                    port.holder.loosen();
                }
            }
            self.workers.iter().for_each(|w| w.tell(place, None));
        }
        if !port.holder.exists() {
            return;
        }
        match port.holder.set_up() {
            Ok(sockets) => {
                tracing::info!("interface {name}: back");
                port.complaint.clear();
                port.failing = None;
                for (worker, sockets) in self.workers.iter().zip(sockets) {
                    worker.tell(place, Some(sockets));
                }
            }
            Err(e) => {
                let since = *port.failing.get_or_insert_with(Instant::now);
                let complaint = e.to_string();
                if since.elapsed() >= PATIENCE && complaint != port.complaint {
                    tracing::warn!("{complaint}");
                    port.complaint = complaint;
                }
            }
        }
    }
}
