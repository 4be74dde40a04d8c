use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::forward::FragmentError;
use crate::packet::{Fragment, ParseError, parse};
use crate::testing::{Build, L3};

const HOWS: [Encapsulation; 3] =
    [Encapsulation::Ipip, Encapsulation::Gre { checksum: false }, Encapsulation::Gre { checksum: true }];

fn outer(family: Family) -> Outer {
    match family {
        Family::V4 => Outer { family, src: Addr(0x0a01_00fe), dst: Addr(0x0a01_0001), id: 0xabcd },
        Family::V6 => Outer {
            family,
            src: Addr(0x2001_0db8_0001_0000_0000_0000_0000_0254),
            dst: Addr(0x2001_0db8_0001_0000_0000_0000_0000_0001),
            id: 0xabcd,
        },
    }
}

/// Sum of 16-bit words, plainly.
fn sum(bytes: &[u8]) -> u16 {
    let s: u64 = bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | u64::from(*c.get(1).unwrap_or(&0))).sum();
    let s = (s & 0xffff) + (s >> 16 & 0xffff) + (s >> 32);
    ((s & 0xffff) + (s >> 16)) as u16
}

/// What a real server's stack makes of an outer packet: the inner one. Panics where it would drop it.
fn decapsulate(frame: &[u8], l3: usize) -> (Family, Vec<u8>) {
    let ip = &frame[l3..];
    let (protocol, payload) = if ip[0] >> 4 == 4 {
        assert_eq!(sum(&ip[..20]), 0xffff, "outer header checksum");
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        assert_eq!((ip[0], total), (0x45, ip.len()));
        (ip[9], &ip[20..total])
    } else {
        let length = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        assert_eq!((ip[0] >> 4, length), (6, ip.len() - 40));
        (ip[6], &ip[40..])
    };
    match protocol {
        4 => (Family::V4, payload.to_vec()),
        41 => (Family::V6, payload.to_vec()),
        47 => {
            let family = match payload[2..4] {
                [0x08, 0x00] => Family::V4,
                [0x86, 0xdd] => Family::V6,
                _ => panic!("GRE protocol"),
            };
            match payload[..2] {
                [0, 0] => (family, payload[4..].to_vec()),
                [0x80, 0] => {
                    assert_eq!(sum(payload), 0xffff, "GRE checksum");
                    assert_eq!(payload[6..8], [0, 0]);
                    (family, payload[8..].to_vec())
                }
                _ => panic!("GRE flags"),
            }
        }
        p => panic!("protocol {p}"),
    }
}

/// Wraps a frame with just enough head room.
fn wrap(frame: &[u8], how: Encapsulation, out: &Outer) -> (Packet, Vec<u8>) {
    let p = parse(frame).unwrap();
    let room = how.overhead(out.family);
    let mut buf = vec![0xaa; room];
    buf.extend_from_slice(frame);
    assert_eq!(encapsulate(&mut buf, room, &p, how, out), Ok(0));
    buf.truncate(room + p.end);
    (p, buf)
}

fn build(v6: bool, udp: bool) -> Build {
    let protocol = if udp { proto::UDP } else { proto::TCP };
    if v6 { Build::v6(protocol) } else { Build::v4(protocol) }
}

