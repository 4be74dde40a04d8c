//! A back-end that keeps what it is told and forwards nothing, with the kernel's answers: for tests of clients.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    Backend, ConnEntry, Counter, Daemon, DaemonState, Daemons, Dest, DestEntry, Errno, Info, Notice,
    Overview, QueueStatus, SVC_F_HASHED, SchedulerInfo, Service, ServiceEntry, ServiceKey, Stats, Sysctl,
    TIMEOUT_MAX, Timeouts, check_dest, check_service,
};

/// Schedulers of kernel 6.1.
const SCHEDULERS: &[&str] =
    &["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"];

/// The settings of kernel 6.1 with their defaults and largest values (`sync_threshold` is a pair and has its own rule).
const SYSCTLS: &[(&str, &str, u32)] = &[
    ("am_droprate", "10", INT_MAX),
    ("amemthresh", "1024", INT_MAX),
    ("backup_only", "0", INT_MAX),
    ("cache_bypass", "0", INT_MAX),
    ("conn_reuse_mode", "1", INT_MAX),
    ("conntrack", "0", INT_MAX),
    ("drop_entry", "0", 3),
    ("drop_packet", "0", 3),
    ("expire_nodest_conn", "0", INT_MAX),
    ("expire_quiescent_template", "0", INT_MAX),
    ("ignore_tunneled", "0", INT_MAX),
    ("lblc_expiration", "86400", INT_MAX),
    ("lblcr_expiration", "86400", INT_MAX),
    ("nat_icmp_send", "0", INT_MAX),
    ("pmtu_disc", "1", INT_MAX),
    ("run_estimation", "1", INT_MAX),
    ("schedule_icmp", "0", INT_MAX),
    ("secure_tcp", "0", 3),
    ("sloppy_sctp", "0", INT_MAX),
    ("sloppy_tcp", "0", INT_MAX),
    ("snat_reroute", "1", INT_MAX),
    ("sync_persist_mode", "0", INT_MAX),
    ("sync_ports", "1", 64),
    ("sync_qlen_max", "7191", INT_MAX),
    ("sync_refresh_period", "0", INT_MAX),
    ("sync_retries", "0", 3),
    ("sync_sock_size", "0", INT_MAX),
    ("sync_threshold", "3\t50", 0),
    ("sync_version", "1", 1),
];

const INT_MAX: u32 = i32::MAX as u32;

/// The back-end. [`Memory::default`] is empty.
#[derive(Debug)]
pub struct Memory {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    services: BTreeMap<ServiceKey, (ServiceEntry, Vec<DestEntry>)>,
    timeouts: Timeouts,
    conns: Vec<ConnEntry>,
    counters: Vec<Counter>,
    overview: Overview,
    queues: Vec<QueueStatus>,
    notices: Vec<Notice>,
    sysctls: BTreeMap<String, String>,
    daemons: Daemons,
}

impl Default for Memory {
    fn default() -> Self {
        let sysctls = SYSCTLS.iter().map(|(n, v, _)| ((*n).to_owned(), (*v).to_owned())).collect();
        Self {
            inner: Mutex::new(Inner {
                services: BTreeMap::new(),
                timeouts: Timeouts { tcp: 900, tcp_fin: 120, udp: 300 },
                conns: Vec::new(),
                counters: Vec::new(),
                overview: Overview::default(),
                queues: Vec::new(),
                notices: Vec::new(),
                sysctls,
                daemons: Daemons::default(),
            }),
        }
    }
}

impl Inner {
    fn service(&mut self, key: &ServiceKey) -> Result<&mut (ServiceEntry, Vec<DestEntry>), Errno> {
        self.services.get_mut(key).ok_or(Errno::ESRCH)
    }
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the connections to list.
    pub fn set_conns(&self, conns: Vec<ConnEntry>) {
        self.lock().conns = conns;
    }

    /// Sets the counters to list.
    pub fn set_counters(&self, counters: Vec<Counter>) {
        self.lock().counters = counters;
    }

