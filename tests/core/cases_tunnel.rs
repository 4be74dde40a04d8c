//! Tunnels: field cases 15, 17, 25, 32 and 33 as far as the core goes, and what else can befall a packet on its way into one.

use std::net::IpAddr;

use ipvs_netlink::{Backend, ConnEntry, Errno};
use lvsd::engine::{Count, Gso, Reason, RxChecksum};
use lvsd::route::{self as rt, IfAddr};
use proptest::prelude::*;

use super::frames::*;
use super::rig::{C0, C0_MAC, Event, GW_MAC, Rig, S0, S0_MAC, link, neighbour, server_mac};

/// How a service's server is reached, as ipvsadm is told, and the bytes between the IP headers.
const HOWS: [(&str, usize); 3] = [("-i", 0), ("-i --tun-type gre", 4), ("-i --tun-type gre --tun-csum", 8)];

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn client(v6: bool) -> IpAddr {
    ip(if v6 { "2001:db8:2::1" } else { "10.2.0.1" })
}

fn vip(v6: bool) -> IpAddr {
    ip(if v6 { "2001:db8::1" } else { "10.0.0.1" })
}

fn service(v6: bool) -> &'static str {
    if v6 { "[2001:db8::1]:80" } else { "10.0.0.1:80" }
}

fn real(v6: bool) -> &'static str {
    if v6 { "[2001:db8:1::1]:80" } else { "10.1.0.1:80" }
}

fn other_real(v6: bool) -> &'static str {
    if v6 { "[2001:db8:1::2]:80" } else { "10.1.0.2:80" }
}

fn conns(rig: &Rig) -> Vec<ConnEntry> {
    let (mut all, mut cursor) = (Vec::new(), Some(0));
    while let Some(at) = cursor {
        let (list, next) = rig.director.conns(at, 1000);
        all.extend(list);
        cursor = next;
    }
    all
}

fn director(v6: bool) -> IpAddr {
    ip(if v6 { "2001:db8:1::254" } else { "10.1.0.254" })
}

/// TCP and UDP services of a family, each with one tunnel server, of either family.
fn rig(v6: bool, outer_v6: bool, how: &str) -> Rig {
    let mut rig = Rig::golden();
    for protocol in ["-t", "-u"] {
        rig.cli(&format!("-A {protocol} {} -s rr", service(v6)));
        rig.cli(&format!("-a {protocol} {} -r {} {how}", service(v6), real(outer_v6)));
    }
    rig
}

fn segment(v6: bool, sport: u16, flags: u8, data: &[u8]) -> Vec<u8> {
    tcp(&Ip::new(client(v6), vip(v6)), sport, 80, flags, data)
}

fn datagram(v6: bool, data: &[u8]) -> Vec<u8> {
    udp(&Ip::new(client(v6), vip(v6)), 30000, 80, data)
}

fn on_wire(packet: &[u8]) -> Vec<u8> {
    ethernet(C0_MAC, GW_MAC, packet)
}

fn send(rig: &mut Rig, packet: &[u8]) -> Event {
    rig.frame(C0, &on_wire(packet))
}

/// An outer packet, as its server unwraps it. Panics where a stack would drop it.
#[derive(Debug)]
struct Unwrapped {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    length: usize,
    inner: Vec<u8>,
}

