use std::net::IpAddr;

use crate::{
    ConnEntry, Counter, Daemon, DaemonState, Dest, DestEntry, Errno, FwdMethod, Info, Netmask, Notice,
    Overview, QueueStatus, SchedulerInfo, Service, ServiceEntry, ServiceKey, Sysctl, Timeouts,
};

/// What the protocol's server administers: the director, or a stand-in for it in tests.
///
/// Methods are called from the control thread, one at a time for each client, and must not block for long. The
/// errors named here are the kernel's; [`check_service`] and [`check_dest`] find those that depend on the values
/// alone.
pub trait Backend: Send + Sync {
    /// Adds a service.
    ///
    /// # Errors
    /// `EEXIST`; `ENOENT` for an unknown scheduler or persistence engine; those of [`check_service`]; `ENOMEM`.
    fn add_service(&self, service: &Service) -> Result<(), Errno>;

    /// Changes scheduler, flags (`(old & !flags_mask) | (flags & flags_mask)`), timeout, netmask and engine.
    ///
    /// # Errors
    /// `ESRCH`, else as [`Backend::add_service`].
    fn edit_service(&self, service: &Service) -> Result<(), Errno>;

    /// Removes a service and its destinations.
    ///
    /// # Errors
    /// `ESRCH`.
    fn delete_service(&self, key: &ServiceKey) -> Result<(), Errno>;

    /// One service.
    ///
    /// # Errors
    /// `ESRCH`.
    fn service(&self, key: &ServiceKey) -> Result<ServiceEntry, Errno>;

    /// All services, in any order; `flags` hold `SVC_F_HASHED`.
    fn services(&self) -> Vec<ServiceEntry>;

    /// Adds a destination at the head of the service's list.
    ///
    /// # Errors
    /// `ESRCH` without the service; those of [`check_dest`]; `EEXIST`; `EINVAL` for an address that is not unicast;
    /// `ENOMEM`.
    fn add_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno>;

    /// Changes method, weight, thresholds and encapsulation of the destination with this address and port.
    ///
    /// # Errors
    /// `ENOENT` without the destination, else as [`Backend::add_dest`].
    fn edit_dest(&self, key: &ServiceKey, dest: &Dest) -> Result<(), Errno>;

    /// Removes a destination.
    ///
    /// # Errors
    /// `ESRCH` without the service, `ENOENT` without the destination.
    fn delete_dest(&self, key: &ServiceKey, addr: IpAddr, port: u16) -> Result<(), Errno>;

    /// The destinations of a service, the newest first (the order in which schedulers visit them).
    ///
    /// # Errors
    /// `ESRCH`.
    fn dests(&self, key: &ServiceKey) -> Result<Vec<DestEntry>, Errno>;

    /// Zeroes the counters of one service and its destinations, or of all and the totals.
    ///
    /// # Errors
    /// `ESRCH`.
    fn zero(&self, key: Option<&ServiceKey>) -> Result<(), Errno>;

    /// Removes all services.
    ///
    /// # Errors
    /// Whatever prevents it.
    fn flush(&self) -> Result<(), Errno>;

    /// The three timeouts that can be set, in seconds.
    fn timeouts(&self) -> Timeouts;

    /// Sets those timeouts that are not 0.
    ///
    /// # Errors
    /// `EINVAL` above [`TIMEOUT_MAX`].
    fn set_timeouts(&self, timeouts: Timeouts) -> Result<(), Errno>;

    /// Version and size of the connection table.
    fn info(&self) -> Info;

    /// Up to `max` connections (and templates) from a place in the table on: 0 first, then what the last call
    /// returned; `None` with the last of them. A place that held nothing may give fewer than `max`. A connection
    /// that exists all the while appears exactly once.
    fn conns(&self, cursor: u64, max: usize) -> (Vec<ConnEntry>, Option<u64>);

    /// The data path's counters.
    fn counters(&self) -> Vec<Counter>;

    /// What the daemon is, and how much of it is in use.
    fn overview(&self) -> Overview;

    /// Every queue of every port.
    fn queues(&self) -> Vec<QueueStatus>;

    /// What the operator should know of the configuration as it is now.
    fn notices(&self) -> Vec<Notice>;

    /// The schedulers that a service can have.
    fn schedulers(&self) -> Vec<SchedulerInfo>;

    /// All settings of `net.ipv4.vs.*`.
    fn sysctls(&self) -> Vec<Sysctl>;

    /// Changes one of them.
    ///
    /// # Errors
    /// `ENOENT` for an unknown name, `EINVAL` for a bad value, `EACCES` for one that can only be read.
    fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Errno>;

    /// The running synchronisation daemons.
    fn daemons(&self) -> Vec<Daemon>;

    /// Starts one.
    ///
    /// # Errors
    /// `EEXIST`, `ENODEV`, `EINVAL`, or `EOPNOTSUPP` where there is no such thing.
    fn start_daemon(&self, daemon: &Daemon) -> Result<(), Errno>;

    /// Stops one.
    ///
    /// # Errors
    /// `ESRCH`.
    fn stop_daemon(&self, state: DaemonState) -> Result<(), Errno>;
}

/// The largest timeout in seconds that `--set` takes: `INT_MAX / HZ` of a kernel with 250 ticks a second.
pub const TIMEOUT_MAX: u32 = i32::MAX as u32 / 250;

/// What is wrong with a service by its values alone; the kernel asks this after it has found scheduler and engine.
///
/// # Errors
/// `EINVAL`: a prefix length outside 1 to 128, or a netmask of the other family; a protocol other than TCP, UDP and SCTP
/// (the kernel takes it, and never finds a packet for it).
pub fn check_service(service: &Service) -> Result<(), Errno> {
    if matches!(service.key, ServiceKey::Addr { protocol, .. } if ![6, 17, 132].contains(&protocol)) {
        return Err(Errno::EINVAL);
    }
    match (service.key.af(), service.netmask) {
        (crate::Af::V4, Netmask::V4(_)) | (crate::Af::V6, Netmask::V6(1..=128)) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// What is wrong with a destination by its values alone; the kernel asks this once it has found the service.
///
/// # Errors
/// `EINVAL`: another family than the service's without tunnel, a GUE tunnel without port, thresholds above `INT_MAX`,
/// an address that no server can have (unspecified, multicast, broadcast). `ERANGE`: a negative weight, a lower
/// threshold above the upper.
pub fn check_dest(key: &ServiceKey, dest: &Dest) -> Result<(), Errno> {
    const INT_MAX: u32 = i32::MAX as u32;
    if key.af() != dest.addr.into() && dest.method != FwdMethod::Tunnel {
        return Err(Errno::EINVAL);
    }
    if dest.weight < 0 || dest.lower > dest.upper {
        return Err(Errno::ERANGE);
    }
    if dest.tunnel.kind == 1 && dest.tunnel.port == 0 {
        return Err(Errno::EINVAL);
    }
    let nowhere = match dest.addr {
        IpAddr::V4(a) => a.is_unspecified() || a.is_multicast() || a.is_broadcast(),
        IpAddr::V6(a) => a.is_unspecified() || a.is_multicast(),
    };
    if nowhere || dest.upper > INT_MAX || dest.lower > INT_MAX {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
