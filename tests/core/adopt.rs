//! A director that takes over the memory of one that has ended.

use std::net::IpAddr;

use ipvs_netlink::Backend;
use lvsd::conn::{Config, Conn, ConnTable, Memory, Tuple};
use lvsd::engine::{Adopted, Count, MAX_DESTS, Reason};
use lvsd::mem::Region;
use lvsd::service::{DestMemory, Dests};
use lvsd::time::Now;
use modes::Family;

use super::frames::*;
use super::rig::{Event, Rig, config};

const VIP: &str = "10.0.0.1";
const MAX: u32 = 1024;

/// Memory that outlives a director, as pinned BPF maps do.
pub struct SharedMemory {
    config: Config,
    areas: Vec<(std::os::fd::OwnedFd, usize)>,
}

impl SharedMemory {
    pub fn new(max: u32) -> SharedMemory {
        let ((v4_entries, v4_index), (v6_entries, v6_index)) =
            (Memory::sizes(Family::V4, max), Memory::sizes(Family::V6, max));
        let dests = [
            Dests::bytes(MAX_DESTS),
            Dests::stat_bytes(MAX_DESTS, 1),
            Dests::kernel_bytes(MAX_DESTS, 2),
            Dests::key_bytes(MAX_DESTS),
        ];
        let sizes = [v4_entries, v4_index, v6_entries, v6_index].into_iter().chain(dests);
        let area = |bytes: usize| {
            let fd = rustix::fs::memfd_create("lvsd-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
            (fd, bytes)
        };
        SharedMemory { config: config(max), areas: sizes.map(area).collect() }
    }

    fn region(&self, area: usize) -> Region {
        let (fd, bytes) = &self.areas[area];
        Region::map_fd(fd, *bytes).unwrap()
    }

    fn table(&self) -> Memory {
        let [v4_entries, v4_index, v6_entries, v6_index] = [0, 1, 2, 3].map(|area| self.region(area));
        Memory { v4_entries, v4_index, v6_entries, v6_index }
    }

    /// The rig of a director over it.
    pub fn rig(&self, now: Now) -> Rig {
        let table = ConnTable::with_memory(self.config, self.table(), now.tick()).unwrap();
        let [lines, stats, kernel, keys] = [4, 5, 6, 7].map(|area| self.region(area));
        Rig::over(table, DestMemory { lines, stats, kernel, keys }, now)
    }
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn service(rig: &mut Rig, servers: &[u8]) {
    rig.cli(&format!("-A -t {VIP}:80 -s rr"));
    for k in servers {
        rig.cli(&format!("-a -t {VIP}:80 -r 10.1.0.{k}:80 -m"));
    }
}

fn packet(port: u16, flags: u8) -> Vec<u8> {
    tcp(&Ip::new(ip("10.2.0.1"), ip(VIP)), port, 80, flags, b"data")
}

fn answer(server: u8, port: u16, flags: u8) -> Vec<u8> {
    tcp(&Ip::new(ip(&format!("10.1.0.{server}")), ip("10.2.0.1")), 80, port, flags, b"data")
}

/// The server that a connection's packet goes to.
fn server_of(rig: &mut Rig, port: u16) -> Option<u8> {
    match rig.client(&packet(port, ACK)) {
        Event::Out(frames) => Some(frames[0].1[33]),
        _ => None,
    }
}

/// Opens connections from these ports; the server of each.
fn open(rig: &mut Rig, ports: std::ops::Range<u16>) -> Vec<(u16, u8)> {
    let mut all = Vec::new();
    for port in ports {
        let Event::Out(frames) = rig.client(&packet(port, SYN)) else { panic!("a SYN was not forwarded") };
        let server = frames[0].1[33];
        rig.server(server, &answer(server, port, SYN | ACK));
        rig.client(&packet(port, ACK));
        all.push((port, server));
    }
    all
}

fn conn<T>(rig: &Rig, port: u16, f: impl FnOnce(&Conn<'_>) -> T) -> T {
    let t = Tuple {
        family: Family::V4,
        proto: 6,
        src: ip("10.2.0.1").into(),
        dst: ip(VIP).into(),
        sport: port,
        dport: 80,
    };
    let (conn, _) = rig.director.table.lookup(rig.director.table.hash(&t), &t).expect("the connection");
    f(&conn)
}

/// The director that comes after, with these servers in this order.
fn successor(memory: &SharedMemory, rig: Rig, servers: &[u8]) -> (Rig, Adopted) {
    let now = rig.now;
    drop(rig);
    let mut rig = memory.rig(now);
    let adopted = rig.director.adopt();
    if !servers.is_empty() {
        service(&mut rig, servers);
    }
    rig.director.settle();
    (rig, adopted)
}

#[test]
fn connections_keep_their_servers_and_counts() {
    let memory = SharedMemory::new(MAX);
    let mut rig = memory.rig(Now::from_secs(1_000_000));
    service(&mut rig, &[1, 2, 3]);
    let all = open(&mut rig, 40_000..40_009);
    rig.client(&packet(40_000, FIN | ACK));
    let before = rig.dests(&format!("-t {VIP}:80"));
    rig.director.zero(None).unwrap();
    open(&mut rig, 40_100..40_103);
    let zeroed = rig.dests(&format!("-t {VIP}:80"));
    let expire = conn(&rig, 40_001, |c| (c.last_seen(), c.timeout()));

    // in another order: the lines have other numbers than a fresh start would give
    let (mut rig, adopted) = successor(&memory, rig, &[3, 1, 2]);
    assert_eq!(adopted, Adopted { connections: 12, destinations: 3, lost: 0 });
    let after = rig.dests(&format!("-t {VIP}:80"));
    for ((was, now), first) in zeroed.iter().zip(&after).zip(&before) {
        assert_eq!((was.active, was.inactive), (now.active, now.inactive));
        assert_eq!(now.active + now.inactive, first.active + first.inactive + 1);
        assert_eq!((was.stats.conns, was.stats.in_pkts), (now.stats.conns, now.stats.in_pkts), "since -Z");
        assert_eq!(now.stats.conns, 1);
    }
    let total = rig.director.services()[0].stats;
    assert_eq!(total.conns, 3, "of the service, too");
    assert_eq!(conn(&rig, 40_001, |c| (c.last_seen(), c.timeout())), expire);
    for (port, server) in all {
        assert_eq!(server_of(&mut rig, port), Some(server));
    }
    assert_eq!(rig.counted(Count::ConnNew), 0);
    // timers go on where they were
    rig.advance(1000);
    assert_eq!(rig.director.table.len(Family::V4), 0);
    let left = rig.dests(&format!("-t {VIP}:80"));
    assert!(left.iter().all(|d| (d.active, d.inactive) == (0, 0)), "{left:?}");
}

#[test]
fn what_nobody_claims_is_not_served_and_can_come_back() {
    let memory = SharedMemory::new(MAX);
    let mut rig = memory.rig(Now::from_secs(1_000_000));
    service(&mut rig, &[1, 2]);
    let all = open(&mut rig, 40_000..40_004);
    let (mut rig, _) = successor(&memory, rig, &[2, 5]);
    for &(port, server) in &all {
        let now = server_of(&mut rig, port);
        assert_eq!(now, Some(server).filter(|s| *s == 2), "port {port}");
    }
    assert_eq!(rig.dropped(Reason::DestinationGone), 2);
    rig.cli(&format!("-a -t {VIP}:80 -r 10.1.0.1:80 -m"));
    for (port, server) in all {
        assert_eq!(server_of(&mut rig, port), Some(server));
    }
    let dests = rig.dests(&format!("-t {VIP}:80"));
    assert_eq!(dests.iter().map(|d| d.active).collect::<Vec<_>>(), [2, 2, 0]);
}

#[test]
fn without_a_configuration_nothing_is_served_and_nothing_leaks() {
    let memory = SharedMemory::new(MAX);
    let mut rig = memory.rig(Now::from_secs(1_000_000));
    service(&mut rig, &[1]);
    open(&mut rig, 40_000..40_002);
    let (mut rig, adopted) = successor(&memory, rig, &[]);
    assert_eq!((adopted.connections, adopted.destinations), (2, 1));
    assert_eq!(server_of(&mut rig, 40_000), None);
    rig.advance(2000);
    assert_eq!(rig.director.table.len(Family::V4), 0);
    // twice: lines rest for a round
    rig.director.estimate();
    rig.director.estimate();
    let (_, adopted) = successor(&memory, rig, &[]);
    assert_eq!(adopted, Adopted::default(), "the line is free again");
}

#[test]
fn what_a_killed_director_left_half_done_is_mended() {
    let memory = SharedMemory::new(MAX);
    let mut rig = memory.rig(Now::from_secs(1_000_000));
    service(&mut rig, &[1]);
    rig.cli(&format!("-A -t {VIP}:81 -s rr -p 300"));
    rig.cli(&format!("-a -t {VIP}:81 -r 10.1.0.7:81 -m"));
    rig.client(&tcp(&Ip::new(ip("10.2.0.9"), ip(VIP)), 5000, 81, SYN, b""));
    open(&mut rig, 40_000..40_002);
    let (dest, moving) = conn(&rig, 40_000, |c| {
        let (word, moving) = (c.word(), 1 << 23 | 1 << 25 | 1 << 26 | 1 << 28);
        c.try_set(word, word.state(), word.flags() | moving).unwrap();
        (c.dest(), moving)
    });
    // counted, but the entry was never made
    rig.director.dests.line(dest).bind(true);
    rig.director.dests.line(dest).bind_template();
    let stray = rig.director.dests.allocate().unwrap();
    rig.director.dests.line(stray).set_load(3, 0, 0);

    let now = rig.now;
    drop(rig);
    let mut rig = memory.rig(now);
    assert_eq!(rig.director.adopt(), Adopted { connections: 4, destinations: 2, lost: 0 });
    service(&mut rig, &[1]);
    rig.cli(&format!("-A -t {VIP}:81 -s rr -p 300"));
    rig.cli(&format!("-a -t {VIP}:81 -r 10.1.0.7:81 -m"));
    rig.director.settle();
    let d = &rig.dests(&format!("-t {VIP}:80"))[0];
    assert_eq!((d.active, d.inactive, d.persistent), (2, 0, 0));
    let d = &rig.dests(&format!("-t {VIP}:81"))[0];
    assert_eq!((d.active + d.inactive, d.persistent), (1, 1));
    assert_eq!(conn(&rig, 40_000, |c| c.flags()) & moving, 0, "nobody would end the move");
    assert_eq!(rig.director.dests.line(stray).weight(), 0);
    // the template holds as long as its connection lives, and no longer
    rig.advance(5000);
    assert!(rig.director.table.is_empty());
}

#[test]
fn connections_of_lines_that_are_for_nothing_are_removed() {
    let memory = SharedMemory::new(MAX);
    let mut rig = memory.rig(Now::from_secs(1_000_000));
    service(&mut rig, &[1]);
    open(&mut rig, 40_000..40_003);
    let dest = conn(&rig, 40_000, |c| c.dest());
    rig.director.dests.release(dest);
    let (rig, adopted) = successor(&memory, rig, &[1]);
    assert_eq!(adopted, Adopted { connections: 0, destinations: 0, lost: 3 });
    assert!(rig.director.table.is_empty());
}