#[track_caller]
fn unwrap(frame: &[u8]) -> Unwrapped {
    assert_eq!((&frame[..6], &frame[6..12]), (&server_mac(1)[..], &S0_MAC[..]));
    let p = &frame[14..];
    let (src, dst, protocol, payload) = if frame[12..14] == [8, 0] {
        assert_eq!((p[0], sum(&p[..20])), (0x45, 0xffff));
        assert_eq!(usize::from(p[2]) << 8 | usize::from(p[3]), p.len());
        (ip4(&p[12..16]), ip4(&p[16..20]), p[9], &p[20..])
    } else {
        assert_eq!((&frame[12..14], p[0] >> 4), (&[0x86, 0xdd][..], 6));
        assert_eq!(usize::from(p[4]) << 8 | usize::from(p[5]), p.len() - 40);
        (ip6(&p[8..24]), ip6(&p[24..40]), p[6], &p[40..])
    };
    let inner = match (protocol, payload) {
        (4 | 41, _) => payload,
        (47, [0, 0, _, _, inner @ ..]) => inner,
        (47, [0x80, 0, _, _, _, _, 0, 0, inner @ ..]) => {
            assert_eq!(sum(payload), 0xffff, "GRE checksum");
            inner
        }
        _ => panic!("not a tunnel: {frame:02x?}"),
    };
    if protocol == 47 {
        let kind = if inner[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        assert_eq!(payload[2..4], kind);
    }
    Unwrapped { src, dst, protocol, length: p.len(), inner: inner.to_vec() }
}

/// The one frame that goes to the server.
#[track_caller]
fn one(event: Event) -> Vec<u8> {
    match event {
        Event::Out(mut f) if f.len() == 1 && f[0].0 == S0 => f.remove(0).1,
        e => panic!("not one frame to the server: {e:?}"),
    }
}

/// The packet as it is inside: one hop older.
fn aged(packet: &[u8]) -> Vec<u8> {
    let mut p = packet.to_vec();
    if p[0] >> 4 == 4 {
        p[8] -= 1;
        p[10..12].fill(0);
        let c = !sum(&p[..20]);
        p[10..12].copy_from_slice(&c.to_be_bytes());
    } else {
        p[7] -= 1;
    }
    p
}

/// The MTU that an ICMP error to the client tells; checks the error itself.
#[track_caller]
fn told(event: &Event, packet: &[u8]) -> u32 {
    let Event::Out(f) = event else { panic!("{event:?}") };
    assert_eq!((f.len(), f[0].0), (1, C0));
    let p = &f[0].1[14..];
    let (header, kind) = if p[0] >> 4 == 4 { (20, [3, 4]) } else { (40, [2, 0]) };
    let (src, dst) = if header == 20 {
        assert_eq!((p[6..8].to_vec(), sum(&p[..20]), p[9]), (vec![0, 0], 0xffff, 1));
        assert_eq!(sum(&p[20..]), 0xffff);
        (ip4(&p[12..16]), ip4(&p[16..20]))
    } else {
        let (src, dst) = (ip6(&p[8..24]), ip6(&p[24..40]));
        let mut all = Ip::new(src, dst).pseudo(58, p.len() - 40);
        all.extend(&p[40..]);
        assert_eq!((p[6], sum(&all)), (58, 0xffff));
        (src, dst)
    };
    assert_eq!((src, dst), (vip(header == 40), client(header == 40)));
    assert_eq!(p[header..header + 2], kind);
    // The quote holds the ports and the sequence number at least.
    let quote = &p[header + 8..];
    assert!(quote.len() >= header + 8 && aged(packet).starts_with(quote));
    u32::from_be_bytes(p[header + 4..header + 8].try_into().unwrap())
}

fn every(mut f: impl FnMut(bool, bool, &str, usize)) {
    for v6 in [false, true] {
        for outer_v6 in [false, true] {
            for (how, shim) in HOWS {
                f(v6, outer_v6, how, shim + if outer_v6 { 40 } else { 20 });
            }
        }
    }
}

/// Data that fills a TCP packet of this many bytes.
fn filling(v6: bool, length: usize) -> Vec<u8> {
    (0..length - if v6 { 60 } else { 40 }).map(|i| i as u8).collect()
}

/// Case 25: the client of a packet that does not fit is told what would; that passes untouched.
#[test]
fn full_size_packets() {
    every(|v6, outer_v6, how, overhead| {
        let mut rig = rig(v6, outer_v6, how);
        one(send(&mut rig, &segment(v6, 40000, SYN, b"")));
        let fits = 1500 - overhead;
        for length in [fits + 1, 1500] {
            let packet = segment(v6, 40000, ACK, &filling(v6, length));
            let event = send(&mut rig, &packet);
            assert_eq!(told(&event, &packet), fits as u32, "{v6} {outer_v6} {how}");
        }
        let packet = segment(v6, 40000, ACK, &filling(v6, fits));
        let out = unwrap(&one(send(&mut rig, &packet)));
        assert_eq!((out.inner, out.length), (aged(&packet), 1500));
        assert_eq!((rig.dropped(Reason::TooBig), rig.counted(Count::IcmpSent)), (2, 2));
        assert_eq!(rig.counted(Count::Tunnel), 2);
    });
}

/// Puts outer fragments together; they came in order.
fn reassemble(frames: &[(rt::PortId, Vec<u8>)], mtu: usize) -> Vec<u8> {
    assert!(frames.len() > 1);
    let mut whole = frames[0].1[..14].to_vec();
    let v6 = whole[12] == 0x86;
    let mut body: Vec<u8> = Vec::new();
    for (i, (port, f)) in frames.iter().enumerate() {
        let p = &f[14..];
        assert!(*port == S0 && p.len() <= mtu);
        let (offset, more, data) = if v6 {
            assert_eq!((p[6], &p[44..48]), (44, &frames[0].1[58..62]));
            let w = usize::from(p[42]) << 8 | usize::from(p[43]);
            (w & !7, w & 1 != 0, &p[48..])
        } else {
            assert_eq!((sum(&p[..20]), &p[4..6]), (0xffff, &frames[0].1[18..20]));
            let w = usize::from(p[6]) << 8 | usize::from(p[7]);
            (w % 0x2000 * 8, w & 0x2000 != 0, &p[20..])
        };
        assert_eq!((offset, more), (body.len(), i + 1 < frames.len()));
        body.extend(data);
    }
    let mut header = frames[0].1[14..14 + if v6 { 40 } else { 20 }].to_vec();
    if v6 {
        header[6] = frames[0].1[54];
        header[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
    } else {
        header[2..4].copy_from_slice(&(body.len() as u16 + 20).to_be_bytes());
        header[6..8].fill(0);
        header[10..12].fill(0);
        let c = !sum(&header);
        header[10..12].copy_from_slice(&c.to_be_bytes());
    }
    whole.extend(header);
    whole.extend(body);
    whole
}

/// Case 25: without DF the outer packet is cut, and the inner one arrives whole.
#[test]
fn packets_without_df_arrive_in_outer_fragments() {
    for outer_v6 in [false, true] {
        for (how, _) in HOWS {
            let mut rig = rig(false, outer_v6, how);
            let mut ip = Ip::new(client(false), vip(false));
            ip.df = false;
            let packet = tcp(&ip, 40000, 80, SYN, &filling(false, 1500));
            let Event::Out(frames) = send(&mut rig, &packet) else { panic!() };
            assert_eq!(unwrap(&reassemble(&frames, 1500)).inner, aged(&packet));
            assert_eq!((rig.counted(Count::Fragmented), rig.counted(Count::Tunnel)), (1, 1));
            // The next one has another identification.
            let Event::Out(next) = send(&mut rig, &packet) else { panic!() };
            let id = if outer_v6 { 58..62 } else { 18..20 };
            assert_ne!(next[0].1[id.clone()], frames[0].1[id]);
        }
    }
}

/// Case 25: IPv6 is never told of less than 1,280 bytes, which it would ignore: the outer packet is cut instead. As in IPVS where the
/// setting says so.
#[test]
fn ipv6_over_a_small_mtu() {
    for outer_v6 in [false, true] {
        for (how, shim) in HOWS {
            let left = 1300 - shim - if outer_v6 { 40 } else { 20 };
            let mut rig = rig(true, outer_v6, how);
            rig.apply(link(3, "s0", S0_MAC, 1300));
            one(send(&mut rig, &segment(true, 40000, SYN, b"")));
            let big = segment(true, 40000, ACK, &filling(true, 1281));
            let least = segment(true, 40000, ACK, &filling(true, 1280));
            assert_eq!(told(&send(&mut rig, &big), &big), 1280);
            let Event::Out(frames) = send(&mut rig, &least) else { panic!() };
            let whole = if left < 1280 { reassemble(&frames, 1300) } else { frames[0].1.clone() };
            assert_eq!(unwrap(&whole).inner, aged(&least));

            rig.director.sysctls.set("tunnel_ipv6_min_mtu", "0").unwrap();
            let event = send(&mut rig, &big);
            if outer_v6 {
                assert_eq!(event, Event::Drop(Reason::TunnelMtu));
            } else {
                assert_eq!(told(&event, &big), left as u32);
            }
        }
    }
    // Less than IPv6 itself needs: nothing can be sent.
    let mut rig = rig(false, true, "-i");
    rig.apply(link(3, "s0", S0_MAC, 1279));
    assert_eq!(send(&mut rig, &segment(false, 40000, SYN, b"")), Event::Drop(Reason::TunnelMtu));
}

fn own_address(v6: bool, host: &str) -> IfAddr {
    let (addr, prefix) =
        if v6 { (format!("2001:db8:1::{host}"), 64) } else { (format!("10.1.0.{host}"), 24) };
    IfAddr { ifindex: 3, addr: ip(&addr), prefix, scope: 0, secondary: false, unusable: false }
}

/// Case 32: the outer source is the director's own address on the way, for every flow, and follows it when it changes.
#[test]
fn outer_source() {
    every(|v6, outer_v6, how, _| {
        let mut rig = rig(v6, outer_v6, how);
        for sport in 20_000..20_100 {
            let out = unwrap(&one(send(&mut rig, &segment(v6, sport, SYN, b""))));
            assert_eq!(out.src, director(outer_v6));
            assert_eq!(out.dst, ip(real(outer_v6).rsplit_once(':').unwrap().0.trim_matches(['[', ']'])));
        }
        let old = own_address(outer_v6, "254");
        rig.apply(rt::Event::AddrNew(own_address(outer_v6, "99")));
        rig.apply(rt::Event::AddrGone { ifindex: 3, addr: old.addr, prefix: old.prefix });
        let out = unwrap(&one(send(&mut rig, &segment(v6, 20_000, ACK, b""))));
        assert_eq!(out.src, own_address(outer_v6, "99").addr);
    });
}

/// No address of the server's family at all: a counted drop, no packet from nowhere.
#[test]
fn no_outer_source() {
    let mut rig = rig(true, false, "-i");
    for (ifindex, addr, prefix) in [(2, "10.0.0.254", 24), (2, "10.0.0.1", 32), (3, "10.1.0.254", 24)] {
        rig.apply(rt::Event::AddrGone { ifindex, addr: ip(addr), prefix });
    }
    assert_eq!(send(&mut rig, &segment(true, 40000, SYN, b"")), Event::Drop(Reason::NoTunnelSource));
}

/// Case 33: a service and its servers of different families, by tunnels and by nothing else; lists show both.
#[test]
fn mixed_families() {
    every(|v6, outer_v6, how, _| {
        let mut rig = rig(v6, outer_v6, how);
        let out = unwrap(&one(send(&mut rig, &segment(v6, 40000, SYN, b""))));
        let want = match (how, v6) {
            ("-i", false) => 4,
            ("-i", true) => 41,
            _ => 47,
        };
        assert_eq!(out.protocol, want);
        let server = ip(if outer_v6 { "2001:db8:1::1" } else { "10.1.0.1" });
        let dests = rig.dests(&format!("-t {}", service(v6)));
        assert_eq!((dests.len(), dests[0].dest.addr, dests[0].active), (1, server, 1));
        assert_eq!((dests[0].stats.conns, dests[0].stats.in_pkts, dests[0].stats.out_pkts), (1, 1, 0));
        let conns = conns(&rig);
        assert_eq!((conns.len(), conns[0].dest, conns[0].client), (1, (server, 80), (client(v6), 40000)));
        for method in ["-m", "-g"] {
            let add = format!("-a -t {} -r {} {method}", service(v6), other_real(outer_v6));
            let edit = format!("-e -t {} -r {} {method}", service(v6), real(outer_v6));
            let result = if v6 == outer_v6 { Ok(()) } else { Err(Errno::EINVAL) };
            assert_eq!((rig.try_cli(&add), rig.try_cli(&edit)), (result, result), "{add}");
            let _ = rig.try_cli(&format!("-d -t {} -r {}", service(v6), other_real(outer_v6)));
        }
        // What the connection was made with, it keeps.
        unwrap(&one(send(&mut rig, &segment(v6, 40000, ACK, b""))));
    });
}

/// A persistent client of the other family keeps its server, and the template names it.
#[test]
fn persistence_across_families() {
    for v6 in [false, true] {
        let mut rig = Rig::golden();
        rig.cli(&format!("-A -t {} -s rr -p 60", service(v6)));
        for k in 1..=2 {
            let server = if v6 { format!("10.1.0.{k}") } else { format!("[2001:db8:1::{k}]") };
            rig.cli(&format!("-a -t {} -r {server}:80 -i", service(v6)));
        }
        let Event::Out(first) = send(&mut rig, &segment(v6, 40000, SYN, b"")) else { panic!() };
        for sport in 40001..40005 {
            let Event::Out(next) = send(&mut rig, &segment(v6, sport, SYN, b"")) else { panic!() };
            assert_eq!(next[0].1[..6], first[0].1[..6]);
        }
        let servers: Vec<_> = conns(&rig).iter().map(|c| c.dest.0).collect();
        assert_eq!(servers, [dst_of(&first[0].1); 6]);
    }
}

/// Puts the pseudo-header's sum into a TCP or UDP packet: what a sender with checksum offload leaves.
fn make_partial(packet: &mut [u8]) {
    let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let protocol = if header == 20 { packet[9] } else { packet[6] };
    let v6 = header == 40;
    let s = sum(&Ip::new(client(v6), vip(v6)).pseudo(protocol, packet.len() - header));
    let at = header + if protocol == 6 { 16 } else { 6 };
    packet[at..at + 2].copy_from_slice(&s.to_be_bytes());
}

/// Case 15: inside a tunnel a checksum is complete, whatever it was before.
#[test]
fn partial_checksums_are_completed_inside() {
    every(|v6, outer_v6, how, _| {
        let mut rig = rig(v6, outer_v6, how);
        for packet in [segment(v6, 40000, SYN, b"odd"), datagram(v6, b"even")] {
            let mut partial = packet.clone();
            make_partial(&mut partial);
            assert_ne!(partial, packet);
            let (event, notes) = rig.frame_behind(64, C0, &on_wire(&partial), (RxChecksum::Partial, None));
            assert_eq!(unwrap(&one(event)).inner, aged(&packet));
            assert_eq!(notes, (RxChecksum::Complete, None));
        }
    });
}

/// Sends a super-packet; answers what the server unwraps.
fn cut(rig: &mut Rig, packet: &[u8], size: u16) -> Vec<Unwrapped> {
    let mut partial = packet.to_vec();
    make_partial(&mut partial);
    let notes = (RxChecksum::Partial, Some(Gso { size, guessed: false }));
    match rig.frame_behind(64, C0, &on_wire(&partial), notes).0 {
        Event::Out(frames) => frames.iter().map(|(_, f)| unwrap(f)).collect(),
        e => panic!("{e:?}"),
    }
}

/// Case 17: a super-packet arrives as the segments that it stands for, none longer than the wire, in order and complete.
#[test]
fn super_packets_are_cut_before_they_are_wrapped() {
    every(|v6, outer_v6, how, overhead| {
        let mut rig = rig(v6, outer_v6, how);
        one(send(&mut rig, &segment(v6, 40000, SYN, b"")));
        let headers = if v6 { 60 } else { 40 };
        let size = 1500 - overhead - headers;
        let data: Vec<u8> = (0..20 * size + 100).map(|i| (i * 7) as u8).collect();
        let before = rig.dests(&format!("-t {}", service(v6)))[0].stats;
        let segments = cut(&mut rig, &segment(v6, 40000, PSH | ACK, &data), size as u16);
        assert_eq!(segments.len(), 21);
        let mut got: Vec<u8> = Vec::new();
        for (i, s) in segments.iter().enumerate() {
            assert!(s.length <= 1500 && checksums_ok(&on_wire(&s.inner)));
            let tcp = &s.inner[headers - 20..];
            assert_eq!(tcp[4..8], (1000 + got.len() as u32).to_be_bytes());
            assert_eq!(tcp[13], if i == 20 { PSH | ACK } else { ACK });
            got.extend(&tcp[20..]);
        }
        assert_eq!(got, data);
        // Counted as what is on the wire, and without an ICMP error.
        let after = rig.dests(&format!("-t {}", service(v6)))[0].stats;
        let bytes = (data.len() + 21 * headers) as u64;
        assert_eq!((after.in_pkts - before.in_pkts, after.in_bytes - before.in_bytes), (21, bytes));
        assert_eq!((rig.counted(Count::Segmented), rig.counted(Count::IcmpSent)), (1, 0));

        // Segments that do not fit: the client is told, once.
        let big = segment(v6, 40000, ACK, &data);
        let mut partial = big.clone();
        make_partial(&mut partial);
        let notes = (RxChecksum::Partial, Some(Gso { size: size as u16 + 1, guessed: false }));
        let (event, _) = rig.frame_behind(64, C0, &on_wire(&partial), notes);
        assert_eq!(told(&event, &partial), (1500 - overhead) as u32);
    });
}

/// Datagrams that came as one (USO, UDP GRO) are taken apart too.
#[test]
fn datagrams_are_taken_apart() {
    every(|v6, outer_v6, how, _| {
        let mut rig = rig(v6, outer_v6, how);
        let data: Vec<u8> = (0..5000).map(|i| i as u8).collect();
        let parts = cut(&mut rig, &datagram(v6, &data), 1200);
        let header = if v6 { 48 } else { 28 };
        let lengths: Vec<_> = parts.iter().map(|u| u.inner.len() - header).collect();
        assert_eq!(lengths, [1200, 1200, 1200, 1200, 200]);
        assert!(parts.iter().all(|u| checksums_ok(&on_wire(&u.inner))));
        assert_eq!(parts.iter().flat_map(|u| u.inner[header..].to_vec()).collect::<Vec<_>>(), data);
    });
}

#[test]
fn super_packets_that_cannot_be_cut_are_counted() {
    let mut rig = rig(false, false, "-i");
    let data = vec![1; 4000];
    for (flags, size) in [(SYN, 1000), (ACK, 1)] {
        let frame = on_wire(&segment(false, 40000, flags, &data));
        let (event, _) =
            rig.frame_behind(64, C0, &frame, (RxChecksum::Partial, Some(Gso { size, guessed: false })));
        assert_eq!(event, Event::Drop(Reason::SuperPacket));
    }
    assert_eq!(rig.counted(Count::Tunnel), 0);
}

/// A frame with too little room before it is copied; what comes out is the same.
#[test]
fn without_head_room() {
    every(|v6, outer_v6, how, overhead| {
        let packet = segment(v6, 40000, SYN, b"data");
        let frames: Vec<_> = [0, overhead - 1, overhead, 64]
            .iter()
            .map(|room| {
                // Padding does not get into the tunnel.
                let frame = [on_wire(&packet), vec![0xee; 3]].concat();
                let mut rig = rig(v6, outer_v6, how);
                one(rig.frame_behind(*room, C0, &frame, (RxChecksum::Complete, None)).0)
            })
            .collect();
        assert_eq!(unwrap(&frames[0]).inner, aged(&packet));
        assert!(frames.iter().all(|f| *f == frames[0]));
    });
}

/// An unknown link address: wrapped packets wait, and go out whole once it is known.
#[test]
fn wrapped_packets_wait_for_their_next_hop() {
    let mut rig = rig(false, false, "-i");
    rig.apply(neighbour(3, "10.1.0.1", None));
    let packet = segment(false, 40000, SYN, b"");
    assert_eq!(send(&mut rig, &packet), Event::Queued);
    let big = on_wire(&segment(false, 40000, ACK, &[5; 20_000]));
    let (event, _) =
        rig.frame_behind(64, C0, &big, (RxChecksum::Partial, Some(Gso { size: 1000, guessed: false })));
    // 15 of the 20 segments find room, the others are counted.
    assert_eq!((event, rig.dropped(Reason::NextHopQueueFull)), (Event::Out(Vec::new()), 5));
    rig.apply(neighbour(3, "10.1.0.1", Some(server_mac(1))));
    rig.advance_ms(10);
    let out = rig.outbox();
    assert_eq!(out.len(), 16);
    assert_eq!(unwrap(&out[0].1).inner, aged(&packet));
    assert!(out.iter().all(|(port, f)| *port == S0 && checksums_ok(&on_wire(&unwrap(f).inner))));
}

/// A tunnel to the director itself: its stack has the virtual address and takes the packet as it is.
#[test]
fn local_server() {
    for (v6, own) in [(false, "10.1.0.254"), (false, "[2001:db8:1::254]"), (true, "10.1.0.254")] {
        let mut rig = Rig::golden();
        rig.cli(&format!("-A -t {} -s rr", service(v6)));
        rig.cli(&format!("-a -t {} -r {own}:80 -i", service(v6)));
        assert_eq!(send(&mut rig, &segment(v6, 40000, SYN, b"")), Event::Pass);
        assert_eq!((rig.counted(Count::Local), rig.counted(Count::ConnNew)), (1, 1));
    }
}

/// A changed encapsulation holds for the next packet of every connection; one that is not built is a counted drop.
#[test]
fn encapsulation_can_be_changed() {
    let mut rig = rig(false, false, "-i");
    one(send(&mut rig, &segment(false, 40000, SYN, b"")));
    for (how, protocol, overhead) in [(HOWS[1].0, 47, 24), (HOWS[2].0, 47, 28), (HOWS[0].0, 4, 20)] {
        rig.cli(&format!("-e -t {} -r {} {how}", service(false), real(false)));
        let out = unwrap(&one(send(&mut rig, &segment(false, 40000, ACK, b""))));
        assert_eq!((out.protocol, out.length), (protocol, 40 + overhead));
    }
    rig.cli(&format!("-e -t {} -r {} -i --tun-type gue --tun-port 6080", service(false), real(false)));
    assert_eq!(send(&mut rig, &segment(false, 40000, ACK, b"")), Event::Drop(Reason::MethodMissing));
}

proptest! {
    /// Whatever comes, with whatever notes: no panic, and nothing leaves that is not an outer packet within the MTU.
    #[test]
    fn no_frame_panics(
        v6: bool, outer_v6: bool, how in 0usize..3, is_udp: bool, flags: u8, data in 0usize..9000, mtu in 60u32..1600,
        size in proptest::option::of(0u16..3000), partial: bool, room in 0usize..80, flip in 14usize..120, value: u8,
        cut in 0usize..200,
    ) {
        let mut rig = rig(v6, outer_v6, HOWS[how].0);
        rig.apply(link(3, "s0", S0_MAC, mtu));
        let data = vec![0x5a; data];
        let packet = if is_udp { datagram(v6, &data) } else { segment(v6, 40000, flags, &data) };
        let mut frame = on_wire(&packet);
        let notes = (if partial { RxChecksum::Partial } else { RxChecksum::Complete }, size.map(|size| Gso { size, guessed: false }));
        rig.frame_behind(room, C0, &on_wire(&segment(v6, 40000, SYN, b"")), (RxChecksum::Complete, None));
        let _ = rig.outbox();
        let at = flip.min(frame.len() - 1);
        if value != 0 {
            frame[at] = value;
        }
        frame.truncate(frame.len().saturating_sub(cut));
        if let (Event::Out(frames), _) = rig.frame_behind(room, C0, &frame, notes) {
            for (port, f) in frames {
                prop_assert!(port == C0 || f.len() - 14 <= mtu.max(68) as usize, "{} of {mtu}", f.len() - 14);
            }
        }
    }
}
