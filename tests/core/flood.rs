//! SYN floods in virtual time: good clients must not notice (`docs/syn-flood.md`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::frames::*;
use super::rig::{Event, Rig, S0, server_mac};
use lvsd::engine::{Count, FrameHandler, Reason};
use modes::Family;

const ROOM: u32 = 4096;
/// What half-open connections may take of that by default.
const BOUND: u32 = ROOM / 4;
/// SYNs of the flood for each step of a good client.
const FLOOD: u32 = 100;
const STEP_MS: u64 = 20;

struct Lab {
    rig: Rig,
    v6: bool,
    /// Sources of the flood so far.
    sources: u32,
}

/// Where a frame that was sent on went to.
fn server_of(event: &Event) -> u8 {
    match event {
        Event::Out(f) if f.len() == 1 && f[0].0 == S0 => {
            let k = f[0].1[5];
            assert_eq!(f[0].1[..6], server_mac(k), "{event:?}");
            k
        }
        e => panic!("not sent on to a server: {e:?}"),
    }
}

impl Lab {
    /// A service with three servers.
    fn new(service: &str, method: &str) -> Lab {
        Lab::over(Rig::with_limit(ROOM), service, method)
    }

    fn over(rig: Rig, service: &str, method: &str) -> Lab {
        let mut lab = Lab { rig, v6: false, sources: 0 };
        lab.rig.cli(&format!("-A -t 10.0.0.1:80 {service}"));
        for k in 1..=3 {
            lab.rig.cli(&format!("-a -t 10.0.0.1:80 -r 10.1.0.{k}:80 {method}"));
        }
        lab
    }

    fn new_v6(service: &str, method: &str) -> Lab {
        let mut lab = Lab { rig: Rig::with_limit(ROOM), v6: true, sources: 0 };
        lab.rig.cli(&format!("-A -t [2001:db8::1]:80 {service}"));
        for k in 1..=3 {
            lab.rig.cli(&format!("-a -t [2001:db8::1]:80 -r [2001:db8:1::{k}]:80 {method}"));
        }
        lab
    }

    fn family(&self) -> Family {
        if self.v6 { Family::V6 } else { Family::V4 }
    }

    fn dests(&self) -> Vec<ipvs_netlink::DestEntry> {
        self.rig.dests(if self.v6 { "-t [2001:db8::1]:80" } else { "-t 10.0.0.1:80" })
    }

    /// Address `n` of clients: an even number for the flood, an odd one for good clients.
    fn client(&self, n: u32) -> IpAddr {
        if self.v6 {
            return (u128::from("2001:db8:2::".parse::<Ipv6Addr>().unwrap()) | u128::from(n))
                .to_be_bytes()
                .into();
        }
        Ipv4Addr::from(0x0a02_0000 | n & 0xffff).into()
    }

    fn vip(&self) -> IpAddr {
        if self.v6 { "2001:db8::1" } else { "10.0.0.1" }.parse().unwrap()
    }

    fn segment(&mut self, client: u32, flags: u8, data: &[u8]) -> Event {
        let ip = Ip::new(self.client(client), self.vip());
        let port = 1024 + (client >> 16) as u16;
        self.rig.client(&tcp(&ip, port, 80, flags, data))
    }

    fn reply(&mut self, k: u8, client: u32, flags: u8) -> Event {
        let real = if self.v6 { format!("2001:db8:1::{k}") } else { format!("10.1.0.{k}") };
        let ip = Ip::new(real.parse().unwrap(), self.client(client));
        let port = 1024 + (client >> 16) as u16;
        self.rig.server(k, &tcp(&ip, 80, port, flags, b""))
    }

    /// SYNs of sources that never come again.
    fn flood(&mut self, n: u32) {
        for _ in 0..n {
            self.sources += 1;
            let client = self.sources * 2;
            server_of(&self.segment(client, SYN, b""));
        }
    }

    /// A connection up to its first data; its server.
    fn establish(&mut self, client: u32, nat: bool) -> u8 {
        let k = server_of(&self.segment(client, SYN, b""));
        if nat {
            assert!(matches!(self.reply(k, client, SYN | ACK), Event::Out(_)));
        }
        assert_eq!(server_of(&self.segment(client, ACK, b"")), k);
        assert_eq!(server_of(&self.segment(client, PSH | ACK, b"x")), k);
        k
    }

    fn half_open(&self) -> u32 {
        self.rig.director.table.half_open(self.family())
    }

    fn len(&self) -> usize {
        self.rig.director.table.len(self.family())
    }

