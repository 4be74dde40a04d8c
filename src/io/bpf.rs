//! The memory and the programs that the core shares with the kernel.

use std::collections::{BTreeSet, HashMap as StdHashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{HashMap, Map, MapData, MapError, XskMap};
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpLink;
use aya::programs::{Program, ProgramError, TestRun, TestRunAttrs, TestRunOptions, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader};
use modes::{Addr, Family};

use crate::conn::{Config, Memory, layout};
use crate::engine::MAX_DESTS;
use crate::io::{SetupError, netdev};
use crate::mem::Region;
use crate::route::Mac;
use plane::Make;

pub(crate) use plane::Plane;
pub(crate) use tier::{Begun, Tier};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lvsd.bpf.o"));

/// Name of the XDP hook, where its link is pinned.
pub(crate) const XDP_HOOK: &str = "xdp";

/// The program that sends frames for a trial.
const PROBE: &str = "lvsd_tier_probe";

const BPF_CAPABILITY: &str = "CAP_BPF and CAP_NET_ADMIN";

/// Size of the connection table's arrays, and its hash key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableShape {
    /// Index buckets (64 bytes each) for IPv4; 0 where there is no IPv4 table.
    pub buckets_v4: u32,
    /// Entries (64 bytes each) for IPv4.
    pub slots_v4: u32,
    /// Index buckets (64 bytes each) for IPv6; 0 where there is no IPv6 table.
    pub buckets_v6: u32,
    /// Entries (128 bytes each) for IPv6.
    pub slots_v6: u32,
    /// Key of the SipHash-1-3 over flow keys; the core's table must use the same.
    pub hash_key: [u64; 2],
}

/// What a tier is made for.
#[derive(Clone, Copy, Debug)]
pub struct TierPlan<'a> {
    /// Workers that count what they forward.
    pub workers: usize,
    /// Where its maps and links are pinned; nowhere if none is given, and then it ends with the process.
    pub pin_dir: Option<&'a Path>,
    /// Whether the daemon that has the directory is still at work, and will give it up ([`BpfTables::take_turn`]).
    pub successor: bool,
}

/// One of the table's arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum TableMap {
    IndexV4,
    EntriesV4,
    IndexV6,
    EntriesV6,
}

impl TableMap {
    const fn name(self) -> &'static str {
        match self {
            TableMap::IndexV4 => "index_v4",
            TableMap::EntriesV4 => "entries_v4",
            TableMap::IndexV6 => "index_v6",
            TableMap::EntriesV6 => "entries_v6",
        }
    }
}

impl TableShape {
    /// The shape of a table with this configuration.
    pub fn of(config: &Config) -> TableShape {
        TableShape {
            buckets_v4: layout::buckets(config.max_v4),
            slots_v4: layout::slots(config.max_v4),
            buckets_v6: layout::buckets(config.max_v6),
            slots_v6: layout::slots(config.max_v6),
            hash_key: config.hash_key,
        }
    }

    /// Elements of an array.
    pub const fn elements(&self, map: TableMap) -> u32 {
        match map {
            TableMap::IndexV4 => self.buckets_v4,
            TableMap::EntriesV4 => self.slots_v4,
            TableMap::IndexV6 => self.buckets_v6,
            TableMap::EntriesV6 => self.slots_v6,
        }
    }

    /// Bytes of an array, as `mem::Region` maps it.
    pub const fn bytes(&self, map: TableMap) -> usize {
        let element = match map {
            TableMap::EntriesV6 => 128,
            _ => 64,
        };
        self.elements(map) as usize * element
    }
}

/// The key of the BPF map `services`: family, protocol, port and address in network order. Protocol and port are 0 for
/// a virtual address as such.
type ServiceKey = [u8; 20];

fn service_key(family: Family, proto: u8, addr: Addr, port: u16) -> ServiceKey {
    let mut key = [0; 20];
    key[0] = family as u8;
    key[1] = proto;
    key[2..4].copy_from_slice(&port.to_be_bytes());
    match family {
        Family::V4 => key[4..8].copy_from_slice(&addr.v4().to_be_bytes()),
        Family::V6 => key[4..20].copy_from_slice(&addr.0.to_be_bytes()),
    }
    key
}

