mod golden;
mod hot;
mod tier;

use std::net::IpAddr;

use aya::programs::{TestRun, TestRunOptions};

use super::*;
use crate::conn::{ConnTable, NewConn};
use crate::io::testnet;
use crate::time::{Tick, ticks};

const CONFIG: Config = Config { max_v4: 1000, max_v6: 1000, hash_key: [1, 2], shards: 2 };

fn tables() -> BpfTables {
    let t = BpfTables::create(TableShape::of(&CONFIG), 0x1234_5678).unwrap();
    t.load_xdp().unwrap();
    // the loopback device, which programs are run on for a test, and its address; without sockets what is ours is dropped
    t.set_xdp_port(1, XdpPortLine { mac: [0; 6], generic: false, place: 0 }).unwrap();
    t
}

fn addr(text: &str) -> Addr {
    text.parse::<IpAddr>().unwrap().into()
}

fn present(tables: &BpfTables, key: ServiceKey) -> bool {
    tables.services.lock().unwrap().map.get(&key, 0).is_ok()
}

#[test]
fn a_virtual_address_lives_as_long_as_its_last_service() {
    if testnet::cannot() {
        return;
    }
    let t = tables();
    let addr = addr("192.0.2.1");
    let vip = service_key(Family::V4, 0, addr, 0);
    let key = |proto, port| service_key(Family::V4, proto, addr, port);
    t.service_added(Family::V4, 6, addr, 80);
    t.service_added(Family::V4, 6, addr, 80);
    t.service_added(Family::V4, 17, addr, 0);
    assert!(present(&t, vip) && present(&t, key(6, 80)) && present(&t, key(17, 0)));
    t.service_removed(Family::V4, 6, addr, 81);
    t.service_removed(Family::V4, 6, addr, 80);
    assert!(present(&t, vip) && !present(&t, key(6, 80)) && present(&t, key(17, 0)));
    t.service_removed(Family::V4, 6, addr, 80);
    assert!(present(&t, vip));
    t.service_removed(Family::V4, 17, addr, 0);
    assert!(!present(&t, vip) && !present(&t, key(17, 0)));
    assert!(t.services.lock().unwrap().known.is_empty());
}

#[test]
fn keys_are_in_network_order() {
    assert_eq!(service_key(Family::V4, 6, addr("1.2.3.4"), 0x1234)[..8], [4, 6, 0x12, 0x34, 1, 2, 3, 4]);
    let key = service_key(Family::V6, 17, addr("2001:db8::5"), 1);
    assert_eq!((key[0], key[4], key[5], key[19]), (6, 0x20, 1, 5));
}

#[test]
fn a_mark_of_0_is_refused() {
    let e = BpfTables::create(TableShape::of(&CONFIG), 0).unwrap_err();
    assert!(e.to_string().contains("must not be 0"), "{e}");
}

/// The oldest kernel that is promised, 6.1, lets a socket have a filter of 20,480 bytes (`net.core.optmem_max`), and a verifier
/// look at a million instructions. Its verifier took about a seventh more of them than later ones.
#[test]
fn programs_are_well_within_what_linux_6_1_allows() {
    if testnet::cannot() {
        return;
    }
    let shape = TableShape::of(&CONFIG);
    for (t, filter) in [
        (BpfTables::create(shape, 1).unwrap(), "lvsd_ring"),
        (BpfTables::with_tier(shape, 1, &testnet::plan()).unwrap(), "lvsd_tier_ring"),
    ] {
        let programs = t.programs();
        let bytes = programs.program(filter).unwrap().info().unwrap().size_translated().unwrap();
        assert!(bytes < 16_000, "{filter}: {bytes} bytes");
        for (name, program) in programs.programs() {
            // the others of the object are not loaded
            let Ok(info) = program.info() else { continue };
            // kernels before 5.16 do not tell
            let looked_at = info.verified_instruction_count().unwrap_or(0);
            assert!(looked_at < 200_000, "{name}: {looked_at} instructions");
        }
    }
}

