mod solicit;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use modes::{Addr, Family};

use super::*;
use crate::time::Now;

const P0: PortId = PortId(0);
const P1: PortId = PortId(1);
const RS: &str = "10.0.0.11";

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn link(ifindex: u32, name: &str) -> Link {
    Link {
        ifindex,
        name: name.into(),
        mac: Some([2, 0, 0, 0, 0, ifindex as u8]),
        mtu: 1500,
        up: true,
        running: true,
        kind: LinkKind::Other,
        parent: None,
    }
}

fn via(ifindex: u32, gateway: &str) -> Via {
    Via { ifindex, gateway: (!gateway.is_empty()).then(|| ip(gateway)), weight: 1 }
}

/// The director's own address on eth0.
fn dip() -> IfAddr {
    let addr = ip("10.0.0.1");
    IfAddr { ifindex: 2, addr, prefix: 24, scope: 0, secondary: false, unusable: false }
}

fn route(dst: &str, kind: RouteKind, ways: &[Via]) -> Route {
    let (a, len) = dst.split_once('/').unwrap();
    Route {
        table: if kind == RouteKind::Local { 255 } else { 254 },
        family: ip(a).into(),
        dst: (ip(a), len.parse().unwrap()),
        metric: 0,
        tos: 0,
        kind,
        prefsrc: None,
        mtu: 0,
        via: ways.to_vec(),
    }
}

fn unicast(dst: &str, ways: &[Via]) -> Route {
    route(dst, RouteKind::Unicast, ways)
}

/// A director with ports eth0 (index 2) and eth1 (3), and a third interface (4) that is none.
struct Box4 {
    routes: Routes,
    now: Now,
}

impl Box4 {
    fn new() -> Box4 {
        Box4::with_lines(64)
    }
    fn with_lines(lines: usize) -> Box4 {
        let routes = Routes::with_lines(&[(P0, "eth0"), (P1, "eth1")], lines).unwrap();
        let b = Box4 { routes, now: Now::from_secs(1000) };
        for (i, name) in [(2, "eth0"), (3, "eth1"), (4, "eth2")] {
            b.apply(Event::LinkNew(link(i, name)));
        }
        b.route(unicast("10.0.0.0/24", &[via(2, "")]));
        b
    }
    fn apply(&self, event: Event) {
        self.routes.apply(event, self.now);
    }
    fn route(&self, route: Route) {
        self.apply(Event::RouteNew { route, place: Place::Last });
    }
    fn neigh(&self, addr: &str, mac: u8, state: NeighState) {
        let mac = state.usable().then_some([2, 0, 0, 0, 9, mac]);
        self.apply(Event::NeighNew { ifindex: 2, addr: ip(addr), mac, state });
    }
    fn look(&self, dst: &str) -> Result<NextHopId, RouteError> {
        self.routes.lookup(ip(dst).into(), ip(dst).into(), 0)
    }
    fn hop(&self, dst: &str) -> Hop {
        self.routes.get(self.look(dst).unwrap())
    }
    /// Time passes; the addresses asked for at its end.
    fn wait(&mut self, ms: u64) -> Vec<IpAddr> {
        self.now = Now(self.now.0 + ms * 1_000_000);
        self.routes.wants(self.now).into_iter().map(|s| s.addr).collect()
    }
    /// Whether an event changes the epoch.
    fn steps(&self, event: Event) -> bool {
        let before = self.routes.epoch();
        self.apply(event);
        self.routes.epoch() != before
    }
}

#[test]
fn lookup_allocates_one_line_for_a_next_hop() {
    let b = Box4::new();
    b.route(unicast("0.0.0.0/0", &[via(2, "10.0.0.254")]));
    let id = b.look("8.8.8.8").unwrap();
    assert_eq!(b.look("9.9.9.9"), Ok(id));
    assert_eq!(b.look("10.0.0.254"), Ok(id), "the gateway itself is the same next hop");
    assert_ne!(b.look(RS), Ok(id));
    assert_eq!(b.routes.stats().lines, 2);
}