/// The value of the BPF map `ports`: an interface that AF_XDP sockets serve (`modes/bpf/xdp.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct XdpPortLine {
    /// The interface's MAC address.
    pub(crate) mac: [u8; 6],
    /// Whether the program is run by the stack, not by the driver.
    pub(crate) generic: bool,
    /// The port's place among all; its sockets' places follow from it.
    pub(crate) place: u32,
}

/// Queues of an interface that can have a socket; as in `modes/bpf/xdp.h`.
pub(crate) const XDP_QUEUES: u32 = 128;
/// Interfaces that can have AF_XDP sockets.
pub(crate) const XDP_PORTS: usize = 64;

impl XdpPortLine {
    fn bytes(self) -> [u8; 12] {
        let mut line = [0; 12];
        line[..6].copy_from_slice(&self.mac);
        line[6] = self.generic.into();
        line[8..].copy_from_slice(&(self.place * XDP_QUEUES).to_ne_bytes());
        line
    }
}

struct XdpMaps {
    ports: HashMap<MapData, u32, [u8; 12]>,
    sockets: XskMap<MapData>,
}

struct Services {
    map: HashMap<MapData, ServiceKey, u32>,
    /// What is in the map, with the services that stand on an address.
    known: StdHashMap<ServiceKey, u32>,
}

/// The key of the BPF map `macs`: interface index in host order, MAC, two zeros.
type MacKey = [u8; 12];

fn mac_key(ifindex: u32, mac: Mac) -> MacKey {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&ifindex.to_ne_bytes());
    key[4..10].copy_from_slice(&mac);
    key
}

struct Macs {
    map: HashMap<MapData, MacKey, u32>,
    known: BTreeSet<MacKey>,
}

/// The maps of the classifier, among them the connection table's memory, and its programs.
///
/// Made before the core's table, which maps the arrays into its own memory. Dropping it leaves the kernel as it was.
pub struct BpfTables {
    ebpf: Mutex<Ebpf>,
    arrays: [MapData; 4],
    services: Mutex<Services>,
    xdp: Mutex<XdpMaps>,
    macs: Mutex<Macs>,
    tier: Option<Tier>,
    plane: Option<Plane>,
    shape: TableShape,
    magic: u32,
}

