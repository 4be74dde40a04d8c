//! Changes of the configuration: refused ones change nothing, and what is removed and added again is what IPVS makes of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Barrier;

use ipvs_netlink::{Backend, Errno, SVC_F_PERSISTENT, Service, ServiceKey};
use lvsd::conn::{Config, ConnTable};
use lvsd::engine::{Count, Director, Frame, FrameHandler, RxChecksum, Worker};
use lvsd::service::ServiceObserver;
use modes::Family;

use super::frames::*;
use super::rig::{C0, C0_MAC, Event, GW_MAC, Rig, S0};

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn datagram(client: &str, sport: u16, dport: u16) -> Vec<u8> {
    udp(&Ip::new(ip(client), ip("10.0.0.1")), sport, dport, b"x")
}

/// The server that a datagram was sent to, told by its MAC.
#[track_caller]
fn server(event: Event) -> u8 {
    match event {
        Event::Out(f) if f.len() == 1 && f[0].0 == S0 => f[0].1[5],
        e => panic!("not forwarded: {e:?}"),
    }
}

fn key(protocol: u8, port: u16) -> ServiceKey {
    ServiceKey::Addr { protocol, addr: ip("10.0.0.1"), port }
}

#[test]
fn a_refused_edit_changes_nothing() {
    let mut rig = Rig::golden();
    rig.cli("-A -u 10.0.0.1:53 -s rr");
    rig.cli("-a -u 10.0.0.1:53 -r 10.1.0.1:53 -m");
    rig.cli("-a -u 10.0.0.1:53 -r 10.1.0.2:53 -m");
    let old = rig.director.service(&key(17, 53)).unwrap().service;
    // By sh all of one client's connections would go to one server.
    let edit = Service { scheduler: "sh".into(), pe_name: Some("sip".into()), ..old.clone() };
    assert_eq!(rig.director.edit_service(&edit), Err(Errno::ENOENT));
    assert_eq!(rig.director.service(&key(17, 53)).unwrap().service, old);
    let servers: Vec<u8> = (0..4).map(|n| server(rig.client(&datagram("10.2.0.1", 5000 + n, 53)))).collect();
    assert_eq!(servers, [2, 1, 2, 1]);
}

/// An observer with room for one service.
struct Narrow;

impl ServiceObserver for Narrow {
    fn service_added(&self, _: Family, _: u8, _: IpAddr, port: u16) -> bool {
        port == 53
    }
    fn service_removed(&self, _: Family, _: u8, _: IpAddr, _: u16) {}
}

#[test]
fn a_service_that_the_classifier_has_no_room_for_is_refused() {
    let mut rig = Rig::golden();
    rig.director.observe(Box::new(Narrow));
    rig.cli("-A -u 10.0.0.1:53 -s rr");
    assert_eq!(rig.try_cli("-A -u 10.0.0.1:54 -s rr"), Err(Errno::ENOMEM));
    let keys: Vec<_> = rig.director.services().iter().map(|e| e.service.key).collect();
    assert_eq!(keys, [key(17, 53)]);
    assert_eq!(rig.try_cli("-a -u 10.0.0.1:54 -r 10.1.0.1:54 -m"), Err(Errno::ESRCH));
}

#[test]
fn places_of_removed_servers_are_free_at_once_where_they_are_needed() {
    let mut rig = Rig::golden();
    let mut fill = |net: &str| {
        for port in 1..=64 {
            rig.cli(&format!("-A -u 10.0.0.1:{port} -s rr"));
            for n in 0..1024 {
                rig.cli(&format!("-a -u 10.0.0.1:{port} -r {net}.{}.{}:9 -m", n / 256, n % 256));
            }
        }
        rig.cli("-A -u 10.0.0.1:65 -s rr");
        let one_more = rig.try_cli(&format!("-a -u 10.0.0.1:65 -r {net}.9.9:9 -m"));
        rig.director.flush().unwrap();
        one_more
    };
    assert_eq!(fill("10.7"), Err(Errno::ENOMEM), "65,536 are the limit");
    assert_eq!(fill("10.8"), Err(Errno::ENOMEM), "and as many fit again");
}

/// As a 6.1 kernel does it: the connections are the server's again, what it did for the old service is not counted.
#[test]
fn a_server_of_a_service_made_again_counts_from_zero() {
    let mut rig = Rig::golden();
    let make = |rig: &mut Rig| {
        rig.cli("-A -u 10.0.0.1:53 -s rr");
        rig.cli("-a -u 10.0.0.1:53 -r 10.1.0.1:53 -m");
    };
    let look = |rig: &Rig| {
        let d = &rig.dests("-u 10.0.0.1:53")[0];
        let s = rig.director.service(&key(17, 53)).unwrap().stats;
        assert_eq!((d.stats.conns, d.stats.in_pkts), (s.conns, s.in_pkts));
        (d.stats.conns, d.stats.in_pkts, d.inactive)
    };
    make(&mut rig);
    for n in 0..3 {
        server(rig.client(&datagram("10.2.0.1", 5000 + n, 53)));
    }
    rig.cli("-d -u 10.0.0.1:53 -r 10.1.0.1:53");
    rig.cli("-a -u 10.0.0.1:53 -r 10.1.0.1:53 -m");
    server(rig.client(&datagram("10.2.0.1", 5000, 53)));
    assert_eq!(look(&rig), (3, 4, 3), "the same service");
    rig.cli("-D -u 10.0.0.1:53");
    make(&mut rig);
    server(rig.client(&datagram("10.2.0.1", 5000, 53)));
    assert_eq!(look(&rig), (0, 1, 3), "another service");
}