proptest! {
    #[test]
    fn the_inner_packet_travels_whole(
        v6: bool, udp: bool, outer_v6: bool, how in 0usize..3, tags in vec(Just(0x8100u16), 0..3),
        data in vec(any::<u8>(), 0..1400), padding in 0usize..8,
    ) {
        let mut b = build(v6, udp);
        (b.data, b.tags, b.padding) = (data, tags, padding);
        let frame = b.frame();
        let out = outer(if outer_v6 { Family::V6 } else { Family::V4 });
        let (p, wrapped) = wrap(&frame, HOWS[how], &out);
        let (family, inner) = decapsulate(&wrapped, p.l3);
        prop_assert_eq!(family, p.family);
        prop_assert_eq!(&inner[..], &frame[p.l3..p.end]);
        // MAC addresses and tags stay; the type is the outer packet's.
        prop_assert_eq!(&wrapped[..p.l3 - 2], &frame[..p.l3 - 2]);
        let o = parse(&wrapped).unwrap();
        prop_assert_eq!((o.family, o.src, o.dst, o.ttl), (out.family, out.src, out.dst, 64));
        prop_assert_eq!((o.end, o.fragment), (wrapped.len(), Fragment::Whole));
        prop_assert_eq!(o.end - o.l3, p.end - p.l3 + HOWS[how].overhead(out.family));
    }

    #[test]
    fn fragments_make_up_the_outer_packet(
        v6: bool, outer_v6: bool, how in 0usize..3, data in vec(any::<u8>(), 1200..4000), mtu in 100usize..1500,
    ) {
        let mut b = build(v6, true);
        (b.data, b.fragment) = (data, 0);
        let out = outer(if outer_v6 { Family::V6 } else { Family::V4 });
        let (p, wrapped) = wrap(&b.frame(), HOWS[how], &out);
        let header = if outer_v6 { 40 } else { 20 };
        let mut body = Vec::new();
        let mut last = false;
        fragment(&wrapped, mtu, 0x1234_5678, &mut |f| {
            assert!(!last);
            let q = parse(f).unwrap();
            assert!(q.end - q.l3 <= mtu && q.end == f.len());
            assert_eq!((q.src, q.dst, q.ttl), (out.src, out.dst, 64));
            let ip = &f[L3..];
            let (offset, more) = if outer_v6 {
                assert_eq!((ip[6], &ip[44..48]), (44, &[0x12, 0x34, 0x56, 0x78][..]));
                assert_eq!((ip[40], ip[41]), (wrapped[L3 + 6], 0));
                let w = usize::from(u16::from_be_bytes([ip[42], ip[43]]));
                (w & !7, w & 1 != 0)
            } else {
                assert_eq!(ip[4..6], [0xab, 0xcd]);
                let w = usize::from(u16::from_be_bytes([ip[6], ip[7]]));
                ((w & 0x1fff) * 8, w & 0x2000 != 0)
            };
            assert_eq!(offset, body.len());
            assert!(!more || (q.end - q.l4).is_multiple_of(8));
            body.extend_from_slice(&f[q.l4..q.end]);
            last = !more;
        }).unwrap();
        prop_assert!(last);
        prop_assert_eq!(&body[..], &wrapped[p.l3 + header..]);
    }

    #[test]
    fn no_input_panics(
        bytes in vec(any::<u8>(), 0..200), start in 0usize..120, l3 in 0usize..80, l4 in 0usize..120, end in 0usize..200,
        v6: bool, outer_v6: bool, how in 0usize..3, mtu in 0usize..300,
    ) {
        let p = Packet {
            family: if v6 { Family::V6 } else { Family::V4 },
            proto: 6, src: Addr(1), dst: Addr(2), sport: 1, dport: 2, tcp_flags: 0, fragment: Fragment::Whole, ttl: 9,
            dont_fragment: false, l3, l4, end,
        };
        let out = outer(if outer_v6 { Family::V6 } else { Family::V4 });
        let mut buf = bytes.clone();
        match encapsulate(&mut buf, start, &p, HOWS[how], &out) {
            Ok(begin) => prop_assert_eq!(begin + HOWS[how].overhead(out.family), start),
            Err(_) => prop_assert_eq!(&buf, &bytes),
        }
        let _ = fragment(&bytes, mtu, 1, &mut |_| ());
    }
}