impl std::fmt::Debug for BpfTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BpfTables").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl BpfTables {
    /// Makes the maps and has the kernel check the programs. `magic` marks frames that the director puts back into the
    /// stack; it should be random and must not be 0.
    ///
    /// # Errors
    ///
    /// [`SetupError::Permission`] without CAP_BPF and CAP_NET_ADMIN, [`SetupError::Verifier`] with the end of its log
    /// where the kernel refuses a program, [`SetupError::Bpf`] for everything else (not enough memory, no BPF).
    pub fn create(shape: TableShape, magic: u32) -> Result<BpfTables, SetupError> {
        BpfTables::make(shape, magic, None)
    }

    /// As [`BpfTables::create`], with the maps and programs of the tier. With a directory to pin them in, what another daemon has left
    /// there is taken over, with its hash key and mark, where it can serve ([`BpfTables::adopted`]).
    ///
    /// # Errors
    ///
    /// As there, and [`SetupError::Pins`].
    pub fn with_tier(shape: TableShape, magic: u32, plan: &TierPlan<'_>) -> Result<BpfTables, SetupError> {
        BpfTables::make(shape, magic, Some(plan))
    }

    fn make(
        mut shape: TableShape,
        mut magic: u32,
        tier: Option<&TierPlan<'_>>,
    ) -> Result<BpfTables, SetupError> {
        let arrays = [TableMap::IndexV4, TableMap::EntriesV4, TableMap::IndexV6, TableMap::EntriesV6];
        if magic == 0 {
            return Err(SetupError::Bpf {
                what: "BPF programs".into(),
                reason: "the mark of frames that are put back must not be 0".into(),
            });
        }
        let mut loader = EbpfLoader::new();
        for map in arrays {
            loader.map_max_entries(map.name(), shape.elements(map).max(1));
        }
        let mut plane = None;
        let mut made = None;
        if let Some(plan) = tier {
            let mut make = Make::new(shape, magic, plan.workers, tier::size(&mut loader, plan.workers)?);
            let open = |dir| Plane::open(dir, &mut make, plan.successor);
            plane = plan.pin_dir.map(open).transpose()?;
            (shape, magic) = (make.shape, make.magic);
            if let Some(plane) = &plane {
                plane.pin_maps(&mut loader, &make);
            }
            made = Some(make);
        }
        let generation = plane.as_ref().map_or(0, |p| p.generation);
        let max_dests = MAX_DESTS;
        let mut ebpf = loader
            .override_global("max_dests", &max_dests, true)
            .override_global("hash_key_0", &shape.hash_key[0], true)
            .override_global("hash_key_1", &shape.hash_key[1], true)
            .override_global("buckets_v4", &shape.buckets_v4, true)
            .override_global("buckets_v6", &shape.buckets_v6, true)
            .override_global("magic", &magic, true)
            .override_global("generation", &generation, true)
            .load(OBJECT)
            .map_err(|e| load_error(&shape, e))?;
        let programs: &[_] = if tier.is_some() {
            &["lvsd_tier_judge", "lvsd_tier_ring", "lvsd_tier_ingress", "lvsd_unmark", "lvsd_egress"]
        } else {
            &["lvsd_ring", "lvsd_ingress", "lvsd_unmark", "lvsd_egress"]
        };
        load_programs(&mut ebpf, programs)?;
        let tier = made.as_ref().map(|make| Tier::take(&mut ebpf, make, plane.as_ref())).transpose()?;
        let mut take = |name: &'static str| match ebpf.take_map(name) {
            Some(Map::Array(data) | Map::HashMap(data) | Map::XskMap(data)) => Ok(data),
            _ => Err(SetupError::Bpf { what: format!("BPF map {name}"), reason: "not in the object".into() }),
        };
        let arrays = [take("index_v4")?, take("entries_v4")?, take("index_v6")?, take("entries_v6")?];
        let odd = |e: MapError| SetupError::Bpf { what: "BPF maps".into(), reason: e.to_string() };
        let map = HashMap::try_from(Map::HashMap(take("services")?)).map_err(odd)?;
        let services = Mutex::new(Services { map, known: StdHashMap::new() });
        let ports = HashMap::try_from(Map::HashMap(take("ports")?)).map_err(odd)?;
        let sockets = XskMap::try_from(Map::XskMap(take("xsks")?)).map_err(odd)?;
        let xdp = Mutex::new(XdpMaps { ports, sockets });
        let map = HashMap::try_from(Map::HashMap(take("macs")?)).map_err(odd)?;
        // of another daemon's some may not be ours
        let known = map.keys().filter_map(Result::ok).collect();
        let macs = Mutex::new(Macs { map, known });
        Ok(BpfTables { ebpf: Mutex::new(ebpf), arrays, services, xdp, macs, tier, plane, shape, magic })
    }

    /// An array's file descriptor, to be mapped with [`TableShape::bytes`].
    pub fn fd(&self, map: TableMap) -> BorrowedFd<'_> {
        self.arrays[map as usize].fd().as_fd()
    }

    /// Maps the arrays, for [`crate::conn::ConnTable::with_memory`].
    ///
    /// # Errors
    ///
    /// Those of `mmap`.
    pub fn memory(&self) -> std::io::Result<Memory> {
        let region = |map| Region::map_fd(self.fd(map), self.shape.bytes(map));
        Ok(Memory {
            v4_entries: region(TableMap::EntriesV4)?,
            v4_index: region(TableMap::IndexV4)?,
            v6_entries: region(TableMap::EntriesV6)?,
            v6_index: region(TableMap::IndexV6)?,
        })
    }

    /// Whether another daemon is at work, whose turn it still is.
    pub fn is_successor(&self) -> bool {
        self.plane.as_ref().is_some_and(Plane::is_successor)
    }

    /// What goes up the rings is ours from now on; of the daemon before us only what it has got already.
    ///
    /// # Errors
    /// [`SetupError::Os`] where the map can't be written.
    pub fn take_turn(&self) -> Result<(), SetupError> {
        match (&self.plane, &self.tier) {
            (Some(plane), Some(tier)) => tier
                .take_turn(plane)
                .map_err(|e| SetupError::os("taking over from another lvsd", BPF_CAPABILITY, e)),
            _ => Ok(()),
        }
    }

    /// The daemon before us has ended: its directory is ours.
    ///
    /// # Errors
    /// [`SetupError::Pins`].
    pub fn lock_plane(&self) -> Result<(), SetupError> {
        self.plane.as_ref().map_or(Ok(()), Plane::lock)
    }

    /// All services have been told of: those of another daemon are forgotten.
    pub fn forget_other_services(&self) {
        let mut s = self.services();
        let Services { map, known } = &mut *s;
        let others: Vec<_> =
            map.keys().filter_map(Result::ok).filter(|key| !known.contains_key(key)).collect();
        for key in others {
            if let Err(e) = map.remove(&key) {
                tracing::error!(
                    "BPF map services: {e}; packets to a removed service still come to the director"
                );
            }
        }
    }

    /// Whether the table holds the connections of another daemon.
    pub fn adopted(&self) -> bool {
        self.plane.as_ref().is_some_and(Plane::is_adopted)
    }

    /// From now on the data plane goes on when we end, with links at these hooks of these interfaces only; gives where it is pinned.
    pub(crate) fn keep(&self, interfaces: &[String], hooks: &[&str]) -> Option<PathBuf> {
        let plane = self.plane.as_ref()?;
        let wanted: Vec<u32> = interfaces.iter().filter_map(|name| netdev::index(name)).collect();
        plane.retain(|index, hook| wanted.contains(&index) && hooks.contains(&hook));
        plane.keep();
        Some(plane.path().to_owned())
    }

    /// The data plane that goes on without us, where there is one.
    pub(crate) fn plane(&self) -> Option<&Plane> {
        self.plane.as_ref()
    }

    /// Whether what is attached to an interface stays there when we let go of it.
    pub(crate) fn goes_on(&self, name: &str, index: u32) -> bool {
        self.plane.as_ref().is_some_and(Plane::is_kept) && netdev::index(name) == Some(index)
    }

    /// The shape it was made with.
    pub fn shape(&self) -> &TableShape {
        &self.shape
    }

    /// The mark of frames that are put back.
    pub(crate) fn magic(&self) -> u32 {
        self.magic
    }

    /// The tier's maps, where there is one.
    pub(crate) fn tier(&self) -> Option<&Tier> {
        self.tier.as_ref()
    }

    pub(crate) fn programs(&self) -> MutexGuard<'_, Ebpf> {
        self.ebpf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn xdp(&self) -> MutexGuard<'_, XdpMaps> {
        self.xdp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn services(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BpfTables {
    /// Has the kernel check the XDP program, if it has not yet; only AF_XDP ports need it.
    pub(crate) fn load_xdp(&self) -> Result<(), SetupError> {
        self.load_one_xdp(self.xdp_program())?;
        if self.tier.is_some() { self.load_one_xdp(PROBE) } else { Ok(()) }
    }

    /// The XDP program of AF_XDP ports.
    const fn xdp_program(&self) -> &'static str {
        if self.tier.is_some() { "lvsd_tier_xdp" } else { "lvsd_xdp" }
    }

    fn load_one_xdp(&self, name: &'static str) -> Result<(), SetupError> {
        let mut programs = self.programs();
        let Some(Program::Xdp(p)) = programs.program_mut(name) else {
            return Err(SetupError::Bpf {
                what: format!("BPF program {name}"),
                reason: "not in the object".into(),
            });
        };
        match p.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(()),
            Err(e) => Err(program_error(name, &e)),
        }
    }

    /// Sends `count` frames, each out of the interface whose index is in its bytes 14 to 17.
    pub(crate) fn probe(&self, frame: &[u8], count: u32) -> Result<(), ProgramError> {
        let programs = self.programs();
        let Some(Program::Xdp(p)) = programs.program(PROBE) else { return Err(ProgramError::NotLoaded) };
        p.test_run(TestRunOptions {
            data_in: Some(frame),
            repeat: count,
            attrs: TestRunAttrs::new().xdp_live_frames(count),
            ..TestRunOptions::new()
        })?;
        Ok(())
    }

    /// Whether another daemon's XDP program is on the interface, which ours can take the place of.
    pub(crate) fn has_xdp_link(&self, index: u32) -> bool {
        self.plane.as_ref().is_some_and(|plane| plane.link(index, XDP_HOOK).is_some())
    }

    /// The XDP program's link goes with its last owner.
    pub(crate) fn forget_xdp_link(&self, index: u32) {
        if let Some(plane) = &self.plane {
            plane.unpin_link(index, XDP_HOOK);
        }
    }

    /// Attaches the XDP program by a link, which goes with the process, or is pinned. A pinned one that is there gets our program.
    pub(crate) fn attach_xdp(&self, index: u32, mode: XdpMode) -> Result<FdLink, ProgramError> {
        let mut programs = self.programs();
        let Some(Program::Xdp(p)) = programs.program_mut(self.xdp_program()) else {
            return Err(ProgramError::NotLoaded);
        };
        let plane = self.plane.as_ref().filter(|_| matches!(mode, XdpMode::Driver));
        if let Some(old) = plane.and_then(|plane| plane.link(index, XDP_HOOK)) {
            let replaced = XdpLink::try_from(old).map_err(|_| ProgramError::NotAttached);
            match replaced.and_then(|link| p.attach_to_link(link)).and_then(|id| p.take_link(id)) {
                Ok(link) => return FdLink::try_from(link).map_err(|_| ProgramError::NotAttached),
                Err(e) => {
                    tracing::debug!("interface {index}: the pinned XDP link: {e}");
                }
            }
        }
        if let Some(plane) = &self.plane {
            plane.unpin_link(index, XDP_HOOK);
        }
        let id = p.attach_to_if_index(index, mode)?;
        let link = p.take_link(id)?;
        // not one by netlink, which would stay after us
        let link = FdLink::try_from(link).map_err(|_| ProgramError::NotAttached)?;
        match plane {
            Some(plane) => Ok(plane.pin_link(link, index, XDP_HOOK)?),
            None => Ok(link),
        }
    }

    /// From now on frames of an interface go to its sockets; or its line changes.
    pub(crate) fn set_xdp_port(&self, index: u32, line: XdpPortLine) -> Result<(), SetupError> {
        self.xdp()
            .ports
            .insert(index, line.bytes(), 0)
            .map_err(|e| SetupError::Bpf { what: "BPF map ports".into(), reason: chain(&e) })
    }

    /// From now on all frames of an interface go to the stack.
    pub(crate) fn remove_xdp_port(&self, index: u32) {
        // not there where it was never set
        let _ = self.xdp().ports.remove(&index);
    }

    /// Puts a queue's socket where the program finds it. It vanishes from there by itself when it is closed.
    pub(crate) fn set_xdp_socket(
        &self,
        place: u32,
        queue: u32,
        fd: BorrowedFd<'_>,
    ) -> Result<(), SetupError> {
        use std::os::fd::AsRawFd;
        self.xdp()
            .sockets
            .set(place * XDP_QUEUES + queue, fd.as_raw_fd(), 0)
            .map_err(|e| SetupError::Bpf { what: "BPF map xsks".into(), reason: chain(&e) })
    }
}

