//! The director as the control plane's backend: services and destinations as IPVS administers them.

use std::net::IpAddr;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, MutexGuard};

use ipvs_netlink::{
    Backend, ConnEntry, Counter, Daemon, DaemonState, Dest, DestEntry, Errno, Info, Notice, Overview,
    QueueStatus, SVC_F_HASHED, SVC_F_PERSISTENT, SVC_F_SCHED1, SVC_F_SCHED2, SchedulerInfo,
    Service as Config, ServiceEntry, ServiceKey, Stats, Sysctl, TIMEOUT_MAX, Timeouts, check_dest,
    check_service,
};
use modes::{Addr, Family};
use schedulers::{Plan, Scheduler};

use super::director::{Director, Removed};
use super::reason::{Count, Reason};
use super::tcp::State;
use crate::conn::Conn;
use crate::service::{DestSlot, Inner, Rates, RawStats, ServerList, Service};
use crate::time::TICK_SHIFT;

/// IPVS's version, 1.2.1, as it answers `GET_INFO`.
const IPVS_VERSION: u32 = 0x01_02_01;
/// What IPVS answers as the size of its connection hash table by default; scripts compare the header line.
const CONN_TAB_SIZE: u32 = 4096;

/// Destinations that are looked after under one hold of a service's lock, where there may be many.
const AT_ONCE: usize = 64;

fn stats(raw: RawStats, rates: RawStats) -> Stats {
    Stats {
        conns: raw.conns,
        in_pkts: raw.in_pkts,
        out_pkts: raw.out_pkts,
        in_bytes: raw.in_bytes,
        out_bytes: raw.out_bytes,
        cps: rates.conns,
        in_pps: rates.in_pkts,
        out_pps: rates.out_pkts,
        in_bps: rates.in_bytes,
        out_bps: rates.out_bytes,
    }
}

fn weight(dest: &Dest) -> u32 {
    u32::try_from(dest.weight).unwrap_or(0)
}

impl Director {
    fn admin(&self) -> MutexGuard<'_, ()> {
        self.admin.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn find(&self, key: &ServiceKey) -> Result<Arc<Service>, Errno> {
        self.services.get(key).ok_or(Errno::ESRCH)
    }

    fn scheduler(&self, config: &Config, slots: &[DestSlot]) -> Result<Box<dyn Scheduler>, Errno> {
        let options = schedulers::Options {
            fallback: config.flags & SVC_F_SCHED1 != 0,
            port: config.flags & SVC_F_SCHED2 != 0,
            table_size: None,
        };
        schedulers::create(&config.scheduler, &options, &ServerList { slots, dests: &self.dests })
            .map_err(|_| Errno::ENOENT)
    }

    fn service_entry(&self, service: &Service) -> ServiceEntry {
        let inner = service.lock();
        let mut config = inner.config.clone();
        config.flags |= SVC_F_HASHED;
        let raw = inner.total(&self.dests).since(inner.zero);
        ServiceEntry { service: config, stats: stats(raw, inner.rates.per_second()) }
    }

    fn dest_entry(&self, slot: &DestSlot) -> DestEntry {
        let line = self.dests.line(slot.id);
        let (active, inactive) = line.conns();
        let (upper, lower) = line.thresholds();
        let raw = self.dests.stats(slot.id).since(slot.zero);
        DestEntry {
            dest: Dest {
                addr: slot.addr,
                port: slot.port,
                method: line.method(),
                weight: i32::try_from(line.weight()).unwrap_or(i32::MAX),
                upper,
                lower,
                tunnel: slot.tunnel,
            },
            active,
            inactive,
            persistent: line.templates(),
            stats: stats(raw, slot.rates.per_second()),
        }
    }

    /// A line for a new destination, or the one that a removed destination of the same service's key left in use.
    fn dest_slot(&self, service: &Service, inner: &mut Inner, dest: &Dest) -> Option<DestSlot> {
        let mut trash = self.trash.lock().unwrap_or_else(|e| e.into_inner());
        let old = trash.remove(&(service.key, dest.addr, dest.port));
        drop(trash);
        if let Some(Removed { mut slot, service: old, .. }) = old {
            self.dests.line(slot.id).forget_path_mtu();
            match old {
                // counts go on where the daemon that went before left them
                None => inner.zero = inner.zero.plus(slot.zero),
                Some(number) if number == service.number => slot.joined = self.dests.stats(slot.id),
                Some(_) => {
                    // Its connections live on, but what it did for another service is not counted.
                    slot.joined = self.dests.stats(slot.id);
                    slot.zero = slot.joined;
                    slot.rates = Rates::starting_at(slot.joined);
                    self.dests.set_zero(slot.id, slot.zero);
                }
            }
            slot.tunnel = dest.tunnel;
            slot.last_weight = weight(dest);
            return Some(slot);
        }
        let id = self.dests.allocate().or_else(|| {
            self.collect_trash(true);
            self.dests.allocate()
        })?;
        self.dests.line(id).set_end(dest.addr.into(), dest.addr.into(), dest.port);
        self.dests.set_key(id, &service.key);
        let now = self.dests.stats(id);
        self.dests.set_zero(id, now);
        Some(DestSlot {
            id,
            addr: dest.addr,
            port: dest.port,
            tunnel: dest.tunnel,
            last_weight: weight(dest),
            joined: now,
            zero: now,
            rates: Default::default(),
        })
    }

