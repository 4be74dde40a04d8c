use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Addr;
use crate::packet::parse;
use crate::testing::{Build, L3};

fn build(v6: bool, protocol: u8, data: Vec<u8>) -> Build {
    let mut b = if v6 { Build::v6(protocol) } else { Build::v4(protocol) };
    b.data = data;
    b
}

/// A TCP super-packet with options, and a checksum as a sender with offloads leaves it.
fn super_tcp(v6: bool, flags: u8, seq: u32, options: &[u8], data: &[u8]) -> Vec<u8> {
    let mut b = build(v6, proto::TCP, [options, data].concat());
    b.flags = flags;
    let mut frame = b.frame();
    let p = parse(&frame).unwrap();
    frame[p.l4 + 4..p.l4 + 8].copy_from_slice(&seq.to_be_bytes());
    frame[p.l4 + 12] = ((20 + options.len()) / 4 * 16) as u8;
    let partial = pseudo_of(&frame, &p, p.end - p.l4).unwrap().fold();
    frame[p.l4 + 16..p.l4 + 18].copy_from_slice(&partial.to_be_bytes());
    frame
}

fn pieces(frame: &[u8], size: u16, room: usize) -> Vec<(Vec<u8>, Packet)> {
    let p = parse(frame).unwrap();
    let mut all = Vec::new();
    let n = segment(frame, &p, size, room, &mut |buf, q| all.push((buf[room..].to_vec(), q))).unwrap();
    assert_eq!(n, all.len());
    for (f, q) in &all {
        // Parses to what was handed over with it, but for the addresses that need not be looked at again.
        assert_eq!(parse(f).as_ref(), Ok(q));
        assert_eq!(q.end, f.len());
        assert_eq!(&f[..L3], &frame[..L3]);
    }
    all
}

/// The checksum over pseudo-header and segment, plainly.
fn checksum_ok(frame: &[u8], p: &Packet) -> bool {
    let mut sum = pseudo_of(frame, p, p.end - p.l4).unwrap();
    sum.add_bytes(&frame[p.l4..p.end]);
    sum.fold() == 0xffff
}

proptest! {
    #[test]
    fn tcp_segments_make_up_the_super_packet(
        v6: bool, flags: u8, seq: u32, words in 0usize..=10, data in vec(any::<u8>(), 0..9000), size in 64u16..1500,
        room in 0usize..64,
    ) {
        let flags = flags & !(tcp_flags::SYN | tcp_flags::RST);
        let options = vec![1; words * 4];
        let frame = super_tcp(v6, flags, seq, &options, &data);
        let all = pieces(&frame, size, room);
        prop_assert_eq!(all.len(), data.len().div_ceil(size.into()).max(1));
        let mut got = Vec::new();
        for (i, (f, q)) in all.iter().enumerate() {
            let (first, last) = (i == 0, i + 1 == all.len());
            let tcp = Tcp::new(&f[q.l4..]).unwrap();
            prop_assert!(checksum_ok(f, q));
            prop_assert_eq!(tcp.seq(), seq.wrapping_add(got.len() as u32));
            let on_last = tcp_flags::FIN | tcp_flags::PSH;
            let mut want = flags;
            if !last { want &= !on_last; }
            if !first { want &= !CWR; }
            prop_assert_eq!((tcp.flags(), q.tcp_flags), (want, want));
            prop_assert_eq!(&f[q.l4 + 20..q.l4 + 20 + options.len()], &options[..]);
            // Window, urgent pointer, acknowledgement are the super-packet's.
            prop_assert_eq!(&f[q.l4 + 8..q.l4 + 13], &frame[q.l4 + 8..q.l4 + 13]);
            prop_assert_eq!(&f[q.l4 + 14..q.l4 + 16], &frame[q.l4 + 14..q.l4 + 16]);
            if !v6 {
                prop_assert_eq!(f[L3 + 4..L3 + 6].to_vec(), (0x1234 + i as u16).to_be_bytes().to_vec());
            }
            let payload = &f[q.l4 + 20 + options.len()..];
            prop_assert!(last || payload.len() == usize::from(size));
            got.extend_from_slice(payload);
        }
        prop_assert_eq!(got, data);
    }

    #[test]
    fn udp_segments_make_up_the_super_packet(v6: bool, data in vec(any::<u8>(), 1..9000), size in 64u16..1500) {
        let frame = build(v6, proto::UDP, data.clone()).frame();
        let mut got = Vec::new();
        for (f, q) in pieces(&frame, size, 20) {
            prop_assert!(checksum_ok(&f, &q));
            prop_assert_eq!(Udp::new(&f[q.l4..]).unwrap().length(), q.end - q.l4);
            prop_assert_eq!((q.sport, q.dport), (30000, 80));
            got.extend_from_slice(&f[q.l4 + 8..]);
        }
        prop_assert_eq!(got, data);
    }

    #[test]
    fn no_input_panics(
        bytes in vec(any::<u8>(), 0..200), l3 in 0usize..80, l4 in 0usize..120, end in 0usize..220, protocol in 0usize..3,
        v6: bool, size in 0u16..40, room in 0usize..20,
    ) {
        let p = Packet {
            family: if v6 { Family::V6 } else { Family::V4 },
            proto: [proto::TCP, proto::UDP, proto::SCTP][protocol],
            src: Addr(1), dst: Addr(2), sport: 1, dport: 2, tcp_flags: 0, fragment: Fragment::Whole, ttl: 9,
            dont_fragment: false, l3, l4, end,
        };
        let _ = segment(&bytes, &p, size, room, &mut |_, _| ());
    }
}

