//! What every scheduler promises, whatever the servers and whatever happens to them.

mod common;

use common::{Service, flow, flows, server};
use proptest::prelude::*;
use schedulers::{Options, names};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Something that happens to a service; the number chooses the server, modulo how many there are.
#[derive(Clone, Debug)]
enum Event {
    Add { weight: u32 },
    Remove(usize),
    Weight(usize, u32),
    Overload(usize, bool),
    Switch(usize),
    Connections(u32),
    Prepare,
}

fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 6 => 1..=10_u32, 2 => 11..=1000_u32, 1 => Just(i32::MAX as u32)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => weight().prop_map(|weight| Event::Add { weight }),
        2 => any::<usize>().prop_map(Event::Remove),
        3 => (any::<usize>(), weight()).prop_map(|(at, weight)| Event::Weight(at, weight)),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(at, full)| Event::Overload(at, full)),
        1 => any::<usize>().prop_map(Event::Switch),
        6 => (1..20_u32).prop_map(Event::Connections),
        1 => Just(Event::Prepare),
    ]
}

/// Options of scheduler `name`, with a table small enough for quick tests.
fn options(name: &str, fallback: bool, port: bool) -> Options {
    Options { fallback, port, table_size: (name == "maglev").then_some(251) }
}

/// Whether the scheduler must find a server whenever one is available.
fn always_finds(name: &str) -> bool {
    !matches!(name, "dh" | "sh" | "mh" | "ovf")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_available_servers_are_chosen(
        first in 0..8_usize,
        (fallback, port) in any::<(bool, bool)>(),
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let mut name = names()[first].name;
        let mut service = Service::new(name, &options(name, fallback, port)).unwrap();
        let mut added = 0;
        let mut client = 0;
        for event in events {
            let len = service.pool.0.len();
            match event {
                Event::Add { weight } => {
                    added += 1;
                    service.add(server(added), weight);
                }
                Event::Switch(to) => {
                    name = names()[to % names().len()].name;
                    service.switch(name, &options(name, fallback, port)).unwrap();
                }
                Event::Connections(count) => for _ in 0..count {
                    client += 1;
                    let flow = flow(client, client as u16);
                    let chosen = service.scheduler.pick(&service.pool, &flow);
                    let available = service.pool.0.iter().filter(|server| server.load.is_available()).count();
                    if let Some(index) = chosen {
                        prop_assert!(index < len, "{name} chose {index} of {len}");
                        let load = &mut service.pool.0[index].load;
                        prop_assert!(load.is_available(), "{name} chose {load:?}");
                        load.active += 1;
                    } else if always_finds(name) {
                        prop_assert_eq!(available, 0, "{} found none", name);
                    }
                },
                Event::Prepare => service.scheduler.prepare(&service.pool),
                _ if len == 0 => {}
                Event::Remove(at) => {
                    let at = service.pool.0[at % len].at;
                    service.remove(at);
                }
                Event::Weight(at, weight) => {
                    let at = service.pool.0[at % len].at;
                    service.set_weight(at, weight);
                }
                Event::Overload(at, full) => service.pool.0[at % len].load.overloaded = full,
            }
        }
    }

    #[test]
    fn round_robin_spreads_within_one(
        weights in proptest::collection::vec(weight(), 1..20), count in 1..200_u32,
    ) {
        let mut service = Service::with("rr", &Options::default(), &weights);
        let counts = count_picks(&mut service, count);
        let each: Vec<u32> = (1..).zip(&weights).filter(|(_, weight)| **weight > 0)
            .map(|(k, _)| counts.get(&server(k)).copied().unwrap_or(0)).collect();
        if let (Some(most), Some(least)) = (each.iter().max(), each.iter().min()) {
            prop_assert!(most - least <= 1, "{:?}", each);
            prop_assert_eq!(each.iter().sum::<u32>(), count);
        }
    }

    #[test]
    fn weighted_round_robin_is_exact_over_a_cycle(
        weights in proptest::collection::vec(0..=12_u32, 1..12), factor in 1..=1000_u32, cycles in 1..4_u32,
    ) {
        let scaled: Vec<u32> = weights.iter().map(|weight| weight * factor).collect();
        let divisor = weights.iter().fold(0, |a, b| gcd(a, *b)).max(1);
        let cycle: u32 = weights.iter().map(|weight| weight / divisor).sum();
        let mut service = Service::with("wrr", &Options::default(), &scaled);
        let counts = count_picks(&mut service, cycle * cycles);
        for (k, weight) in (1..).zip(&weights) {
            let count = counts.get(&server(k)).copied().unwrap_or(0);
            prop_assert_eq!(count, weight / divisor * cycles, "server {} of {:?}", k, weights);
        }
    }

    #[test]
    fn weighted_round_robin_jumps_to_where_steps_would_lead(
        weights in proptest::collection::vec(0..=9_u32, 1..7),
        full in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 7), 1..40),
    ) {
        // Made with all servers at once: the level is the top, not what adding them one by one leaves.
        let mut service = Service::with("rr", &Options::default(), &weights);
        service.switch("wrr", &Options::default()).unwrap();
        let mut steps = Steps::new(&service);
        for full in full {
            for (server, full) in service.pool.0.iter_mut().zip(full) {
                server.load.overloaded = full;
            }
            let expected = steps.pick(&service);
            prop_assert_eq!(service.scheduler.pick(&service.pool, &flow(1, 1)), expected);
        }
    }

    #[test]
    fn least_connections_finds_the_least(
        loads in proptest::collection::vec((weight(), 0..2000_u32, 0..2000_u32, any::<bool>()), 1..20),
    ) {
        for name in ["lc", "wlc"] {
            let mut service = Service::with(name, &Options::default(), &loads.iter().map(|load| load.0).collect::<Vec<_>>());
            for (server, load) in service.pool.0.iter_mut().rev().zip(&loads) {
                (server.load.active, server.load.inactive, server.load.overloaded) = (load.1, load.2, load.3);
            }
            let load = |index: usize| service.pool.0[index].load;
            let cost = |index: usize| {
                let weight = if name == "wlc" { f64::from(load(index).weight) } else { 1.0 };
                (f64::from(load(index).active) * 257.0 + f64::from(load(index).inactive)) / weight
            };
            let least = (0..loads.len()).filter(|&index| load(index).is_available())
                .min_by(|&a, &b| cost(a).total_cmp(&cost(b))).map(cost);
            let chosen = service.scheduler.pick(&service.pool, &flow(1, 1)).map(cost);
            prop_assert_eq!(chosen, least, "{}", name);
        }
    }

    #[test]
    fn maglev_depends_on_the_servers_only(
        weights in proptest::collection::vec(weight(), 1..20), seed in any::<u64>(), extra in 1..5_u32,
    ) {
        let options = options("maglev", false, false);
        let mut one = Service::with("maglev", &options, &weights);
        let mut order: Vec<u32> = (0..weights.len() as u32).collect();
        order.sort_by_key(|k| (u64::from(*k) + 1).wrapping_mul(seed | 1));
        let mut two = Service::new("maglev", &options).unwrap();
        for k in order {
            two.add(server(k + 1), weights[k as usize]);
            // Servers that come and go between leave no trace.
            two.add(server(100 + extra), 3);
            two.pick(&flow(1, 1));
            two.remove(server(100 + extra));
        }
        let flows = flows(300);
        prop_assert_eq!(one.picks(&flows), two.picks(&flows));
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn count_picks(service: &mut Service, count: u32) -> HashMap<SocketAddr, u32> {
    let mut counts = HashMap::new();
    for flow in flows(count) {
        if let Some(at) = service.pick(&flow) {
            *counts.entry(at).or_insert(0) += 1;
        }
    }
    counts
}

/// Weighted round robin that walks level by level.
struct Steps {
    last: Option<usize>,
    level: u32,
    top: u32,
    step: u32,
}

impl Steps {
    fn new(service: &Service) -> Self {
        let weights = || service.pool.0.iter().map(|server| server.load.weight);
        let step = weights().fold(0, gcd).max(1);
        let top = weights().max().unwrap_or(0).saturating_sub(step - 1);
        Steps { last: None, level: top, top, step }
    }

    fn pick(&mut self, service: &Service) -> Option<usize> {
        if self.top == 0 {
            return None;
        }
        let (start, level) = (self.last, self.level);
        let mut from = self.last.map_or(0, |last| last + 1);
        // Two cycles reach everybody who can be reached.
        for _ in 0..=2 * self.top.div_ceil(self.step) {
            let servers = service.pool.0.iter().enumerate().skip(from);
            let found = |load: &schedulers::Load| !load.overloaded && load.weight >= self.level;
            if let Some((index, _)) = servers.into_iter().find(|(_, server)| found(&server.load)) {
                self.last = Some(index);
                return self.last;
            }
            from = 0;
            self.level = if self.level > self.step { self.level - self.step } else { self.top };
        }
        // Nobody: where the kernel stops.
        let within_last_level = level <= self.step && start.is_some();
        (self.last, self.level) = if within_last_level { (start, level) } else { (None, self.top) };
        None
    }
}

#[test]
fn maglev_balances_as_the_paper_says() {
    // Section 3.4 of the paper: with M > 100 × servers shares differ by at most 1 %; here M is 65.5 × servers, so that
    // each has 65 or 66 slots.
    let mut service = Service::with("maglev", &Options::default(), &[1; 1000]);
    let flows: Vec<_> = (0..2_000_000).map(|i| flow(i, (i % 50_000) as u16)).collect();
    let mut counts: HashMap<SocketAddr, u32> = HashMap::new();
    for at in service.picks(&flows).into_iter().flatten() {
        *counts.entry(at).or_default() += 1;
    }
    assert_eq!(counts.len(), 1000);
    let average = 2000.0;
    let (most, least) = (*counts.values().max().unwrap(), *counts.values().min().unwrap());
    // 65 or 66 slots of 65.5 each, and four standard deviations (√2000) of the flows themselves.
    assert!(f64::from(most) < average * 66.0 / 65.537 + 180.0, "busiest has {most}");
    assert!(f64::from(least) > average * 65.0 / 65.537 - 180.0, "least busy has {least}");
}

#[test]
fn maglev_follows_the_weights() {
    let mut service = Service::with("maglev", &Options::default(), &[1, 2, 3, 0, 4]);
    let counts = count_picks(&mut service, 100_000);
    for (k, tenths) in [(1, 1), (2, 2), (3, 3), (4, 0), (5, 4)] {
        let count = counts.get(&server(k)).copied().unwrap_or(0);
        assert!(count.abs_diff(tenths * 10_000) < 500, "server {k} has {count}");
    }
}

/// The share of flows that were with another server than `gone` and are so no longer.
fn moved(before: &[Option<SocketAddr>], after: &[Option<SocketAddr>], gone: SocketAddr) -> f64 {
    let others = before.iter().zip(after).filter(|(old, _)| **old != Some(gone));
    let moved = others.clone().filter(|(old, new)| old != new).count();
    moved as f64 / others.count() as f64
}

#[test]
fn maglev_moves_few_connections_when_a_server_goes() {
    let flows = flows(50_000);
    for (count, size, limit) in
        [(10, 65_537, 0.02), (100, 65_537, 0.02), (1000, 65_537, 0.02), (1000, 655_373, 0.01)]
    {
        let options = Options { table_size: Some(size), ..Options::default() };
        let mut service = Service::with("maglev", &options, &vec![1; count]);
        let before = service.picks(&flows);
        service.remove(server(7));
        let after = service.picks(&flows);
        assert!(after.iter().all(|at| at.is_some() && *at != Some(server(7))));
        let share = moved(&before, &after, server(7));
        assert!(share < limit, "{count} servers, {size} slots: {share} of the others' flows moved");
        service.add(server(7), 1);
        assert_eq!(service.picks(&flows), before, "back again");
    }
}

#[test]
fn maglev_moves_few_connections_when_a_weight_changes() {
    let weights: Vec<u32> = (1..=50).collect();
    let mut service = Service::with("maglev", &Options::default(), &weights);
    let flows = flows(50_000);
    let before = service.picks(&flows);
    service.set_weight(server(20), 30);
    let after = service.picks(&flows);
    // 10 of 1285 parts must go to server 20; others move a little too.
    let gained = after.iter().filter(|at| **at == Some(server(20))).count() as i64
        - before.iter().filter(|at| **at == Some(server(20))).count() as i64;
    assert!((200..600).contains(&gained), "server 20 gained {gained} of 50000");
    let share = moved(&before, &after, server(20)) - gained as f64 / 50_000.0;
    assert!(share < 0.05, "{share} of the flows moved besides");
}

#[test]
fn maglev_spreads_the_connections_of_a_full_server() {
    let mut service = Service::with("maglev", &Options::default(), &[1; 10]);
    let flows = flows(50_000);
    let before = service.picks(&flows);
    service.server(server(4)).load.overloaded = true;
    let after = service.picks(&flows);
    assert_eq!(moved(&before, &after, server(4)), 0.0, "nobody else's flows move");
    let mut counts: HashMap<SocketAddr, u32> = HashMap::new();
    for (_, new) in before.iter().zip(&after).filter(|(old, _)| **old == Some(server(4))) {
        *counts.entry(new.unwrap()).or_default() += 1;
    }
    // About 5000 flows over nine servers.
    assert_eq!(counts.len(), 9);
    assert!(counts.values().all(|count| (450..660).contains(count)), "{counts:?}");
    service.server(server(4)).load.overloaded = false;
    assert_eq!(service.picks(&flows), before);
}

#[test]
fn maglev_finds_the_one_server_left_however_few_slots_it_has() {
    // One slot in 655,373: the search by slots ends long before it gets there.
    let options = Options { table_size: Some(655_373), ..Options::default() };
    let mut service = Service::with("maglev", &options, &[i32::MAX as u32, 1, i32::MAX as u32]);
    for k in [1, 3] {
        service.server(server(k)).load.overloaded = true;
    }
    assert_eq!(service.picks(&flows(200)), vec![Some(server(2)); 200]);
}
