use proptest::prelude::*;

use super::*;
use crate::packet::parse;
use crate::testing::Build;

/// Translates `b`'s frame and compares it with a frame built with the new ends.
fn check(b: &Build, to: &Rewrite) -> Result<(), TestCaseError> {
    let mut f = b.frame();
    let p = parse(&f).expect("a good frame");
    apply(&mut f, &p, to, false).expect("can be translated");
    let mut expect = b.clone();
    if let Some((addr, port)) = to.src {
        (expect.src, expect.ports.0) = (addr, port);
    }
    if let Some((addr, port)) = to.dst {
        (expect.dst, expect.ports.1) = (addr, port);
    }
    prop_assert_eq!(f, expect.frame());
    Ok(())
}

fn end(family: Family) -> impl Strategy<Value = Option<(Addr, u16)>> {
    let addr = any::<u128>().prop_map(move |a| match family {
        Family::V4 => Addr(a >> 96),
        Family::V6 => Addr(a),
    });
    proptest::option::of((addr, any::<u16>()))
}

fn case() -> impl Strategy<Value = (Build, Rewrite)> {
    let data = proptest::collection::vec(any::<u8>(), 0..240);
    let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
    let kind = prop_oneof![Just(proto::TCP), Just(proto::UDP), Just(proto::ICMPV6), Just(47u8)];
    (family, kind, data, any::<(u16, u16)>(), 0..7usize).prop_flat_map(
        |(family, kind, data, ports, padding)| {
            (end(family), end(family)).prop_map(move |(src, dst)| {
                let b = if family == Family::V4 { Build::v4(kind) } else { Build::v6(kind) };
                let data = data.clone();
                (Build { data, ports, padding, ..b }, Rewrite { src, dst })
            })
        },
    )
}

proptest! {
    #[test]
    fn equals_a_frame_built_so((b, to) in case()) {
        if b.family == Family::V4 && b.proto == proto::ICMPV6 {
            return Ok(());
        }
        check(&b, &to)?;
    }

    #[test]
    fn partial_stays_partial((b, to) in case()) {
        let mut f = b.frame();
        let p = parse(&f).expect("good");
        let at = match p.proto {
            proto::TCP => p.l4 + 16,
            proto::UDP => p.l4 + 6,
            _ => return Ok(()),
        };
        let sum = crate::checksum::pseudo(p.family, p.src, p.dst, p.proto, p.end - p.l4);
        f[at..at + 2].copy_from_slice(&sum.fold().to_be_bytes());
        apply(&mut f, &p, &to, true).expect("can be translated");
        let now = parse(&f).expect("still good");
        prop_assert!(crate::checksum::is_partial(&f, &now));
    }

    #[test]
    fn never_panics(frame in crate::packet::tests::frames(), (_, to) in case(), cut in 0..80usize, partial in any::<bool>()) {
        let Ok(p) = parse(&frame) else { return Ok(()) };
        let mut whole = frame.clone();
        prop_assert_ne!(apply(&mut whole, &p, &to, partial), Err(NatError::Mismatch));
        // A packet that is not this frame's.
        let mut short = frame[..frame.len().min(cut)].to_vec();
        let _ = apply(&mut short, &p, &to, partial);
    }
}

const TO: Rewrite = Rewrite { src: None, dst: Some((Addr(0x0a01_0001), 8080)) };

#[test]
fn damage_stays_visible() {
    let mut f = Build::v4(proto::TCP).frame();
    let p = parse(&f).expect("good");
    *f.last_mut().expect("data") ^= 0x10;
    apply(&mut f, &p, &TO, false).expect("can be translated");
    let sum = |f: &[u8]| {
        let mut s = pseudo_of(f, &p, p.end - p.l4).expect("fits");
        s.add_bytes(&f[p.l4..p.end]);
        s.fold()
    };
    assert_ne!(sum(&f), 0xffff);
    *f.last_mut().expect("data") ^= 0x10;
    assert_eq!(sum(&f), 0xffff);
}

#[test]
fn datagram_without_checksum_gets_one_over_its_own_length() {
    let mut b = Build { data: b"abc".to_vec(), ..Build::v4(proto::UDP) };
    let mut f = b.frame();
    let at = 34 + 6;
    f[at..at + 2].fill(0);
    // Two bytes behind the datagram but within the IP packet.
    f.extend([9, 9]);
    f[17] += 2;
    crate::testing::set_v4_checksum(&mut f, 14);
    let p = parse(&f).expect("good");
    apply(&mut f, &p, &TO, false).expect("can be translated");
    (b.dst, b.ports.1) = (Addr(0x0a01_0001), 8080);
    assert_eq!(f[34..34 + 11], b.frame()[34..]);
    assert_eq!(f[34 + 11..], [9, 9]);
}

#[test]
fn fragments() {
    let b = Build { fragment: 0x2000, ..Build::v4(proto::UDP) };
    check(&b, &TO).expect("a first fragment's checksum follows too");
    let mut without = b.frame();
    without[40..42].fill(0);
    let p = parse(&without).expect("good");
    apply(&mut without, &p, &TO, false).expect("can be translated");
    assert_eq!(without[36..42], [0x1f, 0x90, 0, 17, 0, 0]);
    let later = Build { fragment: 0x2001, ..Build::v4(proto::UDP) };
    let (mut f, payload) = (later.frame(), later.frame()[34..].to_vec());
    let p = parse(&f).expect("good");
    apply(&mut f, &p, &TO, false).expect("can be translated");
    assert_eq!(f[30..34], [10, 1, 0, 1]);
    assert_eq!(f[34..], payload);
    assert!(parse(&f).is_ok());
}

#[test]
fn sctp_fragment_keeps_its_ports_or_is_refused() {
    let original = Build { fragment: 0x2000, ..Build::v4(proto::SCTP) }.frame();
    let mut f = original.clone();
    let p = parse(&f).expect("good");
    assert_eq!(apply(&mut f, &p, &TO, false), Err(NatError::SctpFragment));
    assert_eq!(f, original);
    assert_eq!(dnat(&mut f, &p, Addr(0x0a01_0001), 80, false), Ok(()));
    assert_eq!(f[34..], original[34..]);
}
