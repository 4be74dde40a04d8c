//! What configures the director: the control socket, and the state on disk.
//!
//! A thread of its own runs everything here on one tokio runtime. It knows the director as a [`Backend`] only.
//!
//! ```text
//! client --SEQPACKET--> server (one task a client) --> Recorder --> Backend
//!                                                        | a change
//!                                                        v
//!                                                     state writer --> file
//! ```

mod error;
mod lock;
mod recorder;
pub mod replay;
pub mod rtnl;
mod server;
mod socket;
pub mod state;
pub mod systemd;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ipvs_netlink::Backend;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

pub use error::ControlError;
pub use recorder::Recorder;
pub use server::SEND_TIMEOUT;
pub use socket::ControlSocket;
use state::StateFile;

/// How often it is asked whether the data path is at work.
const HEALTH: Duration = Duration::from_secs(1);
/// How often [`EverySecond`] is called.
const SECOND: Duration = Duration::from_secs(1);

/// What is called once a second from the control thread; it must not block for long.
pub type EverySecond = Box<dyn FnMut() + Send>;

/// Why the daemon shall stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// `SIGTERM` or `SIGINT`.
    Signal(&'static str),
    /// `SIGUSR2`: for another daemon to take over.
    Upgrade,
    /// A part of the daemon can't go on.
    Failed(String),
}

/// Lets any thread ask for the daemon's stop.
#[derive(Clone, Debug)]
pub struct Stopper(mpsc::SyncSender<Stop>);

impl Stopper {
    /// Asks. The first reason counts.
    pub fn stop(&self, why: Stop) {
        // Full or closed: somebody asked before.
        let _ = self.0.try_send(why);
    }
}

/// The running control thread.
#[derive(Debug)]
pub struct Control {
    thread: thread::JoinHandle<Result<(), ControlError>>,
    quit: Arc<Notify>,
    stopper: Stopper,
    stops: mpsc::Receiver<Stop>,
}

/// A control thread to be: signals are caught from here on, and wait until it runs.
#[derive(Debug)]
pub struct Prepared {
    runtime: tokio::runtime::Runtime,
    signals: Vec<(Stop, Signal)>,
}

impl Prepared {
    /// Begins to catch signals.
    ///
    /// # Errors
    /// [`ControlError::Runtime`].
    pub fn new() -> Result<Self, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ControlError::Runtime)?;
        let signals = {
            let _guard = runtime.enter();
            let stops = ["SIGTERM", "SIGINT"].map(Stop::Signal).into_iter().chain([Stop::Upgrade]);
            let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::user_defined2()];
            stops
                .zip(kinds)
                .map(|(stop, kind)| Ok((stop, signal(kind)?)))
                .collect::<Result<Vec<_>, _>>()
                .map_err(ControlError::Runtime)?
        };
        Ok(Self { runtime, signals })
    }
}

impl Control {
    /// Starts the thread: it serves clients of `socket`, heeds signals, calls `every_second` and, with `state`, writes
    /// changes to disk.
    ///
    /// # Errors
    /// [`ControlError::Runtime`].
    pub fn start(
        prepared: Prepared,
        socket: ControlSocket,
        backend: Arc<dyn Backend>,
        state: Option<StateFile>,
        every_second: EverySecond,
    ) -> Result<Self, ControlError> {
        let Prepared { runtime, signals } = prepared;
        let (sender, stops) = mpsc::sync_channel(1);
        let stopper = Stopper(sender);
        let quit = Arc::new(Notify::new());
        let run = run(socket, backend, (state, every_second), signals, stopper.clone(), quit.clone());
        let thread = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || runtime.block_on(run))
            .map_err(ControlError::Runtime)?;
        Ok(Self { thread, quit, stopper, stops })
    }

    /// For threads that may find that they can't go on.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits for a signal, a [`Stopper`], or for `healthy`, which is asked every second, to say no.
    pub fn wait(&self, healthy: impl Fn() -> bool) -> Stop {
        loop {
            match self.stops.recv_timeout(HEALTH) {
                Ok(why) => return why,
                Err(mpsc::RecvTimeoutError::Timeout) if healthy() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Stop::Failed("a worker of the data path has failed".to_owned());
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Stop::Failed("the control thread is gone".to_owned());
                }
            }
        }
    }

    /// Ends service: clients are cut off, the state is saved if it changed, the socket is removed.
    ///
    /// # Errors
    /// What the thread ended with, and [`ControlError::State`] if the state can't be saved.
    pub fn stop(self) -> Result<(), ControlError> {
        self.quit.notify_one();
        self.thread.join().unwrap_or(Err(ControlError::Panicked))
    }
}

async fn run(
    socket: ControlSocket,
    backend: Arc<dyn Backend>,
    (state, mut every_second): (Option<StateFile>, EverySecond),
    signals: Vec<(Stop, Signal)>,
    stopper: Stopper,
    quit: Arc<Notify>,
) -> Result<(), ControlError> {
    for (stop, mut signal) in signals {
        let stopper = stopper.clone();
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                stopper.stop(stop.clone());
            }
        });
    }
    let recorder = Arc::new(Recorder::new(backend));
    let state = state.map(Arc::new);
    let served = {
        let writer = async {
            match &state {
                Some(file) => state::keep_saved(file, &recorder).await,
                None => std::future::pending().await,
            }
        };
        let beat = async {
            let mut beat = tokio::time::interval(SECOND);
            beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                beat.tick().await;
                every_second();
            }
        };
        tokio::select! {
            result = server::serve_clients(&socket, recorder.clone(), SEND_TIMEOUT) => result,
            () = writer => Ok(()),
            () = beat => Ok(()),
            () = quit.notified() => Ok(()),
        }
    };
    if let Err(e) = &served {
        stopper.stop(Stop::Failed(e.to_string()));
        quit.notified().await;
    }
    let saved = match &state {
        Some(file) => file.save_if_changed(&recorder),
        None => Ok(()),
    };
    drop(socket);
    served.and(saved)
}

/// The directory of a path, `.` for a bare name.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