/// An IP packet: header (with an option in IPv4, an extension header in IPv6, if `odd`) and what follows.
fn ip(src: &str, dst: &str, proto: u8, fragment: u16, odd: bool, rest: &[u8]) -> Vec<u8> {
    let (s, d): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut p = Vec::new();
    match (s, d) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            p.extend([if odd { 0x46 } else { 0x45 }, 0, 0, 0, 0, 0]);
            p.extend(fragment.to_be_bytes());
            p.extend([64, proto, 0, 0]);
            p.extend(s.octets());
            p.extend(d.octets());
            if odd {
                p.extend([1; 4]);
            }
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            let first = if odd { 60 } else { proto };
            p.extend([0x60, 0, 0, 0, 0, 0, if fragment == 0 { first } else { 44 }, 64]);
            p.extend(s.octets());
            p.extend(d.octets());
            if fragment != 0 {
                p.extend([first, 0]);
                p.extend((fragment << 3 | 1).to_be_bytes());
                p.extend([0; 4]);
            }
            if odd && fragment == 0 {
                p.extend([proto, 1]);
                p.extend([0; 14]);
            }
        }
        _ => panic!("one family"),
    }
    p.extend(rest);
    p
}

fn ports(s: u16, d: u16) -> Vec<u8> {
    let mut p = Vec::from(s.to_be_bytes());
    p.extend(d.to_be_bytes());
    p.extend([0; 16]);
    p
}

fn icmp(kind: u8, inner: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0], inner].concat()
}

/// An Ethernet frame to the loopback device's address (which is zeros), or to another one.
fn frame(to_us: bool, tags: usize, packet: &[u8]) -> Vec<u8> {
    let mut f = vec![if to_us { 0 } else { 2 }, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 9];
    for _ in 0..tags {
        f.extend([0x81, 0, 0, 7]);
    }
    f.extend(if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] });
    f.extend(packet);
    f.resize(f.len().max(60), 0);
    f
}

/// Whether the XDP face takes a frame away from the stack.
fn taken_by_xdp(t: &BpfTables, frame: &[u8]) -> bool {
    const DROP: u32 = 1;
    const PASS: u32 = 2;
    let programs = t.programs();
    let Some(Program::Xdp(p)) = programs.program("lvsd_xdp") else { panic!("no program") };
    let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::new() };
    match p.test_run(options).unwrap().return_value {
        DROP => true,
        PASS => false,
        other => panic!("return value {other}"),
    }
}

/// Whether a frame is taken away from the stack, by the ingress face and by the XDP face alike.
fn taken(t: &BpfTables, frame: &[u8]) -> bool {
    const SHOT: u32 = 2;
    const UNSPEC: u32 = u32::MAX;
    let programs = t.programs();
    let Some(Program::SchedClassifier(p)) = programs.program("lvsd_ingress") else { panic!("no program") };
    let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::new() };
    let taken = match p.test_run(options).unwrap().return_value {
        SHOT => true,
        UNSPEC => false,
        other => panic!("return value {other}"),
    };
    drop(programs);
    assert_eq!(taken_by_xdp(t, frame), taken, "the faces differ");
    taken
}

/// A client, a virtual address, a server, of one family.
struct Cast {
    family: Family,
    client: &'static str,
    vip: &'static str,
    real: &'static str,
    error: u8,
    icmp: u8,
}

const CASTS: [Cast; 2] = [
    Cast {
        family: Family::V4,
        client: "192.0.2.7",
        vip: "198.51.100.1",
        real: "10.0.0.3",
        error: 3,
        icmp: 1,
    },
    Cast {
        family: Family::V6,
        client: "2001:db8::7",
        vip: "2001:db8:1::1",
        real: "fd00::3",
        error: 1,
        icmp: 58,
    },
];

/// Tables with services TCP vip:80, UDP vip:0 and one NAT connection client:4000 → vip:80 → real:8080, one without reply
/// key from client:4001.
fn populated(c: &Cast) -> (BpfTables, ConnTable) {
    let t = tables();
    t.service_added(c.family, 6, addr(c.vip), 80);
    t.service_added(c.family, 17, addr(c.vip), 0);
    let table = ConnTable::with_memory(CONFIG, t.memory().unwrap(), Tick(1)).unwrap();
    for (port, index_out) in [(4000, true), (4001, false)] {
        let new = NewConn {
            family: c.family,
            proto: 6,
            client: (addr(c.client), port),
            virt: (addr(c.vip), 80),
            real: (addr(c.real), 8080),
            dest: 1,
            method: 0,
            state: 1,
            flags: 0,
            timeout: ticks(60),
            template: None,
            fwmark: 0,
            index_out,
            half_open: false,
            is_template: false,
        };
        table.insert(Tick(1), &new).unwrap();
    }
    (t, table)
}

