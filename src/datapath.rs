//! Core and data path of a daemon, put together: tables, routes, ports, workers.

mod follower;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::TryStreamExt;
use ipvs_netlink::Counter;
use modes::{Addr, Family};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use pinned::{PinDir, PinError};

use crate::conn::{Config, ConnTable, TableError};
use crate::control::rtnl::RtnlError;
use crate::engine::{Adopted, Director, FrameHandler, MAX_WORKERS, Worker};
use crate::io::afpacket::{self, AfPacketConfig};
use crate::io::afxdp::{self, AfXdpConfig, Attach};
use crate::io::rings::Running;
use crate::io::{BpfTables, SetupError, TableShape, TierPlan};
use crate::route::{PortError, PortId, Routes};
use crate::service::ServiceObserver;
use crate::status::ReadQueues;
use crate::time::Now;
use follower::FollowerThread;

/// How long the kernel's tables may take to be read at the start.
const SYNC_PATIENCE: Duration = Duration::from_secs(10);

const MAPPING: &str = "mapping memory for destinations and next hops";

/// What a daemon's core is made of.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Ports of the data path, by name; none for a director that only keeps a configuration.
    pub interfaces: Vec<String>,
    /// Most IPv4 connections at a time.
    pub max_v4: u32,
    /// Most IPv6 connections at a time.
    pub max_v6: u32,
    /// Worker threads.
    pub workers: usize,
    /// How frames are received and sent.
    pub rings: Rings,
    /// Where the data plane of a tier is pinned, so that it outlives the daemon.
    pub pins: Pins,
}

/// Where the data plane of a tier is pinned.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Pins {
    /// Nowhere: it ends with the daemon.
    #[default]
    Nowhere,
    /// In this directory, if that can be.
    Try(PathBuf),
    /// In this directory; where that cannot be, the daemon does not start.
    At(PathBuf),
}

impl Pins {
    fn dir(&self) -> Option<&Path> {
        match self {
            Pins::Nowhere => None,
            Pins::Try(dir) | Pins::At(dir) => Some(dir),
        }
    }
}

/// How frames are received and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rings {
    /// What suits the interfaces.
    #[default]
    Auto,
    /// AF_PACKET.
    AfPacket,
    /// AF_PACKET, and known connections are forwarded by the tier at tc ingress.
    Tc,
    /// AF_XDP, and known connections are forwarded by the tier at XDP.
    Xdp {
        /// Where the XDP program runs; the tier sends only by interfaces where that is the driver.
        attach: Attach,
        /// Microseconds of busy polling, 0 for none.
        busy_poll: u32,
    },
    /// AF_XDP.
    AfXdp {
        /// Where the XDP program runs.
        attach: Attach,
        /// Microseconds of busy polling, 0 for none.
        busy_poll: u32,
    },
}