impl BpfTables {
    /// A service is there: packets to it are the director's. `proto` is the IP protocol, `port` in host order (0: all).
    /// `false` where the map has no room for it; nothing has changed then.
    pub fn service_added(&self, family: Family, proto: u8, addr: Addr, port: u16) -> bool {
        let (key, vip) = (service_key(family, proto, addr, port), service_key(family, 0, addr, 0));
        let mut s = self.services();
        if s.known.contains_key(&key) {
            return true;
        }
        let inserted = s.map.insert(vip, 1, 0).and_then(|()| s.map.insert(key, 1, 0));
        if let Err(e) = inserted {
            tracing::warn!("BPF map services has no room for another service: {e}");
            if !s.known.contains_key(&vip) {
                // Not there where its own insertion failed.
                let _ = s.map.remove(&vip);
            }
            return false;
        }
        s.known.insert(key, 1);
        *s.known.entry(vip).or_default() += 1;
        true
    }

    /// It is gone.
    pub fn service_removed(&self, family: Family, proto: u8, addr: Addr, port: u16) {
        let (key, vip) = (service_key(family, proto, addr, port), service_key(family, 0, addr, 0));
        let mut s = self.services();
        if s.known.remove(&key).is_none() {
            return;
        }
        let mut gone = s.map.remove(&key);
        let last = match s.known.get_mut(&vip) {
            Some(n) if *n > 1 => {
                *n -= 1;
                false
            }
            _ => true,
        };
        if last {
            s.known.remove(&vip);
            gone = gone.and(s.map.remove(&vip));
        }
        if let Err(e) = gone {
            tracing::error!("BPF map services: {e}; packets to a removed service still come to the director");
        }
    }
}

