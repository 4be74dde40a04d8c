use std::net::IpAddr;

use modes::{Addr, Family};
use proptest::prelude::*;

use super::*;

fn via(ifindex: u32, weight: u16) -> Via {
    Via { ifindex, gateway: None, weight }
}

#[test]
fn multipath_spreads_flows_by_weight_over_what_can_be_used() {
    let ways = [via(2, 1), via(3, 3), via(4, 4)];
    let share = |usable: &dyn Fn(&Via) -> Usable| {
        let mut n = [0; 3];
        for i in 0..800u32 {
            let v = choose(&ways, i.wrapping_mul(u32::MAX / 800), usable).unwrap();
            n[v.ifindex as usize - 2] += 1;
        }
        n
    };
    let all = share(&|_| Usable::Yes);
    assert!((99..=101).contains(&all[0]) && (299..=301).contains(&all[1]), "{all:?}");
    let two = share(&|v| if v.ifindex == 4 { Usable::Poor } else { Usable::Yes });
    assert!((199..=201).contains(&two[0]) && two[2] == 0, "{two:?}");
    assert_eq!(share(&|v| if v.ifindex == 4 { Usable::Poor } else { Usable::No }), [0, 0, 800]);
    assert_eq!(choose(&ways, 7, |_| Usable::No), None);
    assert_eq!(choose(&[], 7, |_| Usable::Yes), None);
}

/// Routes over a few bits, so that prefixes nest and meet.
fn any_route() -> impl Strategy<Value = Route> {
    let bits = prop::collection::vec(any::<bool>(), 0..=6);
    (bits, 0..3u32, any::<bool>(), prop::sample::select(vec![253u32, 254, 255]), any::<bool>()).prop_map(
        |(bits, metric, v6, table, reject)| {
            let mut top = 0u128;
            for (i, b) in bits.iter().enumerate() {
                top |= u128::from(*b) << (127 - i);
            }
            let addr = if v6 { IpAddr::V6(top.into()) } else { IpAddr::V4(((top >> 96) as u32).into()) };
            let kind = if reject { RouteKind::Blackhole } else { RouteKind::Unicast };
            // The way tells the route apart from others.
            let way = Via { ifindex: 1 + metric, gateway: None, weight: 1 };
            Route {
                table,
                family: addr.into(),
                dst: (addr, bits.len() as u8),
                metric,
                tos: 0,
                kind,
                prefsrc: None,
                mtu: 0,
                via: if reject { Vec::new() } else { vec![way] },
            }
        },
    )
}

/// The look-up as a list: table by table the longest prefix, then the lowest metric, then the oldest.
fn model(list: &[Route], family: Family, dst: u128) -> Result<(u32, u32), RouteError> {
    for table in [255, 254, 253] {
        let fits = |r: &&Route| {
            let len = u32::from(r.dst.1);
            let addr = match r.dst.0 {
                IpAddr::V4(a) => u128::from(u32::from(a)) << 96,
                IpAddr::V6(a) => a.into(),
            };
            let same = len == 0 || (addr ^ dst) >> (128 - len) == 0;
            r.table == table && r.family == family && same
        };
        let longest = list.iter().filter(fits).map(|r| r.dst.1).max();
        let best = list.iter().filter(fits).filter(|r| Some(r.dst.1) == longest).min_by_key(|r| r.metric);
        match best {
            Some(r) if r.kind == RouteKind::Unicast => return Ok((r.metric, r.via[0].ifindex)),
            Some(_) => return Err(RouteError::Blackhole),
            None => {}
        }
    }
    Err(RouteError::NoRoute)
}

proptest! {
    #[test]
    fn longest_prefix_match_agrees_with_a_list(
        steps in prop::collection::vec((any_route(), 0..4u8), 1..60),
        probes in prop::collection::vec(any::<u8>(), 8),
    ) {
        let mut fib = Fib::default();
        let mut list: Vec<Route> = Vec::new();
        for (route, action) in steps {
            let same = |r: &Route| r.table == route.table && r.dst == route.dst && r.family == route.family
                && r.metric == route.metric;
            match action {
                0 => {
                    let there = list.iter().position(|r| same(r) && r.kind == route.kind);
                    prop_assert_eq!(fib.remove(&route), there.is_some());
                    if let Some(i) = there { list.remove(i); }
                }
                1 => {
                    let there = list.iter().position(same);
                    fib.insert(&route, Place::Replace, 0);
                    match there {
                        Some(i) => list[i] = route,
                        None => list.push(route),
                    }
                }
                _ => {
                    let there = list.iter().any(|r| same(r) && r.kind == route.kind);
                    prop_assert_eq!(fib.insert(&route, Place::Last, 0), !there);
                    if !there { list.push(route); }
                }
            }
            prop_assert_eq!(fib.len(), list.len());
            for p in &probes {
                for family in [Family::V4, Family::V6] {
                    let dst = u128::from(*p) << 120;
                    let addr = if family == Family::V4 { Addr(dst >> 96) } else { Addr(dst) };
                    let got = fib.find(family, addr, |_| Usable::Yes).map(|e| (e.metric, e.via[0].ifindex));
                    prop_assert_eq!(got, model(&list, family, dst));
                }
            }
        }
        let n = list.len();
        prop_assert_eq!(fib.sweep(1), n > 0);
        prop_assert_eq!(fib.len(), 0);
    }
}
