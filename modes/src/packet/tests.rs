use proptest::prelude::*;

use super::*;
use crate::testing::{Build, L3, set_v4_checksum};
use ParseError::*;

#[track_caller]
fn good(b: &Build) -> Packet {
    parse(&b.frame()).unwrap_or_else(|e| panic!("{e}: {b:?}"))
}

#[test]
fn plain_tcp() {
    let p = good(&Build { padding: 6, data: vec![], ..Build::v4(proto::TCP) });
    let expect = Packet {
        family: Family::V4,
        proto: proto::TCP,
        src: Addr(0x0a02_0001),
        dst: Addr(0x0a00_0001),
        sport: 30000,
        dport: 80,
        tcp_flags: tcp_flags::SYN,
        fragment: Fragment::Whole,
        ttl: 64,
        dont_fragment: true,
        l3: 14,
        l4: 34,
        end: 54,
    };
    assert_eq!(p, expect);
}

#[test]
fn protocols_of_both_families() {
    for b in [Build::v4(proto::UDP), Build::v6(proto::UDP), Build::v4(proto::SCTP), Build::v6(proto::SCTP)] {
        let p = good(&b);
        assert_eq!((p.sport, p.dport, p.tcp_flags), (30000, 80, 0), "{b:?}");
    }
    for b in [Build::v4(proto::ICMP), Build::v6(proto::ICMPV6), Build::v4(47), Build::v6(50)] {
        let p = good(&b);
        assert_eq!((p.sport, p.dport, p.proto), (0, 0, b.proto), "{b:?}");
    }
    let p = good(&Build::v6(proto::TCP));
    assert_eq!((p.l4, p.end, p.tcp_flags, p.dont_fragment), (54, 54 + 20 + 9, 2, true));
}

#[test]
fn vlan_tags() {
    for (tags, l3) in
        [(vec![0x8100], 18), (vec![0x88a8], 18), (vec![0x88a8, 0x8100], 22), (vec![0x8100; 2], 22)]
    {
        for b in [Build::v4(proto::TCP), Build::v6(proto::UDP)] {
            let p = good(&Build { tags: tags.clone(), ..b });
            assert_eq!((p.l3, p.dport), (l3, 80));
        }
    }
    let mut priority = Build { tags: vec![0x8100], ..Build::v4(proto::TCP) }.frame();
    priority[15] = 0;
    assert_eq!(parse(&priority).map(|p| p.dport), Ok(80));
    assert_eq!(parse(&Build { tags: vec![0x8100; 3], ..Build::v4(6) }.frame()), Err(NotIp));
    let mut arp = Build { tags: vec![0x8100], ..Build::v4(6) }.frame();
    arp[16..18].copy_from_slice(&[8, 6]);
    assert_eq!(parse(&arp), Err(NotIp));
    assert_eq!(parse(&arp[..17]), Err(FrameTooShort));
    assert_eq!(parse(&arp[..13]), Err(FrameTooShort));
}

/// A frame with some bytes set, and the IPv4 checksum made right again.
fn broken(b: &Build, changes: &[(usize, u8)]) -> Result<Packet, ParseError> {
    let mut f = b.frame();
    for (at, v) in changes {
        f[*at] = *v;
    }
    if b.family == Family::V4 {
        set_v4_checksum(&mut f, L3);
    }
    parse(&f)
}

#[test]
fn bad_ipv4() {
    let b = Build::v4(proto::TCP);
    let f = b.frame();
    assert_eq!(parse(&f[..33]), Err(Ipv4Truncated));
    assert_eq!(broken(&b, &[(14, 0x65)]), Err(Ipv4BadVersion));
    assert_eq!(broken(&b, &[(14, 0x44)]), Err(Ipv4BadHeaderLength));
    assert_eq!(broken(&b, &[(14, 0x4f)]), Err(Ipv4Truncated));
    assert_eq!(broken(&b, &[(17, 19)]), Err(Ipv4BadTotalLength));
    assert_eq!(broken(&b, &[(17, 0)]), Err(Ipv4BadTotalLength));
    assert_eq!(parse(&f[..f.len() - 1]), Err(Ipv4BadTotalLength));
    let mut wrong = f.clone();
    wrong[24] ^= 1;
    assert_eq!(parse(&wrong), Err(Ipv4BadChecksum));
    let with_options = Build { extra: vec![1, 1, 1, 0], ..b };
    let mut wrong = with_options.frame();
    assert_eq!(parse(&wrong).map(|p| p.l4), Ok(38));
    wrong[37] = 1;
    assert_eq!(parse(&wrong), Err(Ipv4BadChecksum));
}