#[test]
fn ipv4_options_and_extension_headers_are_on_every_segment() {
    let mut b = build(false, proto::TCP, vec![3; 300]);
    (b.flags, b.extra) = (tcp_flags::ACK, vec![1, 1, 1, 0]);
    for (f, q) in pieces(&b.frame(), 100, 0) {
        assert_eq!((q.l4 - q.l3, f[L3 + 20..L3 + 24].to_vec()), (24, vec![1, 1, 1, 0]));
        assert!(checksum_ok(&f, &q));
    }
    let mut b = build(true, proto::TCP, vec![3; 300]);
    (b.flags, b.first, b.extra) =
        (tcp_flags::ACK, Some(proto::DESTINATION_OPTIONS), vec![proto::TCP, 0, 1, 4, 0, 0, 0, 0]);
    let all = pieces(&b.frame(), 100, 0);
    assert_eq!(all.len(), 3);
    for (f, q) in all {
        assert_eq!(q.l4 - q.l3, 48);
        assert!(checksum_ok(&f, &q));
    }
}

#[test]
fn a_datagram_without_checksum_stays_without() {
    for v6 in [false, true] {
        let mut frame = build(v6, proto::UDP, vec![9; 300]).frame();
        let p = parse(&frame).unwrap();
        frame[p.l4 + 6..p.l4 + 8].fill(0);
        for (f, q) in pieces(&frame, 100, 0) {
            // IPv6 knows no datagram without (RFC 8200 section 8.1).
            assert_eq!(f[q.l4 + 6..q.l4 + 8] == [0, 0], !v6);
            assert!(!v6 || checksum_ok(&f, &q));
        }
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let refused = |frame: &[u8], size: u16| {
        segment(frame, &parse(frame).unwrap(), size, 0, &mut |_, _| panic!("emitted"))
    };
    let data = vec![1; 60_000];
    for flags in [tcp_flags::SYN, tcp_flags::RST | tcp_flags::ACK] {
        assert_eq!(refused(&super_tcp(false, flags, 1, &[], &data), 1000), Err(SegmentError::Unfit));
    }
    let ok = super_tcp(false, tcp_flags::ACK, 1, &[], &data);
    assert_eq!(refused(&ok, 0), Err(SegmentError::TooMany));
    assert_eq!(refused(&ok, 43), Err(SegmentError::TooMany));
    assert_eq!(pieces(&ok, 44, 0).len(), 1364);
    assert_eq!(refused(&build(false, proto::SCTP, data.clone()).frame(), 1000), Err(SegmentError::Unfit));
    let mut short = build(false, proto::UDP, data).frame();
    short[L3 + 24..L3 + 26].copy_from_slice(&100u16.to_be_bytes());
    assert_eq!(refused(&short, 1000), Err(SegmentError::Unfit));
    let mut b = build(false, proto::UDP, vec![1; 300]);
    b.fragment = 0x2000;
    assert_eq!(refused(&b.frame(), 100), Err(SegmentError::Unfit));
}