    /// Sets what is told of the daemon, its ports and its configuration.
    pub fn set_status(&self, overview: Overview, queues: Vec<QueueStatus>, notices: Vec<Notice>) {
        let mut inner = self.lock();
        inner.overview = overview;
        inner.queues = queues;
        inner.notices = notices;
    }

    /// Sets a service's statistics.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn set_service_stats(&self, key: &ServiceKey, stats: Stats) -> Result<(), Errno> {
        self.lock().service(key)?.0.stats = stats;
        Ok(())
    }

    /// Changes what is listed of a destination (connections, statistics).
    ///
    /// # Errors
    /// `ESRCH`, `ENOENT`.
    pub fn change_dest(
        &self,
        key: &ServiceKey,
        addr: IpAddr,
        port: u16,
        change: impl FnOnce(&mut DestEntry),
    ) -> Result<(), Errno> {
        let mut inner = self.lock();
        let (_, dests) = inner.service(key)?;
        let found = dests.iter_mut().find(|e| e.dest.addr == addr && e.dest.port == port);
        change(found.ok_or(Errno::ENOENT)?);
        Ok(())
    }
}

fn check_names(s: &Service) -> Result<(), Errno> {
    if !SCHEDULERS.contains(&s.scheduler.as_str()) || s.pe_name.as_deref().is_some_and(|pe| pe != "sip") {
        return Err(Errno::ENOENT);
    }
    check_service(s)
}

impl Backend for Memory {
    fn add_service(&self, s: &Service) -> Result<(), Errno> {
        let mut inner = self.lock();
        if inner.services.contains_key(&s.key) {
            return Err(Errno::EEXIST);
        }
        check_names(s)?;
        let mut service = s.clone();
        service.flags = (s.flags & s.flags_mask) | SVC_F_HASHED;
        service.flags_mask = !0;
        let entry = ServiceEntry { service, stats: Stats::default() };
        inner.services.insert(s.key, (entry, Vec::new()));
        Ok(())
    }

    fn edit_service(&self, s: &Service) -> Result<(), Errno> {
        let mut inner = self.lock();
        let (entry, _) = inner.service(&s.key)?;
        check_names(s)?;
        let flags = (entry.service.flags & !s.flags_mask) | (s.flags & s.flags_mask) | SVC_F_HASHED;
        entry.service = Service { flags, flags_mask: !0, ..s.clone() };
        Ok(())
    }

    fn delete_service(&self, key: &ServiceKey) -> Result<(), Errno> {
        self.lock().services.remove(key).map(|_| ()).ok_or(Errno::ESRCH)
    }

    fn service(&self, key: &ServiceKey) -> Result<ServiceEntry, Errno> {
        self.lock().service(key).map(|(entry, _)| entry.clone())
    }

    fn services(&self) -> Vec<ServiceEntry> {
        self.lock().services.values().map(|(entry, _)| entry.clone()).collect()
    }

    fn add_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno> {
        let mut inner = self.lock();
        let (_, dests) = inner.service(key)?;
        check_dest(key, dest)?;
        if dests.iter().any(|e| e.dest.addr == dest.addr && e.dest.port == dest.port) {
            return Err(Errno::EEXIST);
        }
        let entry =
            DestEntry { dest: dest.clone(), active: 0, inactive: 0, persistent: 0, stats: Stats::default() };
        dests.insert(0, entry);
        Ok(())
    }

    fn edit_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno> {
        let mut inner = self.lock();
        let (_, dests) = inner.service(key)?;
        check_dest(key, dest)?;
        let found = dests.iter_mut().find(|e| e.dest.addr == dest.addr && e.dest.port == dest.port);
        found.ok_or(Errno::ENOENT)?.dest = dest.clone();
        Ok(())
    }

    fn delete_dest(&self, key: &ServiceKey, addr: IpAddr, port: u16) -> Result<(), Errno> {
        let mut inner = self.lock();
        let (_, dests) = inner.service(key)?;
        let at = dests.iter().position(|e| e.dest.addr == addr && e.dest.port == port);
        dests.remove(at.ok_or(Errno::ENOENT)?);
        Ok(())
    }

