//! What all workers and the control plane share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ipvs_netlink::{Counter, Daemons as SyncDaemons, Errno, ServiceKey};

use super::around::Surroundings;
use super::reason::Counters;
use super::tcp::{self, State};
use crate::conn::ConnTable;
use crate::mem::Region;
use crate::route::{PortId, Routes};
use crate::service::{DestId, DestMemory, DestSlot, Dests, ServiceObserver, Services};
use crate::time::{Now, ticks};

/// The largest number of workers.
pub const MAX_WORKERS: usize = 64;
/// Destinations that fit, those with connections left over from a removal included.
pub const MAX_DESTS: u32 = 1 << 16;

/// Reads the counters of the ports under the core.
type PortCounters = Box<dyn Fn() -> Vec<Counter> + Send + Sync>;

/// Finds the MTU of an interface; none where there is no such interface.
type MtuOf = Box<dyn Fn(&str) -> Option<u32> + Send + Sync>;

/// The director's state, shared by its workers and the control plane.
pub struct Director {
    /// Connections.
    pub table: ConnTable,
    /// Destinations' lines.
    pub dests: Dests,
    /// Virtual services.
    pub services: Services,
    /// Next hops.
    pub routes: Arc<Routes>,
    /// Settings that `net.ipv4.vs.*` names.
    pub sysctls: Sysctls,
    pub(super) timeouts: Timeouts,
    pub(super) counters: Vec<Counters>,
    pub(super) observer: OnceLock<Box<dyn ServiceObserver>>,
    pub(super) port_counters: OnceLock<PortCounters>,
    pub(super) around: OnceLock<Box<dyn Surroundings>>,
    /// Serialises changes of the configuration.
    pub(super) admin: Mutex<()>,
    pub(super) trash: Mutex<HashMap<(ServiceKey, IpAddr, u16), Removed>>,
    pub(super) clock: AtomicU64,
    /// Milliseconds since midnight UT when [`Now`] was 0 (for IPv4's timestamp option).
    pub midnight_ms: AtomicU32,
    pub(super) seed: u64,
    sync: Mutex<SyncDaemons>,
    pub(super) mtu_of: OnceLock<MtuOf>,
    /// What the tier and the director tell each other. Word 0: ticks of an established TCP connection in the low half, of a UDP flow in
    /// the high one. Words 1 to 4: a bit for each port by which the tier can send. Empty where there is no tier.
    conf: Region,
}

/// Memory that a tier shares with the director, all of it zeros; but destinations may be those of another daemon
/// ([`Director::adopt`]).
#[derive(Debug)]
pub struct TierMemory {
    /// For [`MAX_DESTS`].
    pub dests: DestMemory,
    /// Settings, 64 bytes: see `docs/tier.md`.
    pub conf: Region,
}

/// A removed destination whose line is still in use.
pub(super) struct Removed {
    pub(super) slot: DestSlot,
    /// The service's number; none of a destination that another daemon had.
    pub(super) service: Option<u64>,
    /// Whether no entry referred to the line at the last look.
    pub(super) idle: bool,
}

impl std::fmt::Debug for Director {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Director").finish_non_exhaustive()
    }
}

/// Seconds that `ipvsadm --set` sets.
#[derive(Debug)]
pub(super) struct Timeouts {
    pub(super) tcp: AtomicU32,
    pub(super) tcp_fin: AtomicU32,
    pub(super) udp: AtomicU32,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { tcp: AtomicU32::new(900), tcp_fin: AtomicU32::new(120), udp: AtomicU32::new(300) }
    }
}