    /// What the servers count is what is in the table.
    fn check_counts(&self) {
        let held: u32 = self.dests().iter().map(|d| d.active + d.inactive + d.persistent).sum();
        assert_eq!(held as usize, self.len());
        let made = self.rig.counted(Count::ConnNew) + self.rig.counted(Count::TemplateNew);
        let ended = [Count::ConnExpired, Count::ConnReused, Count::ConnNoDest, Count::HalfOpenEvicted];
        let ended: u64 = ended.into_iter().map(|c| self.rig.counted(c)).sum();
        assert_eq!(made - ended, self.len() as u64);
    }

    /// When all is over nothing is left.
    fn must_run_dry(&mut self) {
        self.rig.advance(2000);
        self.check_counts();
        assert_eq!((self.len(), self.half_open()), (0, 0));
        assert!(self.dests().iter().all(|d| (d.active, d.inactive, d.persistent) == (0, 0, 0)));
    }
}

/// Good clients, each a step after the other, beside a hundred times as many SYNs.
fn good_clients_do_not_notice(mut lab: Lab, nat: bool, persistent: bool) -> Lab {
    const GOOD: u32 = 500;
    let mut servers: Vec<u8> = Vec::new();
    lab.flood(BOUND + 1);
    // places that were given up rest for a while; templates take as many again
    let step_ms = if persistent { 3 * STEP_MS } else { STEP_MS };
    for step in 0..GOOD + 3 {
        let client = |n: u32| n * 2 + 1;
        lab.flood(FLOOD / 2);
        // a round trip is two steps
        if step < GOOD {
            let event = lab.segment(client(step), SYN, b"");
            servers.push(server_of(&event));
        }
        if let Some(n) = step.checked_sub(1).filter(|n| *n < GOOD && nat) {
            assert!(
                matches!(lab.reply(servers[n as usize], client(n), SYN | ACK), Event::Out(_)),
                "client {n}"
            );
        }
        lab.flood(FLOOD / 2);
        if let Some(n) = step.checked_sub(2).filter(|n| *n < GOOD) {
            assert_eq!(server_of(&lab.segment(client(n), ACK, b"")), servers[n as usize], "ACK of {n}");
        }
        if let Some(n) = step.checked_sub(3) {
            assert_eq!(
                server_of(&lab.segment(client(n), PSH | ACK, b"x")),
                servers[n as usize],
                "data of {n}"
            );
        }
        let over = if persistent { 2 } else { 0 };
        assert!(lab.half_open() <= BOUND + over, "{} half-open", lab.half_open());
        lab.rig.advance_ms(step_ms);
    }
    // much later all of them are still there
    for _ in 0..2 * BOUND / FLOOD {
        lab.flood(FLOOD);
        lab.rig.advance_ms(step_ms);
    }
    for n in 0..GOOD {
        assert_eq!(server_of(&lab.segment(n * 2 + 1, PSH | ACK, b"y")), servers[n as usize], "client {n}");
    }
    assert_eq!(lab.rig.dropped(Reason::TableFull), 0);
    lab.check_counts();
    lab
}

#[test]
fn by_nat_the_oldest_half_open_make_way() {
    for service in ["-s rr", "-s wlc", "-s mh -b mh-port", "-s maglev"] {
        let mut lab = good_clients_do_not_notice(Lab::new(service, "-m"), true, false);
        assert!(lab.rig.counted(Count::HalfOpenEvicted) > 40_000, "{service}");
        assert_eq!(lab.rig.counted(Count::SynStateless), 0, "{service}: replies would not be known");
        assert_eq!(lab.half_open(), BOUND);
        lab.must_run_dry();
    }
}

#[test]
fn by_dr_and_tunnels_too_where_the_choice_depends_on_the_past() {
    for (service, method) in [("-s wrr", "-g"), ("-s lc", "-i")] {
        let mut lab = good_clients_do_not_notice(Lab::new(service, method), false, false);
        assert!(lab.rig.counted(Count::HalfOpenEvicted) > 40_000);
        assert_eq!(lab.rig.counted(Count::SynStateless), 0);
        lab.must_run_dry();
    }
}

#[test]
fn by_dr_and_tunnels_a_syn_needs_no_entry_where_it_does_not() {
    for (service, method) in
        [("-s maglev", "-g"), ("-s mh -b mh-port", "-i"), ("-s sh", "-g"), ("-s dh", "-i")]
    {
        let mut lab = good_clients_do_not_notice(Lab::new(service, method), false, false);
        assert!(lab.rig.counted(Count::SynStateless) > 40_000);
        // the good clients' ACKs only; and when such a one is established, the next SYN gets the entry
        assert!(lab.rig.counted(Count::HalfOpenEvicted) <= 500);
        assert!((450..=500).contains(&lab.rig.counted(Count::ConnAfterSyn)));
        lab.must_run_dry();
    }
}