/// Why a daemon's core or data path can't be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StartError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Routes(#[from] RtnlError),
    #[error("--workers {0}: more than the limit of {MAX_WORKERS}")]
    Workers(usize),
    #[error("no Ethernet interface is up here that is no port of a bridge or bond: name one by --interface")]
    NoInterface,
    #[error("the kernel's routes were not told within {} s", SYNC_PATIENCE.as_secs())]
    Silent,
    #[error("{what}: {error}")]
    System { what: &'static str, error: std::io::Error },
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> StartError {
    move |error| StartError::System { what, error }
}

/// The director, and the memory that it shares with the kernel.
#[derive(Debug)]
pub struct Core {
    routes: Arc<Routes>,
    director: Arc<OnceLock<Arc<Director>>>,
    tables: Option<Arc<BpfTables>>,
    config: CoreConfig,
    table: Config,
    seed: u64,
    chosen: Chosen,
}

/// The rings that were chosen, and why.
#[derive(Clone, Debug)]
struct Chosen {
    rings: Rings,
    why: String,
}

/// Maps and programs for `rings`, and what they were chosen for. Where the tier can't be had and was not asked for by name, rings alone do.
fn tables_for<T>(
    rings: Rings,
    suits: impl FnOnce() -> (bool, String),
    with_tier: impl FnOnce() -> Result<T, SetupError>,
    without: impl FnOnce() -> Result<T, SetupError>,
    successor: bool,
) -> Result<(T, Chosen), SetupError> {
    match rings {
        Rings::Tc | Rings::Xdp { .. } => Ok((with_tier()?, Chosen::as_told(rings))),
        Rings::AfPacket | Rings::AfXdp { .. } => Ok((without()?, Chosen::as_told(rings))),
        Rings::Auto => match with_tier() {
            Ok(tables) => {
                let (xdp, why) = suits();
                let rings = if xdp { Rings::Xdp { attach: Attach::Native, busy_poll: 0 } } else { Rings::Tc };
                Ok((tables, Chosen { rings, why: format!("auto: {why}") }))
            }
            // another daemon has the tier, or is to hand it over
            Err(e) if successor || matches!(e, SetupError::Pins(_)) => Err(e),
            // where all is lacking, what the plain programs lack is told
            Err(e) => {
                let why = format!("auto: no tier, since {e}");
                Ok((without()?, Chosen { rings: Rings::AfPacket, why }))
            }
        },
    }
}

impl Chosen {
    fn as_told(rings: Rings) -> Chosen {
        Chosen { rings, why: "as --datapath says".to_owned() }
    }
}

type MakeWorker = Box<dyn Fn(usize) -> Box<dyn FrameHandler + Send>>;

/// What is done between the making of sockets and the start of workers.
pub type Between<'a> = &'a mut dyn FnMut() -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn random() -> Result<[u64; 4], StartError> {
    let mut bytes = [0u8; 32];
    let n = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| system("drawing random numbers")(e.into()))?;
    if n < bytes.len() {
        return Err(system("drawing random numbers")(std::io::ErrorKind::UnexpectedEof.into()));
    }
    let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|b| bytes[i * 8 + b]));
    Ok([word(0), word(1), word(2), word(3)])
}

