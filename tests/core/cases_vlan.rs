//! Field case 38: VLAN tags, as far as the core sees them (`docs/vlan.md`).

use std::net::IpAddr;

use lvsd::engine::{Count, Reason};

use super::frames::*;
use super::rig::{C0, C0_MAC, Event, GW_MAC, Rig, S0, server_mac};

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// A frame with these tags (type, priority and number) behind its MAC addresses.
fn tagged(packet: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let plain = ethernet(C0_MAC, GW_MAC, packet);
    let mut f = plain[..12].to_vec();
    for (kind, tci) in tags {
        f.extend(kind.to_be_bytes());
        f.extend(tci.to_be_bytes());
    }
    f.extend(&plain[12..]);
    f
}

fn syn(v6: bool) -> Vec<u8> {
    let (client, vip) = if v6 { ("2001:db8:2::1", "2001:db8::1") } else { ("10.2.0.1", "10.0.0.1") };
    tcp(&Ip::new(ip(client), ip(vip)), 40000, 80, SYN, b"")
}

fn rig(v6: bool, method: &str) -> Rig {
    let mut rig = Rig::golden();
    let (vip, real) =
        if v6 { ("[2001:db8::1]:80", "[2001:db8:1::1]:80") } else { ("10.0.0.1:80", "10.1.0.1:80") };
    rig.cli(&format!("-A -t {vip} -s rr"));
    rig.cli(&format!("-a -t {vip} -r {real} {method}"));
    rig
}

const METHODS: [&str; 3] = ["-m", "-g", "-i"];

/// A frame of a VLAN belongs to the VLAN's device, whatever is in it: passed as it came, and counted.
#[test]
fn frames_of_a_vlan_are_passed() {
    for (v6, method) in [false, true].into_iter().flat_map(|v6| METHODS.map(|m| (v6, m))) {
        let mut rig = rig(v6, method);
        let stacks: [&[(u16, u16)]; 6] = [
            &[(0x8100, 0xa064)],
            &[(0x8100, 0x0fff)],
            &[(0x88a8, 0x0064)],
            &[(0x88a8, 0x0064), (0x8100, 0x00c8)],
            &[(0x8100, 0xa000), (0x8100, 0x0064)],
            &[(0x8100, 0), (0x8100, 0), (0x8100, 0)],
        ];
        for (n, tags) in stacks.iter().enumerate() {
            assert_eq!(rig.frame(C0, &tagged(&syn(v6), tags)), Event::Pass, "{tags:x?}");
            assert_eq!(rig.counted(Count::Tagged), n as u64 + 1);
        }
        let mut broken = syn(v6);
        broken[0] = 0x10;
        assert_eq!(rig.frame(C0, &tagged(&broken, &[(0x8100, 0x64)])), Event::Pass);
        assert_eq!(rig.counted(Count::ConnNew), 0);
    }
}

/// Number 0 is no VLAN: the frame is served as if it had no tag, and leaves without one.
#[test]
fn priority_tags_are_taken_off() {
    for (v6, method) in [false, true].into_iter().flat_map(|v6| METHODS.map(|m| (v6, m))) {
        let plain = match rig(v6, method).client(&syn(v6)) {
            Event::Out(f) => f,
            e => panic!("{e:?}"),
        };
        assert_eq!((plain[0].0, &plain[0].1[..6]), (S0, &server_mac(1)[..]));
        for tag in [(0x8100, 0xa000), (0x88a8, 0xf000)] {
            let mut rig = rig(v6, method);
            assert_eq!(rig.frame(C0, &tagged(&syn(v6), &[tag])), Event::Out(plain.clone()), "{method}");
            assert_eq!((rig.counted(Count::Tagged), rig.counted(Count::ConnNew)), (0, 1));
        }
    }
}

/// What comes of other frames with such a tag: passed with it, dropped, answered without it.
#[test]
fn priority_tagged_frames_of_every_fate() {
    let tag = [(0x8100, 0xa000)];
    let mut rig = rig(false, "-m");
    let ssh = tcp(&Ip::new(ip("10.2.0.1"), ip("10.0.0.254")), 40001, 22, SYN, b"");
    // The rig compares: a frame that is passed is as it came, tag included.
    assert_eq!(rig.frame(C0, &tagged(&ssh, &tag)), Event::Pass);
    let echo = icmp(&Ip::new(ip("10.2.0.1"), ip("10.0.0.1")), (8, 0), 7, b"ping");
    assert_eq!(rig.frame(C0, &tagged(&echo, &tag)), Event::Pass);
    let mut arp = tagged(&ssh, &tag);
    arp[16..18].copy_from_slice(&[8, 6]);
    assert_eq!(rig.frame(C0, &arp), Event::Pass);
    assert_eq!(rig.frame(C0, &tagged(&ssh, &tag)[..30]), Event::Drop(Reason::Ipv4Truncated));
    for cut in [14, 15, 17] {
        assert_eq!(rig.frame(C0, &tagged(&ssh, &tag)[..cut]), Event::Pass, "cut in its tag: nobody's");
    }
    let dying = tcp(&Ip { ttl: 1, ..Ip::new(ip("10.2.0.1"), ip("10.0.0.1")) }, 40002, 80, SYN, b"");
    let Event::Out(answer) = rig.frame(C0, &tagged(&dying, &tag)) else { panic!() };
    assert_eq!((answer[0].0, &answer[0].1[12..14], answer[0].1[34]), (C0, &[8, 0][..], 11));
    // An error about a connection too.
    let Event::Out(_) = rig.frame(C0, &tagged(&syn(false), &tag)) else { panic!() };
    let quoted = &tcp(&Ip::new(ip("10.0.0.1"), ip("10.2.0.1")), 80, 40000, ACK, b"")[..28];
    let error = icmp(&Ip::new(ip("10.2.0.9"), ip("10.0.0.1")), (3, 4), 1400, quoted);
    let Event::Out(out) = rig.frame(C0, &tagged(&error, &tag)) else { panic!() };
    assert!(out[0].0 == S0 && checksums_ok(&out[0].1));
}