#[test]
fn the_same_over_ipv6() {
    good_clients_do_not_notice(Lab::new_v6("-s wlc", "-m"), true, false).must_run_dry();
    let lab = good_clients_do_not_notice(Lab::new_v6("-s maglev", "-g"), false, false);
    assert!(lab.rig.counted(Count::SynStateless) > 40_000);
}

/// Each source of the flood would leave a template behind for five minutes.
#[test]
fn templates_of_the_flood_go_and_those_of_good_clients_stay() {
    for (service, method, nat) in [("-s rr -p 300", "-m", true), ("-s maglev -p 300", "-g", false)] {
        let mut lab = good_clients_do_not_notice(Lab::new(service, method), nat, true);
        assert_eq!(lab.rig.counted(Count::SynStateless), 0, "a template is made or followed");
        assert!(lab.half_open() <= BOUND + 2);
        // the next connection of a client goes where its template says
        for n in [0, 100, 499] {
            let client = n * 2 + 1;
            let before = server_of(&lab.segment(client, PSH | ACK, b"z"));
            assert_eq!(server_of(&lab.segment(client | 5 << 16, SYN, b"")), before, "client {n}");
        }
        lab.must_run_dry();
    }
}

#[test]
fn of_half_open_ones_the_oldest_goes_first() {
    let mut lab = Lab::new("-s rr", "-m");
    let table = |lab: &Lab| lab.rig.director.table.len(Family::V4) as u32;
    lab.flood(BOUND);
    assert_eq!((table(&lab), lab.rig.counted(Count::HalfOpenEvicted)), (BOUND, 0));
    lab.flood(BOUND / 2);
    assert_eq!(table(&lab), BOUND);
    // four shards, each with a queue of its own: about the older half is gone
    let there = |lab: &mut Lab, source: u32| !matches!(lab.segment(source * 2, ACK, b""), Event::Pass);
    let kept = (1..=BOUND / 4).filter(|n| there(&mut lab, *n)).count();
    assert_eq!(kept, 0, "of the oldest quarter");
    let kept = (BOUND * 3 / 4..=BOUND * 3 / 2).filter(|n| there(&mut lab, *n)).count();
    assert_eq!(kept as u32, BOUND * 3 / 4 + 1, "of the newest");
}

#[test]
fn a_table_full_of_established_ones_refuses_and_evicts_none() {
    for (service, method, nat) in [("-s rr", "-m", true), ("-s maglev", "-g", false)] {
        let mut lab = Lab::new(service, method);
        let servers: Vec<u8> = (0..ROOM).map(|n| lab.establish(n * 2 + 1, nat)).collect();
        assert_eq!((lab.len(), lab.half_open()), (ROOM as usize, 0));
        let evicted = lab.rig.counted(Count::HalfOpenEvicted);
        for n in 0..3000 {
            assert_eq!(lab.segment(n * 2, SYN, b""), Event::Drop(Reason::TableFull));
        }
        assert_eq!(lab.rig.dropped(Reason::TableFull), 3000);
        assert_eq!(lab.rig.counted(Count::HalfOpenEvicted), evicted);
        for n in 0..ROOM {
            assert_eq!(server_of(&lab.segment(n * 2 + 1, PSH | ACK, b"y")), servers[n as usize]);
        }
        lab.check_counts();
        lab.must_run_dry();
    }
}

