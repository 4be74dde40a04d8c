//! What the control thread looks at once a second, and tells the log of: frames that were dropped, virtual addresses that
//! this host does not have. Nothing of it touches the packets' path.

mod drops;
mod vips;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ipvs_netlink::QueueStatus;
use tracing::{info, warn};

use crate::engine::{Director, Reason};
use crate::status::Status;
use drops::{DropWatch, sentence};
use vips::VipWatch;

/// The state of these looks.
#[derive(Debug)]
pub struct Watch {
    director: Arc<Director>,
    status: Arc<Status>,
    drops: DropWatch,
    vips: VipWatch,
    /// [`Director::vips_stamp`] at the last look at the virtual addresses.
    stamp: Option<(bool, u32, u64)>,
}

impl Watch {
    /// Of this director, whose ports' rates `status` keeps.
    pub fn new(director: Arc<Director>, status: Arc<Status>) -> Watch {
        Watch { director, status, drops: DropWatch::default(), vips: VipWatch::default(), stamp: None }
    }

    /// One look at everything.
    pub fn look(&mut self, now: Instant) {
        let queues = self.status.sample(now);
        self.look_at_drops(now, &queues);
        self.look_at_vips(now);
    }

    fn look_at_drops(&mut self, now: Instant, queues: &[QueueStatus]) {
        let reasons = self.director.drops().into_iter().filter(|(_, n)| *n != 0);
        let reasons = reasons.map(|(reason, n)| (reason.name().to_owned(), n));
        let ports = port_drops(queues).into_iter();
        for told in self.drops.look(now, reasons.chain(ports)) {
            let counter = told.name.rsplit(' ').next().unwrap_or_default();
            let reason = Reason::ALL.iter().copied().find(|r| r.name() == told.name);
            let detail = reason.and_then(|r| self.director.drop_detail(r));
            let detail = detail.map(|d| format!(" ({d})")).unwrap_or_default();
            let line = format!("{told}: {}{detail}", sentence(counter).unwrap_or_default());
            // What ordinary traffic meets on its way is not worth a warning.
            match reason {
                Some(Reason::TtlExceeded | Reason::TooBig) => info!("{line}"),
                _ => warn!("{line}"),
            }
        }
    }

    fn look_at_vips(&mut self, now: Instant) {
        let stamp = self.director.vips_stamp();
        if self.stamp == Some(stamp) && !self.vips.waiting() {
            return;
        }
        self.stamp = Some(stamp);
        let absent = self.director.absent_vips().into_keys().collect();
        let told = self.vips.look(now, absent);
        if let Some(line) = told.absent {
            warn!("{line}");
        }
        if let Some(line) = told.there {
            info!("{line}");
        }
    }
}

/// The drops of each port over its queues, named `INTERFACE COUNTER`.
fn port_drops(queues: &[QueueStatus]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for queue in queues {
        for drop in queue.drops.iter().filter(|d| d.value != 0) {
            *sums.entry(format!("{} {}", queue.interface, drop.name)).or_default() += drop.value;
        }
    }
    sums
}
