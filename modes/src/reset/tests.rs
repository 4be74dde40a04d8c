use super::*;
use crate::checksum::pseudo_of;
use crate::packet::parse;
use crate::testing::Build;
use tcp_flags::*;

/// Sequence number, acknowledgement and flags of the reset that answers `b`.
fn answer(b: &Build) -> Option<(u32, u32, u8)> {
    let f = b.frame();
    let p = parse(&f).expect("good");
    let mut out = vec![0xaa];
    if !reset(&f, &p, &mut out) {
        assert!(out.is_empty());
        return None;
    }
    let r = parse(&out).expect("a good segment");
    assert_eq!((r.src, r.dst, r.sport, r.dport), (p.dst, p.src, p.dport, p.sport));
    assert_eq!((r.end, r.end - r.l4, r.ttl, r.dont_fragment), (out.len(), 20, 64, true));
    let mut sum = pseudo_of(&out, &r, 20).expect("fits");
    sum.add_bytes(&out[r.l4..]);
    assert_eq!(sum.fold(), 0xffff);
    assert_eq!(out[..6], f[6..12]);
    assert_eq!(out[12..r.l3], f[12..p.l3]);
    let tcp = Tcp::new(&out[r.l4..]).expect("20 bytes");
    Some((tcp.seq(), tcp.ack(), tcp.flags()))
}

#[test]
fn numbers_follow_rfc_9293() {
    // Built segments have sequence number 100, acknowledgement 200 and 9 bytes of data.
    for b in [Build::v4(proto::TCP), Build { tags: vec![0x8100], ..Build::v6(proto::TCP) }] {
        let with = |flags| answer(&Build { flags, ..b.clone() });
        assert_eq!(with(ACK), Some((200, 0, RST)));
        assert_eq!(with(ACK | SYN), Some((200, 0, RST)));
        assert_eq!(with(SYN), Some((0, 110, RST | ACK)));
        assert_eq!(with(FIN), Some((0, 110, RST | ACK)));
        assert_eq!(with(SYN | FIN), Some((0, 111, RST | ACK)));
        assert_eq!(with(0), Some((0, 109, RST | ACK)));
        assert_eq!(with(RST), None);
        assert_eq!(with(RST | ACK), None);
    }
}

#[test]
fn padding_is_no_data() {
    let b = Build { data: vec![], padding: 6, ..Build::v4(proto::TCP) };
    assert_eq!(answer(&b), Some((0, 101, RST | ACK)));
}

#[test]
fn others_get_none() {
    assert_eq!(answer(&Build::v4(proto::UDP)), None);
    assert_eq!(answer(&Build { fragment: 0x2000, ..Build::v4(proto::TCP) }), None);
    assert_eq!(answer(&Build { dst: Addr(0xe000_0001), ..Build::v4(proto::TCP) }), None);
    assert_eq!(answer(&Build { src: Addr(0), ..Build::v6(proto::TCP) }), None);
}
