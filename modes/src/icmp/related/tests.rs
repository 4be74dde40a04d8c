use proptest::prelude::*;

use super::*;
use crate::checksum::pseudo_of;
use crate::icmp::{embedded, inside};
use crate::packet::{Fragment, parse};
use crate::testing::Build;
use crate::tunnel::{Encapsulation, Outer, encapsulate};

/// An error about `quoted`, in a frame, parsed.
fn error(outer: &Build, kind: u8, quoted: &[u8]) -> (Vec<u8>, Packet) {
    let f = Build { flags: kind, data: quoted.to_vec(), ..outer.clone() }.frame();
    let mut f = f;
    let p = parse(&f).expect("good");
    let mut sum = Sum::new();
    if p.family == Family::V4 {
        f[p.l4 + 2..p.l4 + 4].fill(0);
        sum.add_bytes(&f[p.l4..p.end]);
        Icmp::new_mut(&mut f[p.l4..]).expect("8 bytes").set_checksum(sum.checksum());
    }
    (f, p)
}

/// Whether the checksums of headers and message are right.
fn sound(f: &[u8]) -> bool {
    let Ok(p) = parse(f) else { return false };
    let mut sum = match p.family {
        Family::V4 => Sum::new(),
        Family::V6 => pseudo_of(f, &p, p.end - p.l4).expect("fits"),
    };
    sum.add_bytes(&f[p.l4..p.end]);
    sum.fold() == 0xffff
}

fn icmp(v6: bool) -> Build {
    if v6 { Build::v6(proto::ICMPV6) } else { Build::v4(proto::ICMP) }
}

fn tcp(v6: bool) -> Build {
    if v6 { Build::v6(proto::TCP) } else { Build::v4(proto::TCP) }
}

#[test]
fn both_headers_are_translated_and_nothing_else() {
    for v6 in [false, true] {
        for toward in [Toward::Server, Toward::Client] {
            let quoted = &tcp(v6).frame()[14..];
            let (mut f, p) = error(&icmp(v6), if v6 { 1 } else { 3 }, quoted);
            let before = f.clone();
            let inner = embedded(&f, &p).expect("a quote");
            let end = (Addr(0x0a01_0203), 4711);
            translate(&mut f, &p, &inner, toward, end).expect("fits");
            assert!(sound(&f), "{toward:?}");
            let after = parse(&f).expect("good");
            let quote = embedded(&f, &after).expect("a quote");
            match toward {
                Toward::Server => {
                    assert_eq!((after.src, after.dst), (p.src, end.0));
                    assert_eq!((quote.src, quote.sport), end);
                    assert_eq!((quote.dst, quote.dport), (inner.dst, inner.dport));
                }
                Toward::Client => {
                    assert_eq!((after.src, after.dst), (end.0, p.dst));
                    assert_eq!((quote.dst, quote.dport), end);
                    assert_eq!((quote.src, quote.sport), (inner.src, inner.sport));
                }
            }
            assert_eq!(f[inner.l4 + 4..], before[inner.l4 + 4..]);
            assert_eq!(f[..14], before[..14]);
        }
    }
}

#[test]
fn a_quote_that_is_not_this_frames_is_refused() {
    for v6 in [false, true] {
        let quoted = &tcp(v6).frame()[14..];
        let (f, p) = error(&icmp(v6), if v6 { 1 } else { 3 }, quoted);
        let inner = embedded(&f, &p).expect("a quote");
        for cut in 0..inner.l4 + 4 {
            let mut short = f[..cut].to_vec();
            let done = translate(&mut short, &p, &inner, Toward::Server, (Addr(1), 1));
            assert_eq!(done, Err(NatError::Mismatch), "{cut}");
            let mut out = vec![1];
            if cut < inner.off {
                assert!(!tell(&short, &p, &inner, Told::too_big(Family::V4, 9), Addr(1), 1, &mut out));
                assert!(out.is_empty());
            }
        }
    }
}

#[test]
fn what_says_too_big() {
    for (v6, kind, code, rest, want) in [
        (false, 3, 4, 0x0000_0578, Some(1400)),
        (false, 3, 4, 0x1234_0578, Some(1400)),
        (false, 3, 3, 1400, None),
        (false, 11, 4, 1400, None),
        (true, 2, 0, 0x0001_0578, Some(66_936)),
        (true, 1, 4, 1400, None),
    ] {
        let (mut f, p) = error(&icmp(v6), kind, &tcp(v6).frame()[14..]);
        f[p.l4 + 1] = code;
        f[p.l4 + 4..p.l4 + 8].copy_from_slice(&u32::to_be_bytes(rest));
        let inner = embedded(&f, &p).expect("a quote");
        assert_eq!(too_big(&f, &p, &inner), want, "{kind}/{code}");
    }
}

