//! What the director tells of itself, for listings and for the log: its own part, and that of what is around the core.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipvs_netlink::{Notice, Overview, QueueStatus, SchedulerInfo, ServiceKey};
use modes::Family;

use super::director::Director;
use super::reason::Reason;
use super::{PROTO_TCP, PROTO_UDP};
use crate::time::TICK_SHIFT;

/// Servers whose learned MTU is told, so that a listing stays one.
const MTUS_TOLD: usize = 16;

/// What is around the core: the process, and its ports. The daemon fills it in.
pub trait Surroundings: Send + Sync {
    /// Version, process, time and data path; the director fills in its connections.
    fn overview(&self) -> Overview;
    /// The queues of the ports.
    fn queues(&self) -> Vec<QueueStatus>;
    /// What should be known of the process.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Director {
    /// Who tells of what is around the core. Only the first call counts.
    pub fn surround(&self, around: Box<dyn Surroundings>) {
        // A second one would be another director's.
        let _ = self.around.set(around);
    }

    pub(super) fn tell_overview(&self) -> Overview {
        let mut overview = self.around.get().map(|a| a.overview()).unwrap_or_default();
        let of = |family| (self.table.len(family) as u64, self.table.capacity(family) as u64);
        overview.conns_v4 = of(Family::V4);
        overview.conns_v6 = of(Family::V6);
        overview
    }

    pub(super) fn tell_queues(&self) -> Vec<QueueStatus> {
        self.around.get().map(|a| a.queues()).unwrap_or_default()
    }

    pub(super) fn tell_notices(&self) -> Vec<Notice> {
        let process = self.around.get().map(|a| a.notices()).unwrap_or_default();
        let absent = self.absent_vips().into_iter().map(|(addr, services)| absent_vip(addr, services));
        process.into_iter().chain(absent).chain(self.learned_mtus()).map(|text| Notice { text }).collect()
    }

    /// A line for each tunnel server to which packets are made smaller because a router asked for it, the most strongly limited first;
    /// of many the first [`MTUS_TOLD`] and how many there are besides.
    fn learned_mtus(&self) -> Vec<String> {
        let tick = self.now().tick();
        let mut learned = Vec::new();
        for service in self.services.all() {
            for slot in &service.lock().dests {
                if let Some((mtu, end)) = self.dests.line(slot.id).learned_mtu(tick) {
                    learned.push((mtu, service.key, slot.addr, slot.port, end.since(tick)));
                }
            }
        }
        learned.sort_by_key(|l| (l.0, l.2, l.3));
        let more = learned.len().saturating_sub(MTUS_TOLD);
        let mut lines: Vec<String> = learned
            .iter()
            .take(MTUS_TOLD)
            .map(|(mtu, key, addr, port, ticks)| {
                let (server, service) = (SocketAddr::new(*addr, *port), service_name(key));
                let seconds = (u64::from(*ticks) << TICK_SHIFT).div_ceil(1_000_000_000);
                format!("learned MTU {mtu} toward tunnel server {server} of {service}, as a router asked; forgotten in {seconds} s")
            })
            .collect();
        if more > 0 {
            lines.push(format!("learned MTU of {more} more tunnel servers"));
        }
        lines
    }

    pub(super) fn tell_schedulers(&self) -> Vec<SchedulerInfo> {
        let info = |a: &schedulers::Algorithm| SchedulerInfo {
            name: a.name.to_owned(),
            description: a.description.to_owned(),
        };
        schedulers::names().iter().map(info).collect()
    }

    /// The virtual addresses that are no address of this machine, with the number of their services. Empty as long as the
    /// kernel's tables are not known.
    pub fn absent_vips(&self) -> BTreeMap<IpAddr, usize> {
        let mut absent = BTreeMap::new();
        if !self.routes.synced() {
            return absent;
        }
        for service in self.services.all() {
            let ServiceKey::Addr { addr, .. } = service.key else { continue };
            if absent.contains_key(&addr) || !self.routes.is_local(addr.into(), addr.into()) {
                *absent.entry(addr).or_insert(0) += 1;
            }
        }
        absent
    }

    /// Changes when [`Director::absent_vips`] may have changed.
    pub fn vips_stamp(&self) -> (bool, u32, u64) {
        let revision = self.services.revision.load(std::sync::atomic::Ordering::Acquire);
        (self.routes.synced(), self.routes.epoch(), revision)
    }

    /// How often each reason to drop was met, over all workers.
    pub fn drops(&self) -> Vec<(Reason, u64)> {
        let sum = |r: Reason| self.counters.iter().map(|c| c.dropped(r)).sum();
        Reason::ALL.iter().map(|r| (*r, sum(*r))).collect()
    }

    /// What the last drop for a reason was about, where that is known.
    pub fn drop_detail(&self, reason: Reason) -> Option<String> {
        match reason {
            Reason::NotOurPort => {
                let ifindex = self.counters.iter().find_map(|c| c.foreign_interface())?;
                let name = self.routes.link_name(ifindex)?;
                Some(format!("the route leads out of {name}: --interface {name}"))
            }
            Reason::NextHopUnresolved | Reason::NextHopQueueFull => {
                let id = self.counters.iter().find_map(|c| c.silent_hop())?;
                let (name, addr) = self.routes.next_hop(id)?;
                Some(format!("the next hop {addr} on {name} does not answer"))
            }
            _ => None,
        }
    }
}

/// A service as listings name it.
fn service_name(key: &ServiceKey) -> String {
    match key {
        ServiceKey::Addr { protocol, addr, port } => {
            let protocol = match *protocol {
                PROTO_TCP => "TCP".to_owned(),
                PROTO_UDP => "UDP".to_owned(),
                n => format!("protocol {n}"),
            };
            format!("{protocol} {}", SocketAddr::new(*addr, *port))
        }
        ServiceKey::Fwmark { mark, .. } => format!("firewall mark {mark}"),
    }
}

/// The line about a virtual address that this machine does not have.
fn absent_vip(addr: IpAddr, services: usize) -> String {
    let (plural, length) = (if services == 1 { "" } else { "s" }, if addr.is_ipv4() { 32 } else { 128 });
    format!(
        "virtual address {addr} ({services} service{plural}): no interface of this host has it, so nothing arrives \
         unless routers send it here; 'ip address add {addr}/{length} dev IF' adds it"
    )
}