impl BpfTables {
    /// Frames to these MACs on these interfaces (by index) are the director's like those to the interface's own: macvlans on
    /// top of ports. All that were named before and are not here no longer are.
    pub fn set_macs(&self, macs: &[(u32, Mac)]) {
        let wanted: BTreeSet<MacKey> = macs.iter().map(|(ifindex, mac)| mac_key(*ifindex, *mac)).collect();
        let mut m = self.macs.lock().unwrap_or_else(PoisonError::into_inner);
        let Macs { map, known } = &mut *m;
        for key in known.difference(&wanted) {
            if let Err(e) = map.remove(key) {
                tracing::warn!("BPF map macs: a MAC cannot be taken out: {e}");
            }
        }
        known.retain(|key| wanted.contains(key));
        for key in wanted {
            if known.contains(&key) {
                continue;
            }
            match map.insert(key, 1, 0) {
                Ok(()) => {
                    known.insert(key);
                }
                Err(e) => {
                    tracing::warn!("BPF map macs has no room for all MACs of macvlans: {e}");
                    return;
                }
            }
        }
    }
}

fn load_error(shape: &TableShape, e: EbpfError) -> SetupError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&e);
    while let Some(s) = source {
        if let Some(io) = s.downcast_ref::<std::io::Error>() {
            match io.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    return SetupError::Permission { what: "BPF maps".into(), capability: BPF_CAPABILITY };
                }
                Some(libc::ENOMEM | libc::E2BIG) => {
                    return SetupError::Bpf {
                        what: format!(
                            "connection table of {} IPv4 and {} IPv6 entries",
                            shape.slots_v4, shape.slots_v6
                        ),
                        reason: format!("{io}; use a lower --max-connections"),
                    };
                }
                _ => {}
            }
        }
        source = s.source();
    }
    SetupError::Bpf { what: "BPF maps".into(), reason: chain(&e) }
}