/// Monotonic time.
pub fn now() -> Now {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Now(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Milliseconds since midnight UT when the monotonic clock was 0: what IPv4's timestamp option counts from.
fn midnight_ms() -> u32 {
    const DAY_MS: i64 = 86_400_000;
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let wall = t.tv_sec * 1000 + i64::from(t.tv_nsec as i32 / 1_000_000);
    let up = (now().0 / 1_000_000) as i64;
    (wall - up).rem_euclid(DAY_MS) as u32
}

/// Tells the classifier of services.
struct Classifier(Arc<BpfTables>);

impl ServiceObserver for Classifier {
    fn service_added(&self, family: Family, protocol: u8, addr: std::net::IpAddr, port: u16) -> bool {
        self.0.service_added(family, protocol, Addr::from(addr), port)
    }
    fn service_removed(&self, family: Family, protocol: u8, addr: std::net::IpAddr, port: u16) {
        self.0.service_removed(family, protocol, Addr::from(addr), port);
    }
}

impl Core {
    /// Makes what does not depend on connections: with interfaces, the BPF maps and programs, which needs privilege. A `successor` takes
    /// over from a daemon that is still at work, and must not ask for the [`Core::director`] before that has ended.
    ///
    /// # Errors
    /// [`StartError`]; nothing stays changed.
    pub fn new(config: CoreConfig, successor: bool) -> Result<Core, StartError> {
        if config.workers > MAX_WORKERS {
            return Err(StartError::Workers(config.workers));
        }
        let [key0, key1, magic, seed] = random()?;
        let mut table = Config {
            max_v4: config.max_v4,
            max_v6: config.max_v6,
            hash_key: [key0, key1],
            shards: (config.workers * 8).clamp(16, Config::MAX_SHARDS),
        };
        let mut tables = None;
        let mut chosen = Chosen::as_told(config.rings);
        if !config.interfaces.is_empty() {
            let (shape, magic) = (TableShape::of(&table), (magic as u32).max(1));
            let made;
            (made, chosen) = tables_for(
                config.rings,
                || afxdp::suits(&config.interfaces),
                || with_tier(&config, (shape, magic), successor),
                || BpfTables::create(shape, magic),
                successor,
            )?;
            table.hash_key = made.shape().hash_key;
            tables = Some(Arc::new(made));
        }
        let names: Vec<(PortId, &str)> = ports(&config.interfaces).map(|(id, n)| (id, n.as_str())).collect();
        let routes = match tables.as_ref().and_then(|t| t.tier()) {
            Some(tier) => Routes::within(&names, tier.hops().map_err(system(MAPPING))?)?,
            None => Routes::new(&names)?,
        };
        Ok(Core { routes: Arc::new(routes), director: Arc::default(), tables, config, table, seed, chosen })
    }

    /// The director; made at the first call, with the connections that another daemon has left.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn director(&self) -> Result<Arc<Director>, StartError> {
        if let Some(director) = self.director.get() {
            return Ok(Arc::clone(director));
        }
        let conns = match &self.tables {
            None => ConnTable::new(self.table)?,
            Some(tables) => {
                let memory = tables.memory().map_err(system("mapping the connection table"))?;
                ConnTable::with_memory(self.table, memory, now().tick())?
            }
        };
        let (routes, workers) = (Arc::clone(&self.routes), self.config.workers);
        let director = match self.tables.as_ref().and_then(|t| t.tier()) {
            Some(tier) => {
                let memory = tier.memory().map_err(system(MAPPING))?;
                Director::with_tier(conns, routes, workers, self.seed, memory)
            }
            None => Director::new(conns, routes, workers, self.seed).map_err(system(MAPPING))?,
        };
        if self.tables.as_ref().is_some_and(|t| t.adopted()) {
            tell_adopted(director.adopt());
        }
        director.know_interfaces(crate::io::mtu);
        director.midnight_ms.store(midnight_ms(), std::sync::atomic::Ordering::Relaxed);
        if let Some(tables) = &self.tables {
            director.observe(Box::new(Classifier(Arc::clone(tables))));
        }
        Ok(Arc::clone(self.director.get_or_init(|| Arc::new(director))))
    }

    /// From now on packets that go up the rings are this daemon's, and no longer those of the one that it takes over from.
    ///
    /// # Errors
    /// [`StartError::Setup`].
    pub fn take_turn(&self) -> Result<(), StartError> {
        Ok(self.tables.as_ref().map_or(Ok(()), |t| t.take_turn())?)
    }

    /// The daemon that went before has ended.
    ///
    /// # Errors
    /// [`StartError::Setup`].
    pub fn alone(&self) -> Result<(), StartError> {
        Ok(self.tables.as_ref().map_or(Ok(()), |t| t.lock_plane())?)
    }

    /// Begins to follow the kernel's routes and to forward frames. The last thing before workers start is `between`; services are made
    /// then at the latest, and what another daemon had and they do not claim is no longer served. A data plane that another daemon left
    /// goes over to this one.
    ///
    /// # Errors
    /// [`StartError`]; the interfaces are as they were.
    pub fn start(&self, between: Between<'_>) -> Result<Datapath, StartError> {
        let tables = self.tables.as_ref().ok_or(StartError::NoInterface)?;
        if tables.plane().is_none()
            && let Some(dir) = self.config.pins.dir()
        {
            remove_plane(dir)?;
        }
        let follower =
            FollowerThread::start(Arc::clone(&self.routes), Arc::clone(&self.director), Arc::clone(tables))?;
        for (vlan, port) in self.routes.unserved_vlans() {
            tracing::warn!(
                "interface {vlan}: a VLAN of {port} and no port: its frames stay with the kernel; to serve it, add --interface {vlan}"
            );
        }
        let mut ready = || {
            between().map_err(SetupError::Between)?;
            let director = self.director().map_err(|e| SetupError::Between(e.into()))?;
            director.settle();
            tables.forget_other_services();
            let make =
                move |n| -> Box<dyn FrameHandler + Send> { Box::new(Worker::new(Arc::clone(&director), n)) };
            Ok(Box::new(make) as MakeWorker)
        };
        let (port, why) = self.start_port(tables, &mut ready)?;
        let rings = Arc::downgrade(&port);
        let tier = Arc::clone(tables);
        let read = move || {
            let mut list = tier.tier().map_or_else(Vec::new, |t| t.counters());
            list.extend(rings.upgrade().map_or_else(Vec::new, |p| port_counters(&*p)));
            list
        };
        self.director()?.set_port_counters(read);
        let pinned = tables.keep(&self.config.interfaces, port.hooks());
        Ok(Datapath { port, why, pinned, follower })
    }

    /// The rings, and why these.
    fn start_port(
        &self,
        tables: &Arc<BpfTables>,
        ready: &mut dyn FnMut() -> Result<MakeWorker, SetupError>,
    ) -> Result<(Arc<dyn Running>, String), StartError> {
        let names = &self.config.interfaces;
        let interfaces: Vec<(PortId, String)> = ports(names).map(|(id, name)| (id, name.clone())).collect();
        let workers = self.config.workers;
        let ready = RefCell::new(ready);
        let make_workers = || (*ready.borrow_mut())();
        let afpacket =
            |interfaces| afpacket::start(AfPacketConfig::new(interfaces, workers), tables, make_workers);
        let afxdp = |interfaces, attach, busy_poll| {
            let config = AfXdpConfig { attach, busy_poll, ..AfXdpConfig::new(interfaces, workers) };
            afxdp::start(config, tables, make_workers)
        };
        let Chosen { rings, why } = self.chosen.clone();
        Ok(match rings {
            Rings::AfPacket | Rings::Tc | Rings::Auto => (Arc::new(afpacket(interfaces)?), why),
            Rings::AfXdp { attach, busy_poll } => (Arc::new(afxdp(interfaces, attach, busy_poll)?), why),
            Rings::Xdp { attach, busy_poll } => match afxdp(interfaces.clone(), attach, busy_poll) {
                Ok(port) => (Arc::new(port), why),
                Err(e) if self.config.rings == Rings::Auto => {
                    (Arc::new(afpacket(interfaces)?), format!("auto: no XDP, since {e}"))
                }
                Err(e) => return Err(e.into()),
            },
        })
    }
}

/// Maps and programs with the tier, pinned where that is wanted.
fn with_tier(
    config: &CoreConfig,
    (shape, magic): (TableShape, u32),
    successor: bool,
) -> Result<BpfTables, SetupError> {
    let make = |pin_dir| {
        let plan = TierPlan { workers: config.workers, pin_dir, successor };
        BpfTables::with_tier(shape, magic, &plan)
    };
    match (make(config.pins.dir()), &config.pins) {
        (Err(SetupError::Pins(e)), Pins::Try(_)) if !successor && !matches!(e, PinError::InUse(_)) => {
            tracing::warn!("{e}; the data plane ends with lvsd, and its connections with it");
            make(None)
        }
        (done, _) => done,
    }
}

fn tell_adopted(a: Adopted) {
    tracing::info!(
        "taking over the data plane of an lvsd that has ended: {} connections, {} servers",
        a.connections,
        a.destinations
    );
    if a.lost > 0 {
        tracing::warn!("{} connections of unknown servers were removed", a.lost);
    }
}

/// Removes the data plane that a daemon with a tier has left, where this one has none.
fn remove_plane(dir: &Path) -> Result<(), SetupError> {
    let Some(found) = PinDir::find(dir)? else { return Ok(()) };
    if !found.is_empty() {
        tracing::info!("{}: removing the data plane of an lvsd with a tier, which has ended", dir.display());
    }
    found.take_down()?;
    Ok(())
}

fn ports(names: &[String]) -> impl Iterator<Item = (PortId, &String)> {
    (0..).map(PortId).zip(names)
}

fn port_counters(port: &dyn Running) -> Vec<Counter> {
    let mut list = Vec::new();
    for p in port.stats() {
        list.push(Counter { name: format!("port_{}_attached", p.interface), value: p.attached.into() });
        for (queue, q) in p.queues.iter().enumerate() {
            for (name, value) in q.named() {
                list.push(Counter { name: format!("port_{}_queue_{queue}_{name}", p.interface), value });
            }
        }
    }
    list
}

/// The running data path.
#[derive(Debug)]
pub struct Datapath {
    port: Arc<dyn Running>,
    why: String,
    /// Where the data plane is pinned that goes on.
    pinned: Option<PathBuf>,
    follower: FollowerThread,
}

impl Datapath {
    /// Whether all workers are at work.
    pub fn healthy(&self) -> bool {
        self.port.healthy()
    }

    /// Kind and modes of its rings, in a few words.
    pub fn summary(&self) -> String {
        self.port.summary()
    }

    /// Kind of its rings, and why it is that one.
    pub fn kind(&self) -> (&'static str, &str) {
        (self.port.kind(), &self.why)
    }

    /// Where it is pinned, if it goes on without the daemon.
    pub fn pinned(&self) -> Option<&Path> {
        self.pinned.as_deref()
    }

    /// Reads its ports' queues, also when it has ended.
    pub fn queues(&self) -> ReadQueues {
        let port = Arc::downgrade(&self.port);
        Box::new(move || port.upgrade().map_or_else(Vec::new, |p| p.queues()))
    }

    /// Ends it, when what is in its rings has been worked off: the interfaces are left as they were found, but for a data plane that is
    /// pinned.
    pub fn stop(self) {
        // The only other handle is a weak one that may be upgraded for a moment; the last one to go stops the port.
        drop(self.port);
        self.follower.stop();
    }
}

/// Interfaces of this network namespace to serve on where none is named: Ethernet, up, and not part of a bridge or bond.
///
/// # Errors
/// [`StartError::System`] where the kernel does not tell of its links, [`StartError::NoInterface`] where there is no such.
pub fn default_interfaces() -> Result<Vec<String>, StartError> {
    let asking = "asking the kernel for its interfaces";
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system(asking))?;
    let links = runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        let links: Result<Vec<LinkMessage>, _> = handle.link().get().execute().try_collect().await;
        links.map_err(std::io::Error::other)
    });
    let mut names: Vec<String> =
        links.map_err(system(asking))?.iter().filter_map(servable).map(str::to_owned).collect();
    names.sort();
    if names.is_empty() { Err(StartError::NoInterface) } else { Ok(names) }
}