/// The settings of `net.ipv4.vs.*` that the director acts on, with the kernel's names and defaults.
#[derive(Debug)]
pub struct Sysctls {
    /// 0: a SYN never reschedules a known connection; bit 0: it does in TIME_WAIT and CLOSE; bit 1: also in FIN_WAIT
    /// where the server's side is not seen.
    pub conn_reuse_mode: AtomicU32,
    /// 1: a packet of a connection whose server was removed ends the connection; 0: it is dropped.
    pub expire_nodest_conn: AtomicU32,
    /// 1: a persistence template whose server has weight 0 does not hold.
    pub expire_quiescent_template: AtomicU32,
    /// Not one of the kernel's. 1: every tunnel carries IPv6 packets of 1,280 bytes, as IPv6 demands of a link, if need be in
    /// fragments of the outer packet. 0, as IPVS does it: senders are told of less than 1,280 bytes, which they ignore, and a
    /// tunnel over IPv6 with less carries nothing.
    pub tunnel_ipv6_min_mtu: AtomicU32,
    /// Not one of the kernel's. Half-open connections of a family may take this share of its table, in percent, before the oldest are
    /// evicted (`docs/syn-flood.md`); 0: all of it.
    pub half_open_percent: AtomicU32,
    /// Not one of the kernel's. 1: where half-open connections have their share of the table, SYNs to servers by direct routing and
    /// tunnels get no entry, if the scheduler chooses alike for the segments that follow. 0: every SYN gets an entry.
    pub stateless_syn: AtomicU32,
}

impl Default for Sysctls {
    fn default() -> Sysctls {
        Sysctls {
            conn_reuse_mode: AtomicU32::new(1),
            expire_nodest_conn: AtomicU32::new(0),
            expire_quiescent_template: AtomicU32::new(0),
            tunnel_ipv6_min_mtu: AtomicU32::new(1),
            half_open_percent: AtomicU32::new(25),
            stateless_syn: AtomicU32::new(1),
        }
    }
}

impl Sysctls {
    /// Name, value and largest value of each.
    pub(super) fn each(&self) -> [(&'static str, &AtomicU32, u32); 6] {
        [
            ("conn_reuse_mode", &self.conn_reuse_mode, 3),
            ("expire_nodest_conn", &self.expire_nodest_conn, 1),
            ("expire_quiescent_template", &self.expire_quiescent_template, 1),
            ("tunnel_ipv6_min_mtu", &self.tunnel_ipv6_min_mtu, 1),
            ("half_open_percent", &self.half_open_percent, 100),
            ("stateless_syn", &self.stateless_syn, 1),
        ]
    }

    /// Sets one by name.
    ///
    /// # Errors
    /// `ENOENT` for a name that is not known, `EINVAL` for a value out of range.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Errno> {
        let (_, place, max) = self.each().into_iter().find(|s| s.0 == name).ok_or(Errno::ENOENT)?;
        let value: u32 = value.trim().parse().map_err(|_| Errno::EINVAL)?;
        if value > max {
            return Err(Errno::EINVAL);
        }
        place.store(value, Release);
        Ok(())
    }
}

impl Director {
    /// A director without services. `seed` feeds what has to differ between runs (IP identification); the table
    /// carries its own key.
    pub fn new(
        table: ConnTable,
        routes: Arc<Routes>,
        workers: usize,
        seed: u64,
    ) -> std::io::Result<Director> {
        let dests = Dests::new(MAX_DESTS, workers.clamp(1, MAX_WORKERS))?;
        Ok(Director::over(table, routes, workers, seed, dests, Region::anonymous(0, false)?))
    }

    /// As [`Director::new`], with a tier that forwards what the workers hand to it.
    pub fn with_tier(
        table: ConnTable,
        routes: Arc<Routes>,
        workers: usize,
        seed: u64,
        memory: TierMemory,
    ) -> Director {
        let dests = Dests::within(MAX_DESTS, workers.clamp(1, MAX_WORKERS), memory.dests);
        let director = Director::over(table, routes, workers, seed, dests, memory.conf);
        director.publish_timeouts();
        director
    }

    fn over(
        table: ConnTable,
        routes: Arc<Routes>,
        workers: usize,
        seed: u64,
        dests: Dests,
        conf: Region,
    ) -> Director {
        let workers = workers.clamp(1, MAX_WORKERS);
        Director {
            table,
            dests,
            services: Services::default(),
            routes,
            sysctls: Sysctls::default(),
            timeouts: Timeouts::default(),
            counters: (0..workers).map(|_| Counters::default()).collect(),
            observer: OnceLock::new(),
            port_counters: OnceLock::new(),
            around: OnceLock::new(),
            admin: Mutex::new(()),
            trash: Mutex::new(HashMap::new()),
            clock: AtomicU64::new(0),
            midnight_ms: AtomicU32::new(0),
            seed,
            sync: Mutex::default(),
            mtu_of: OnceLock::new(),
            conf,
        }
    }