/// RFC 3168 section 9.1.1: DSCP and ECT go out, "congestion experienced" does not.
#[test]
fn every_class_of_traffic() {
    for v6 in [false, true] {
        for family in [Family::V4, Family::V6] {
            for class in 0..=255u8 {
                let mut frame = build(v6, false).frame();
                if v6 {
                    Ipv6::new_mut(&mut frame[L3..]).unwrap().set_traffic_class(class);
                } else {
                    frame[L3 + 1] = class;
                    crate::testing::set_v4_checksum(&mut frame, L3);
                }
                let (_, wrapped) = wrap(&frame, Encapsulation::Ipip, &outer(family));
                let got = match family {
                    Family::V4 => wrapped[L3 + 1],
                    Family::V6 => wrapped[L3] << 4 | wrapped[L3 + 1] >> 4,
                };
                assert_eq!(got, if class & 3 == 3 { class - 1 } else { class });
                // The inner flow label (0x12345) stays inside.
                assert!(
                    family == Family::V4 || wrapped[L3 + 1] & 15 == 0 && wrapped[L3 + 2..L3 + 4] == [0, 0]
                );
            }
        }
    }
}

#[test]
fn df_goes_out_and_decides_on_the_identification() {
    for (flags, want) in [(0x4000u16, [0, 0, 0x40, 0]), (0, [0xab, 0xcd, 0, 0])] {
        let mut b = build(false, false);
        b.fragment = flags;
        let (_, wrapped) = wrap(&b.frame(), Encapsulation::Ipip, &outer(Family::V4));
        assert_eq!(wrapped[L3 + 4..L3 + 8], want);
    }
    let (_, wrapped) = wrap(&build(true, false).frame(), Encapsulation::Ipip, &outer(Family::V4));
    assert_eq!(wrapped[L3 + 4..L3 + 8], [0xab, 0xcd, 0, 0]);
}

#[test]
fn what_cannot_be_wrapped_stays_as_it_is() {
    let mut b = build(false, true);
    let frame = b.frame();
    let p = parse(&frame).unwrap();
    let how = Encapsulation::Gre { checksum: true };
    let mut buf = vec![0; 47];
    buf.extend_from_slice(&frame);
    let before = buf.clone();
    assert_eq!(encapsulate(&mut buf, 47, &p, how, &outer(Family::V6)), Err(TunnelError::NoHeadRoom));
    assert_eq!(buf, before);

    b.data = vec![7; 65_507];
    let long = b.frame();
    let p = parse(&long).unwrap();
    let mut buf = vec![0; 48];
    buf.extend_from_slice(&long);
    let before = buf.clone();
    assert_eq!(encapsulate(&mut buf, 48, &p, how, &outer(Family::V4)), Err(TunnelError::TooLong));
    assert_eq!(buf, before);
    assert_eq!(encapsulate(&mut buf, 48, &p, Encapsulation::Ipip, &outer(Family::V6)), Ok(8));
}

#[test]
fn what_cannot_be_fragmented_is_refused() {
    let emit = &mut |_: &[u8]| panic!("emitted");
    let (_, df) = wrap(&build(false, false).frame(), Encapsulation::Ipip, &outer(Family::V4));
    assert_eq!(fragment(&df, 60, 1, emit), Err(FragmentError::DontFragment));
    let (_, six) = wrap(&build(false, false).frame(), Encapsulation::Ipip, &outer(Family::V6));
    assert_eq!(fragment(&six, 55, 1, emit), Err(FragmentError::MtuTooSmall));
    assert!(matches!(parse(&six[..30]), Err(ParseError::Ipv6Truncated)));
    assert_eq!(fragment(&six[..30], 1500, 1, emit), Err(FragmentError::Mismatch));
}

#[test]
fn overheads() {
    let bytes = |how: Encapsulation| (how.overhead(Family::V4), how.overhead(Family::V6));
    assert_eq!(HOWS.map(bytes), [(20, 40), (24, 44), (28, 48)]);
    assert_eq!(HOWS.map(|h| h.overhead(Family::V6)).into_iter().max(), Some(Encapsulation::MAX_OVERHEAD));
}
