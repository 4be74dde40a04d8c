//! Field case 24: others' ICMP errors about our connections, with as little of them as routers quote.

use std::net::IpAddr;

use ipvs_netlink::{Backend, ConnEntry};
use lvsd::engine::{Count, Reason};
use proptest::prelude::*;

use super::frames::*;
use super::rig::{C0, C0_MAC, Event, GW_MAC, Rig, S0, server_mac};

const METHODS: [&str; 5] = ["-m", "-g", "-i", "-i --tun-type gre", "-i --tun-type gre --tun-csum"];

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// Who takes part, of one family.
struct Cast {
    client: IpAddr,
    vip: IpAddr,
    /// On the way between clients and director.
    outside: IpAddr,
    /// On the way between director and servers.
    inside: IpAddr,
    v6: bool,
}

fn cast(v6: bool) -> Cast {
    let [client, vip, outside, inside] = if v6 {
        ["2001:db8:2::1", "2001:db8::1", "2001:db8:2::99", "2001:db8:1::9"]
    } else {
        ["10.2.0.1", "10.0.0.1", "203.0.113.1", "10.1.0.9"]
    }
    .map(ip);
    Cast { client, vip, outside, inside, v6 }
}

impl Cast {
    fn real(&self, k: u8) -> IpAddr {
        ip(&if self.v6 { format!("2001:db8:1::{k}") } else { format!("10.1.0.{k}") })
    }

    /// TCP and UDP services on port 80 with two servers each; by NAT they listen on 8080.
    fn rig(&self, method: &str) -> Rig {
        let mut rig = Rig::golden();
        let text = |a: IpAddr, port: u16| std::net::SocketAddr::new(a, port).to_string();
        let port = if method == "-m" { 8080 } else { 80 };
        for protocol in ["-t", "-u"] {
            rig.cli(&format!("-A {protocol} {} -s rr", text(self.vip, 80)));
            for k in [1, 2] {
                let real = text(self.real(k), port);
                rig.cli(&format!("-a {protocol} {} -r {real} {method}", text(self.vip, 80)));
            }
        }
        if !self.v6 {
            rig.apply(super::rig::neighbour(2, "10.0.0.253", Some(GW_MAC)));
        }
        rig
    }