    /// How to find the MTU of an interface by its name, which may be none of the ports'. Only the first call counts; before it there are no
    /// interfaces.
    pub fn know_interfaces(&self, mtu_of: impl Fn(&str) -> Option<u32> + Send + Sync + 'static) {
        // A second one would be another director's.
        let _ = self.mtu_of.set(Box::new(mtu_of));
    }

    /// The synchronisation daemons that were started. They are listed and kept, and do not send or receive yet.
    pub(super) fn sync_daemons(&self) -> MutexGuard<'_, SyncDaemons> {
        self.sync.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a tier.
    pub(super) fn has_tier(&self) -> bool {
        !self.conf.words().is_empty()
    }

    /// Whether the tier can send by a port.
    pub(super) fn tier_sends_by(&self, port: PortId) -> bool {
        let (word, bit) = (1 + usize::from(port.0) / 64, port.0 % 64);
        self.conf.words().get(word).is_some_and(|w| w.load(Relaxed) >> bit & 1 != 0)
    }

    /// Tells the tier of timeouts that were set.
    pub(super) fn publish_timeouts(&self) {
        if let Some(word) = self.conf.words().first() {
            let (tcp, udp) = (self.state_timeout(State::Established), self.state_timeout(State::Udp));
            word.store(u64::from(udp) << 32 | u64::from(tcp), Release);
        }
    }

    /// Who is to be told of services from now on. Only the first call counts; services that exist are told at once.
    pub fn observe(&self, observer: Box<dyn ServiceObserver>) {
        let _guard = self.admin.lock().unwrap_or_else(|e| e.into_inner());
        if self.observer.set(observer).is_ok() {
            for service in self.services.all() {
                self.announce(&service.key, true);
            }
        }
    }

    /// How the ports' counters are read, for listings. Only the first call counts.
    pub fn set_port_counters(&self, read: impl Fn() -> Vec<Counter> + Send + Sync + 'static) {
        // A second port would be another director's.
        let _ = self.port_counters.set(Box::new(read));
    }

    /// Tells the observer of a service; `false` where it has no room for a new one.
    pub(super) fn announce(&self, key: &ServiceKey, added: bool) -> bool {
        let (Some(observer), ServiceKey::Addr { protocol, addr, port }) = (self.observer.get(), *key) else {
            return true;
        };
        if added {
            return observer.service_added(addr.into(), protocol, addr, port);
        }
        observer.service_removed(addr.into(), protocol, addr, port);
        true
    }

    /// How many workers there may be.
    pub fn workers(&self) -> usize {
        self.counters.len()
    }

    /// One worker's counters.
    pub fn counters(&self, worker: usize) -> &Counters {
        &self.counters[worker]
    }

    /// Ticks for which a connection in this state lives without a packet.
    pub fn state_timeout(&self, state: State) -> u32 {
        let t = &self.timeouts;
        ticks(tcp::timeout(state, t.tcp.load(Relaxed), t.tcp_fin.load(Relaxed), t.udp.load(Relaxed)).into())
    }

    /// The latest time that any worker was given: what listings count from.
    pub fn now(&self) -> Now {
        Now(self.clock.load(Relaxed))
    }

    pub(super) fn ms_of_day(&self, now: Now) -> u32 {
        ((now.0 / 1_000_000 + u64::from(self.midnight_ms.load(Relaxed))) % 86_400_000) as u32
    }

    pub(super) fn note_time(&self, now: Now) {
        self.clock.fetch_max(now.0, Relaxed);
    }

    /// Frees the lines of removed destinations that no entry refers to any more. One that no entry referred to at the last
    /// call either: a worker may still be about to count what it had found before the last entry went. `at_once`: without
    /// that wait, where lines have run out.
    pub(super) fn collect_trash(&self, at_once: bool) {
        let mut trash = self.trash.lock().unwrap_or_else(|e| e.into_inner());
        let done: Vec<DestId> = trash
            .extract_if(|_, removed| {
                let line = self.dests.line(removed.slot.id);
                let was_idle = std::mem::replace(&mut removed.idle, line.refs() == 0);
                removed.idle && (was_idle || at_once)
            })
            .map(|(_, removed)| removed.slot.id)
            .collect();
        drop(trash);
        for id in done {
            self.dests.release(id);
        }
    }
}