#[test]
fn each_kind_of_route_has_its_error() {
    let b = Box4::new();
    use RouteKind as K;
    for (dst, kind, error) in [
        ("192.0.2.1/32", K::Local, RouteError::Local),
        ("192.0.2.2/32", K::Blackhole, RouteError::Blackhole),
        ("192.0.2.3/32", K::Unreachable, RouteError::Unreachable),
        ("192.0.2.4/32", K::Prohibit, RouteError::Prohibited),
        ("192.0.2.5/32", K::NotUnicast, RouteError::NotUnicast),
        ("192.0.2.6/32", K::Throw, RouteError::NoRoute),
        ("2001:db8::1/128", K::Unreachable, RouteError::Unreachable),
    ] {
        b.route(route(dst, kind, &[]));
        let host = dst.split_once('/').unwrap().0;
        assert_eq!(b.look(host), Err(error), "{dst}");
    }
    b.route(unicast("192.0.2.7/32", &[via(4, "")]));
    assert_eq!(b.look("192.0.2.7"), Err(RouteError::NotOurPort { ifindex: 4 }));
    b.route(unicast("192.0.2.8/32", &[via(0, "")]));
    assert_eq!(b.look("192.0.2.8"), Err(RouteError::NotOurPort { ifindex: 0 }));
    assert_eq!(b.look("192.0.2.9"), Err(RouteError::NoRoute));
    assert_eq!(b.look("2001:db8::2"), Err(RouteError::NoRoute));
}

#[test]
fn tables_are_asked_in_order_and_others_are_not() {
    let b = Box4::new();
    let in_table = |table, ifindex| Route { table, ..unicast("198.51.100.0/24", &[via(ifindex, "")]) };
    b.route(in_table(100, 2));
    assert_eq!(b.look("198.51.100.1"), Err(RouteError::NoRoute));
    b.route(in_table(253, 3));
    assert_eq!(b.hop("198.51.100.1").port, P1);
    b.route(in_table(254, 2));
    assert_eq!(b.hop("198.51.100.1").port, P0);
    b.route(Route { tos: 16, ..unicast("198.51.100.1/32", &[via(3, "")]) });
    assert_eq!(b.hop("198.51.100.1").port, P0, "routes for a TOS do not count");
}

#[test]
fn lowest_metric_wins_and_the_next_one_takes_over() {
    let b = Box4::new();
    let metric = |metric, ifindex| Route { metric, ..unicast("198.51.100.0/24", &[via(ifindex, "")]) };
    b.route(metric(20, 3));
    b.route(metric(10, 2));
    assert_eq!(b.hop("198.51.100.1").port, P0);
    b.apply(Event::LinkNew(Link { up: false, ..link(2, "eth0") }));
    assert_eq!(b.hop("198.51.100.1").port, P1, "its link is down");
    b.apply(Event::RouteGone(metric(20, 3)));
    assert_eq!(b.look("198.51.100.1"), Err(RouteError::NoRoute));
}

#[test]
fn shorter_prefix_serves_while_the_longer_ones_link_is_down() {
    let b = Box4::new();
    b.route(unicast("2001:db8::/32", &[via(2, "fd00::1")]));
    b.route(unicast("2001:db8:1::/48", &[via(3, "fd00::2")]));
    assert_eq!(b.hop("2001:db8:1::1").port, P1);
    b.apply(Event::LinkNew(Link { up: false, ..link(3, "eth1") }));
    assert_eq!(b.hop("2001:db8:1::1").port, P0);
    b.apply(Event::LinkNew(link(3, "eth1")));
    assert_eq!(b.hop("2001:db8:1::1").port, P1);
}

#[test]
fn ipv4_routes_die_with_their_link_but_addresses_do_not() {
    let b = Box4::new();
    b.route(route("10.0.0.1/32", RouteKind::Local, &[via(2, "")]));
    b.route(unicast("198.51.100.0/24", &[via(2, "10.0.0.254"), via(3, "10.1.0.254")]));
    b.apply(Event::LinkNew(Link { up: false, ..link(2, "eth0") }));
    b.apply(Event::LinkNew(link(2, "eth0")));
    assert_eq!(b.look(RS), Err(RouteError::NoRoute), "the kernel has flushed it");
    assert_eq!(b.look("10.0.0.1"), Err(RouteError::Local));
    assert!(b.look("198.51.100.1").is_ok(), "one of its ways was alive");
}