    /// Lets a scheduler build what its servers' change made stale. The service's lock is taken at the end only, and new connections
    /// are scheduled meanwhile.
    fn build(&self, service: &Service, plan: Option<Plan>) {
        let Some(plan) = plan else { return };
        let mut built = plan.build();
        service.lock().scheduler.install(&mut built);
        // what it was before is dropped without the lock
    }

    /// Takes destination `index` out of its service; its line stays while connections refer to it. The scheduler is told by
    /// the caller.
    fn detach(&self, service: &Service, inner: &mut Inner, index: usize) {
        let slot = inner.dests.remove(index);
        self.dests.line(slot.id).set_available(false);
        inner.retired = inner.retired.plus(self.dests.stats(slot.id).since(slot.joined));
        let mut trash = self.trash.lock().unwrap_or_else(|e| e.into_inner());
        let key = (service.key, slot.addr, slot.port);
        trash.insert(key, Removed { slot, service: Some(service.number), idle: false });
    }

    fn take_out(&self, service: &Service) {
        self.services.remove(&service.key);
        self.announce(&service.key, false);
        let mut inner = service.lock();
        // A packet that had found the service before meets one without servers; telling its scheduler of each would take long.
        if let Ok(none) = self.scheduler(&inner.config, &[]) {
            inner.scheduler = none;
        }
        loop {
            for _ in 0..AT_ONCE {
                let Some(last) = inner.dests.len().checked_sub(1) else { return };
                self.detach(service, &mut inner, last);
            }
            drop(inner);
            inner = service.lock();
        }
    }

    /// Every two seconds: the rates of all services and destinations, and what schedulers put off. Holds each service's lock for
    /// its own only.
    pub fn estimate(&self) {
        for service in self.services.all() {
            let mut inner = service.lock();
            let Inner { scheduler, dests, .. } = &mut *inner;
            scheduler.prepare(&ServerList { slots: dests, dests: &self.dests });
            let before = (inner.retired, inner.dests.len());
            let mut total = inner.retired;
            let mut done = 0;
            while let Some(slots) = inner.dests.get_mut(done..).filter(|slots| !slots.is_empty()) {
                let part = slots.len().min(AT_ONCE);
                for slot in &mut slots[..part] {
                    let now = self.dests.stats(slot.id);
                    slot.rates.update(now);
                    total = total.plus(now.since(slot.joined));
                }
                done += part;
                drop(inner);
                inner = service.lock();
            }
            if before != (inner.retired, inner.dests.len()) {
                // a server came or went in between
                total = inner.total(&self.dests);
            }
            inner.rates.update(total);
        }
        self.collect_trash(false);
    }

    fn conn_entry(&self, conn: &Conn<'_>) -> ConnEntry {
        let family = conn.family();
        let end = |(addr, port): (Addr, u16)| (addr.ip(family), port);
        // A tunnel's server may be of the other family, whose addresses an entry cannot hold.
        let line = self.dests.line(conn.dest());
        let dest = (line.addr().ip(line.family()), conn.real().1);
        let now = self.now();
        let deadline = (u64::from(conn.timeout())) << TICK_SHIFT;
        let idle = u64::from(now.tick().since(conn.last_seen())) << TICK_SHIFT;
        let state = if conn.is_template() { State::None } else { State::from_u8(conn.state()) };
        ConnEntry {
            protocol: conn.proto(),
            client: end(conn.client()),
            virt: end(conn.virt()),
            dest,
            state: if conn.is_template() && conn.flags() & super::FLAG_ASSURED != 0 {
                "ASSURED".to_owned()
            } else {
                state.name().to_owned()
            },
            expires: u32::try_from(deadline.saturating_sub(idle) / 1_000_000_000).unwrap_or(u32::MAX),
            flags: u32::from(conn.method()),
        }
    }
}