/// The name of a link that is served unless others are named.
fn servable(link: &LinkMessage) -> Option<&str> {
    let ethernet = link.header.link_layer_type == LinkLayerType::Ether;
    let enslaved = link.attributes.iter().any(|a| matches!(a, LinkAttribute::Controller(_)));
    if !ethernet || enslaved || !link.header.flags.contains(LinkFlags::Up) {
        return None;
    }
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_the_tier_where_it_can_be_had() {
        let lacking = || Err(SetupError::Bpf { what: "BPF program x".into(), reason: "too large".into() });
        let choose = |rings, zero_copy, tier: bool, plain: bool| {
            let suits = || (zero_copy, "so".to_owned());
            let make = |there: bool, made| if there { Ok(made) } else { lacking() };
            tables_for(rings, suits, || make(tier, "tier"), || make(plain, "plain"), false)
                .map(|(made, chosen)| (made, chosen.rings, chosen.why))
                .map_err(|e| e.to_string())
        };
        let is = |made, rings, why: &str| Ok((made, rings, why.to_owned()));
        let xdp = Rings::Xdp { attach: Attach::Native, busy_poll: 0 };
        assert_eq!(choose(Rings::Auto, true, true, true), is("tier", xdp, "auto: so"));
        assert_eq!(choose(Rings::Auto, false, true, true), is("tier", Rings::Tc, "auto: so"));
        for zero_copy in [true, false] {
            let why = "auto: no tier, since BPF program x: too large";
            assert_eq!(choose(Rings::Auto, zero_copy, false, true), is("plain", Rings::AfPacket, why));
            assert_eq!(
                choose(Rings::Auto, zero_copy, false, false),
                Err("BPF program x: too large".to_owned())
            );
        }
        let told = "as --datapath says";
        let afxdp = Rings::AfXdp { attach: Attach::Auto, busy_poll: 9 };
        for rings in [Rings::Tc, xdp] {
            assert_eq!(choose(rings, true, true, false), is("tier", rings, told));
            assert!(choose(rings, true, false, true).is_err(), "{rings:?} without a tier");
        }
        for rings in [Rings::AfPacket, afxdp] {
            assert_eq!(choose(rings, true, false, true), is("plain", rings, told));
        }
    }

    #[test]
    fn only_ethernet_that_is_up_and_free_is_served_by_default() {
        let link = |kind, up: bool, more: Option<LinkAttribute>| {
            let mut m = LinkMessage::default();
            m.header.link_layer_type = kind;
            if up {
                m.header.flags |= LinkFlags::Up;
            }
            m.attributes.push(LinkAttribute::IfName("e0".to_owned()));
            m.attributes.extend(more);
            m
        };
        assert_eq!(servable(&link(LinkLayerType::Ether, true, None)), Some("e0"));
        assert_eq!(servable(&link(LinkLayerType::Ether, false, None)), None);
        assert_eq!(servable(&link(LinkLayerType::Loopback, true, None)), None);
        assert_eq!(servable(&link(LinkLayerType::Ether, true, Some(LinkAttribute::Controller(7)))), None);
    }
}