/// An error with all its causes, on one line.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        let s_text = s.to_string();
        if !text.contains(&s_text) {
            text = format!("{text}: {s_text}");
        }
        source = s.source();
    }
    text.replace('\n', " | ")
}

fn load_programs(ebpf: &mut Ebpf, names: &[&'static str]) -> Result<(), SetupError> {
    for &name in names {
        let loaded = match ebpf.program_mut(name) {
            Some(Program::SocketFilter(p)) => p.load(),
            Some(Program::SchedClassifier(p)) => p.load(),
            _ => {
                return Err(SetupError::Bpf {
                    what: format!("BPF program {name}"),
                    reason: "not in the object".into(),
                });
            }
        };
        loaded.map_err(|e| program_error(name, &e))?;
    }
    Ok(())
}

fn program_error(program: &'static str, e: &ProgramError) -> SetupError {
    match e {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            if log.trim().is_empty() {
                return SetupError::os(
                    format!("BPF program {program}"),
                    BPF_CAPABILITY,
                    std::io::Error::from_raw_os_error(io_error.raw_os_error().unwrap_or(libc::EINVAL)),
                );
            }
            let lines: Vec<&str> = log.lines().filter(|l| !l.trim().is_empty()).collect();
            let tail = lines[lines.len().saturating_sub(6)..].join(" | ");
            SetupError::Verifier { program, log: tail }
        }
        e => SetupError::Bpf { what: format!("BPF program {program}"), reason: chain(e) },
    }
}

mod plane;
#[cfg(test)]
mod tests;
mod tier;
