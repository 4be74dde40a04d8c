use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ipvs_netlink::{
    Backend, ConnEntry, Counter, Daemon, DaemonState, Dest, DestEntry, Errno, Info, Notice, Overview,
    QueueStatus, SchedulerInfo, Service, ServiceEntry, ServiceKey, Sysctl, Timeouts,
};
use tokio::sync::Notify;

/// A back-end that notes changes of another's configuration.
pub struct Recorder {
    inner: Arc<dyn Backend>,
    /// Number of changes so far.
    changes: AtomicU64,
    changed: Notify,
}

impl Recorder {
    /// Notes what is changed through it from now on.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, changes: AtomicU64::new(0), changed: Notify::new() }
    }

    /// How many changes there were.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Waits for a change since the last call that returned, or since the start.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn note(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        if result.is_ok() {
            self.changes.fetch_add(1, Ordering::AcqRel);
            self.changed.notify_one();
        }
        result
    }
}

impl Backend for Recorder {
    fn add_service(&self, service: &Service) -> Result<(), Errno> {
        self.note(self.inner.add_service(service))
    }
    fn edit_service(&self, service: &Service) -> Result<(), Errno> {
        self.note(self.inner.edit_service(service))
    }
    fn delete_service(&self, key: &ServiceKey) -> Result<(), Errno> {
        self.note(self.inner.delete_service(key))
    }
    fn service(&self, key: &ServiceKey) -> Result<ServiceEntry, Errno> {
        self.inner.service(key)
    }
    fn services(&self) -> Vec<ServiceEntry> {
        self.inner.services()
    }
    fn add_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno> {
        self.note(self.inner.add_dest(key, dest))
    }
    fn edit_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno> {
        self.note(self.inner.edit_dest(key, dest))
    }
    fn delete_dest(&self, key: &ServiceKey, addr: IpAddr, port: u16) -> Result<(), Errno> {
        self.note(self.inner.delete_dest(key, addr, port))
    }
    fn dests(&self, key: &ServiceKey) -> Result<Vec<DestEntry>, Errno> {
        self.inner.dests(key)
    }
    fn zero(&self, key: Option<&ServiceKey>) -> Result<(), Errno> {
        self.inner.zero(key)
    }
    fn flush(&self) -> Result<(), Errno> {
        self.note(self.inner.flush())
    }
    fn timeouts(&self) -> Timeouts {
        self.inner.timeouts()
    }
    fn set_timeouts(&self, timeouts: Timeouts) -> Result<(), Errno> {
        self.note(self.inner.set_timeouts(timeouts))
    }
    fn info(&self) -> Info {
        self.inner.info()
    }
    fn conns(&self, cursor: u64, max: usize) -> (Vec<ConnEntry>, Option<u64>) {
        self.inner.conns(cursor, max)
    }
    fn counters(&self) -> Vec<Counter> {
        self.inner.counters()
    }
    fn overview(&self) -> Overview {
        self.inner.overview()
    }
    fn queues(&self) -> Vec<QueueStatus> {
        self.inner.queues()
    }
    fn notices(&self) -> Vec<Notice> {
        self.inner.notices()
    }
    fn schedulers(&self) -> Vec<SchedulerInfo> {
        self.inner.schedulers()
    }
    fn sysctls(&self) -> Vec<Sysctl> {
        self.inner.sysctls()
    }
    fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Errno> {
        self.note(self.inner.set_sysctl(name, value))
    }
    fn daemons(&self) -> Vec<Daemon> {
        self.inner.daemons()
    }
    fn start_daemon(&self, daemon: &Daemon) -> Result<(), Errno> {
        self.note(self.inner.start_daemon(daemon))
    }
    fn stop_daemon(&self, state: DaemonState) -> Result<(), Errno> {
        self.note(self.inner.stop_daemon(state))
    }
}