/// With few places left the flood can have no more than these, and good clients still come in.
#[test]
fn a_nearly_full_table_serves_good_clients() {
    let mut lab = Lab::new("-s rr", "-m");
    let old: Vec<u8> = (0..ROOM - 300).map(|n| lab.establish(n * 2 + 1, true)).collect();
    for n in ROOM..ROOM + 100 {
        lab.flood(10);
        lab.rig.advance_ms(100);
        lab.establish(n * 2 + 1, true);
    }
    assert_eq!((lab.len(), lab.rig.dropped(Reason::TableFull)), (ROOM as usize, 0));
    for (n, k) in old.into_iter().enumerate() {
        assert_eq!(server_of(&lab.segment(n as u32 * 2 + 1, PSH | ACK, b"y")), k);
    }
    lab.check_counts();
    // other protocols take the place of half-open ones, too
    lab.rig.cli("-A -u 10.0.0.1:53 -s rr");
    lab.rig.cli("-a -u 10.0.0.1:53 -r 10.1.0.9:53 -m");
    let before = lab.half_open();
    let ip = Ip::new("10.2.9.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
    lab.rig.advance_ms(200);
    assert_eq!(server_of(&lab.rig.client(&udp(&ip, 5, 53, b"x"))), 9);
    assert_eq!(lab.half_open(), before - 1);
}

/// ACKs that nothing went before can fill the half-open connections' share only, and evict no good client's connection.
#[test]
fn a_flood_of_acks_makes_nothing_that_stays() {
    let mut lab = Lab::new("-s maglev", "-g");
    assert_eq!(lab.segment(2, ACK, b""), Event::Pass, "without a flood: the stack's");
    lab.flood(BOUND + 1);
    let good: Vec<(u32, u8)> = (0..50).map(|n| (n * 2 + 1, lab.establish(n * 2 + 1, false))).collect();
    let first = lab.sources + 1;
    for n in first..first + 3 * BOUND {
        server_of(&lab.segment(n * 2, ACK, b""));
    }
    assert_eq!((lab.half_open(), lab.len() as u32), (BOUND, BOUND + 50));
    for (client, k) in &good {
        assert_eq!(server_of(&lab.segment(*client, PSH | ACK, b"y")), *k);
    }
    // a segment without ACK makes nothing, a RST reaches the server that has the connection
    assert_eq!(lab.segment(0x7_0001, 0, b""), Event::Pass);
    let len = lab.len();
    let k = server_of(&lab.segment(0x7_0003, SYN, b""));
    assert_eq!((server_of(&lab.segment(0x7_0003, RST, b"")), lab.len()), (k, len));
    // a minute after the last such SYN an ACK is the stack's again
    lab.rig.advance(120);
    assert_eq!(lab.segment(0x7_0005, ACK, b""), Event::Pass);
    lab.must_run_dry();
}

/// A connection that an ACK made after a stateless SYN may be evicted until its second segment, which the core must see: only then may
/// the tier have it.
#[test]
fn the_tier_gets_no_connection_that_may_be_evicted() {
    let mut lab = Lab::over(Rig::with_tier(ROOM), "-s maglev", "-g");
    lab.flood(BOUND + 1);
    let client = 0x7_0001;
    server_of(&lab.segment(client, SYN, b""));
    let before = lab.half_open();
    server_of(&lab.segment(client, ACK, b""));
    assert!(!lab.rig.worker.marks_waiting(), "after one segment");
    server_of(&lab.segment(client, PSH | ACK, b"y"));
    assert!(lab.half_open() < before.max(BOUND), "it is established");
    assert!(lab.rig.worker.marks_waiting(), "after two");
}

#[test]
fn what_may_not_be_stateless_is_not() {
    let stateless = |lab: &mut Lab| {
        lab.flood(BOUND + 10);
        lab.rig.counted(Count::SynStateless)
    };
    let mut off = Lab::new("-s maglev", "-g");
    off.rig.director.sysctls.set("stateless_syn", "0").unwrap();
    assert_eq!(stateless(&mut off), 0);
    let mut limited = Lab::new("-s maglev", "-g -x 100000");
    assert_eq!(stateless(&mut limited), 0, "thresholds count connections");
    let mut wide = Lab::new("-s maglev", "-g");
    wide.rig.director.sysctls.set("half_open_percent", "0").unwrap();
    assert_eq!(stateless(&mut wide), 0, "the whole table is theirs");
    assert_eq!(wide.rig.counted(Count::HalfOpenEvicted), 0);
    wide.flood(ROOM);
    assert_eq!(wide.rig.counted(Count::SynStateless), u64::from(BOUND + 10));
    let mut narrow = Lab::new("-s rr", "-m");
    narrow.flood(BOUND);
    narrow.rig.director.sysctls.set("half_open_percent", "1").unwrap();
    // lowered: each new one takes the place of two
    narrow.flood(BOUND);
    assert_eq!(narrow.half_open(), ROOM / 100);
    assert!(narrow.rig.director.sysctls.set("half_open_percent", "101").is_err());
}

/// Between a SYN without an entry and its ACK the weights change: the ACK goes where the scheduler says then.
#[test]
fn weights_that_change_between_syn_and_ack_move_few() {
    let mut lab = Lab::new("-s maglev", "-g");
    lab.flood(BOUND);
    let servers: Vec<u8> = (0..300).map(|n| server_of(&lab.segment(n * 2 + 1, SYN, b""))).collect();
    lab.rig.cli("-e -t 10.0.0.1:80 -r 10.1.0.3:80 -g -w 0");
    let mut moved = 0;
    for (n, k) in servers.into_iter().enumerate() {
        let now = server_of(&lab.segment(n as u32 * 2 + 1, ACK, b""));
        assert!(
            now != 3
                && (k == 3 || now == k || {
                    moved += 1;
                    moved < 30
                }),
            "client {n}: {k}, then {now}"
        );
        // and stays there
        assert_eq!(server_of(&lab.segment(n as u32 * 2 + 1, PSH | ACK, b"x")), now);
    }
}
