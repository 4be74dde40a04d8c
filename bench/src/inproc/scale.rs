//! `tick.max`, `expire.batch.p999`: ten million connections, of which a million end in the same second; and how long control
//! holds what workers wait for.
//!
//! Time is virtual, and passes as it does for a worker that gets a batch of 64 packets every 64 µs: what is left of these is
//! spent with timers, as the worker's loop does.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipvs_netlink::{Backend, Dest, ServiceKey};
use lvsd::engine::{Director, FrameHandler, Worker};
use lvsd::time::Now;
use modes::Family;
use schedulers::{Built, Options, Scheduler, Servers};
use serde_json::{Value, json};

use super::frames::{ACK, BATCH, Flow, Random, Ring, SLOTS, Wanted, establish, flows_from};
use super::{CpuTime, now, rig};
use crate::report::{Bar, Row, median, per_mille, percentile, spread};
use crate::{Failure, Plan};

/// Connections that end together.
const ENDING: u32 = 1_000_000;
/// Time between two batches: a million packets a second.
const PERIOD: Duration = Duration::from_micros(64);
/// Seconds after which a UDP connection ends: short, for TCP's to outlive several such ends.
const UDP_SECS: u64 = 60;
/// Servers left of the TCP service, so that each has more than a million connections.
const SERVERS: u8 = 8;
/// Servers of each of the services whose schedulers have tables.
const MANY: u32 = 1000;

/// What rounds of one batch, and the timers after it, took; microseconds.
#[derive(Default)]
struct Rounds {
    /// Batch and the timers' turn that follows on it, which the next batch waits for.
    round: Vec<f64>,
    batch: Vec<f64>,
    tick: Vec<f64>,
    /// Virtual time that passed.
    seconds: f64,
}

impl Rounds {
    fn json(&self) -> Value {
        let of = |v: &[f64]| json!({"p50": median(v), "p99.9": per_mille(v, 999), "max": percentile(v, 100)});
        json!({
            "rounds": self.round.len(), "batch_us": of(&self.batch), "batch_and_tick_us": of(&self.round),
            "tick_us": of(&self.tick), "virtual_seconds": self.seconds,
        })
    }
}

struct Bench {
    worker: Worker,
    director: Arc<Director>,
    flows: Vec<Flow>,
    ring: Ring,
    random: Random,
    now: Now,
}

fn us(t: Duration) -> f64 {
    t.as_nanos() as f64 / 1e3
}

impl Bench {
    /// Rounds of packets of known connections, as long as `on` says so of their number.
    fn rounds(&mut self, on: impl Fn(usize, &Director) -> bool) -> Result<Rounds, Failure> {
        let mut r = Rounds::default();
        let begin = self.now;
        let mut verdicts = Vec::with_capacity(BATCH);
        while on(r.round.len(), &self.director) {
            let one = |_| {
                let flow = self.flows[self.random.below(self.flows.len())];
                Wanted { flow, reply: self.random.next() >> 63 != 0, flags: ACK }
            };
            let wanted: Vec<Wanted> = (0..SLOTS).map(one).collect();
            for batch in self.ring.fill(&wanted).chunks_mut(BATCH) {
                verdicts.clear();
                let start = CpuTime::now();
                self.worker.batch(self.now, batch, &mut verdicts);
                let batch = start.elapsed();
                let mut used = batch;
                let mut after = None;
                while self.worker.next_deadline(self.now) <= self.now {
                    let start = CpuTime::now();
                    self.worker.tick(self.now);
                    let tick = start.elapsed();
                    r.tick.push(us(tick));
                    after.get_or_insert(tick);
                    used += tick;
                    if used >= PERIOD {
                        break;
                    }
                }
                r.batch.push(us(batch));
                r.round.push(us(batch + after.unwrap_or_default()));
                self.now.0 += used.max(PERIOD).as_nanos() as u64;
            }
        }
        r.seconds = (self.now.0 - begin.0) as f64 / 1e9;
        Ok(r)
    }

    /// Makes a million UDP connections and lets them end in the same second: rounds shortly before, and meanwhile.
    fn end_a_million(&mut self, first: u32) -> Result<[Rounds; 2], Failure> {
        // places that were given up rest for a while
        self.rounds(|n, _| n < 10_000)?;
        let mut ending = flows_from(first, ENDING);
        ending.iter_mut().for_each(|f| f.tcp = false);
        let kept = self.director.table.len(Family::V4);
        establish(&mut self.worker, &self.director.table, &mut ending, self.now)?;
        let end = self.now.0 + UDP_SECS * 1_000_000_000;
        self.now = Now(end - 6_000_000_000);
        // the wheels turn up to now
        self.rounds(|n, _| n < 20_000)?;
        let quiet = self.rounds(|n, _| n < 20_000)?;
        self.now = Now(end - 100_000_000);
        let all = kept + ENDING as usize;
        self.rounds(|_, d| d.table.len(Family::V4) == all)?;
        let storm = self.rounds(|n, d| n < 1_000_000 && d.table.len(Family::V4) > kept)?;
        if self.director.table.len(Family::V4) != kept {
            return Err("the connections did not end".into());
        }
        Ok([quiet, storm])
    }