    fn dests(&self, key: &ServiceKey) -> Result<Vec<DestEntry>, Errno> {
        self.lock().service(key).map(|(_, dests)| dests.clone())
    }

    fn zero(&self, key: Option<&ServiceKey>) -> Result<(), Errno> {
        fn zero((entry, dests): &mut (ServiceEntry, Vec<DestEntry>)) {
            entry.stats = Stats::default();
            for d in dests {
                d.stats = Stats::default();
            }
        }
        let mut inner = self.lock();
        match key {
            Some(key) => zero(inner.service(key)?),
            None => inner.services.values_mut().for_each(zero),
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        self.lock().services.clear();
        Ok(())
    }

    fn timeouts(&self) -> Timeouts {
        self.lock().timeouts
    }

    fn set_timeouts(&self, t: Timeouts) -> Result<(), Errno> {
        if t.tcp > TIMEOUT_MAX || t.tcp_fin > TIMEOUT_MAX || t.udp > TIMEOUT_MAX {
            return Err(Errno::EINVAL);
        }
        let mut inner = self.lock();
        let keep = |new: u32, old: u32| if new == 0 { old } else { new };
        let old = inner.timeouts;
        inner.timeouts = Timeouts {
            tcp: keep(t.tcp, old.tcp),
            tcp_fin: keep(t.tcp_fin, old.tcp_fin),
            udp: keep(t.udp, old.udp),
        };
        Ok(())
    }

    fn info(&self) -> Info {
        Info { version: 0x01_02_01, conn_tab_size: 4096 }
    }

    fn conns(&self, cursor: u64, max: usize) -> (Vec<ConnEntry>, Option<u64>) {
        let inner = self.lock();
        let start = usize::try_from(cursor).unwrap_or(usize::MAX);
        let rest = inner.conns.get(start..).unwrap_or_default();
        let batch: Vec<ConnEntry> = rest.iter().take(max).cloned().collect();
        let next = (batch.len() < rest.len()).then_some(cursor + batch.len() as u64);
        (batch, next)
    }

    fn counters(&self) -> Vec<Counter> {
        self.lock().counters.clone()
    }

    fn overview(&self) -> Overview {
        self.lock().overview.clone()
    }

    fn queues(&self) -> Vec<QueueStatus> {
        self.lock().queues.clone()
    }

    fn notices(&self) -> Vec<Notice> {
        self.lock().notices.clone()
    }

    fn schedulers(&self) -> Vec<SchedulerInfo> {
        let info = |name: &&str| SchedulerInfo { name: (*name).to_owned(), description: String::new() };
        SCHEDULERS.iter().map(info).collect()
    }

    fn sysctls(&self) -> Vec<Sysctl> {
        let inner = self.lock();
        inner.sysctls.iter().map(|(n, v)| Sysctl { name: n.clone(), value: v.clone() }).collect()
    }

    fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Errno> {
        let (_, _, max) = SYSCTLS.iter().find(|(n, ..)| *n == name).ok_or(Errno::ENOENT)?;
        let value = if name == "sync_threshold" {
            let numbers: Vec<u32> = value.split_whitespace().filter_map(|w| w.parse().ok()).collect();
            match numbers[..] {
                [threshold, period] if period == 0 || threshold < period => format!("{threshold}\t{period}"),
                _ => return Err(Errno::EINVAL),
            }
        } else {
            match value.trim().parse::<u32>() {
                Ok(n) if n <= *max => n.to_string(),
                _ => return Err(Errno::EINVAL),
            }
        };
        self.lock().sysctls.insert(name.to_owned(), value);
        Ok(())
    }

    fn daemons(&self) -> Vec<Daemon> {
        self.lock().daemons.all()
    }

    fn start_daemon(&self, daemon: &Daemon) -> Result<(), Errno> {
        // as if every interface were there
        self.lock().daemons.start(daemon, Some(1500))
    }

    fn stop_daemon(&self, state: DaemonState) -> Result<(), Errno> {
        self.lock().daemons.stop(state)
    }
}