impl Backend for Director {
    fn add_service(&self, service: &Config) -> Result<(), Errno> {
        let _guard = self.admin();
        if self.services.get(&service.key).is_some() {
            return Err(Errno::EEXIST);
        }
        let scheduler = self.scheduler(service, &[])?;
        if service.pe_name.is_some() {
            return Err(Errno::ENOENT);
        }
        check_service(service)?;
        let mut config = service.clone();
        config.flags = service.flags & service.flags_mask & !SVC_F_HASHED;
        config.flags_mask = !0;
        self.services.insert(Service::new(config, scheduler));
        if !self.announce(&service.key, true) {
            self.services.remove(&service.key);
            return Err(Errno::ENOMEM);
        }
        Ok(())
    }

    fn edit_service(&self, service: &Config) -> Result<(), Errno> {
        let _guard = self.admin();
        let old = self.find(&service.key)?;
        let inner = old.lock();
        let mut config = service.clone();
        config.flags = (inner.config.flags & !service.flags_mask) | (service.flags & service.flags_mask);
        config.flags &= !SVC_F_HASHED;
        config.flags_mask = !0;
        let flags = SVC_F_SCHED1 | SVC_F_SCHED2;
        let other =
            config.scheduler != inner.config.scheduler || (config.flags ^ inner.config.flags) & flags != 0;
        let dests = if other { inner.dests.clone() } else { Vec::new() };
        drop(inner);
        // its table may take long, and servers are changed under the administration's lock only
        let mut scheduler = if other { Some(self.scheduler(&config, &dests)?) } else { None };
        if service.pe_name.is_some() {
            return Err(Errno::ENOENT);
        }
        check_service(service)?;
        let mut inner = old.lock();
        if let Some(scheduler) = &mut scheduler {
            std::mem::swap(&mut inner.scheduler, scheduler);
        }
        inner.config = config;
        drop(inner);
        self.services.changed();
        Ok(())
    }

    fn delete_service(&self, key: &ServiceKey) -> Result<(), Errno> {
        let _guard = self.admin();
        let service = self.find(key)?;
        self.take_out(&service);
        Ok(())
    }

    fn service(&self, key: &ServiceKey) -> Result<ServiceEntry, Errno> {
        Ok(self.service_entry(&*self.find(key)?))
    }

    fn services(&self) -> Vec<ServiceEntry> {
        self.services.all().iter().map(|s| self.service_entry(s)).collect()
    }

    fn add_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno> {
        let _guard = self.admin();
        let service = self.find(key)?;
        check_dest(key, dest)?;
        let mut inner = service.lock();
        if inner.dests.iter().any(|d| d.addr == dest.addr && d.port == dest.port) {
            return Err(Errno::EEXIST);
        }
        let slot = self.dest_slot(&service, &mut inner, dest).ok_or(Errno::ENOMEM)?;
        let line = self.dests.line(slot.id);
        line.set_method(dest.method);
        line.set_tunnel(dest.tunnel);
        line.set_load(weight(dest), dest.upper, dest.lower);
        line.set_available(true);
        let Inner { scheduler, dests, .. } = &mut *inner;
        dests.insert(0, slot);
        let list = ServerList { slots: dests, dests: &self.dests };
        scheduler.added(&list, 0);
        let plan = scheduler.plan(&list);
        drop(inner);
        self.build(&service, plan);
        self.services.changed();
        Ok(())
    }

    fn edit_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno> {
        let _guard = self.admin();
        let service = self.find(key)?;
        check_dest(key, dest)?;
        let mut inner = service.lock();
        let Inner { scheduler, dests, .. } = &mut *inner;
        let index =
            dests.iter().position(|d| d.addr == dest.addr && d.port == dest.port).ok_or(Errno::ENOENT)?;
        let line = self.dests.line(dests[index].id);
        line.set_method(dest.method);
        line.set_tunnel(dest.tunnel);
        line.set_load(weight(dest), dest.upper, dest.lower);
        dests[index].tunnel = dest.tunnel;
        if dest.weight > 0 {
            dests[index].last_weight = weight(dest);
        }
        let list = ServerList { slots: dests, dests: &self.dests };
        scheduler.changed(&list, index);
        let plan = scheduler.plan(&list);
        drop(inner);
        self.build(&service, plan);
        self.services.changed();
        Ok(())
    }

    fn delete_dest(&self, key: &ServiceKey, addr: IpAddr, port: u16) -> Result<(), Errno> {
        let _guard = self.admin();
        let service = self.find(key)?;
        let mut inner = service.lock();
        let index = inner.dests.iter().position(|d| d.addr == addr && d.port == port).ok_or(Errno::ENOENT)?;
        self.detach(&service, &mut inner, index);
        let Inner { scheduler, dests, .. } = &mut *inner;
        let list = ServerList { slots: dests, dests: &self.dests };
        scheduler.removed(&list, index);
        let plan = scheduler.plan(&list);
        drop(inner);
        self.build(&service, plan);
        self.services.changed();
        Ok(())
    }

