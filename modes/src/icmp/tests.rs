use proptest::prelude::*;

use super::*;
use crate::checksum::pseudo_of;
use crate::packet::{parse, tcp_flags};
use crate::testing::{Build, set_v4_checksum};

fn may(b: &Build) -> bool {
    let f = b.frame();
    may_answer(&parse(&f).expect("good"), &f)
}

#[test]
fn who_is_answered_v4() {
    let tcp = Build::v4(proto::TCP);
    assert!(may(&tcp));
    assert!(may(&Build { fragment: 0x2000, ..tcp.clone() }));
    assert!(!may(&Build { fragment: 0x2001, ..tcp.clone() }));
    for src in [0, 0x0000_0001, 0x7f00_0001, 0xe000_0001, 0xffff_ffff] {
        assert!(!may(&Build { src: Addr(src), ..tcp.clone() }), "{src:x}");
    }
    for dst in [0xe000_0001, 0xefff_ffff, 0xffff_ffff] {
        assert!(!may(&Build { dst: Addr(dst), ..tcp.clone() }), "{dst:x}");
    }
    let icmp = |kind| may(&Build { flags: kind, ..Build::v4(proto::ICMP) });
    assert!([0, 8, 9, 10, 13, 14, 15, 16, 17, 18].into_iter().all(icmp));
    assert!(![3, 4, 5, 11, 12, 1, 2, 6, 19, 40, 255].into_iter().any(icmp));
    let mut group = tcp.frame();
    let p = parse(&group).expect("good");
    group[0] |= 1;
    assert!(!may_answer(&p, &group) && !may_answer(&p, &group[..13]));
}

#[test]
fn who_is_answered_v6() {
    let tcp = Build::v6(proto::TCP);
    assert!(may(&tcp));
    for src in [0, 1, 0xff02 << 112 | 1] {
        assert!(!may(&Build { src: Addr(src), ..tcp.clone() }), "{src:x}");
    }
    assert!(!may(&Build { dst: Addr(0xff02 << 112 | 1), ..tcp.clone() }));
    let icmp = |kind| may(&Build { flags: kind, ..Build::v6(proto::ICMPV6) });
    assert!([128, 129, 135, 200].into_iter().all(icmp));
    assert!(![1, 2, 3, 4, 100, 127, 137].into_iter().any(icmp));
}

/// The error about `b`, parsed; its checksum and lengths are checked.
fn told(b: &Build, problem: Problem, from: Addr) -> (Packet, Vec<u8>) {
    let f = b.frame();
    let p = parse(&f).expect("good");
    let mut out = vec![0xaa; 3];
    assert!(error(&f, &p, problem, from, 0x4711, &mut out));
    let e = parse(&out).expect("a good error");
    assert_eq!(out.len(), e.end);
    let mut sum = match e.family {
        Family::V4 => Sum::new(),
        Family::V6 => pseudo_of(&out, &e, e.end - e.l4).expect("fits"),
    };
    sum.add_bytes(&out[e.l4..]);
    assert_eq!(sum.fold(), 0xffff);
    assert_eq!((e.src, e.dst, e.ttl, e.l3), (from, p.src, 64, p.l3));
    assert_eq!(out[..6], f[6..12]);
    assert_eq!(out[6..12], f[..6]);
    assert_eq!(out[12..e.l3], f[12..p.l3]);
    let quote = &out[e.l4 + 8..];
    assert_eq!(quote, &f[p.l3..p.l3 + quote.len()]);
    (e, out)
}

#[test]
fn kinds_v4() {
    let kinds = [
        (Problem::TimeExceeded, [11, 0, 0, 0, 0, 0]),
        (Problem::PortUnreachable, [3, 3, 0, 0, 0, 0]),
        (Problem::HostUnreachable, [3, 1, 0, 0, 0, 0]),
        (Problem::NoRoute, [3, 0, 0, 0, 0, 0]),
        (Problem::TooBig { mtu: 1400 }, [3, 4, 0, 0, 5, 0x78]),
        (Problem::TooBig { mtu: 70_000 }, [3, 4, 0, 0, 0xff, 0xff]),
        (Problem::Parameter { pointer: 21 }, [12, 0, 21, 0, 0, 0]),
    ];
    for (problem, b) in kinds {
        let build = Build { tags: vec![0x88a8, 0x8100], ..Build::v4(proto::UDP) };
        let (e, out) = told(&build, problem, Addr(0x0a00_0001));
        let h = &out[e.l4..];
        assert_eq!([h[0], h[1], h[4], h[5], h[6], h[7]], b);
        assert_eq!((out[e.l3 + 1], &out[e.l3 + 4..e.l3 + 8]), (0xc0, &[0x47, 0x11, 0, 0][..]));
    }
}