#[test]
fn ipv6_multipath_is_put_together_and_taken_apart_way_by_way() {
    let b = Box4::new();
    let one = || unicast("2001:db8::/32", &[via(2, "fd00::1")]);
    let two = || unicast("2001:db8::/32", &[via(2, "fd00::2")]);
    let ends = || {
        let (f, a) = (Family::V6, Addr::from(ip("2001:db8::9")));
        (b.routes.lookup(f, a, 0).unwrap(), b.routes.lookup(f, a, u32::MAX).unwrap())
    };
    b.route(one());
    b.route(two());
    assert_ne!(ends().0, ends().1);
    assert_eq!(b.routes.stats().routes, 2, "with 10.0.0.0/24");
    b.apply(Event::RouteGone(one()));
    assert_eq!(ends().0, ends().1);
    b.apply(Event::RouteGone(two()));
    assert_eq!(b.look("2001:db8::9"), Err(RouteError::NoRoute));
    assert_eq!(b.routes.stats().routes, 1);
}

#[test]
fn gateway_of_the_other_family_is_asked_for_by_its_own() {
    let mut b = Box4::new();
    b.route(unicast("198.51.100.0/24", &[via(2, "fe80::1")]));
    b.look("198.51.100.1").unwrap();
    assert_eq!(b.wait(500), [ip("fe80::1")]);
}

#[test]
fn epoch_steps_only_for_what_can_change_a_lookup() {
    let b = Box4::new();
    let id = b.look(RS).unwrap();
    b.neigh(RS, 1, NeighState::Reachable);
    let r = || unicast("198.51.100.0/24", &[via(2, "")]);
    let new = |route| Event::RouteNew { route, place: Place::Last };
    assert!(b.steps(new(r())));
    assert!(!b.steps(new(r())), "nothing new");
    assert!(b.steps(new(Route { mtu: 1400, ..r() })), "another MTU is another line");
    assert!(b.steps(Event::RouteGone(r())));
    assert!(!b.steps(Event::RouteGone(r())), "gone already");
    assert!(!b.steps(new(Route { table: 77, ..r() })), "not one of our tables");
    let a = dip();
    assert!(b.steps(Event::AddrNew(a)) && !b.steps(Event::AddrNew(a)));
    assert!(b.steps(Event::AddrGone { ifindex: 2, addr: a.addr, prefix: 24 }));
    assert!(!b.steps(Event::LinkNew(link(2, "eth0"))));
    let changes = b.routes.changes();
    b.neigh(RS, 2, NeighState::Reachable);
    let other = Link { mac: Some([2, 9, 9, 9, 9, 9]), mtu: 9000, ..link(2, "eth0") };
    assert!(!b.steps(Event::LinkNew(other)), "MAC and MTU show in the line");
    assert_eq!(b.routes.changes(), changes + 2);
    let hop = b.routes.get(id);
    assert_eq!((hop.src_mac, hop.dst_mac, hop.mtu), ([2, 9, 9, 9, 9, 9], [2, 0, 0, 0, 9, 2], 9000));
    assert!(b.steps(Event::LinkNew(Link { running: false, ..link(2, "eth0") })));
    assert!(b.steps(Event::LinkNew(Link { up: false, ..link(2, "eth0") })));
    assert_eq!(b.routes.get(id).state, HopState::Gone);
    assert!(b.steps(Event::LinkGone { ifindex: 2 }));
    assert!(!b.steps(Event::LinkGone { ifindex: 2 }));
}

#[test]
fn line_follows_its_neighbour() {
    let b = Box4::new();
    let id = b.look(RS).unwrap();
    let state = || (b.routes.get(id).state, b.routes.get(id).dst_mac[5]);
    assert_eq!(state(), (HopState::Unresolved, 0));
    use NeighState as N;
    for (n, neigh, want) in [
        (1, N::Incomplete, (HopState::Unresolved, 0)),
        (1, N::Reachable, (HopState::Ready, 1)),
        (1, N::Stale, (HopState::Ready, 1)),
        (2, N::Stale, (HopState::Ready, 2)),
        (2, N::Delay, (HopState::Ready, 2)),
        (2, N::Probe, (HopState::Ready, 2)),
        (0, N::Failed, (HopState::Unresolved, 0)),
        (3, N::Permanent, (HopState::Ready, 3)),
    ] {
        b.neigh(RS, n, neigh);
        assert_eq!(state(), want, "{neigh:?}");
    }
    b.apply(Event::NeighGone { ifindex: 2, addr: ip(RS) });
    assert_eq!(state(), (HopState::Unresolved, 0));
    // A neighbour of the same address on another link is somebody else.
    let mac = Some([2, 0, 0, 0, 9, 9]);
    b.apply(Event::NeighNew { ifindex: 3, addr: ip(RS), mac, state: N::Reachable });
    assert_eq!(state(), (HopState::Unresolved, 0));
    // What is known before the first look-up is used at once.
    b.neigh("10.0.0.12", 7, N::Stale);
    assert_eq!(b.hop("10.0.0.12").state, HopState::Ready);
}