    fn dests(&self, key: &ServiceKey) -> Result<Vec<DestEntry>, Errno> {
        let service = self.find(key)?;
        let inner = service.lock();
        Ok(inner.dests.iter().map(|d| self.dest_entry(d)).collect())
    }

    fn zero(&self, key: Option<&ServiceKey>) -> Result<(), Errno> {
        let services = match key {
            Some(key) => vec![self.find(key)?],
            None => self.services.all(),
        };
        for service in services {
            let mut inner = service.lock();
            inner.zero = inner.total(&self.dests);
            for slot in &mut inner.dests {
                slot.zero = self.dests.stats(slot.id);
                self.dests.set_zero(slot.id, slot.zero);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        let _guard = self.admin();
        for service in self.services.all() {
            self.take_out(&service);
        }
        Ok(())
    }

    fn timeouts(&self) -> Timeouts {
        let t = &self.timeouts;
        Timeouts { tcp: t.tcp.load(Acquire), tcp_fin: t.tcp_fin.load(Acquire), udp: t.udp.load(Acquire) }
    }

    fn set_timeouts(&self, new: Timeouts) -> Result<(), Errno> {
        if [new.tcp, new.tcp_fin, new.udp].iter().any(|t| *t > TIMEOUT_MAX) {
            return Err(Errno::EINVAL);
        }
        let t = &self.timeouts;
        for (place, value) in [(&t.tcp, new.tcp), (&t.tcp_fin, new.tcp_fin), (&t.udp, new.udp)] {
            if value != 0 {
                place.store(value, Release);
            }
        }
        self.publish_timeouts();
        self.services.changed();
        Ok(())
    }

    fn info(&self) -> Info {
        Info { version: IPVS_VERSION, conn_tab_size: CONN_TAB_SIZE }
    }

    fn conns(&self, cursor: u64, max: usize) -> (Vec<ConnEntry>, Option<u64>) {
        let mut list = Vec::new();
        let next = self.table.scan(cursor, max, &mut |conn| list.push(self.conn_entry(&conn)));
        (list, next)
    }

    fn counters(&self) -> Vec<Counter> {
        let sum = |f: &dyn Fn(&super::reason::Counters) -> u64| self.counters.iter().map(f).sum();
        let counts =
            Count::ALL.iter().map(|c| Counter { name: c.name().to_owned(), value: sum(&|w| w.counted(*c)) });
        let drops =
            Reason::ALL.iter().map(|r| Counter { name: r.name().to_owned(), value: sum(&|w| w.dropped(*r)) });
        let gauges = [
            ("connections_ipv4", self.table.len(Family::V4)),
            ("connections_ipv6", self.table.len(Family::V6)),
            ("half_open_ipv4", self.table.half_open(Family::V4) as usize),
            ("half_open_ipv6", self.table.half_open(Family::V6) as usize),
        ]
        .map(|(name, n)| Counter { name: name.to_owned(), value: n as u64 });
        let ports = self.port_counters.get().map(|read| read()).unwrap_or_default();
        counts.chain(drops).chain(gauges).chain(ports).collect()
    }

    fn overview(&self) -> Overview {
        self.tell_overview()
    }

    fn queues(&self) -> Vec<QueueStatus> {
        self.tell_queues()
    }

    fn notices(&self) -> Vec<Notice> {
        self.tell_notices()
    }

    fn schedulers(&self) -> Vec<SchedulerInfo> {
        self.tell_schedulers()
    }

    fn sysctls(&self) -> Vec<Sysctl> {
        self.sysctls
            .each()
            .into_iter()
            .map(|(name, value, _)| Sysctl { name: name.to_owned(), value: value.load(Acquire).to_string() })
            .collect()
    }

    fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Errno> {
        self.sysctls.set(name, value)?;
        self.services.changed();
        Ok(())
    }

    fn daemons(&self) -> Vec<Daemon> {
        self.sync_daemons().all()
    }

    fn start_daemon(&self, daemon: &Daemon) -> Result<(), Errno> {
        let mtu = self.mtu_of.get().and_then(|mtu_of| mtu_of(&daemon.interface));
        self.sync_daemons().start(daemon, mtu)
    }

    fn stop_daemon(&self, state: DaemonState) -> Result<(), Errno> {
        self.sync_daemons().stop(state)
    }
}

/// Whether a service keeps its clients on their servers.
pub(super) fn persistent(config: &Config) -> bool {
    config.flags & SVC_F_PERSISTENT != 0
}
