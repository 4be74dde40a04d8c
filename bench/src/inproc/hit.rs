//! `core.nat.hit.1m`: what a packet of a known NAT connection costs.

use std::sync::Arc;
use std::time::Duration;

use lvsd::datapath::{Core, CoreConfig, Pins, Rings};
use lvsd::engine::{Director, FrameHandler, Worker};
use serde_json::json;

use super::frames::{ACK, BATCH, Flow, Random, Ring, SLOTS, Wanted, establish, flows, timed};
use super::{Probe, now, rig};
use crate::report::{Bar, Row, median, spread};
use crate::{Failure, Plan};

const CONNECTIONS: u32 = 1_000_000;
/// Blocks of [`SLOTS`] frames in one round.
const BLOCKS: usize = 32;

/// Which packets.
#[derive(Clone, Copy)]
struct Mix {
    name: &'static str,
    tcp: Option<bool>,
    reply: Option<bool>,
    /// Of how many connections; few of them stay in the caches.
    of: u32,
}

/// The first is the row's value; the others say what it consists of.
const MIXES: [Mix; 5] = [
    Mix { name: "both_protocols_both_directions", tcp: None, reply: None, of: CONNECTIONS },
    Mix { name: "tcp_from_clients", tcp: Some(true), reply: Some(false), of: CONNECTIONS },
    Mix { name: "tcp_from_servers", tcp: Some(true), reply: Some(true), of: CONNECTIONS },
    Mix { name: "udp_from_clients", tcp: Some(false), reply: Some(false), of: CONNECTIONS },
    Mix { name: "both_of_1000_connections", tcp: None, reply: None, of: 1000 },
];

struct Bench {
    worker: Worker,
    flows: Vec<Flow>,
    ring: Ring,
    random: Random,
}

impl Bench {
    fn wanted(&mut self, mix: Mix) -> Vec<Wanted> {
        let one = |_| {
            let at = self.random.below(mix.of as usize);
            // flows of even numbers are TCP
            let at = mix.tcp.map_or(at, |tcp| at & !1 | usize::from(!tcp));
            let reply = mix.reply.unwrap_or(self.random.next() >> 63 != 0);
            Wanted { flow: self.flows[at], reply, flags: ACK }
        };
        (0..SLOTS).map(one).collect()
    }

    /// Nanoseconds a packet.
    fn round(&mut self, mix: Mix) -> Result<f64, Failure> {
        let mut spent = Duration::ZERO;
        for _ in 0..BLOCKS {
            let wanted = self.wanted(mix);
            spent += timed(&mut self.worker, &mut self.ring, &wanted)?;
        }
        Ok(spent.as_nanos() as f64 / (BLOCKS * SLOTS) as f64)
    }
}

/// A worker of a director that holds all connections.
fn filled(director: &Arc<Director>) -> Result<Bench, Failure> {
    let mut worker = Worker::new(director.clone(), 0);
    worker.tick(now());
    let mut flows = flows(CONNECTIONS);
    establish(&mut worker, &director.table, &mut flows, now())?;
    Ok(Bench { worker, flows, ring: Ring::new(), random: Random(88_172_645_463_325_252) })
}

/// The same with the table in BPF maps, whose pages are small, as the daemon has it.
fn in_maps(rounds: usize) -> Result<Vec<f64>, Failure> {
    let config = CoreConfig {
        interfaces: rig::PORT_NAMES.map(str::to_owned).to_vec(),
        max_v4: CONNECTIONS,
        max_v6: 1024,
        workers: 1,
        rings: Rings::AfPacket,
        pins: Pins::Nowhere,
    };
    let core = Core::new(config, false)?;
    let director = core.director()?;
    rig::furnish(&director, now())?;
    let mut bench = filled(&director)?;
    (0..rounds).map(|_| bench.round(MIXES[0])).collect()
}

/// Kilobytes of huge pages that this process has.
fn huge_pages() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("AnonHugePages:"))?;
    line.split_whitespace().next()?.parse().ok()
}

pub(crate) fn hit(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let director = rig::director(CONNECTIONS, now())?;
    let mut bench = filled(&director)?;
    let huge = huge_pages();
    let mut probes = [Probe::new(true)?, Probe::new(false)?];
    let mut ns: [Vec<f64>; MIXES.len()] = Default::default();
    let mut miss: [Vec<f64>; 2] = Default::default();
    let rounds = plan.pick(40, 100);
    for _ in 0..rounds {
        for (mix, ns) in MIXES.iter().zip(&mut ns) {
            ns.push(bench.round(*mix)?);
        }
        for (probe, miss) in probes.iter_mut().zip(&mut miss) {
            miss.push(probe.measure());
        }
    }
    let held = director.table.len(modes::Family::V4);
    drop((bench, director, probes));
    let parts: serde_json::Map<_, _> =
        MIXES.iter().zip(&ns).map(|(m, ns)| (m.name.to_owned(), spread(ns))).collect();
    let mut raw = json!({
        "formula": "median of the rounds' ns a packet, both protocols, both directions",
        "clock": "processor time of the thread",
        "connections": held,
        "batch": BATCH,
        "packets_a_round": BLOCKS * SLOTS,
        "memory": "plain, huge pages asked for",
        "huge_pages_kb": huge,
        "ns_a_packet": parts,
        "dependent_miss_ns": {"huge_pages": spread(&miss[0]), "small_pages": spread(&miss[1])},
        "rounds": ns[0],
    });
    if rustix::process::geteuid().is_root() {
        raw["ns_a_packet_in_bpf_maps"] = spread(&in_maps(rounds)?);
    }
    Ok(vec![Row::new("core.nat.hit.1m", median(&ns[0]), "ns/packet", Bar::AtMost(120.0), raw)])
}
