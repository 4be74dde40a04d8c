//! The thread beside the data path: routes, macvlans, rates.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Notify;

use super::{SYNC_PATIENCE, StartError, now, system};
use crate::control::rtnl::Follower;
use crate::engine::Director;
use crate::io::BpfTables;
use crate::route::Routes;

/// Time between two steps of the rate estimates.
const ESTIMATE_EVERY: Duration = Duration::from_secs(2);
/// How often it is looked whether macvlans have come or gone on top of ports.
const MACS_EVERY: Duration = Duration::from_millis(200);

/// The thread that follows the kernel's tables, and takes the rates every two seconds.
#[derive(Debug)]
pub(super) struct FollowerThread {
    thread: JoinHandle<()>,
    quit: Arc<Notify>,
}

impl FollowerThread {
    pub(super) fn start(
        routes: Arc<Routes>,
        director: Arc<OnceLock<Arc<Director>>>,
        tables: Arc<BpfTables>,
    ) -> Result<FollowerThread, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("starting the routes' runtime"))?;
        let quit = Arc::new(Notify::new());
        let follower = {
            let _guard = runtime.enter();
            Follower::open(Arc::clone(&routes), now)?
        };
        let (stop, own) = (Arc::clone(&quit), Arc::clone(&routes));
        let run = async move {
            let estimates = async {
                let mut beat = tokio::time::interval(ESTIMATE_EVERY);
                loop {
                    beat.tick().await;
                    if let Some(director) = director.get() {
                        director.estimate();
                    }
                }
            };
            let macs = async {
                let mut beat = tokio::time::interval(MACS_EVERY);
                let mut known = Vec::new();
                loop {
                    beat.tick().await;
                    let macs = own.extra_macs();
                    if macs != known {
                        tables.set_macs(&macs);
                        known = macs;
                    }
                }
            };
            tokio::select! {
                never = follower.run() => match never {},
                () = estimates => {}
                () = macs => {}
                () = stop.notified() => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("routes".to_owned())
            .spawn(move || runtime.block_on(run))
            .map_err(system("starting the routes' thread"))?;
        let follower = FollowerThread { thread, quit };
        // Not a sleep for luck: the first frames need the routes, so wait until they are there.
        let since = now();
        while !routes.synced() {
            if now().0 - since.0 > SYNC_PATIENCE.as_nanos() as u64 {
                follower.stop();
                return Err(StartError::Silent);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(follower)
    }

    pub(super) fn stop(self) {
        self.quit.notify_one();
        // A panic there has been reported by its thread.
        let _ = self.thread.join();
    }
}
