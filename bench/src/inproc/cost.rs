//! `cost.*`: what a packet of a known connection, and a new connection, cost as connections, services and servers grow by 10, 100 and
//! 1,000 times. No bars: the figures say which costs grow.

use std::sync::Arc;
use std::time::Duration;

use lvsd::engine::{Director, FrameHandler, Worker};
use serde_json::json;

use super::frames::{ACK, Flow, Random, Ring, SLOTS, Wanted, establish, flows_from, timed};
use super::{now, rig};
use crate::report::{Bar, Row, median, spread};
use crate::{Failure, Plan};

/// Limit of connections, whatever is in the table.
const ROOM: u32 = 2_000_000;
/// Connections of a round of new ones; each round's are others.
const NEW: u32 = SLOTS as u32 * 4;
/// First of the flows that are only made new.
const FIRST_NEW: u32 = 1 << 24;
const GROWTH: [u32; 4] = [1, 10, 100, 1000];

struct Bench {
    director: Arc<Director>,
    worker: Worker,
    ring: Ring,
    random: Random,
    flows: Vec<Flow>,
    next: u32,
}

impl Bench {
    fn new(connections: u32) -> Result<Bench, Failure> {
        let director = rig::director(ROOM, now())?;
        let mut worker = Worker::new(director.clone(), 0);
        worker.tick(now());
        let mut flows = flows_from(0, connections);
        establish(&mut worker, &director.table, &mut flows, now())?;
        let (ring, random) = (Ring::new(), Random(0x2545_f491_4f6c_dd1d));
        Ok(Bench { director, worker, ring, random, flows, next: FIRST_NEW })
    }

    /// Nanoseconds of each of these frames, all of which must be forwarded.
    fn timed(&mut self, wanted: &[Wanted]) -> Result<f64, Failure> {
        let mut spent = Duration::ZERO;
        for part in wanted.chunks(SLOTS) {
            spent += timed(&mut self.worker, &mut self.ring, part)?;
        }
        Ok(spent.as_nanos() as f64 / wanted.len() as f64)
    }

    fn known(&mut self) -> Result<f64, Failure> {
        let one = |_| {
            let flow = self.flows[self.random.below(self.flows.len())];
            Wanted { flow, reply: self.random.next() >> 63 != 0, flags: ACK }
        };
        let wanted: Vec<Wanted> = (0..8 * SLOTS).map(one).collect();
        self.timed(&wanted)
    }

    /// Of UDP, whose connections are whole with their first packet.
    fn fresh(&mut self) -> Result<f64, Failure> {
        let mut flows = flows_from(self.next, NEW);
        self.next += NEW;
        flows.iter_mut().for_each(|f| f.tcp = false);
        let wanted: Vec<Wanted> =
            flows.into_iter().map(|flow| Wanted { flow, reply: false, flags: 0 }).collect();
        self.timed(&wanted)
    }

    /// A row of each kind of cost.
    fn rows(&mut self, plan: &Plan, name: &str, growth: &serde_json::Value) -> Result<Vec<Row>, Failure> {
        let (mut known, mut fresh) = (Vec::new(), Vec::new());
        for _ in 0..plan.pick(10, 24) {
            known.push(self.known()?);
            fresh.push(self.fresh()?);
        }
        let row = |what: &str, ns: &[f64]| {
            let raw = json!({
                "formula": "median of the rounds' ns", "clock": "processor time of the thread", "at": growth,
                "ns": spread(ns), "rounds": ns,
            });
            Row::new(format!("cost.{what}.{name}"), median(ns), "ns", Bar::Nothing, raw)
        };
        Ok(vec![row("packet", &known), row("new", &fresh)])
    }
}

pub(crate) fn cost(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for times in GROWTH {
        let connections = 1000 * times;
        let growth = json!({"connections": connections, "services": 2, "servers": rig::SERVER_COUNT, "scheduler": "rr"});
        rows.extend(Bench::new(connections)?.rows(plan, &format!("connections.{connections}"), &growth)?);
    }
    for services in GROWTH {
        let mut bench = Bench::new(1000)?;
        rig::add_services(&bench.director, services)?;
        let growth = json!({"connections": 1000, "services": services + 2, "servers": rig::SERVER_COUNT, "scheduler": "rr"});
        rows.extend(bench.rows(plan, &format!("services.{services}"), &growth)?);
    }
    for scheduler in ["rr", "wlc", "maglev"] {
        for servers in GROWTH {
            let mut bench = Bench::new(1000)?;
            rig::replace_udp_servers(&bench.director, scheduler, servers, now())?;
            // what is known of UDP went with its service
            bench.flows.retain(|f| f.tcp);
            let growth =
                json!({"connections": 500, "services": 2, "servers": servers, "scheduler": scheduler});
            rows.extend(bench.rows(plan, &format!("servers.{scheduler}.{servers}"), &growth)?);
        }
    }
    Ok(rows)
}