#[test]
fn big_packets() {
    let full = Build { data: vec![7; 65_535 - 40], ..Build::v4(proto::TCP) };
    assert_eq!(good(&full).end, 14 + 65_535);
    let full = Build { data: vec![7; 65_535 - 20], ..Build::v6(proto::TCP) };
    assert_eq!(good(&full).end, 14 + 40 + 65_535);
    let mut v4 = Build { data: vec![7; 70_000], ..Build::v4(proto::TCP) }.frame();
    v4[16..18].fill(0);
    set_v4_checksum(&mut v4, L3);
    assert_eq!(parse(&v4), Err(BigTcp));
    let mut v6 = Build { data: vec![7; 70_000], ..Build::v6(proto::TCP) }.frame();
    v6[18..20].fill(0);
    assert_eq!(parse(&v6), Err(BigTcp));
    let jumbo = vec![6, 0, 0xc2, 4, 0, 1, 0x20, 0];
    let mut v6 = Build { extra: jumbo, first: Some(0), ..Build::v6(proto::TCP) }.frame();
    v6[18..20].fill(0);
    assert_eq!(parse(&v6), Err(BigTcp));
    v6[56] = 1;
    assert_eq!(parse(&v6), Err(Ipv6BadExtension));
}

#[test]
fn bad_ipv6() {
    let b = Build::v6(proto::TCP);
    let f = b.frame();
    assert_eq!(parse(&f[..53]), Err(Ipv6Truncated));
    assert_eq!(broken(&b, &[(14, 0x40)]), Err(Ipv6BadVersion));
    assert_eq!(parse(&f[..f.len() - 1]), Err(Ipv6BadPayloadLength));
    assert_eq!(broken(&b, &[(18, 0), (19, 0)]), Err(TcpTruncated));
    assert_eq!(broken(&b, &[(18, 0), (19, 0), (20, 59)]).map(|p| p.end - p.l4), Ok(0));
}

#[test]
fn extension_headers() {
    let extra = [
        &[60, 0, 5, 2, 0, 0, 1, 0][..],         // hop-by-hop: router alert
        &[43, 0, 1, 4, 0, 0, 0, 0],             // destination options
        &[51, 2, 4, 0, 0, 0, 0, 0],             // routing, no segments left
        &[0; 16],                               //
        &[44, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], // AH of 24 bytes
        &[0; 12],                               //
        &[17, 0, 0, 0, 0, 0, 0, 9],             // atomic fragment
    ]
    .concat();
    let b = Build { first: Some(0), extra: extra.clone(), ..Build::v6(proto::UDP) };
    let p = good(&b);
    assert_eq!((p.proto, p.dport, p.l4, p.fragment), (17, 80, 54 + extra.len(), Fragment::Whole));
    // Segments left: the destination is a waypoint.
    assert_eq!(broken(&b, &[(54 + 16 + 3, 1)]), Err(Ipv6SourceRouted));
    // A hop-by-hop header that is not the first.
    assert_eq!(broken(&b, &[(54 + 8, 0)]), Err(Ipv6BadExtension));
    // A header longer than the packet.
    assert_eq!(broken(&b, &[(54 + 9, 255)]), Err(Ipv6BadExtension));
    let cut = Build { first: Some(60), extra: vec![], data: vec![], ..Build::v6(59) };
    assert_eq!(broken(&Build { extra: vec![6, 0, 1, 0], ..cut }, &[]), Err(Ipv6BadExtension));
    let chain = |n: usize| {
        let mut extra = [60, 0, 1, 4, 0, 0, 0, 0].repeat(n);
        extra[8 * (n - 1)] = 17;
        parse(&Build { first: Some(60), extra, ..Build::v6(proto::UDP) }.frame())
    };
    assert_eq!(chain(MAX_EXTENSIONS).map(|p| p.dport), Ok(80));
    assert_eq!(chain(MAX_EXTENSIONS + 1), Err(Ipv6TooManyExtensions));
}

#[test]
fn fragments() {
    let first = good(&Build { fragment: 0x2000, ..Build::v4(proto::UDP) });
    assert_eq!((first.fragment, first.dport, first.dont_fragment), (Fragment::First, 80, false));
    let later = good(&Build { fragment: 0x2001, data: vec![1; 4], ..Build::v4(proto::UDP) });
    assert_eq!((later.fragment, later.dport, later.sport), (Fragment::Later, 0, 0));
    let last = good(&Build { fragment: 5, ..Build::v4(proto::TCP) });
    assert_eq!((last.fragment, last.tcp_flags), (Fragment::Later, 0));
    let v6 = |word: u8| {
        let extra = vec![17, 0, 0, word, 0, 0, 0, 9];
        good(&Build { first: Some(44), extra, ..Build::v6(proto::UDP) })
    };
    assert_eq!((v6(1).fragment, v6(1).dport), (Fragment::First, 80));
    assert_eq!((v6(8).fragment, v6(8).dport, v6(8).proto, v6(8).l4), (Fragment::Later, 0, 17, 62));
    assert_eq!(v6(9).fragment, Fragment::Later);
    // RFC 1858: a first fragment that hides its ports or flags.
    let tiny = Build { fragment: 0x2000, data: vec![1; 16], ..Build::v4(6) };
    assert_eq!(broken(&Build { proto: 47, ..tiny }, &[(23, 6)]), Err(TcpTruncated));
}

