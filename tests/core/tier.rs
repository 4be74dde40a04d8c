//! How connections are handed to the tier, which is played by the test: it takes flags away as the BPF programs do.

use std::net::IpAddr;

use ipvs_netlink::{Backend, Timeouts};
use lvsd::conn::{Conn, Tuple};
use lvsd::engine::{FrameHandler, Gso, RxChecksum};
use lvsd::time::ticks;
use modes::Family;

use super::frames::*;
use super::rig::{C0, C0_MAC, Event, GW_MAC, Rig, neighbour};

const VIP: &str = "10.0.0.1";
const CLIENT: &str = "10.2.0.1";
const SERVER: &str = "10.1.0.1";

/// Flags of the client's direction, as `modes/bpf/tier.h` has them; the server's are three bits above.
const MOVING: u32 = 1 << 23;
const MOVED: u32 = 1 << 24;
const HOLD: u32 = 1 << 25;
const OUT: u32 = 3;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn rig(protocol: &str, method: &str) -> Rig {
    let mut rig = Rig::with_tier(4096);
    rig.cli(&format!("-A {protocol} {VIP}:80 -s rr"));
    rig.cli(&format!("-a {protocol} {VIP}:80 -r {SERVER}:80 {method}"));
    rig
}

fn from_client(flags: u8) -> Vec<u8> {
    tcp(&Ip::new(ip(CLIENT), ip(VIP)), 40000, 80, flags, b"data")
}

fn from_server(flags: u8) -> Vec<u8> {
    tcp(&Ip::new(ip(SERVER), ip(CLIENT)), 80, 40000, flags, b"data")
}

fn datagram() -> Vec<u8> {
    udp(&Ip::new(ip(CLIENT), ip(VIP)), 40000, 80, b"data")
}