#[test]
fn services_are_ours_and_nothing_beside_them() {
    if testnet::cannot() {
        return;
    }
    for c in &CASTS {
        let (t, _table) = populated(c);
        for odd in [false, true] {
            let to = |tags, dst, proto, port| {
                frame(true, tags, &ip(c.client, dst, proto, 0, odd, &ports(5000, port)))
            };
            assert!(taken(&t, &to(0, c.vip, 6, 80)), "{:?} odd {odd}", c.family);
            assert!(taken(&t, &to(0, c.vip, 17, 53)), "port 0 takes all ports");
            assert!(!taken(&t, &to(0, c.vip, 6, 81)), "another port");
            assert!(!taken(&t, &to(0, c.vip, 132, 80)), "another protocol");
            assert!(!taken(&t, &to(0, c.real, 6, 80)), "another address");
            // a tag beside the outer one, which the kernel has taken out by then
            assert!(!taken(&t, &to(1, c.vip, 6, 80)), "a VLAN's, within another tag");
        }
        let strange = frame(false, 0, &ip(c.client, c.vip, 6, 0, false, &ports(5000, 80)));
        assert!(!taken(&t, &strange), "another MAC");
        let end = if c.family == Family::V4 { 34 } else { 54 };
        let cut = &frame(true, 0, &ip(c.client, c.vip, 6, 0, true, &[]))[..end];
        assert!(!taken(&t, cut), "no ports to be read");
        let mut arp = frame(true, 0, &ip(c.client, c.vip, 6, 0, false, &ports(5000, 80)));
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(!taken(&t, &arp), "not IP");
        t.service_removed(c.family, 6, addr(c.vip), 80);
        assert!(!taken(&t, &frame(true, 0, &ip(c.client, c.vip, 6, 0, false, &ports(5000, 80)))));
    }
}

#[test]
fn connections_are_ours_by_their_whole_tuple() {
    if testnet::cannot() {
        return;
    }
    for c in &CASTS {
        let (t, table) = populated(c);
        let reply = |sport, dport, proto| {
            frame(true, 0, &ip(c.real, c.client, proto, 0, false, &ports(sport, dport)))
        };
        assert!(taken(&t, &reply(8080, 4000, 6)), "{:?}", c.family);
        assert!(!taken(&t, &reply(8080, 4002, 6)), "the same server, another client port");
        assert!(!taken(&t, &reply(8081, 4000, 6)), "another server port");
        assert!(!taken(&t, &reply(8080, 4000, 17)), "another protocol");
        assert!(!taken(&t, &reply(8080, 4001, 6)), "a connection whose replies go another way");
        // the service goes, the connection lives on
        t.service_removed(c.family, 6, addr(c.vip), 80);
        let forth = |sport| frame(true, 0, &ip(c.client, c.vip, 6, 0, false, &ports(sport, 80)));
        assert!(taken(&t, &forth(4000)) && taken(&t, &forth(4001)) && !taken(&t, &forth(4002)));
        let mut seen = Vec::new();
        // expire all
        let end = Tick(1).plus(ticks(3600));
        for _ in 0..1000 {
            table.expire(end, 1000, &mut |conn| {
                seen.push(conn.id());
                crate::conn::Expiry::Remove
            });
        }
        assert_eq!(seen.len(), 2);
        assert!(!taken(&t, &reply(8080, 4000, 6)) && !taken(&t, &forth(4000)));
    }
}