#[test]
fn bad_transport() {
    for b in [Build::v4(0), Build::v6(0)] {
        let cut = |proto, len| {
            let b = Build { proto: 59, data: vec![0x50; len], ..b.clone() };
            broken(&b, &[(if b.family == Family::V4 { 23 } else { 20 }, proto)]).map(|p| p.proto)
        };
        assert_eq!(cut(proto::TCP, 19), Err(TcpTruncated));
        assert_eq!(cut(proto::TCP, 20), Ok(proto::TCP));
        assert_eq!(cut(proto::UDP, 7), Err(UdpTruncated));
        assert_eq!(cut(proto::SCTP, 11), Err(SctpTruncated));
        assert_eq!(cut(proto::SCTP, 12), Ok(proto::SCTP));
    }
    let icmp = |b: Build, at, proto| broken(&Build { proto: 59, data: vec![8; 7], ..b }, &[(at, proto)]);
    assert_eq!(icmp(Build::v4(0), 23, proto::ICMP), Err(IcmpTruncated));
    assert_eq!(icmp(Build::v6(0), 20, proto::ICMPV6), Err(IcmpTruncated));
    assert!(icmp(Build::v4(0), 23, proto::ICMPV6).is_ok());
    let tcp = Build::v4(proto::TCP);
    assert_eq!(broken(&tcp, &[(46, 0x40)]), Err(TcpBadOffset));
    assert_eq!(broken(&tcp, &[(46, 0x80)]), Err(TcpBadOffset));
    assert!(broken(&tcp, &[(46, 0x70)]).is_ok());
    let udp = Build::v4(proto::UDP);
    assert_eq!(broken(&udp, &[(39, 7)]), Err(UdpBadLength));
    assert_eq!(broken(&udp, &[(39, 18)]), Err(UdpBadLength));
    assert!(broken(&udp, &[(39, 8)]).is_ok());
    // In a first fragment the datagram is longer than what is here.
    assert!(broken(&Build { fragment: 0x2000, ..udp }, &[(38, 4)]).is_ok());
}

/// What `parse` promises of every good packet.
fn check(frame: &[u8]) -> Result<(), TestCaseError> {
    let Ok(p) = parse(frame) else { return Ok(()) };
    prop_assert!(p.l3 < p.l4 && p.l4 <= p.end && p.end <= frame.len(), "{:?}", p);
    if p.fragment != Fragment::Later {
        let least = match p.proto {
            proto::TCP => 20,
            proto::UDP => 8,
            proto::SCTP => 12,
            _ => 0,
        };
        prop_assert!(p.end - p.l4 >= least, "{:?}", p);
    }
    Ok(())
}

/// Good frames of all kinds.
pub(crate) fn frames() -> impl Strategy<Value = Vec<u8>> {
    let ports = any::<(u16, u16)>();
    let data = proptest::collection::vec(any::<u8>(), 0..100);
    let tags = proptest::collection::vec(prop_oneof![Just(0x8100u16), Just(0x88a8)], 0..3);
    let proto = prop_oneof![Just(6u8), Just(17), Just(132), Just(1), Just(58), any::<u8>()];
    let fragment = prop_oneof![Just(0u16), Just(0x4000), Just(0x2000), any::<u16>()];
    let extra = proptest::collection::vec(any::<[u8; 8]>(), 0..5).prop_map(|v| v.concat());
    let first = prop_oneof![Just(None), Just(Some(0u8)), Just(Some(60)), Just(Some(44)), Just(Some(51))];
    (any::<bool>(), ports, data, tags, proto, fragment, extra, first, any::<u8>(), 0..8usize).prop_map(
        |(v4, ports, data, tags, proto, fragment, extra, first, flags, padding)| {
            let b = if v4 { Build::v4(proto) } else { Build::v6(proto) };
            let extra = if !v4 && first.is_none() { vec![] } else { extra };
            Build { ports, data, tags, fragment, extra, first, flags, padding, ..b }.frame()
        },
    )
}

proptest! {
    #[test]
    fn arbitrary_bytes(frame in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..4usize) {
        let mut frame = frame;
        if let Some(at) = frame.get_mut(12..15) {
            at.copy_from_slice(&[[8, 0, 0x45], [0x86, 0xdd, 0x60], [0x81, 0, 0], [8, 0, 0x4f]][kind]);
        }
        check(&frame)?;
        if frame.len() >= 34 {
            set_v4_checksum(&mut frame, L3);
            check(&frame)?;
        }
    }

    #[test]
    fn truncations_and_damage(frame in frames(), at in any::<proptest::sample::Index>(), v in any::<u8>()) {
        check(&frame)?;
        for len in 0..frame.len() {
            check(&frame[..len])?;
        }
        let mut damaged = frame;
        let i = at.index(damaged.len());
        damaged[i] = v;
        check(&damaged)?;
        if damaged[12..14] == [8, 0] {
            set_v4_checksum(&mut damaged, L3);
            check(&damaged)?;
        }
    }
}
