//! The tier's share of the maps: what the programs and the core both read and write (`modes/bpf/tier.h`).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aya::maps::{Array, Map, MapData, ProgramArray};
use aya::programs::Program;
use aya::{Ebpf, EbpfLoader};
use ipvs_netlink::{Counter, QueueStatus, Traffic};

use super::plane::{Make, Plane};
use super::{XDP_PORTS, XDP_QUEUES, chain};
use crate::engine::{MAX_DESTS, TierMemory};
use crate::io::SetupError;
use crate::mem::Region;
use crate::route::{MAX_LINES, PortId, Routes};
use crate::service::{DestMemory, Dests};

/// Words of a processor's line.
const CPU: usize = 32;

/// What a processor counts, by its words; the first two are sequence numbers.
mod at {
    pub(super) const BEGIN: usize = 0;
    pub(super) const END: usize = 1;
    pub(super) const TRAFFIC: usize = 2;
}

/// Names of the counters from word 2 on.
const COUNTERS: [&str; 8] = [
    "tier_in_pkts",
    "tier_out_pkts",
    "tier_in_bytes",
    "tier_out_bytes",
    "tier_held",
    "tier_back",
    "tier_failed",
    "tier_unserved",
];

/// The tier's maps.
pub(crate) struct Tier {
    ports: Mutex<Array<MapData, [u8; 8]>>,
    /// What the ring's filter jumps to. The kernel empties it when its last descriptor is closed.
    _judges: ProgramArray<MapData>,
    hops: MapData,
    dests: MapData,
    counts: MapData,
    stats: MapData,
    keys: MapData,
    conf: MapData,
    cpus: Region,
    /// As [`TierMemory::conf`].
    settings: Region,
    /// Frames that were given to each AF_XDP socket, by its place.
    given: Region,
    /// The maps of both: programs that are loaded later look for them by their descriptors.
    _maps: [MapData; 2],
    plane: MapData,
    processors: usize,
    workers: usize,
}

/// Counts of frames by processor, of [`Tier::begun`].
pub(crate) type Begun = Vec<u64>;

/// Lines of pairs found last, for each processor; as in `modes/bpf/table.h`.
const HOT_LINES: u32 = 8192;

/// Gives the maps their sizes, before they are made.
pub(super) fn size(loader: &mut EbpfLoader<'_>, workers: usize) -> Result<usize, SetupError> {
    let processors = aya::util::nr_cpus().map_err(|(what, e)| SetupError::Bpf {
        what: format!("number of processors ({what})"),
        reason: e.to_string(),
    })?;
    let each = u32::try_from(processors).unwrap_or(u32::MAX);
    loader
        .map_max_entries("hops", MAX_LINES as u32 + 1)
        .map_max_entries("dests", MAX_DESTS)
        .map_max_entries("dest_counts", each.saturating_mul(MAX_DESTS))
        .map_max_entries("dest_stats", u32::try_from(workers).unwrap_or(u32::MAX).saturating_mul(MAX_DESTS))
        .map_max_entries("dest_keys", MAX_DESTS)
        .map_max_entries("tier_cpus", each)
        .map_max_entries("hot", each.saturating_mul(HOT_LINES));
    Ok(processors)
}

/// Gives the ring's filter the program that it jumps to, which must be loaded.
fn judges(ebpf: &mut Ebpf) -> Result<ProgramArray<MapData>, SetupError> {
    let odd = |reason: String| SetupError::Bpf { what: "BPF map judges".into(), reason };
    let map = ebpf.take_map("judges").ok_or_else(|| odd("not in the object".into()))?;
    let mut judges = ProgramArray::try_from(map).map_err(|e| odd(chain(&e)))?;
    let Some(Program::SocketFilter(judge)) = ebpf.program("lvsd_tier_judge") else {
        return Err(odd("its program is not in the object".into()));
    };
    let fd = judge.fd().map_err(|e| odd(chain(&e)))?;
    judges.set(0, fd, 0).map_err(|e| odd(chain(&e)))?;
    Ok(judges)
}