    /// Processor time of a change of control, and of the batch of packets after it.
    fn change(&mut self, f: impl FnOnce(&Director, Now) -> Result<(), Failure>) -> Result<Value, Failure> {
        let start = CpuTime::now();
        f(&self.director, self.now)?;
        let change = start.elapsed();
        let after = self.rounds(|n, _| n == 0)?;
        Ok(json!({"change_us": us(change), "next_batch_us": after.batch[0]}))
    }
}

fn fill(connections: u32) -> Result<Bench, Failure> {
    let begin = now();
    let director = rig::director(connections, begin)?;
    let tcp = service_key(6, rig::PORT);
    for n in SERVERS..rig::SERVER_COUNT {
        let done = director.delete_dest(&tcp, rig::server(n).into(), rig::REAL_PORT);
        done.map_err(|e| format!("deleting a server: {e:?}"))?;
    }
    let mut worker = Worker::new(director.clone(), 0);
    worker.tick(begin);
    let timeouts = ipvs_netlink::Timeouts { tcp: 0, tcp_fin: 0, udp: UDP_SECS as u32 };
    director.set_timeouts(timeouts).map_err(|e| format!("setting timeouts: {e:?}"))?;
    let mut flows = flows_from(0, connections - ENDING);
    flows.iter_mut().for_each(|f| f.tcp = true);
    establish(&mut worker, &director.table, &mut flows, begin)?;
    Ok(Bench { worker, director, flows, ring: Ring::new(), random: Random(0x9e37_79b9), now: begin })
}

fn service_key(protocol: u8, port: u16) -> ServiceKey {
    ServiceKey::Addr { protocol, addr: rig::VIP.into(), port }
}

/// A scheduler whose long work, done without the service's lock, is timed.
struct Timed(Box<dyn Scheduler>, Arc<AtomicU64>);

impl Scheduler for Timed {
    fn pick(&mut self, servers: &dyn Servers, flow: &schedulers::Flow) -> Option<usize> {
        self.0.pick(servers, flow)
    }
    fn added(&mut self, servers: &dyn Servers, index: usize) {
        self.0.added(servers, index);
    }
    fn removed(&mut self, servers: &dyn Servers, index: usize) {
        self.0.removed(servers, index);
    }
    fn changed(&mut self, servers: &dyn Servers, index: usize) {
        self.0.changed(servers, index);
    }
    fn prepare(&mut self, servers: &dyn Servers) {
        self.0.prepare(servers);
    }
    fn plan(&mut self, servers: &dyn Servers) -> Option<schedulers::Plan> {
        let (plan, spent) = (self.0.plan(servers)?, self.1.clone());
        Some(schedulers::Plan::new(move || {
            let begin = CpuTime::now();
            let built = plan.build();
            spent.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
            built
        }))
    }
    fn install(&mut self, built: &mut Built) {
        if let Some(built) = built.of::<Built>() {
            self.0.install(built);
        }
    }
}

/// No servers at all.
struct Nobody;

impl Servers for Nobody {
    fn len(&self) -> usize {
        0
    }
    fn load(&self, _: usize) -> schedulers::Load {
        schedulers::Load { weight: 0, active: 0, inactive: 0, overloaded: true }
    }
    fn identity(&self, _: usize) -> (IpAddr, u16) {
        (Ipv4Addr::UNSPECIFIED.into(), 0)
    }
}

type Change<'a> = (&'static str, &'a dyn Fn(u32) -> Result<(), ipvs_netlink::Errno>);