#[test]
fn mtu_is_the_smaller_of_link_and_route_and_has_its_own_line() {
    let b = Box4::new();
    b.neigh("10.0.0.254", 1, NeighState::Reachable);
    b.route(Route { mtu: 1400, ..unicast("198.51.100.0/24", &[via(2, "10.0.0.254")]) });
    b.route(unicast("203.0.113.0/24", &[via(2, "10.0.0.254")]));
    assert_eq!((b.hop("198.51.100.1").mtu, b.hop("203.0.113.1").mtu), (1400, 1500));
    b.apply(Event::LinkNew(Link { mtu: 1300, ..link(2, "eth0") }));
    assert_eq!((b.hop("198.51.100.1").mtu, b.hop("203.0.113.1").mtu), (1300, 1300));
    b.apply(Event::LinkNew(Link { mtu: 100_000, ..link(2, "eth0") }));
    assert_eq!(b.hop("203.0.113.1").mtu, u16::MAX);
    // Both lines have the new MAC.
    b.neigh("10.0.0.254", 2, NeighState::Reachable);
    assert_eq!((b.hop("198.51.100.1").dst_mac[5], b.hop("203.0.113.1").dst_mac[5]), (2, 2));
}

#[test]
fn cache_answers_as_a_lookup_does() {
    let mut b = Box4::new();
    let mut cache = HopCache::new(2);
    let mut hop = |b: &Box4, dst: &str| cache.hop(&b.routes, ip(dst).into(), ip(dst).into(), 0);
    for i in 1..20 {
        let dst = format!("10.0.0.{i}");
        assert_eq!(hop(&b, &dst).unwrap(), (b.look(&dst).unwrap(), b.hop(&dst)));
        assert_eq!(hop(&b, &dst).unwrap().0, b.look(&dst).unwrap());
    }
    let first = hop(&b, RS).unwrap();
    b.neigh(RS, 1, NeighState::Reachable);
    assert_eq!(hop(&b, RS).unwrap().1.state, HopState::Ready, "lines are read anew");
    b.route(unicast("10.0.0.11/32", &[via(3, "")]));
    assert_eq!(hop(&b, RS).unwrap().1.port, P1, "another epoch");
    b.route(route("10.0.0.12/32", RouteKind::Blackhole, &[]));
    assert_eq!(hop(&b, "10.0.0.12"), Err(RouteError::Blackhole));
    let (old, _) = hop(&b, RS).unwrap();
    b.wait(1000 * (UNRESOLVED_IDLE_SECS + 1));
    assert_eq!(b.routes.get(old).state, HopState::Gone, "given up, without another epoch");
    let (new, _) = hop(&b, RS).unwrap();
    assert!(new != old && new != first.0 && b.routes.get(new).state == HopState::Unresolved);
}

#[test]
fn bad_ids_read_as_gone() {
    let b = Box4::new();
    for id in [0, 63, 64, u32::MAX, 0xffff_0000] {
        assert_eq!(b.routes.get(NextHopId(id)).state, HopState::Gone);
        b.routes.note_used(NextHopId(id), b.now.tick());
    }
}

#[test]
fn resync_drops_what_it_does_not_name() {
    let b = Box4::new();
    b.route(unicast("198.51.100.0/24", &[via(2, "")]));
    let a = dip();
    b.apply(Event::AddrNew(a));
    b.neigh(RS, 1, NeighState::Reachable);
    let id = b.look(RS).unwrap();
    let read = |all: bool, end: Resync| {
        b.apply(Event::Resync(Resync::Begin));
        if all {
            b.apply(Event::AddrNew(a));
            b.route(unicast("198.51.100.0/24", &[via(2, "")]));
            b.neigh(RS, 1, NeighState::Reachable);
        }
        for (i, name) in [(2, "eth0"), (3, "eth1"), (4, "eth2")] {
            b.apply(Event::LinkNew(link(i, name)));
        }
        b.route(unicast("10.0.0.0/24", &[via(2, "")]));
        b.apply(Event::Resync(end));
    };
    assert!(!b.routes.synced());
    b.apply(Event::Resync(Resync::End));
    assert!(!b.routes.synced(), "an end without a beginning is nothing");
    let epoch = b.routes.epoch();
    read(true, Resync::End);
    assert!(b.routes.synced());
    assert_eq!(b.routes.epoch(), epoch, "the same as before");
    read(false, Resync::Abort);
    b.apply(Event::Resync(Resync::End));
    assert!(b.look("198.51.100.1").is_ok() && b.routes.get(id).state == HopState::Ready);
    read(false, Resync::End);
    assert_ne!(b.routes.epoch(), epoch);
    assert_eq!(b.look("198.51.100.1"), Err(RouteError::NoRoute));
    assert_eq!(b.routes.get(id).state, HopState::Unresolved);
    assert!(!b.routes.is_local(Family::V4, ip("10.0.0.1").into()));
}