fn template_expiry(rig: &Rig, client: &str) -> u32 {
    let all = rig.director.conns(0, 1000).0;
    all.iter().find(|c| c.client == (ip(client), 0)).expect("a template").expires
}

#[test]
fn a_template_keeps_the_timeout_that_it_was_made_with() {
    let mut rig = Rig::golden();
    rig.cli("-A -u 10.0.0.1:53 -s rr -p 100");
    rig.cli("-a -u 10.0.0.1:53 -r 10.1.0.1:53 -m");
    server(rig.client(&datagram("10.2.0.1", 5000, 53)));
    rig.cli("-E -u 10.0.0.1:53 -s rr -p 10");
    rig.advance(1);
    server(rig.client(&datagram("10.2.0.1", 5001, 53)));
    server(rig.client(&datagram("10.2.0.2", 5001, 53)));
    assert!((99..=100).contains(&template_expiry(&rig, "10.2.0.1")));
    assert!((9..=10).contains(&template_expiry(&rig, "10.2.0.2")));
}

#[test]
fn the_longest_persistence_does_not_overflow() {
    let mut rig = Rig::golden();
    rig.cli("-A -u 10.0.0.1:53 -s rr -p 10");
    rig.cli("-a -u 10.0.0.1:53 -r 10.1.0.1:53 -m");
    let old = rig.director.service(&key(17, 53)).unwrap().service;
    // Beyond what lvsctl lets through; a message may say it.
    let flags = SVC_F_PERSISTENT;
    rig.director.edit_service(&Service { timeout: u32::MAX, flags, flags_mask: !0, ..old }).unwrap();
    server(rig.client(&datagram("10.2.0.1", 5000, 53)));
    assert!(template_expiry(&rig, "10.2.0.1") > 365 * 86_400);
}

/// As a 6.1 kernel does it: templates, but no entries; each datagram is a connection in the statistics.
#[test]
fn one_packet_scheduling_with_persistence() {
    let mut rig = Rig::golden();
    rig.cli("-A -u 10.0.0.1:54 -s rr -p 100 -o");
    rig.cli("-a -u 10.0.0.1:54 -r 10.1.0.1:54 -m");
    rig.cli("-a -u 10.0.0.1:54 -r 10.1.0.2:54 -m");
    let mut to = |client, sport| server(rig.client(&datagram(client, sport, 54)));
    assert_eq!([to("10.2.0.1", 1), to("10.2.0.1", 2), to("10.2.0.2", 1), to("10.2.0.1", 1)], [2, 2, 1, 2]);
    assert!(rig.director.conns(0, 1000).0.iter().all(|c| c.client.1 == 0), "templates only");
    let dests = rig.dests("-u 10.0.0.1:54");
    let numbers: Vec<_> =
        dests.iter().map(|d| (d.active, d.inactive, d.persistent, d.stats.conns, d.stats.in_pkts)).collect();
    assert_eq!(numbers, [(0, 0, 1, 1, 1), (0, 0, 1, 3, 3)]);
}

/// A flow's first packets at two workers at once make one connection, and its template is let go when that ends.
#[test]
fn templates_of_raced_connections_expire() {
    const FLOWS: u16 = 3000;
    let rig = Rig::golden();
    let table = ConnTable::new(Config { max_v4: 8192, max_v6: 0, hash_key: [5, 6], shards: 8 }).unwrap();
    let director = Arc::new(Director::new(table, rig.director.routes.clone(), 2, 1).unwrap());
    let worker = Worker::new(director.clone(), 0);
    let mut other = Rig { director: director.clone(), worker, now: rig.now };
    other.cli("-A -u 10.0.0.1:53 -s rr -p 10");
    other.cli("-a -u 10.0.0.1:53 -r 10.1.0.1:53 -m");
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for w in 0..2 {
            let (mut worker, now, barrier) = (Worker::new(director.clone(), w), rig.now, &barrier);
            scope.spawn(move || {
                for sport in 1..=FLOWS {
                    let mut buf = ethernet(C0_MAC, GW_MAC, &datagram("10.2.0.1", sport, 53));
                    let (end, checksum) = (buf.len(), RxChecksum::Complete);
                    let frame = Frame { buf: &mut buf, start: 0, end, port: C0, checksum, gso: None };
                    barrier.wait();
                    worker.batch(now, &mut [frame], &mut Vec::new());
                }
            });
        }
    });
    let made: u64 = (0..2).map(|w| director.counters(w).counted(Count::ConnNew)).sum();
    assert_eq!(made, FLOWS.into());
    other.leap(301);
    other.advance(70);
    assert_eq!(director.table.len(Family::V4), 0, "all have expired, the template too");
    assert_eq!(other.dests("-u 10.0.0.1:53")[0].persistent, 0);
}