#[test]
fn kinds_v6() {
    let kinds = [
        (Problem::TimeExceeded, [3, 0, 0, 0, 0, 0]),
        (Problem::PortUnreachable, [1, 4, 0, 0, 0, 0]),
        (Problem::HostUnreachable, [1, 3, 0, 0, 0, 0]),
        (Problem::NoRoute, [1, 0, 0, 0, 0, 0]),
        (Problem::TooBig { mtu: 70_000 }, [2, 0, 0, 1, 0x11, 0x70]),
        (Problem::Parameter { pointer: 6 }, [4, 0, 0, 0, 0, 6]),
    ];
    for (problem, b) in kinds {
        let (e, out) = told(&Build::v6(proto::TCP), problem, Addr(0x2001 << 112 | 5));
        let h = &out[e.l4..];
        assert_eq!([h[0], h[1], h[4], h[5], h[6], h[7]], b);
    }
}

#[test]
fn quotes_end_where_the_rfcs_say() {
    for (data, padding) in [(0, 6), (547, 0), (548, 0), (549, 0), (3000, 0)] {
        let b = Build { data: vec![7; data], padding, ..Build::v4(47) };
        let (e, _) = told(&b, Problem::TimeExceeded, Addr(1));
        assert_eq!(e.end - e.l3, (20 + 8 + 20 + data).min(576));
        let b = Build { data: vec![7; data], padding, ..Build::v6(47) };
        let (e, _) = told(&b, Problem::TimeExceeded, Addr(1));
        assert_eq!(e.end - e.l3, (40 + 8 + 40 + data).min(1280));
    }
}

#[test]
fn no_error_about_an_error() {
    let f = Build { flags: 3, ..Build::v4(proto::ICMP) }.frame();
    let mut out = vec![1];
    assert!(!error(&f, &parse(&f).expect("good"), Problem::NoRoute, Addr(1), 1, &mut out));
    assert!(out.is_empty());
}

/// An error of type `kind` that quotes `quote`.
fn quoting(outer: Build, kind: u8, quote: &[u8]) -> Vec<u8> {
    Build { flags: kind, data: quote.to_vec(), ..outer }.frame()
}

fn inner_of(frame: &[u8]) -> Option<Inner> {
    embedded(frame, &parse(frame).expect("a good frame"))
}

#[test]
fn quoted_packets_are_read() {
    for b in [Build::v4(proto::TCP), Build::v4(proto::UDP), Build::v6(proto::TCP), Build::v6(proto::SCTP)] {
        let f = b.frame();
        let p = parse(&f).expect("good");
        let mut out = Vec::new();
        assert!(error(&f, &p, Problem::TooBig { mtu: 1300 }, b.dst, 1, &mut out));
        let e = parse(&out).expect("good");
        let inner = inner_of(&out).expect("a quote");
        assert_eq!((inner.family, inner.proto, inner.src, inner.dst), (p.family, p.proto, p.src, p.dst));
        assert_eq!((inner.sport, inner.dport), (30000, 80));
        assert_eq!((inner.off, inner.l4), (e.l4 + 8, e.l4 + 8 + p.l4 - p.l3));
        let kind = if b.family == Family::V4 { (3, 4) } else { (2, 0) };
        assert_eq!((inner.icmp_type, inner.icmp_code), kind);
    }
}

#[test]
fn eight_bytes_of_transport_are_enough_and_needed() {
    let tcp = Build::v4(proto::TCP).frame();
    let inner = inner_of(&quoting(Build::v4(proto::ICMP), 11, &tcp[14..42])).expect("a quote");
    assert_eq!((inner.sport, inner.dport), (30000, 80));
    assert_eq!(inner_of(&quoting(Build::v4(proto::ICMP), 11, &tcp[14..41])), None);
    let v6 = Build::v6(proto::UDP).frame();
    let inner = inner_of(&quoting(Build::v6(proto::ICMPV6), 1, &v6[14..62])).expect("a quote");
    assert_eq!((inner.sport, inner.dport), (30000, 80));
    assert_eq!(inner_of(&quoting(Build::v6(proto::ICMPV6), 1, &v6[14..61])), None);
    // No ports in an echo: its IP header will do.
    let echo = Build { flags: 8, ..Build::v4(proto::ICMP) }.frame();
    let inner = inner_of(&quoting(Build::v4(proto::ICMP), 3, &echo[14..34])).expect("a quote");
    assert_eq!((inner.proto, inner.sport), (proto::ICMP, 0));
}