/// What `f` gives of the flow's connection.
fn conn<T>(rig: &Rig, proto: u8, f: impl FnOnce(&Conn<'_>) -> T) -> T {
    let t = Tuple {
        family: Family::V4,
        proto,
        src: ip(CLIENT).into(),
        dst: ip(VIP).into(),
        sport: 40000,
        dport: 80,
    };
    let table = &rig.director.table;
    let (conn, _) = table.lookup(table.hash(&t), &t).expect("the connection");
    f(&conn)
}

fn flags(rig: &Rig, proto: u8) -> u32 {
    conn(rig, proto, |c| c.flags()) & (0x3f << 23)
}

/// A packet of the flow goes up, as the programs see it.
fn up(rig: &Rig, proto: u8) {
    conn(rig, proto, |c| {
        let word = c.word();
        c.try_set(word, word.state(), word.flags() & !(MOVING | MOVED | HOLD)).expect("nobody else is here");
    });
}

#[track_caller]
fn forwarded(event: Event) {
    assert!(matches!(event, Event::Out(_)), "{event:?}");
}

/// The port has seen that nothing is on its way any more.
fn drained(rig: &mut Rig) {
    assert!(rig.worker.marks_waiting());
    rig.worker.marks_ready();
}

#[test]
fn tcp_is_handed_over_when_it_is_established_one_direction_at_a_time() {
    for method in ["-m", "-g"] {
        let mut rig = rig("-t", method);
        forwarded(rig.client(&from_client(SYN)));
        if method == "-m" {
            forwarded(rig.server(1, &from_server(SYN | ACK)));
        }
        assert!(!rig.worker.marks_waiting(), "{method}: nothing is established");
        forwarded(rig.client(&from_client(ACK)));
        assert_eq!(flags(&rig, 6), MOVING, "{method}");
        // still going up: that it is marked once is enough
        forwarded(rig.client(&from_client(ACK)));
        drained(&mut rig);
        assert_eq!(flags(&rig, 6), MOVED, "{method}");
        assert!(!rig.worker.marks_waiting());
        if method == "-m" {
            forwarded(rig.server(1, &from_server(ACK)));
            assert_eq!(flags(&rig, 6), MOVED | MOVING << OUT);
            drained(&mut rig);
            assert_eq!(flags(&rig, 6), MOVED | MOVED << OUT);
        }
    }
}

#[test]
fn a_packet_that_goes_up_meanwhile_puts_it_off() {
    let mut rig = rig("-u", "-m");
    forwarded(rig.client(&datagram()));
    assert_eq!(flags(&rig, 17), MOVING);
    assert!(rig.worker.marks_waiting());
    up(&rig, 17);
    rig.worker.marks_ready();
    assert_eq!(flags(&rig, 17), 0, "a packet is on its way, and would be overtaken");
    assert!(!rig.worker.marks_waiting());
    forwarded(rig.client(&datagram()));
    drained(&mut rig);
    assert_eq!(flags(&rig, 17), MOVED);
    // and back, for something odd, and over again
    up(&rig, 17);
    forwarded(rig.client(&datagram()));
    assert_eq!(flags(&rig, 17), MOVING);
    drained(&mut rig);
    assert_eq!(flags(&rig, 17), MOVED);
}

#[test]
fn who_is_marked_while_the_port_waits_waits_for_the_next_time() {
    let mut rig = rig("-u", "-m");
    let other = udp(&Ip::new(ip("10.2.0.2"), ip(VIP)), 40000, 80, b"data");
    forwarded(rig.client(&other));
    assert!(rig.worker.marks_waiting());
    forwarded(rig.client(&datagram()));
    rig.worker.marks_ready();
    assert_eq!(flags(&rig, 17), MOVING, "the port began to wait before it was marked");
    drained(&mut rig);
    assert_eq!(flags(&rig, 17), MOVED);
}

#[test]
fn a_connection_that_ends_is_not_handed_over() {
    let mut rig = rig("-t", "-m");
    forwarded(rig.client(&from_client(SYN)));
    forwarded(rig.server(1, &from_server(SYN | ACK)));
    forwarded(rig.client(&from_client(ACK)));
    assert!(rig.worker.marks_waiting());
    up(&rig, 6);
    forwarded(rig.client(&from_client(FIN | ACK)));
    rig.worker.marks_ready();
    assert_eq!(flags(&rig, 6), 0);
    forwarded(rig.server(1, &from_server(ACK)));
    assert_eq!(flags(&rig, 6), 0, "not in this state");
}

#[test]
fn what_is_not_forwarded_at_once_is_not_handed_over() {
    let mut rig = rig("-u", "-m");
    rig.apply(neighbour(3, SERVER, None));
    assert!(matches!(rig.client(&datagram()), Event::Queued));
    assert_eq!(flags(&rig, 17), 0);
    assert!(!rig.worker.marks_waiting());
}

#[test]
fn a_datagram_without_checksum_gets_one_by_nat_and_stays_with_the_core() {
    let mut bare = datagram();
    bare[26..28].fill(0);
    for (method, expected) in [("-m", 0), ("-g", MOVING)] {
        let mut rig = rig("-u", method);
        forwarded(rig.client(&bare));
        assert_eq!(flags(&rig, 17), expected, "{method}");
    }
}

#[test]
fn tunnels_are_handed_over_by_what_clients_send() {
    for how in ["-i", "-i --tun-type gre", "-i --tun-type gre --tun-csum"] {
        let mut rig = rig("-u", how);
        forwarded(rig.client(&datagram()));
        assert_eq!(flags(&rig, 17), MOVING, "{how}");
        drained(&mut rig);
        assert_eq!(flags(&rig, 17), MOVED, "{how}");
    }
}

/// Super-packets are cut and go by the outbox; a flow of nothing else is handed over all the same.
#[test]
fn a_tunnel_of_super_packets_is_handed_over() {
    let mut rig = rig("-t", "-i");
    forwarded(rig.client(&from_client(SYN)));
    let big = tcp(&Ip::new(ip(CLIENT), ip(VIP)), 40000, 80, ACK, &[7; 4000]);
    let frame = ethernet(C0_MAC, GW_MAC, &big);
    let notes = (RxChecksum::Partial, Some(Gso { size: 1000, guessed: false }));
    let (event, _) = rig.frame_behind(64, C0, &frame, notes);
    assert!(matches!(&event, Event::Out(frames) if frames.len() == 4), "{event:?}");
    assert_eq!(flags(&rig, 6), MOVING);
    drained(&mut rig);
    assert_eq!(flags(&rig, 6), MOVED);
}

/// What waits for the server's link address would be overtaken.
#[test]
fn a_tunnel_whose_next_hop_is_not_known_is_not_handed_over() {
    let mut rig = rig("-t", "-i");
    forwarded(rig.client(&from_client(SYN)));
    rig.apply(neighbour(3, SERVER, None));
    let big = tcp(&Ip::new(ip(CLIENT), ip(VIP)), 40000, 80, ACK, &[7; 4000]);
    let frame = ethernet(C0_MAC, GW_MAC, &big);
    let notes = (RxChecksum::Partial, Some(Gso { size: 1000, guessed: false }));
    rig.frame_behind(64, C0, &frame, notes);
    assert_eq!(flags(&rig, 6), 0);
}

#[test]
fn a_flow_of_many_packets_is_held_while_it_moves() {
    let mut rig = rig("-u", "-m");
    for _ in 0..4097 {
        forwarded(rig.client(&datagram()));
        assert!(rig.worker.marks_waiting());
        up(&rig, 17);
        rig.worker.marks_ready();
    }
    forwarded(rig.client(&datagram()));
    assert_eq!(flags(&rig, 17), MOVING | HOLD);
    drained(&mut rig);
    assert_eq!(flags(&rig, 17), MOVED);
}

#[test]
fn without_a_tier_nothing_is_marked() {
    let mut rig = Rig::golden();
    rig.cli(&format!("-A -u {VIP}:80 -s rr"));
    rig.cli(&format!("-a -u {VIP}:80 -r {SERVER}:80 -m"));
    forwarded(rig.client(&datagram()));
    assert_eq!(flags(&rig, 17), 0);
    assert!(!rig.worker.marks_waiting());
}

/// The tier writes timeouts as they are set; here a timeout that became shorter takes effect with the next packet that the core gets.
#[test]
fn timeouts_are_told() {
    let mut rig = rig("-u", "-m");
    forwarded(rig.client(&datagram()));
    assert_eq!(conn(&rig, 17, |c| c.timeout()), ticks(300));
    rig.director.set_timeouts(Timeouts { tcp: 0, tcp_fin: 0, udp: 20 }).unwrap();
    forwarded(rig.client(&datagram()));
    assert_eq!(conn(&rig, 17, |c| c.timeout()), ticks(20));
}