#[test]
fn fragments_and_errors_go_up_where_they_concern_us() {
    if testnet::cannot() {
        return;
    }
    for c in &CASTS {
        let (t, _table) = populated(c);
        let up = |src, dst, proto, fragment, rest: &[u8]| {
            taken(&t, &frame(true, 0, &ip(src, dst, proto, fragment, false, rest)))
        };
        assert!(up(c.client, c.vip, 6, 100, &[0; 40]), "a later fragment to a virtual address");
        assert!(!up(c.client, c.real, 6, 100, &[0; 40]), "a later fragment to another address");
        assert!(up(c.client, c.vip, c.icmp, 0, &icmp(c.error, &[])), "an error to a virtual address");
        let echo = if c.family == Family::V4 { 8 } else { 128 };
        assert!(!up(c.client, c.vip, c.icmp, 0, &icmp(echo, &[0; 40])), "ping of a virtual address");
        // the server says of the client's packet, as it came to the server, that its port is closed
        let said = |sport, dport| icmp(c.error, &ip(c.client, c.real, 6, 0, false, &ports(sport, dport)));
        assert!(up(c.real, c.client, c.icmp, 0, &said(4000, 8080)), "{:?}", c.family);
        assert!(!up(c.real, c.client, c.icmp, 0, &said(4002, 8080)), "of another connection");
        assert!(!up(c.real, c.client, c.icmp, 0, &icmp(c.error, &[0x45, 0])), "of a cut packet");
        // a router says of a tunnel's outer packet that it is too big; the inner one may be of the other family
        for outer in &CASTS {
            let from = |carried: &[u8], proto, len: usize| {
                let packet = ip(outer.client, outer.real, proto, 0, false, carried);
                let error = icmp(outer.error, &packet[..len.min(packet.len())]);
                taken(&t, &frame(true, 0, &ip(outer.real, outer.client, outer.icmp, 0, false, &error)))
            };
            let inner = |sport| ip(c.client, c.vip, 6, 0, false, &ports(sport, 80));
            let (direct, kind) = if c.family == Family::V4 { (4, [8, 0]) } else { (41, [0x86, 0xdd]) };
            let gre = |flags: u8, sport| {
                let checksum: &[u8] = if flags == 0 { &[] } else { &[1, 2, 0, 0] };
                [&[flags, 0], &kind[..], checksum, &inner(sport)].concat()
            };
            let said = format!("{:?} in {:?}", c.family, outer.family);
            assert!(from(&inner(4000), direct, 2000) && from(&inner(4001), direct, 2000), "{said}");
            assert!(!from(&inner(4002), direct, 2000), "{said}: of another connection");
            assert!(!from(&inner(4000), if direct == 4 { 41 } else { 4 }, 2000), "{said}: wrongly marked");
            assert!(from(&gre(0, 4001), 47, 2000) && from(&gre(0x80, 4001), 47, 2000), "{said}");
            assert!(!from(&gre(0, 4002), 47, 2000) && !from(&gre(0x80, 4002), 47, 2000), "{said}");
            let header = if outer.family == Family::V4 { 20 } else { 40 };
            assert!(!from(&inner(4001), direct, header + 8), "{said}: 8 bytes are quoted");
        }
    }
}

#[test]
fn agrees_with_the_table_on_many_connections() {
    if testnet::cannot() {
        return;
    }
    let t = tables();
    let table = ConnTable::with_memory(CONFIG, t.memory().unwrap(), Tick(1)).unwrap();
    let name = |n: u32| format!("10.1.{}.{}", n >> 8, n & 255);
    for n in 0..1000 {
        let new = NewConn {
            family: Family::V4,
            proto: 17,
            client: (addr(&name(n)), 1000 + n as u16),
            virt: (addr("198.51.100.1"), 53),
            real: (addr("10.0.0.3"), 53),
            dest: 1,
            method: 0,
            state: 1,
            flags: 0,
            timeout: ticks(60),
            template: None,
            fwmark: 0,
            index_out: true,
            half_open: false,
            is_template: false,
        };
        table.insert(Tick(1), &new).unwrap();
    }
    for n in 0..1200u32 {
        let reply = frame(true, 0, &ip("10.0.0.3", &name(n), 17, 0, false, &ports(53, 1000 + n as u16)));
        assert_eq!(taken(&t, &reply), n < 1000, "{n}");
    }
}