    fn error(&self, what: What) -> (u8, u8) {
        match (what, self.v6) {
            (What::TooBig, false) => (3, 4),
            (What::TooBig, true) => (2, 0),
            (What::Host, false) => (3, 1),
            (What::Host, true) => (1, 3),
            (What::Port, false) => (3, 3),
            (What::Port, true) => (1, 4),
            (What::Time, false) => (11, 0),
            (What::Time, true) => (3, 0),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    TooBig,
    Host,
    Port,
    Time,
}

const ALL: [What; 4] = [What::TooBig, What::Host, What::Port, What::Time];

/// The form of a quote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// 8 bytes of the transport header.
    Eight,
    /// The whole packet.
    Whole,
    /// IPv4 options, or an IPv6 extension header, and 8 bytes.
    Long,
    /// The first fragment.
    First,
}

const FORMS: [Form; 4] = [Form::Eight, Form::Whole, Form::Long, Form::First];

/// A packet as an error quotes it. `fix` is its transport part, whose ports alone are set.
fn quote(src: (IpAddr, u16), dst: (IpAddr, u16), proto: u8, transport: &[u8], form: Form) -> Vec<u8> {
    let mut part = transport.to_vec();
    part[..2].copy_from_slice(&src.1.to_be_bytes());
    part[2..4].copy_from_slice(&dst.1.to_be_bytes());
    let ip = Ip::new(src.0, dst.0);
    let whole = ip.packet(proto, &part);
    let header = whole.len() - part.len();
    let v6 = header == 40;
    match form {
        Form::Eight => whole[..header + 8].to_vec(),
        Form::Whole => whole,
        Form::Long if v6 => {
            let mut rest = vec![proto, 0, 1, 4, 0, 0, 0, 0];
            rest.extend(&part[..8]);
            ip.packet(60, &rest)
        }
        Form::First if v6 => {
            let mut rest = vec![proto, 0, 0, 1, 0, 0, 0, 9];
            rest.extend(&part[..8]);
            ip.packet(44, &rest)
        }
        Form::Long => {
            let mut h = whole[..20].to_vec();
            h[0] = 0x46;
            h.extend([1, 1, 1, 0]);
            h[10..12].fill(0);
            let c = !sum(&h);
            h[10..12].copy_from_slice(&c.to_be_bytes());
            h.extend(&part[..8]);
            h
        }
        Form::First => {
            let mut h = whole[..28].to_vec();
            h[6] = 0x20;
            h[10..12].fill(0);
            let c = !sum(&h[..20]);
            h[10..12].copy_from_slice(&c.to_be_bytes());
            h
        }
    }
}

/// The transport part of a segment or datagram.
fn transport(c: &Cast, proto: u8) -> Vec<u8> {
    let ip = Ip::new(c.vip, c.client);
    let packet =
        if proto == 6 { tcp(&ip, 80, 40000, ACK, b"some data") } else { udp(&ip, 80, 40000, b"some data") };
    packet[if c.v6 { 40 } else { 20 }..].to_vec()
}

/// Begins the connection client:40000 to vip:80; its server.
#[track_caller]
fn open(rig: &mut Rig, c: &Cast, proto: u8) -> u8 {
    let ip = Ip::new(c.client, c.vip);
    let first = if proto == 6 { tcp(&ip, 40000, 80, SYN, b"") } else { udp(&ip, 40000, 80, b"question") };
    match rig.client(&first) {
        Event::Out(f) if f.len() == 1 && f[0].0 == S0 => f[0].1[5],
        e => panic!("not forwarded: {e:?}"),
    }
}

fn conn(rig: &Rig) -> ConnEntry {
    let (mut all, mut cursor) = (Vec::new(), Some(0));
    while let Some(at) = cursor {
        let (list, next) = rig.director.conns(at, 1000);
        all.extend(list);
        cursor = next;
    }
    assert_eq!(all.len(), 1);
    all[0].clone()
}

/// The same IP packet one hop older.
fn aged(packet: &[u8]) -> Vec<u8> {
    let mut p = packet.to_vec();
    if p[0] >> 4 == 6 {
        p[7] -= 1;
        return p;
    }
    p[8] -= 1;
    p[10..12].fill(0);
    let header = usize::from(p[0] & 15) * 4;
    let c = !sum(&p[..header]);
    p[10..12].copy_from_slice(&c.to_be_bytes());
    p
}

/// The one frame that came out of a port, to this MAC.
#[track_caller]
fn one(event: Event, port: lvsd::route::PortId, mac: [u8; 6]) -> Vec<u8> {
    match event {
        Event::Out(mut f) if f.len() == 1 && f[0].0 == port && f[0].1[..6] == mac => f.remove(0).1,
        e => panic!("not one frame to {mac:02x?}: {e:?}"),
    }
}

/// Errors to the virtual address reach the connection's server and no other: by NAT translated, else as they came. The entry neither ends
/// nor lives longer by them.
#[test]
fn errors_to_the_virtual_address_reach_the_server() {
    for (v6, method) in [false, true].into_iter().flat_map(|v6| METHODS.map(|m| (v6, m))) {
        let c = cast(v6);
        for proto in [6, 17] {
            let mut rig = c.rig(method);
            let k = open(&mut rig, &c, proto);
            rig.advance(3);
            let before = conn(&rig);
            let part = transport(&c, proto);
            let mut sent = 0;
            for (what, form) in ALL.into_iter().flat_map(|w| FORMS.map(|f| (w, f))) {
                let mtu = if what == What::TooBig { 1400 } else { 0 };
                let quoted = quote((c.vip, 80), (c.client, 40000), proto, &part, form);
                for from in [c.outside, c.client] {
                    let error = icmp(&Ip::new(from, c.vip), c.error(what), mtu, &quoted);
                    let out = one(rig.client(&error), S0, server_mac(k));
                    let packet = &out[14..];
                    let said = format!("{method} {proto} {what:?} {form:?} v6 {v6}");
                    match method {
                        "-m" => {
                            let quoted = quote((c.real(k), 8080), (c.client, 40000), proto, &part, form);
                            let mut ip = Ip::new(from, c.real(k));
                            ip.ttl = 63;
                            assert_eq!(packet, icmp(&ip, c.error(what), mtu, &quoted), "{said}");
                        }
                        "-g" => assert_eq!(packet, aged(&error), "{said}"),
                        _ => assert!(packet.ends_with(&aged(&error)), "{said}"),
                    }
                    sent += 1;
                }
            }
            assert_eq!(conn(&rig), before);
            assert_eq!(rig.counted(Count::IcmpRelated), sent);
        }
    }
}

/// Errors about what NAT sent to a server reach the client from the virtual address, whoever made them.
#[test]
fn errors_about_the_servers_side_reach_the_client() {
    for v6 in [false, true] {
        let c = cast(v6);
        for proto in [6, 17] {
            let mut rig = c.rig("-m");
            let k = open(&mut rig, &c, proto);
            rig.advance(3);
            let before = conn(&rig);
            let part = transport(&c, proto);
            for (what, form) in ALL.into_iter().flat_map(|w| FORMS.map(|f| (w, f))) {
                let mtu = if what == What::TooBig { 1400 } else { 0 };
                let quoted = quote((c.client, 40000), (c.real(k), 8080), proto, &part, form);
                for from in [c.real(k), c.inside] {
                    let error = icmp(&Ip::new(from, c.client), c.error(what), mtu, &quoted);
                    let out = one(rig.server(k, &error), C0, GW_MAC);
                    let quoted = quote((c.client, 40000), (c.vip, 80), proto, &part, form);
                    let mut ip = Ip::new(c.vip, c.client);
                    ip.ttl = 63;
                    assert_eq!(
                        out[14..],
                        icmp(&ip, c.error(what), mtu, &quoted),
                        "{proto} {what:?} {form:?}"
                    );
                }
            }
            assert_eq!(conn(&rig), before);
        }
    }
}

/// What is not about a connection of ours, or not an error that is relayed, is the kernel's, and is not even counted.
#[test]
fn other_messages_are_passed() {
    for v6 in [false, true] {
        let c = cast(v6);
        for method in METHODS {
            let mut rig = c.rig(method);
            open(&mut rig, &c, 6);
            let part = transport(&c, 6);
            let about = |src, dst, form| quote(src, dst, 6, &part, form);
            let ours = about((c.vip, 80), (c.client, 40000), Form::Eight);
            let header = ours.len() - 8;
            let said = |error, quoted: &[u8]| icmp(&Ip::new(c.outside, c.vip), error, 0, quoted);
            let host = c.error(What::Host);
            let mut damaged = ours.clone();
            damaged[0] = 0x50;
            let later = if v6 {
                Ip::new(c.vip, c.client).packet(44, &[6, 0, 1, 1, 0, 0, 0, 9, 0, 80, 0x9c, 0x40, 0, 0, 0, 0])
            } else {
                let mut q = about((c.vip, 80), (c.client, 40000), Form::First);
                q[7] = 1;
                q
            };
            let echo = if v6 { (128, 0) } else { (8, 0) };
            let redirect = if v6 { (137, 0) } else { (5, 1) };
            let mut cases = vec![
                ("unknown client port", said(host, &about((c.vip, 80), (c.client, 40001), Form::Eight))),
                ("unknown virtual port", said(host, &about((c.vip, 81), (c.client, 40000), Form::Eight))),
                (
                    "another protocol",
                    said(host, &quote((c.vip, 80), (c.client, 40000), 17, &part, Form::Eight)),
                ),
                ("the client's own packet", said(host, &about((c.client, 40000), (c.vip, 80), Form::Eight))),
                ("seven bytes", said(host, &ours[..header + 7])),
                ("no transport header", said(host, &ours[..header])),
                ("half an IP header", said(host, &ours[..header / 2])),
                ("nothing quoted", said(host, &[])),
                ("another IP version", said(host, &damaged)),
                ("a later fragment", said(host, &later)),
                ("an echo", said(echo, &ours)),
                ("a redirect", said(redirect, &ours)),
                ("unknown type", said((if v6 { 100 } else { 1 }, 0), &ours)),
            ];
            if !v6 {
                cases.push(("a parameter problem", said((12, 0), &ours)));
            }
            for (name, packet) in cases {
                assert_eq!(rig.client(&packet), Event::Pass, "{name} {method} v6 {v6}");
            }
            if method != "-m" {
                let back = about((c.client, 40000), (c.vip, 80), Form::Eight);
                let packet = icmp(&Ip::new(c.inside, c.client), host, 0, &back);
                assert_eq!(rig.server(1, &packet), Event::Pass, "from the servers' side, {method}");
            }
            assert_eq!(rig.counted(Count::IcmpRelated), 0);
        }
    }
}

/// IPv6's parameter problem is relayed, as IPVS does it.
#[test]
fn parameter_problems_of_ipv6_are_relayed() {
    let c = cast(true);
    let mut rig = c.rig("-m");
    let k = open(&mut rig, &c, 6);
    let quoted = quote((c.vip, 80), (c.client, 40000), 6, &transport(&c, 6), Form::Eight);
    let out = one(rig.client(&icmp(&Ip::new(c.outside, c.vip), (4, 1), 40, &quoted)), S0, server_mac(k));
    assert!(checksums_ok(&out));
}

/// Errors that cannot go on are dropped for a reason that is counted, and never answered by another error.
#[test]
fn errors_that_cannot_go_on_are_counted() {
    let c = cast(false);
    let quoted = quote((c.vip, 80), (c.client, 40000), 6, &transport(&c, 6), Form::Whole);
    let ip = Ip::new(c.outside, c.vip);
    for method in METHODS {
        let mut rig = c.rig(method);
        open(&mut rig, &c, 6);
        let mut fragment = icmp(&ip, (3, 4), 1400, &quoted);
        fragment[6] = 0x20;
        fragment[10..12].fill(0);
        let sum = !sum(&fragment[..20]);
        fragment[10..12].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(rig.client(&fragment), Event::Drop(Reason::Fragment), "{method}");
        let dying = icmp(&Ip { ttl: 1, ..ip.clone() }, (3, 4), 1400, &quoted);
        assert_eq!(rig.client(&dying), Event::Out(Vec::new()), "{method}");
        assert_eq!(rig.dropped(Reason::TtlExceeded), 1);
        let mut large = quoted.clone();
        large.resize(1473, 7);
        let Event::Out(out) = rig.client(&icmp(&ip, (3, 4), 1400, &large)) else { panic!("{method}") };
        // By NAT, IPVS cuts even what says DF.
        let (pieces, dropped) = if method == "-m" { (2, 0) } else { (0, 1) };
        assert_eq!((out.len(), rig.dropped(Reason::TooBig)), (pieces, dropped), "{method}");
        assert_eq!(rig.counted(Count::IcmpSent), 0);
    }
}

/// A server that is the director itself gets the errors from its own stack.
#[test]
fn errors_about_a_local_server_are_passed() {
    let c = cast(false);
    let mut rig = Rig::golden();
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    rig.cli("-a -t 10.0.0.1:80 -r 10.0.0.1:80 -m");
    assert_eq!(rig.client(&tcp(&Ip::new(c.client, c.vip), 40000, 80, SYN, b"")), Event::Pass);
    let quoted = quote((c.vip, 80), (c.client, 40000), 6, &transport(&c, 6), Form::Eight);
    assert_eq!(rig.client(&icmp(&Ip::new(c.outside, c.vip), (3, 4), 1400, &quoted)), Event::Pass);
    assert_eq!(rig.counted(Count::Local), 2);
}

proptest! {
    /// Whatever is quoted, the checksums are right afterwards; and where they were wrong before, they still are.
    #[test]
    fn checksums_stay_right_or_wrong(
        v6 in any::<bool>(),
        toward_server in any::<bool>(),
        what in 0..4usize,
        proto in prop_oneof![Just(6u8), Just(17)],
        form in 0..4usize,
        rest in any::<u32>(),
        data in proptest::collection::vec(any::<u8>(), 20..500),
        damage in any::<Option<(proptest::sample::Index, u8)>>(),
    ) {
        let c = cast(v6);
        let mut rig = c.rig("-m");
        let k = open(&mut rig, &c, proto);
        let (src, dst) = if toward_server {
            ((c.vip, 80), (c.client, 40000))
        } else {
            ((c.client, 40000), (c.real(k), 8080))
        };
        let quoted = quote(src, dst, proto, &data, FORMS[form]);
        let transport_at = quoted.len() - match FORMS[form] {
            Form::Whole => data.len(),
            _ => 8,
        };
        let ip = if toward_server { Ip::new(c.outside, c.vip) } else { Ip::new(c.inside, c.client) };
        let mut error = icmp(&ip, c.error(ALL[what]), rest, &quoted);
        // Only behind the quoted ports, so that the connection is still found.
        let behind = error.len() - quoted.len() + transport_at + 4;
        let damaged = match damage {
            Some((at, with)) if with != 0 && error.len() > behind => {
                let at = behind + at.index(error.len() - behind);
                error[at] ^= with;
                true
            }
            _ => false,
        };
        let event = if toward_server { rig.client(&error) } else { rig.server(k, &error) };
        let Event::Out(frames) = event else { panic!("{event:?}") };
        prop_assert_eq!(frames.len(), 1);
        let out = &frames[0].1;
        prop_assert_eq!(checksums_ok(out), !damaged);
        if !v6 {
            let header = usize::from(out[42] & 15) * 4;
            prop_assert_eq!(sum(&out[42..42 + header]), 0xffff, "the quoted header's checksum");
        }
        prop_assert!(out.ends_with(&error[behind..]));
    }
}

/// A frame that is not ours by its MAC is passed before anything else is looked at.
#[test]
fn errors_to_another_mac_are_passed() {
    let c = cast(false);
    let mut rig = c.rig("-m");
    open(&mut rig, &c, 6);
    let quoted = quote((c.vip, 80), (c.client, 40000), 6, &transport(&c, 6), Form::Eight);
    let error = icmp(&Ip::new(c.outside, c.vip), (3, 4), 1400, &quoted);
    let mut frame = ethernet(C0_MAC, GW_MAC, &error);
    frame[5] ^= 1;
    assert_eq!(rig.frame(C0, &frame), Event::Pass);
}