#[test]
fn interface_is_its_port_whatever_its_index() {
    let b = Box4::new();
    assert_eq!(b.routes.port_of_ifindex(2), Some(P0));
    let id = b.look(RS).unwrap();
    b.apply(Event::LinkGone { ifindex: 2 });
    assert_eq!((b.routes.port_of_ifindex(2), b.routes.get(id).state), (None, HopState::Gone));
    assert_eq!(b.routes.port(P0).unwrap().ifindex, None);
    b.apply(Event::LinkNew(link(9, "eth0")));
    assert_eq!((b.routes.port_of_ifindex(9), b.routes.port(P0).unwrap().ifindex), (Some(P0), Some(9)));
    assert!(b.routes.is_our_mac(P0, [2, 0, 0, 0, 0, 9]) && !b.routes.is_our_mac(P0, [2, 0, 0, 0, 0, 2]));
    // Renamed away, and another one takes the name.
    b.apply(Event::LinkNew(link(9, "old0")));
    assert_eq!(b.routes.port_of_ifindex(9), None);
    b.apply(Event::LinkNew(link(4, "eth0")));
    assert_eq!(b.routes.port_of_ifindex(4), Some(P0));
    assert_eq!(b.routes.add_port(P0, "eth7"), Err(PortError::Taken(P0)));
    assert_eq!(b.routes.add_port(PortId(256), "eth7"), Err(PortError::TooMany(PortId(256))));
    assert!(b.routes.port(PortId(7)).is_none() && b.routes.port(PortId(9999)).is_none());
}

#[test]
fn macs_of_macvlans_belong_to_the_port_below() {
    let b = Box4::new();
    let vrrp = [0, 0, 0x5e, 0, 1, 7];
    let mv = Link { mac: Some(vrrp), kind: LinkKind::Macvlan, parent: Some(2), ..link(20, "vrrp7") };
    b.apply(Event::LinkNew(Link { up: false, ..mv.clone() }));
    assert!(!b.routes.is_our_mac(P0, vrrp));
    b.apply(Event::LinkNew(mv.clone()));
    assert!(b.routes.is_our_mac(P0, vrrp) && !b.routes.is_our_mac(P1, vrrp));
    assert_eq!(b.routes.extra_macs(), [(2, vrrp)]);
    assert!(!b.routes.is_our_mac(P0, [0; 6]) && !b.routes.is_our_mac(PortId(50), vrrp));
    assert_eq!(b.routes.port_of_ifindex(20), Some(P0));
    b.route(unicast("10.0.7.0/24", &[via(20, "")]));
    let hop = b.hop("10.0.7.1");
    assert_eq!((hop.port, hop.src_mac), (P0, vrrp));
    // Other links on top of a port are not.
    b.apply(Event::LinkNew(Link { kind: LinkKind::Other, ..mv.clone() }));
    assert!(!b.routes.is_our_mac(P0, vrrp) && b.routes.extra_macs().is_empty());
    assert_eq!(b.look("10.0.7.1"), Err(RouteError::NotOurPort { ifindex: 20 }));
    for i in 0..300u32 {
        let [.., h, l] = i.to_be_bytes();
        let mac = Some([6, 0, 0, 0, h, l]);
        b.apply(Event::LinkNew(Link { ifindex: 100 + i, name: format!("mv{i}"), mac, ..mv.clone() }));
    }
    assert_eq!(b.routes.stats().macs_refused, 45);
}