#[test]
fn quotes_that_are_none() {
    let v4 = Build::v4(proto::ICMP);
    let tcp = Build { fragment: 0, ..Build::v4(proto::TCP) }.frame();
    let tell = |kind| inner_of(&quoting(v4.clone(), kind, &tcp[14..])).is_some();
    assert!([3, 4, 11, 12].into_iter().all(tell));
    assert!(![0, 5, 8, 13].into_iter().any(tell));
    let v6_quote = Build::v6(proto::TCP).frame();
    let tell = |kind| inner_of(&quoting(Build::v6(proto::ICMPV6), kind, &v6_quote[14..])).is_some();
    assert!((1..=4).all(tell));
    assert!(![0, 5, 128, 137].into_iter().any(tell));
    let damaged = |at: usize, v: u8| {
        let mut quote = tcp[14..].to_vec();
        quote[at] = v;
        inner_of(&quoting(v4.clone(), 3, &quote))
    };
    assert_eq!(damaged(0, 0x65), None);
    assert_eq!(damaged(0, 0x44), None);
    assert_eq!(damaged(0, 0x4f), None);
    assert_eq!(damaged(7, 1), None);
    // Checksum and length are not judged.
    assert!(damaged(10, 0).is_some() && damaged(2, 9).is_some());
    // The other family's, and a TCP segment.
    assert_eq!(inner_of(&quoting(v4.clone(), 3, &v6_quote[14..])), None);
    assert_eq!(inner_of(&tcp), None);
    let mut later = quoting(v4, 3, &tcp[14..]);
    later[21] = 1;
    set_v4_checksum(&mut later, 14);
    assert_eq!(inner_of(&later), None);
}

#[test]
fn quoted_extension_headers() {
    let hop = [17, 0, 1, 4, 0, 0, 0, 0].to_vec();
    let b = Build { first: Some(0), extra: hop, ..Build::v6(proto::UDP) };
    let quote = &b.frame()[14..];
    let inner = inner_of(&quoting(Build::v6(proto::ICMPV6), 3, quote)).expect("a quote");
    assert_eq!((inner.proto, inner.dport, inner.l4 - inner.off), (17, 80, 48));
    let later = Build { first: Some(44), extra: vec![17, 0, 0, 8, 0, 0, 0, 1], ..Build::v6(proto::UDP) };
    assert_eq!(inner_of(&quoting(Build::v6(proto::ICMPV6), 3, &later.frame()[14..])), None);
}

proptest! {
    #[test]
    fn any_frame(frame in crate::packet::tests::frames(), mtu in any::<u32>(), cut in 0..100usize) {
        let Ok(p) = parse(&frame) else { return Ok(()) };
        let mut out = Vec::new();
        let told = error(&frame, &p, Problem::TooBig { mtu }, p.dst, 7, &mut out);
        prop_assert_eq!(told, may_answer(&p, &frame));
        prop_assert_eq!(told, parse(&out).is_ok());
        let reset = crate::reset::reset(&frame, &p, &mut out);
        prop_assert_eq!(reset, parse(&out).is_ok_and(|p| p.tcp_flags & tcp_flags::RST != 0));
        embedded(&frame, &p);
        // A packet that is not this frame's.
        let short = &frame[..frame.len().min(cut)];
        error(short, &p, Problem::NoRoute, p.dst, 7, &mut out);
        crate::reset::reset(short, &p, &mut out);
        embedded(short, &p);
    }

    #[test]
    fn any_quote(quote in proptest::collection::vec(any::<u8>(), 0..120), v4 in any::<bool>(), kind in 0..13u8) {
        let mut quote = quote;
        let (outer, start) = if v4 { (Build::v4(1), 0x45) } else { (Build::v6(58), 0x60) };
        if let Some(first) = quote.first_mut() {
            *first = start;
        }
        let f = quoting(outer, kind, &quote);
        if let Some(inner) = inner_of(&f) {
            prop_assert!(inner.off < inner.l4 && inner.l4 <= f.len());
        }
    }
}