/// Processor time of changes of a service with a thousand servers, without what is done without its lock: no hold of that can be
/// longer. The largest median of the repetitions, and all.
fn holds(director: &Director, scheduler: &str, port: u16, times: u32) -> Result<(f64, Value), Failure> {
    let key = service_key(6, port);
    let refused = |e| format!("{scheduler}: {e:?}");
    director.add_service(&rig::service(key, scheduler)).map_err(refused)?;
    let spent = Arc::new(AtomicU64::new(0));
    {
        let service = director.services.get(&key).ok_or("no service")?;
        let any = schedulers::create("rr", &Options::default(), &Nobody).map_err(|e| e.to_string())?;
        let mut inner = service.lock();
        let scheduler = std::mem::replace(&mut inner.scheduler, any);
        inner.scheduler = Box::new(Timed(scheduler, spent.clone()));
    }
    let addr = |n| Ipv4Addr::from(0x0a01_8000 + n % MANY);
    let dest = |n, weight| Dest { weight, ..rig::dest(addr(n)) };
    for n in 0..MANY {
        director.add_dest(&key, &dest(n, 1)).map_err(refused)?;
    }
    let changes: [Change<'_>; 7] = [
        ("edit_dest", &|n| director.edit_dest(&key, &dest(n, n as i32 % 7 + 2))),
        ("delete_dest", &|n| director.delete_dest(&key, addr(n).into(), rig::REAL_PORT)),
        ("add_dest", &|n| director.add_dest(&key, &dest(n, 1))),
        ("list_dests", &|_| director.dests(&key).map(|_| ())),
        ("estimate", &|_| {
            director.estimate();
            Ok(())
        }),
        ("zero", &|_| director.zero(Some(&key))),
        ("delete_service", &|n| if n == 0 { director.delete_service(&key) } else { Ok(()) }),
    ];
    let mut found = serde_json::Map::new();
    let mut worst = 0.0f64;
    for (name, change) in changes {
        let (mut held, mut built) = (Vec::new(), Vec::new());
        for n in 0..if name == "delete_service" { 1 } else { times } {
            spent.store(0, Ordering::Relaxed);
            let begin = CpuTime::now();
            change(n).map_err(refused)?;
            let all = begin.elapsed();
            let without = Duration::from_nanos(spent.load(Ordering::Relaxed));
            held.push(us(all.saturating_sub(without)));
            built.push(us(without));
        }
        // a service is taken apart in several holds
        if name != "delete_service" {
            worst = worst.max(median(&held));
        }
        found.insert(name.to_owned(), json!({"with_lock": spread(&held), "without_lock": spread(&built)}));
    }
    Ok((worst, Value::Object(found)))
}

pub(crate) fn scale(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let connections = plan.pick(3_000_000, 10_000_000);
    let mut bench = fill(connections)?;
    let held = bench.director.table.len(Family::V4) + ENDING as usize;
    let storms: Vec<[Rounds; 2]> =
        (0..plan.pick(3, 5)).map(|_| bench.end_a_million(connections - ENDING)).collect::<Result<_, _>>()?;
    let tcp = service_key(6, rig::PORT);
    let victim = rig::server(0);
    let of_victim = bench.director.dests(&tcp).map_err(|e| format!("{e:?}"))?;
    let of_victim = of_victim.iter().find(|d| d.dest.addr == IpAddr::from(victim)).map(|d| d.active);
    let deleted = bench.change(|d, _| {
        Ok(d.delete_dest(&tcp, victim.into(), rig::REAL_PORT).map_err(|e| format!("{e:?}"))?)
    })?;
    let routed = bench.change(|d, now| {
        d.routes.apply(rig::change_of_route(), now);
        Ok(())
    })?;
    let mut locks = serde_json::Map::new();
    let mut longest = 0.0f64;
    for (n, scheduler) in ["rr", "sh", "mh", "maglev"].into_iter().enumerate() {
        let (worst, found) = holds(&bench.director, scheduler, 1000 + n as u16, plan.pick(9, 25))?;
        longest = longest.max(worst);
        locks.insert(scheduler.to_owned(), found);
    }
    let number = |v: &Value| v["change_us"].as_f64().unwrap_or(f64::MAX);
    let control = longest.max(number(&deleted)).max(number(&routed));
    let of = |f: &dyn Fn(&[Rounds; 2]) -> f64| storms.iter().map(f).collect::<Vec<f64>>();
    let ticks = of(&|[quiet, storm]| percentile(&quiet.tick, 100).max(percentile(&storm.tick, 100)));
    let tick = median(&ticks);
    let raw = json!({
        "formula": "the largest of longest_tick_us.median, longest_lock_us, delete_dest.change_us, route_change.change_us",
        "clock": "processor time of the thread; of locks, that of the whole change less what it built without the lock (medians)",
        "connections": held,
        "ending_in_one_second": ENDING,
        "longest_tick_us": spread(&ticks),
        "longest_lock_us": longest,
        "delete_dest": {"connections_of_the_server": of_victim, "took": deleted},
        "route_change": routed,
        "locks_of_1000_servers_us": locks,
    });
    let ratios = of(&|[quiet, storm]| per_mille(&storm.round, 999) / per_mille(&quiet.round, 999));
    let ratio = median(&ratios);
    let both: Vec<Value> =
        storms.iter().map(|[quiet, storm]| json!({"quiet": quiet.json(), "storm": storm.json()})).collect();
    let both = json!({
        "formula": "median of the ends' storm.batch_and_tick_us.p99.9 / quiet.batch_and_tick_us.p99.9",
        "connections": held,
        "ending_in_one_second": ENDING,
        "ratios": ratios,
        "ends": both,
    });
    Ok(vec![
        Row::new("tick.max", tick.max(control), "us", Bar::AtMost(200.0), raw),
        Row::new("expire.batch.p999", ratio, "ratio", Bar::AtMost(1.5), both),
    ])
}