#[test]
fn vlans_above_a_port_that_are_no_ports_are_named() {
    let b = Box4::new();
    let vlan = |ifindex, name: &str, parent| Link {
        kind: LinkKind::Vlan,
        parent: Some(parent),
        ..link(ifindex, name)
    };
    let name = b.routes.port(P0).expect("a port").name;
    b.apply(Event::LinkNew(vlan(20, "v100", 2)));
    b.apply(Event::LinkNew(vlan(21, "v200", 2)));
    b.apply(Event::LinkNew(Link { up: false, ..vlan(22, "v300", 2) }));
    b.apply(Event::LinkNew(vlan(23, "v100.7", 20)));
    b.apply(Event::LinkNew(vlan(24, "elsewhere", 99)));
    assert_eq!(
        b.routes.unserved_vlans(),
        [("v100".to_owned(), name.clone()), ("v200".to_owned(), name.clone())]
    );
    // A VLAN is a port of its own, with frames and next hops of its own.
    assert_eq!(b.routes.port_of_ifindex(20), None);
    b.routes.add_port(PortId(9), "v100").expect("room");
    assert_eq!(b.routes.port_of_ifindex(20), Some(PortId(9)));
    let inner = ("v100.7".to_owned(), "v100".to_owned());
    assert_eq!(b.routes.unserved_vlans(), [inner, ("v200".to_owned(), name)]);
}

#[test]
fn source_is_the_routes_or_the_best_of_the_link() {
    let b = Box4::new();
    let add = |ifindex, addr: &str, prefix, scope, secondary, unusable| {
        b.apply(Event::AddrNew(IfAddr { ifindex, addr: ip(addr), prefix, scope, secondary, unusable }));
    };
    add(2, "192.0.2.10", 32, 0, false, false);
    add(2, "10.0.0.9", 24, 0, true, false);
    add(2, "10.0.0.1", 24, 0, false, false);
    add(2, "fe80::1", 64, 253, false, false);
    add(2, "fd00::5", 64, 0, false, true);
    add(2, "fd00::1", 64, 0, false, false);
    add(2, "2001:db8:5::1", 64, 0, false, false);
    b.route(unicast("fd00::/64", &[via(2, "")]));
    b.route(unicast("fe80::/64", &[via(2, "")]));
    b.route(unicast("::/0", &[via(2, "fe80::99")]));
    b.route(unicast("198.51.100.0/24", &[via(2, "10.0.0.254")]));
    b.route(Route { prefsrc: Some(ip("192.0.2.10")), ..unicast("203.0.113.0/24", &[via(2, "10.0.0.254")]) });
    b.route(unicast("10.1.0.0/24", &[via(3, "")]));
    let src = |dst: &str| b.routes.source_for(ip(dst).into(), ip(dst).into()).map(|a| a.ip(ip(dst).into()));
    assert_eq!(src(RS), Some(ip("10.0.0.1")), "the subnet's, not the virtual address that was there first");
    assert_eq!(src("198.51.100.1"), Some(ip("10.0.0.1")), "by the gateway's subnet");
    assert_eq!(src("203.0.113.1"), Some(ip("192.0.2.10")), "the route's own");
    assert_eq!(src("10.1.0.5"), Some(ip("192.0.2.10")), "from another link where this one has none");
    assert_eq!(src("fd00::11"), Some(ip("fd00::1")));
    assert_eq!(src("fe80::7"), Some(ip("fe80::1")), "scope before all");
    assert_eq!(src("10.0.0.1"), Some(ip("10.0.0.1")), "to itself");
    assert_eq!(src("203.0.114.1"), None);
    // Toward the rest of the world over a link-local gateway: an address of global scope.
    assert!(matches!(src("2001:db8:9::1"), Some(IpAddr::V6(a)) if a.segments()[0] == 0x2001));
}

#[test]
fn lookups_race_with_changes() {
    let b = Box4::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for flow in 0..2u32 {
            let (b, done) = (&b, &done);
            s.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let dst = Addr::from(ip("198.51.100.1"));
                    match b.routes.lookup(Family::V4, dst, flow << 31) {
                        Ok(id) => assert!(b.routes.get(id).port == P0 || b.routes.get(id) == Hop::GONE),
                        Err(e) => assert!(matches!(e, RouteError::NoRoute | RouteError::Blackhole), "{e}"),
                    }
                }
            });
        }
        for _ in 0..2000 {
            b.route(unicast("198.51.100.0/24", &[via(2, "10.0.0.254")]));
            b.route(route("198.51.100.1/32", RouteKind::Blackhole, &[]));
            b.apply(Event::RouteGone(unicast("198.51.100.0/24", &[via(2, "10.0.0.254")])));
            b.apply(Event::RouteGone(route("198.51.100.1/32", RouteKind::Blackhole, &[])));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(b.routes.stats().routes, 1);
}
