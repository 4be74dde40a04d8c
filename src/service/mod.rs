//! Virtual services and their destinations.

mod dest;
mod keep;
mod rate;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use crate::time::Tick;
use ipvs_netlink::{self as nl, ServiceKey};
use modes::{Addr, Family};
use schedulers::{Load, Scheduler, Servers};

pub use dest::{DestId, DestLine, DestMemory, Dests, RawStats};
pub use keep::Tally;
pub use rate::Rates;

/// Told of services as they come and go: how a port's classifier learns what is ours.
pub trait ServiceObserver: Send + Sync {
    /// Packets of this protocol to this address and port (0: any port) are ours from now on. `false`: there is no room to note
    /// it, and nothing has changed.
    fn service_added(&self, family: Family, protocol: u8, addr: IpAddr, port: u16) -> bool;
    /// They are no longer.
    fn service_removed(&self, family: Family, protocol: u8, addr: IpAddr, port: u16);
}

/// A virtual service.
#[derive(Debug)]
pub struct Service {
    /// Identity.
    pub key: ServiceKey,
    /// Tells it from others that had the same key before.
    pub(crate) number: u64,
    inner: Mutex<Inner>,
    /// When a SYN was last sent on without an entry: tick:32, and a bit above that says so; 0: not within memory.
    stateless: AtomicU64,
}

/// What a service's lock protects: only new connections and changes take it.
pub struct Inner {
    /// As configured.
    pub config: nl::Service,
    /// The algorithm and its state, shared by all workers.
    pub scheduler: Box<dyn Scheduler>,
    /// Destinations, the newest first (as IPVS keeps them: schedulers depend on it).
    pub dests: Vec<DestSlot>,
    /// Statistics of destinations that are gone.
    pub retired: RawStats,
    /// The point from which statistics count (`ipvsadm -Z`).
    pub zero: RawStats,
    /// Estimated rates.
    pub rates: Rates,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("config", &self.config)
            .field("dests", &self.dests)
            .finish_non_exhaustive()
    }
}

/// What the control side keeps of a destination beside its line.
#[derive(Clone, Debug)]
pub struct DestSlot {
    /// Its line.
    pub id: DestId,
    /// Address.
    pub addr: IpAddr,
    /// Port, host order.
    pub port: u16,
    /// Encapsulation, for tunnel servers.
    pub tunnel: nl::Tunnel,
    /// The last weight above 0 that it was given; 0 where it never had one.
    pub last_weight: u32,
    /// Statistics when it joined the service: earlier ones are not the service's.
    pub joined: RawStats,
    /// The point from which its own statistics count.
    pub zero: RawStats,
    /// Estimated rates.
    pub rates: Rates,
}

impl Service {
    /// A service without destinations.
    pub fn new(config: nl::Service, scheduler: Box<dyn Scheduler>) -> Service {
        let inner = Inner {
            scheduler,
            dests: Vec::new(),
            retired: RawStats::default(),
            zero: RawStats::default(),
            rates: Rates::default(),
            config,
        };
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Service {
            key: inner.config.key,
            number: NUMBER.fetch_add(1, Relaxed),
            inner: Mutex::new(inner),
            stateless: AtomicU64::new(0),
        }
    }

    /// Notes that a SYN was sent on without an entry.
    pub(crate) fn note_stateless(&self, now: Tick) {
        let word = 1 << 32 | u64::from(now.0);
        if self.stateless.load(Relaxed) != word {
            self.stateless.store(word, Relaxed);
        }
    }

    /// Whether one was within so many ticks.
    pub(crate) fn was_stateless(&self, now: Tick, within: u32) -> bool {
        let word = self.stateless.load(Relaxed);
        if word == 0 {
            return false;
        }
        if now.since(Tick(word as u32)) <= within {
            return true;
        }
        // Else it would hold again when ticks have gone half their round.
        let _ = self.stateless.compare_exchange(word, 0, Relaxed, Relaxed);
        false
    }

    /// Locks the service.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Inner {
    /// Whether a client is kept on its server.
    pub fn persistent(&self) -> bool {
        self.config.flags & nl::SVC_F_PERSISTENT != 0
    }

    /// Statistics of all destinations that the service ever had.
    pub fn total(&self, dests: &Dests) -> RawStats {
        self.dests.iter().fold(self.retired, |sum, d| sum.plus(dests.stats(d.id).since(d.joined)))
    }
}

/// A service's servers as its scheduler sees them.
pub struct ServerList<'a> {
    /// In the service's order.
    pub slots: &'a [DestSlot],
    /// Where their lines are.
    pub dests: &'a Dests,
}

impl Servers for ServerList<'_> {
    fn len(&self) -> usize {
        self.slots.len()
    }
    fn load(&self, index: usize) -> Load {
        self.dests.line(self.slots[index].id).load()
    }
    fn identity(&self, index: usize) -> (IpAddr, u16) {
        (self.slots[index].addr, self.slots[index].port)
    }
    fn last_weight(&self, index: usize) -> u32 {
        self.slots[index].last_weight
    }
}

const SHARDS: usize = 64;

/// All services, found by protocol, address and port in constant time.
#[derive(Debug)]
pub struct Services {
    shards: Vec<RwLock<HashMap<ServiceKey, Arc<Service>>>>,
    hasher: RandomState,
    /// Changes with every configuration change, so that the state on disk can follow.
    pub revision: AtomicU64,
}

impl Default for Services {
    fn default() -> Services {
        Services {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            hasher: RandomState::new(),
            revision: AtomicU64::new(0),
        }
    }
}

impl Services {
    fn shard(&self, key: &ServiceKey) -> &RwLock<HashMap<ServiceKey, Arc<Service>>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// The service of exactly this key.
    pub fn get(&self, key: &ServiceKey) -> Option<Arc<Service>> {
        self.shard(key).read().unwrap_or_else(|e| e.into_inner()).get(key).cloned()
    }

    /// The service for a packet: the exact port before the whole address (port 0).
    pub fn find(&self, family: Family, protocol: u8, addr: Addr, port: u16) -> Option<Arc<Service>> {
        let addr = addr.ip(family);
        self.get(&ServiceKey::Addr { protocol, addr, port }).or_else(|| {
            if port == 0 { None } else { self.get(&ServiceKey::Addr { protocol, addr, port: 0 }) }
        })
    }

    /// Adds a service whose key is free.
    pub fn insert(&self, service: Service) {
        let key = service.key;
        self.shard(&key).write().unwrap_or_else(|e| e.into_inner()).insert(key, Arc::new(service));
        self.changed();
    }

    /// Takes a service out.
    pub fn remove(&self, key: &ServiceKey) -> Option<Arc<Service>> {
        let gone = self.shard(key).write().unwrap_or_else(|e| e.into_inner()).remove(key);
        self.changed();
        gone
    }

    /// Notes a change of configuration.
    pub fn changed(&self) {
        self.revision.fetch_add(1, AcqRel);
    }

    /// All services, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Service>> {
        let mut all: Vec<_> = self
            .shards
            .iter()
            .flat_map(|s| s.read().unwrap_or_else(|e| e.into_inner()).values().cloned().collect::<Vec<_>>())
            .collect();
        all.sort_by_key(|s| s.key);
        all
    }
}