/// An error about the outer packet of a tunnel is told anew, to the inner packet's sender and about the inner packet.
#[test]
fn errors_about_a_tunnel_are_told_anew() {
    let hows =
        [Encapsulation::Ipip, Encapsulation::Gre { checksum: false }, Encapsulation::Gre { checksum: true }];
    for (inner_v6, outer_v6, how) in [false, true]
        .into_iter()
        .flat_map(|i| [false, true].map(|o| (i, o)))
        .flat_map(|(i, o)| hows.map(|h| (i, o, h)))
    {
        let client = tcp(inner_v6);
        let family = if outer_v6 { Family::V6 } else { Family::V4 };
        let outer = Outer { family, src: Addr(0x0a01_00fe), dst: Addr(0x0a01_0001), id: 7 };
        let packet = client.frame();
        let mut buf = [vec![0; 64], packet.clone()].concat();
        let start = encapsulate(&mut buf, 64, &parse(&packet).expect("good"), how, &outer).expect("room");
        let quoted = &buf[start + 14..];
        let (f, p) = error(&icmp(outer_v6), if outer_v6 { 2 } else { 3 }, quoted);
        let about = embedded(&f, &p).expect("a quote");
        assert_eq!((about.src, about.dst), (outer.src, outer.dst));
        let inner = inside(&f, &p, &about).expect("a packet inside");
        assert_eq!((inner.src, inner.dst, inner.sport, inner.dport), (client.src, client.dst, 30000, 80));
        assert_eq!((inner.icmp_type, inner.icmp_code), (about.icmp_type, about.icmp_code));
        let told = Told::too_big(inner.family, 1300);
        let mut out = Vec::new();
        assert!(tell(&f, &p, &inner, told, client.dst, 7, &mut out));
        assert!(sound(&out));
        let e = parse(&out).expect("good");
        assert_eq!(
            (e.family, e.src, e.dst, e.fragment),
            (inner.family, client.dst, client.src, Fragment::Whole)
        );
        let again = embedded(&out, &e).expect("a quote");
        assert_eq!(too_big(&out, &e, &again), Some(1300));
        assert_eq!(out[again.off..], packet[14..]);
        // Cut anywhere before the eighth byte of the inner transport header there is nothing to be told.
        for cut in 0..inner.l4 + 8 - about.off {
            let (f, p) = error(&icmp(outer_v6), if outer_v6 { 2 } else { 3 }, &quoted[..cut]);
            assert_eq!(embedded(&f, &p).and_then(|o| inside(&f, &p, &o)), None);
        }
    }
}

#[test]
fn what_is_no_tunnel() {
    let quote = |proto: u8, payload: &[u8]| {
        let b = Build { data: payload.to_vec(), ..Build::v4(proto) };
        let (f, p) = error(&icmp(false), 3, &b.frame()[14..]);
        let outer = embedded(&f, &p)?;
        inside(&f, &p, &outer)
    };
    let inner = tcp(false).frame()[14..].to_vec();
    let gre = |head: &[u8]| quote(proto::GRE, &[head, &inner].concat());
    assert!(quote(proto::IPIP, &inner).is_some() && gre(&[0, 0, 8, 0]).is_some());
    assert!(quote(proto::IPV6, &inner).is_none() && quote(50, &inner).is_none());
    assert!(gre(&[0x20, 0, 8, 0, 0, 0, 0, 1]).is_none(), "a key");
    assert!(gre(&[0x10, 0, 8, 0, 0, 0, 0, 1]).is_none(), "a sequence number");
    assert!(gre(&[0, 1, 8, 0]).is_none(), "version 1");
    assert!(gre(&[0, 0, 0x86, 0xdd]).is_none() && gre(&[0, 0, 8, 6]).is_none());
    assert!(quote(proto::GRE, &[0, 0, 8]).is_none());
}

proptest! {
    #[test]
    fn any_frame(frame in crate::packet::tests::frames(), server in any::<bool>(), cut in 0..120usize) {
        let Ok(p) = parse(&frame) else { return Ok(()) };
        let Some(inner) = embedded(&frame, &p) else { return Ok(()) };
        let toward = if server { Toward::Server } else { Toward::Client };
        let mut f = frame.clone();
        if translate(&mut f, &p, &inner, toward, (Addr(7), 7)).is_ok() {
            prop_assert_eq!(sound(&f), sound(&frame));
        }
        let mut short = frame[..frame.len().min(cut)].to_vec();
        let _ = translate(&mut short, &p, &inner, toward, (Addr(7), 7));
        if let Some(carried) = inside(&frame, &p, &inner) {
            let mut out = Vec::new();
            prop_assert!(tell(&frame, &p, &carried, Told::too_big(carried.family, 1300), Addr(9), 1, &mut out));
            prop_assert!(sound(&out));
            tell(&short, &p, &carried, Told::too_big(carried.family, 1300), Addr(9), 1, &mut out);
        }
        too_big(&short, &p, &inner);
    }
}