impl Tier {
    /// Takes the maps, of which [`size`] told the number of processors. The programs must be loaded.
    pub(super) fn take(ebpf: &mut Ebpf, make: &Make, plane: Option<&Plane>) -> Result<Tier, SetupError> {
        let (processors, workers) = (make.processors as usize, make.workers as usize);
        let judges = judges(ebpf)?;
        let mut take = |name: &'static str| match ebpf.take_map(name) {
            Some(Map::Array(data)) => Ok(data),
            _ => Err(SetupError::Bpf { what: format!("BPF map {name}"), reason: "not in the object".into() }),
        };
        let odd = |what: &str| {
            let what = format!("BPF map {what}");
            move |reason: String| SetupError::Bpf { what, reason }
        };
        let ports =
            Array::try_from(Map::Array(take("tier_ports")?)).map_err(|e| odd("tier_ports")(e.to_string()))?;
        let maps = [take("tier_cpus")?, take("xsk_given")?];
        let cpus = Region::map_fd(maps[0].fd().as_fd(), processors * CPU * 8)
            .map_err(|e| odd("tier_cpus")(e.to_string()))?;
        let sockets = XDP_PORTS * XDP_QUEUES as usize;
        let given =
            Region::map_fd(maps[1].fd().as_fd(), sockets * 8).map_err(|e| odd("xsk_given")(e.to_string()))?;
        let conf = take("tier_conf")?;
        let settings = Region::map_fd(conf.fd().as_fd(), 64).map_err(|e| odd("tier_conf")(e.to_string()))?;
        let (hops, stats, made_with) = (take("hops")?, take("dest_stats")?, take("plane")?);
        if let Some(plane) = plane {
            plane.made(make, &made_with, &stats, &hops)?;
            if !plane.is_successor() {
                // of another daemon's ports
                settings.words()[1..5].iter().for_each(|word| word.store(0, Ordering::Release));
            }
        }
        Ok(Tier {
            settings,
            given,
            _maps: maps,
            ports: Mutex::new(ports),
            _judges: judges,
            hops,
            dests: take("dests")?,
            counts: take("dest_counts")?,
            stats,
            keys: take("dest_keys")?,
            plane: made_with,
            conf,
            cpus,
            processors,
            workers,
        })
    }

    /// As [`super::BpfTables::take_turn`].
    pub(super) fn take_turn(&self, plane: &Plane) -> io::Result<()> {
        plane.take_turn(&self.plane)
    }

    /// Maps the lines of next hops.
    pub(crate) fn hops(&self) -> io::Result<Region> {
        Region::map_fd(self.hops.fd().as_fd(), Routes::MEMORY)
    }

    /// Maps what the director shares with the programs.
    pub(crate) fn memory(&self) -> io::Result<TierMemory> {
        let map = |data: &MapData, bytes| Region::map_fd(data.fd().as_fd(), bytes);
        let dests = DestMemory {
            lines: map(&self.dests, Dests::bytes(MAX_DESTS))?,
            stats: map(&self.stats, Dests::stat_bytes(MAX_DESTS, self.workers))?,
            kernel: map(&self.counts, Dests::kernel_bytes(MAX_DESTS, self.processors))?,
            keys: map(&self.keys, Dests::key_bytes(MAX_DESTS))?,
        };
        Ok(TierMemory { dests, conf: map(&self.conf, 64)? })
    }

    /// The interface by which frames for a port are sent; 0: none.
    pub(crate) fn set_port(&self, port: PortId, ifindex: u32) -> Result<(), SetupError> {
        if let Some(word) = self.settings.words().get(1 + usize::from(port.0) / 64) {
            let bit = 1u64 << (port.0 % 64);
            if ifindex == 0 {
                word.fetch_and(!bit, Ordering::Release);
            } else {
                word.fetch_or(bit, Ordering::Release);
            }
        }
        let mut line = [0; 8];
        line[..4].copy_from_slice(&ifindex.to_ne_bytes());
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports
            .set(port.0.into(), line, 0)
            .map_err(|e| SetupError::Bpf { what: "BPF map tier_ports".into(), reason: chain(&e) })
    }

    /// How many frames the XDP program has given to the socket at this place (port and queue), whatever has become of them; one more
    /// while it is about to decide.
    pub(crate) fn given(&self, place: usize) -> u64 {
        self.given.words().get(place).map_or(0, |n| n.load(Ordering::Acquire))
    }

    fn lines(&self) -> &[[AtomicU64; CPU]] {
        self.cpus.words().as_chunks().0
    }

    /// How many frames each processor has begun to look at.
    pub(crate) fn begun(&self) -> Begun {
        self.lines().iter().map(|l| l[at::BEGIN].load(Ordering::Acquire)).collect()
    }

    /// Whether all frames that had been begun then have reached their ring, or gone on.
    pub(crate) fn ended(&self, begun: &Begun) -> bool {
        self.lines()
            .iter()
            .zip(begun)
            .all(|(l, b)| l[at::END].load(Ordering::Acquire).wrapping_sub(*b) as i64 >= 0)
    }

    /// The rows of `lvsctl status`: what each processor forwarded, in and out by whatever ports.
    pub(crate) fn rows(&self, datapath: &str) -> Vec<QueueStatus> {
        let row = |(processor, line): (u32, &[AtomicU64; CPU])| {
            let [in_pkts, out_pkts, in_bytes, out_bytes] =
                std::array::from_fn(|n| line[at::TRAFFIC + n].load(Ordering::Relaxed));
            let (packets, bytes) = (in_pkts.wrapping_add(out_pkts), in_bytes.wrapping_add(out_bytes));
            QueueStatus {
                interface: "tier".to_owned(),
                queue: processor,
                attached: true,
                datapath: datapath.to_owned(),
                mode: "kernel".to_owned(),
                traffic: Traffic {
                    rx_packets: packets,
                    rx_bytes: bytes,
                    tx_packets: packets,
                    tx_bytes: bytes,
                    ..Traffic::default()
                },
                drops: Vec::new(),
                rings: Vec::new(),
            }
        };
        (0..).zip(self.lines()).map(row).collect()
    }

    /// What all processors counted.
    pub(crate) fn counters(&self) -> Vec<Counter> {
        let sum = |at: usize| {
            let words = self.lines().iter().filter_map(|l| l.get(at));
            words.fold(0, |sum: u64, w| sum.wrapping_add(w.load(Ordering::Relaxed)))
        };
        (at::TRAFFIC..)
            .zip(COUNTERS)
            .map(|(at, name)| Counter { name: name.to_owned(), value: sum(at) })
            .collect()
    }
}
